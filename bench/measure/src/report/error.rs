//! Errors of writing and computing reports, with their remedies.

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
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
