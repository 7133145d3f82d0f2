//! The log of a daemon: lines on standard error, of which the operator chooses form and filter.

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// What is logged unless told otherwise.
pub const FILTER_DEFAULT: &str = "info";

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts the log of this process. `filter` is a level, or one per module, as in `info,cxloe_gmm=debug`; one that cannot
/// be read is named in the log, which then has [`FILTER_DEFAULT`].
///
/// # Panics
/// If the process has a log already.
pub fn start(filter: &str, format: LogFormat) {
    let (parsed, wrong) = match EnvFilter::try_new(filter) {
        Ok(parsed) => (parsed, None),
        Err(error) => (EnvFilter::new(FILTER_DEFAULT), Some(error)),
    };
    let log = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    match format {
        LogFormat::Json => log.json().init(),
        LogFormat::Text => log.with_target(false).init(),
    }
    if let Some(error) = wrong {
        tracing::warn!(filter, %error, "not a log filter; logging at {FILTER_DEFAULT}");
    }
}
