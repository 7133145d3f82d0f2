//! How far an event log has been cleared, as the FM API has event logs: each switch and each of its ports has its own, all
//! of them made from the one log of the fabric, which nobody can clear.

use serde::{Deserialize, Serialize};

/// An event log of the FM API, and the last event that was cleared from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearedLog {
    /// Number of the switch.
    pub switch: u32,
    /// The port, if it is the log of the device behind one.
    pub port: Option<u8>,
    /// Number of the log (Get Event Records, 0100h): 0 informational, 1 warning, 2 failure, 3 fatal, 4 dynamic capacity.
    pub log: u8,
    /// Number of the last event that is cleared.
    pub through: u64,
}

impl ClearedLog {
    /// Which log it is: switch, port, number.
    pub fn place(&self) -> (u32, Option<u8>, u8) {
        (self.switch, self.port, self.log)
    }
}
