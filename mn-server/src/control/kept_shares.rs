//! Shares of sealed memory, stored on disk: a node that restarts serves readers before a manager answers.

use cxloe_daemon::NodeState;
use cxloe_fabric::model::Share;
use serde::{Deserialize, Serialize};

/// Content of the state file: shares of sealed memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptShares {
    pub shares: Vec<Share>,
}

impl NodeState for KeptShares {
    const REMEDY: &str = "remove it: the manager sends the list again";
}
