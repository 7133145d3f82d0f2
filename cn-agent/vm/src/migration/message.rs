//! Messages between the two sides of a move, beside the state that QEMU itself sends.

use serde::{Deserialize, Serialize};

use super::facts::MachineFacts;

/// Version of these messages; both sides must have the same.
pub const VERSION: u32 = 1;

/// A message of the source, where the machine runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceMessage {
    /// The machine that is to move.
    Hello {
        /// The sender's [`VERSION`].
        version: u32,
        /// Name of the region that is its memory.
        region: String,
        /// Size of the region in bytes.
        bytes: u64,
    },
    /// The guest is stopped: from here on all that QEMU sends has to be taken.
    Stopped,
    /// QEMU has sent all of its state.
    End {
        /// Bytes of the state.
        bytes: u64,
    },
    /// Records of the former compute node on pages; more may follow.
    Notes {
        /// Pages that will be used soon, the likeliest first.
        hot: Vec<u32>,
        /// Runs of pages that are zeros: the first page, and the number of pages.
        zeros: Vec<(u32, u32)>,
    },
    /// All notes are sent. From here on the region may come at any time.
    Ready,
    /// The machine stays where it is.
    Abort {
        /// Reason, for people.
        reason: String,
    },
}

/// A message of the target, to which the machine moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetMessage {
    /// A machine waits for the state.
    Welcome {
        /// CN id of the compute node.
        cn: String,
        /// Name of the compute node.
        name: String,
        /// Facts of the machine that waits.
        facts: MachineFacts,
    },
    /// All of the state is here.
    StateHere {
        /// Bytes of the state.
        bytes: u64,
    },
    /// All notes are taken: the machine goes on as soon as its region comes.
    Waiting,
    /// The guest runs here.
    Arrived,
    /// The machine does not go on here; its QEMU has ended.
    Failed {
        /// Reason, for people.
        reason: String,
    },
}
