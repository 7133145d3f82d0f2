//! Errors of writing, reading and computing reports, with their remedies.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("{action} {} failed: {source}; check the folder and its rights", path.display())]
    File {
        /// Operation that failed, as a participle such as `writing`.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is not a report: {source}; give a file written with --json", path.display())]
    Format {
        path: PathBuf,
        /// Position and kind of the deviation from the format.
        source: serde_json::Error,
    },
    #[error("{} has schema {found}, and this program reads schema {expected}; use the program that wrote it", path.display())]
    Schema { path: PathBuf, found: u32, expected: u32 },
    /// The name of a ratio is not of the form `a/b` or `a/(b+c)`.
    #[error("the ratio {text:?} cannot be read; write it as a/b or a/(b+c), with names of results")]
    Expression { text: String },
    /// A ratio needs a result, or a statistic of a result, that was not measured.
    #[error(
        "the ratio {ratio} needs {statistic} of {name}, which this run did not measure; measure it in the same run"
    )]
    NotMeasured {
        ratio: String,
        /// Statistic whose values are divided.
        statistic: &'static str,
        /// Name of the result that was not measured.
        name: String,
    },
    /// The limit is zero, so that nothing can be divided by it.
    #[error(
        "the ratio {ratio} divides by zero: the {statistic} of its limit is 0; take more samples, or time batches"
    )]
    ZeroLimit {
        ratio: String,
        /// Statistic whose values are divided.
        statistic: &'static str,
    },
    #[error("writing the histogram log failed: {message}")]
    Log { message: String },
    #[error("drawing the picture of {name} failed: {message}")]
    Picture { name: String, message: String },
}
