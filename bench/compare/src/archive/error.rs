//! Errors of writing and reading an archive, with their remedies.

use std::io;
use std::path::PathBuf;

use cxloe_measure::report::ReportError;

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("cannot write {}: {source}; name a file in a folder that exists and may be written to", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file has another form than an archive's.
    #[error("{} is no archive of `cxloe-bench compare --archive`: {why}", path.display())]
    Foreign { path: PathBuf, why: String },
    /// A file of the archive differs from its checksum.
    #[error("{} was changed after it was made, or is incomplete: {why}", path.display())]
    Changed { path: PathBuf, why: String },
    /// A table or a picture could not be made.
    #[error(transparent)]
    Report(#[from] ReportError),
}
