//! What can go wrong with a report.

use std::io;
use std::path::PathBuf;

/// A report could not be computed, written or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file system said no.
    #[error("{action} {} failed: {source}; check the folder and its rights", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a report.
    #[error("{} is not a report: {source}; give a file written with --json", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where it deviates.
        source: serde_json::Error,
    },
    /// The file is a report of another version.
    #[error("{} has schema {found}, and this program reads schema {expected}; use the program that wrote it", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The one this program knows.
        expected: u32,
    },
    /// A ratio is not written as `a/b` or `a/(b+c)`.
    #[error("the ratio {text:?} cannot be read; write it as a/b or a/(b+c), with names of results")]
    Expression {
        /// What was given.
        text: String,
    },
    /// A ratio names something that was not measured with that statistic.
    #[error(
        "the ratio {ratio} needs {statistic} of {name}, which this run did not measure; measure it in the same run"
    )]
    NotMeasured {
        /// The ratio.
        ratio: String,
        /// The statistic.
        statistic: &'static str,
        /// The name that is missing.
        name: String,
    },
    /// The limit is zero, so there is no ratio to it.
    #[error(
        "the ratio {ratio} divides by zero: the {statistic} of its limit is 0; take more samples, or time batches"
    )]
    ZeroLimit {
        /// The ratio.
        ratio: String,
        /// The statistic.
        statistic: &'static str,
    },
    /// The histogram log could not be written.
    #[error("writing the histogram log failed: {message}")]
    Log {
        /// What the writer said.
        message: String,
    },
    /// A picture could not be drawn.
    #[error("drawing the picture of {name} failed: {message}")]
    Picture {
        /// What it was to show.
        name: String,
        /// What the drawing library said.
        message: String,
    },
}
