//! The file of a static map, which is applied before any compute node is served.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};

use cxloe_mn_core::job::JobError;
use cxloe_mn_core::mappings::Mappings;
pub use cxloe_mn_core::static_map::{StaticMap, StaticMapError, StaticRange};

use super::waiting::carry_out;

#[derive(Debug, thiserror::Error)]
pub enum StaticMapFailure {
    #[error("cannot read the static map {}: {source}", .path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("the static map {} cannot be read: {reason}", .path.display())]
    Syntax {
        path: PathBuf,
        /// Position and cause of the error.
        reason: String,
    },
    /// The map does not fit the pool, or its ranges overlap.
    #[error(transparent)]
    Map(#[from] StaticMapError),
    /// The extents could not be prepared.
    #[error(transparent)]
    Job(#[from] JobError),
}

/// Reads a static map file.
pub fn read(path: &Path) -> Result<StaticMap, StaticMapFailure> {
    let text =
        std::fs::read_to_string(path).map_err(|source| StaticMapFailure::Io { path: path.into(), source })?;
    toml::from_str(&text)
        .map_err(|error| StaticMapFailure::Syntax { path: path.into(), reason: error.to_string() })
}

/// Makes `mappings` hold exactly `map`, with all extents prepared. Blocks until they are zeroed.
pub fn apply(map: &StaticMap, mappings: &mut Mappings) -> Result<(), StaticMapFailure> {
    let job = map.apply(mappings)?;
    carry_out(&job, mappings.table(), &AtomicBool::new(false), &AtomicU64::new(0), || ())?;
    mappings.finish(job, Ok(()));
    Ok(())
}
