//! On and off as an option's value, for what is on unless told otherwise.

use serde::{Deserialize, Serialize};

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// Done.
    On,
    /// Not done.
    Off,
}
