//! What the memory node is asked by its sessions: lines, and who is who.

use crate::frame::{FaultStatus, PublicKey};

/// What requests are executed against: translation and pool.
pub trait Memory {
    /// Fills `out` (whole lines) with what CN `cn` (its MAC as a number) has at CMem byte address `addr`.
    /// All of it is checked before any of it is read.
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus>;

    /// Writes the lines that `mask` names relative to `addr`; `data` holds them in order. All of it is
    /// checked before any of it is written.
    fn write(&mut self, cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus>;

    /// Whether CN `cn` may have a session at all.
    fn admits(&mut self, cn: u64) -> bool;

    /// The public key that belongs to CN `cn`, if one does: a memory node with a key takes nobody for this CN who does not
    /// show it.
    fn key(&mut self, cn: u64) -> Option<PublicKey> {
        let _ = cn;
        None
    }

    /// Whether the key of CN `cn` was taken back; else a CN whose [`key`](Self::key) nobody has has no memory here.
    fn is_key_withdrawn(&mut self, cn: u64) -> bool {
        let _ = cn;
        false
    }

    /// Whether CN `cn` has memory here. One that has none is a guest: anybody can invent such a CN, so guests have few
    /// of the sessions, and none that a CN with memory needs.
    fn has_memory(&mut self, cn: u64) -> bool {
        let _ = cn;
        true
    }

    /// CN `cn` is this instance from now on. Whether nothing of an earlier instance's shards can be executed any more, by
    /// any worker of the node: until then the session does not start, and the CN asks again.
    fn take_over(&mut self, cn: u64, instance: u64) -> bool {
        let _ = (cn, instance);
        true
    }

    /// Whether CN `cn` is this instance, so that shards of it may have sessions.
    fn is_current(&mut self, cn: u64, instance: u64) -> bool {
        let _ = (cn, instance);
        true
    }
}
