//! Errors of reports.

use std::io;
use std::path::PathBuf;

/// Failure to compute, write or read a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file operation failed.
    #[error("{action} {} failed: {source}; check the folder and its rights", path.display())]
    File {
        /// Operation that failed, for the message.
        action: &'static str,
        /// Path that was written or read.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is not a report.
    #[error("{} is not a report: {source}; give a file written with --json", path.display())]
    Format {
        /// Path of a file that is no report.
        path: PathBuf,
        /// Position and kind of the deviation from the format.
        source: serde_json::Error,
    },
    /// The file is a report of another version.
    #[error("{} has schema {found}, and this program reads schema {expected}; use the program that wrote it", path.display())]
    Schema {
        /// Path of the report.
        path: PathBuf,
        /// Schema number in the file.
        found: u32,
        /// Schema number that this program reads.
        expected: u32,
    },
    /// A ratio is not written as `a/b` or `a/(b+c)`.
    #[error("the ratio {text:?} cannot be read; write it as a/b or a/(b+c), with names of results")]
    Expression {
        /// Text that is no name of a ratio.
        text: String,
    },
    /// A ratio names a result or statistic that was not measured.
    #[error(
        "the ratio {ratio} needs {statistic} of {name}, which this run did not measure; measure it in the same run"
    )]
    NotMeasured {
        /// Name of the ratio to compute.
        ratio: String,
        /// Name of the statistic to divide.
        statistic: &'static str,
        /// Name of the operand that was not measured.
        name: String,
    },
    /// The limit is zero, so there is no ratio to it.
    #[error(
        "the ratio {ratio} divides by zero: the {statistic} of its limit is 0; take more samples, or time batches"
    )]
    ZeroLimit {
        /// Name of the ratio to compute.
        ratio: String,
        /// Name of the statistic to divide.
        statistic: &'static str,
    },
    /// The histogram log could not be written.
    #[error("writing the histogram log failed: {message}")]
    Log {
        /// Message of the library that writes the log.
        message: String,
    },
    /// A picture could not be drawn.
    #[error("drawing the picture of {name} failed: {message}")]
    Picture {
        /// Title of the picture.
        name: String,
        /// Message of the drawing library.
        message: String,
    },
}
