//! Interface from sessions to the memory node: its memory, and the rights and keys of CNs.

use crate::frame::{FaultStatus, PublicKey};

/// Memory that requests are executed on, and the CNs that may use it.
pub trait Memory {
    /// Fills `out` (whole lines) from the memory of CN `cn` (its MAC as a number) at CMem byte address
    /// `addr`. The whole range is checked before the first line is read.
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus>;

    /// Writes the lines that `mask` selects, counted from `addr`; `data` has their content in order. The
    /// whole range is checked before the first line is written.
    fn write(&mut self, cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus>;

    /// Whether CN `cn` may have a session, with memory or as a guest.
    fn admits(&mut self, cn: u64) -> bool;

    /// Returns the public key registered for CN `cn`. If there is one, a memory node with a key requires the
    /// CN to prove it.
    fn key(&mut self, cn: u64) -> Option<PublicKey> {
        let _ = cn;
        None
    }

    /// Whether the key of CN `cn` was withdrawn. If not, a CN without a [`key`](Self::key) merely has no memory on this
    /// node.
    fn is_key_withdrawn(&mut self, cn: u64) -> bool {
        let _ = cn;
        false
    }

    /// Whether CN `cn` has memory here. A CN without memory is a guest. Guests can be invented, so they get
    /// few of the sessions, and none that a CN with memory needs.
    fn has_memory(&mut self, cn: u64) -> bool {
        let _ = cn;
        true
    }

    /// Sets the current instance of CN `cn`. Returns `false` while a worker of the node may still execute requests that
    /// shards of an earlier instance sent. In that case the session does not start, and the CN repeats its Start.
    fn take_over(&mut self, cn: u64, instance: u64) -> bool {
        let _ = (cn, instance);
        true
    }

    /// Whether `instance` is the current instance of CN `cn`, so that its shards may have sessions.
    fn is_current(&mut self, cn: u64, instance: u64) -> bool {
        let _ = (cn, instance);
        true
    }
}
