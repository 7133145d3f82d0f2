//! [`Initialisation`] as spelled on the command line and in the configuration file.

use cxloe_gmm_core::manager::Initialisation;
use serde::{Deserialize, Serialize};

/// Order in which compute nodes and their regions come up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum InitialisationMode {
    /// Regions come from the fabric file alone; requests for others, and bindings, are refused; memory nodes are given
    /// away whole. Once every node has its regions, the manager need not run.
    Static,
    /// Compute nodes are suspended until their declared regions exist, or until `gmm release`.
    ManagerFirst,
    /// Compute nodes come up at once and are notified of regions as these are made.
    #[default]
    Concurrent,
}

impl From<InitialisationMode> for Initialisation {
    fn from(mode: InitialisationMode) -> Self {
        match mode {
            InitialisationMode::Static => Self::Static,
            InitialisationMode::ManagerFirst => Self::ManagerFirst,
            InitialisationMode::Concurrent => Self::Concurrent,
        }
    }
}
