//! Values of the option that determines whether a node trusts the 802.1Qbb (PFC) frames that it receives. A PFC frame
//! has no sender that could be authenticated.

use serde::{Deserialize, Serialize};

/// Whether PFC frames at the interface, and the NIC's count of them, slow requests down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PfcTrust {
    /// PFC frames slow nothing down: only memory nodes signal congestion, within their sessions
    #[default]
    Ignore,
    /// Any station on the cable can slow this node down, within bounds
    Trust,
}
