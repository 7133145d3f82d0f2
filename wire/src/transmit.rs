//! Interface by which sessions write frames into a link.

/// Transmit side of a link. The link lends slots in order; a committed frame is sent at the link's next
/// flush, or earlier.
pub trait Transmit {
    /// Lends the next transmit slot of `len` bytes, which begin with the destination MAC. The content is
    /// undefined: the caller fills all of it. Returns `None` if the ring is full or `len` is more than the
    /// link carries. Another call without a [`commit`](Transmit::commit) lends the same slot again.
    fn slot(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Selects the transmit queue of all frames written from now on. A link with one queue ignores the call.
    fn steer(&mut self, queue: u8) {
        let _ = queue;
    }

    /// Announces that the next frame is the last one for now. The link may then send that frame as soon as it is
    /// committed, while the caller does its bookkeeping. Most links still wait for the flush.
    fn hasten(&mut self) {}

    /// Queues the slot lent last, at its whole length. Does nothing if no slot was lent since the last
    /// commit.
    fn commit(&mut self);
}
