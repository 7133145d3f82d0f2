//! Serving without a manager: a file says which CN gets how much, and this node gives out its extents itself.
//!
//! ```toml
//! [[map]]
//! cn = "02:00:00:00:00:01"   # the CN's MAC address
//! base = 0                   # first CMem byte address
//! size = "1GiB"
//! ```

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};

use serde::{Deserialize, Serialize};

use super::job::JobError;
use super::mappings::Mappings;
use crate::pool::{ByteSize, MpExtent};
use cxloe_mn_core::translation::Translation;
use cxloe_wire::frame::Mac;

/// The contents of a static map file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticMap {
    /// Who gets what.
    #[serde(default, rename = "map")]
    pub ranges: Vec<StaticRange>,
}

/// A CMem range of one CN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticRange {
    /// The CN id.
    pub cn: Mac,
    /// First CMem byte address, a multiple of the extent size.
    #[serde(default)]
    pub base: ByteSize,
    /// Length in bytes, a multiple of the extent size.
    pub size: ByteSize,
}

/// Why a static map cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StaticMapError {
    /// The file cannot be read.
    #[error("cannot read the static map {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The file is not TOML of the right shape.
    #[error("the static map {} cannot be read: {reason}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// A range does not consist of extents.
    #[error(
        "base {base} and size {size} of CN {cn} are not multiples of the extent size {extent}, or are too large"
    )]
    Range {
        /// The CN.
        cn: Mac,
        /// Its base.
        base: ByteSize,
        /// Its size.
        size: ByteSize,
        /// The pool's extent size.
        extent: ByteSize,
    },
    /// Two ranges of one CN share addresses.
    #[error("two ranges of CN {cn} overlap at CMem address {at:#x}")]
    Overlap {
        /// The CN.
        cn: Mac,
        /// An address in both.
        at: u64,
    },
    /// The pool is not large enough.
    #[error(
        "the static map asks for {needed}, the pool has {available}; enlarge --pool-size or give out less"
    )]
    Full {
        /// Bytes asked for.
        needed: ByteSize,
        /// Bytes there are.
        available: ByteSize,
    },
    /// The extents could not be made ready.
    #[error(transparent)]
    Job(#[from] JobError),
}

impl StaticMap {
    /// Reads a static map file.
    pub fn read(path: &Path) -> Result<StaticMap, StaticMapError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| StaticMapError::Io { path: path.into(), source })?;
        toml::from_str(&text)
            .map_err(|error| StaticMapError::Syntax { path: path.into(), reason: error.to_string() })
    }

    /// Makes `mappings` hold exactly this map. What a pool that kept its content has mapped already stays where
    /// it is, content included; new ranges read as zeros; what is no longer listed is removed and zeroed.
    pub fn apply(&self, mappings: &mut Mappings) -> Result<(), StaticMapError> {
        let table = mappings.table().clone();
        let (pool, shift) = (table.pool(), table.extent_shift());
        let mut addresses = HashSet::new();
        for range in &self.ranges {
            let &StaticRange { cn, base, size } = range;
            let extent = ByteSize(pool.extent_bytes());
            let end = base.0.checked_add(size.0).filter(|end| {
                *end <= 1 << 48 && base.0.is_multiple_of(extent.0) && size.0.is_multiple_of(extent.0)
            });
            let end = end.ok_or(StaticMapError::Range { cn, base, size, extent })?;
            let needed = addresses.len() as u64 + (size.0 >> shift);
            if needed > u64::from(pool.extents()) {
                let needed = ByteSize(needed << shift);
                return Err(StaticMapError::Full { needed, available: ByteSize(pool.bytes()) });
            }
            for cmem_extent in base.0 >> shift..end >> shift {
                if !addresses.insert((cn.to_u64(), cmem_extent)) {
                    return Err(StaticMapError::Overlap { cn, at: cmem_extent << shift });
                }
            }
        }
        let held: HashMap<_, _> = table.iter().map(|t| ((t.cn, t.cmem_extent), t.mp_extent)).collect();
        let kept: HashSet<MpExtent> =
            addresses.iter().filter_map(|address| held.get(address)).copied().collect();
        let mut free = (0..pool.extents()).map(MpExtent).filter(|extent| !kept.contains(extent));
        let mut granted = Vec::new();
        let mut addresses: Vec<_> = addresses.into_iter().collect();
        addresses.sort_unstable();
        let wanted = addresses
            .into_iter()
            .map(|(cn, cmem_extent)| {
                let mp_extent = held.get(&(cn, cmem_extent)).copied().unwrap_or_else(|| {
                    let extent = free.next().expect("as many extents as addresses, as checked above");
                    granted.push(extent);
                    extent
                });
                Translation { cn, cmem_extent, mp_extent }
            })
            .collect();
        let job = mappings.reconcile(wanted, granted);
        job.carry_out(&table, &AtomicBool::new(false), &AtomicU64::new(0), || ())?;
        mappings.finish(job, Ok(()));
        Ok(())
    }
}
