//! Interface from sessions to the memory node: its lines, and the rights and keys of CNs.

use crate::frame::{FaultStatus, PublicKey};

/// Memory that requests are executed on, and data on the CNs that may use it.
pub trait Memory {
    /// Fills `out` (whole lines) with the memory of CN `cn` (its MAC as a number) at CMem byte address `addr`. The
    /// whole range is checked before the first line is read.
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus>;

    /// Writes the lines that `mask` selects relative to `addr`; `data` holds them in order. The whole range is checked
    /// before the first line is written.
    fn write(&mut self, cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus>;

    /// Whether CN `cn` may have a session, with memory or as a guest.
    fn admits(&mut self, cn: u64) -> bool;

    /// Public key registered for CN `cn`; if there is one, a memory node with a key requires a proof of it.
    fn key(&mut self, cn: u64) -> Option<PublicKey> {
        let _ = cn;
        None
    }

    /// Whether the key of CN `cn` was withdrawn. If not, a CN without a [`key`](Self::key) has no memory here.
    fn is_key_withdrawn(&mut self, cn: u64) -> bool {
        let _ = cn;
        false
    }

    /// Whether CN `cn` has memory here. A CN without is a guest: guests can be invented, so they get few of the
    /// sessions, and none that a CN with memory needs.
    fn has_memory(&mut self, cn: u64) -> bool {
        let _ = cn;
        true
    }

    /// Sets the present instance of CN `cn`. Returns `true` once no worker of the node can execute a request of an
    /// earlier instance's shards any more. Until then the session does not start, and the CN repeats its Start.
    fn take_over(&mut self, cn: u64, instance: u64) -> bool {
        let _ = (cn, instance);
        true
    }

    /// Whether `instance` is the present instance of CN `cn`, so that its shards may have sessions.
    fn is_current(&mut self, cn: u64, instance: u64) -> bool {
        let _ = (cn, instance);
        true
    }
}
