//! Messages between the two sides of a move, beside the state that QEMU itself sends.

use serde::{Deserialize, Serialize};

use super::facts::MachineFacts;

/// Version of these messages; both sides must have the same.
pub const VERSION: u32 = 1;

/// A message of the source, where the machine runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceMessage {
    /// First message: the machine that is to move.
    Hello {
        /// The sender's [`VERSION`].
        version: u32,
        /// Name of the region that is the machine's memory.
        region: String,
        /// Size of the region in bytes.
        bytes: u64,
    },
    /// The guest is stopped. From this message on, the target accepts any amount of state without delay.
    Stopped,
    /// QEMU has sent all of its state.
    End {
        /// Length of the state in bytes.
        bytes: u64,
    },
    /// Notes of the source's compute node on pages; more such messages may follow.
    Notes {
        /// Pages that will be used soon, the likeliest first.
        hot: Vec<u32>,
        /// Runs of pages that are zeros: the first page, and the number of pages.
        zeros: Vec<(u32, u32)>,
    },
    /// All notes are sent. The region may be handed over at any time from now on.
    Ready,
    /// The move is given up: the machine stays at the source.
    Abort { reason: String },
}

/// A message of the target, on which the machine is to continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetMessage {
    /// The target's QEMU is started, and waits for the state.
    Welcome {
        /// CN id of the compute node.
        cn: String,
        name: String,
        facts: MachineFacts,
    },
    /// The target has received all of the state.
    StateHere {
        /// Length of the state in bytes.
        bytes: u64,
    },
    /// The target has received all notes on pages. The machine continues there as soon as the target's agent has
    /// attached the region.
    Waiting,
    /// The guest runs at the target.
    Arrived,
    /// The machine does not continue at the target; its QEMU has ended there.
    Failed { reason: String },
}
