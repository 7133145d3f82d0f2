//! Cleared part of an event log of the FM API. Each switch and each of its ports has such a log; all are derived from
//! the log of the fabric, which cannot be cleared.

use serde::{Deserialize, Serialize};

/// An event log of the FM API, and the last event that was cleared from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearedLog {
    /// Number of the switch, from 0.
    pub switch: u32,
    /// Number of the port, for the log of the device behind it; none for the log of the switch.
    pub port: Option<u8>,
    /// Number of the log (Get Event Records, 0100h): 0 informational, 1 warning, 2 failure, 3 fatal, 4 dynamic capacity.
    pub log: u8,
    /// Number of the last cleared event in the fabric's log.
    pub through: u64,
}

impl ClearedLog {
    /// Returns the key of the log: switch, port, number of the log.
    pub fn place(&self) -> (u32, Option<u8>, u8) {
        (self.switch, self.port, self.log)
    }
}
