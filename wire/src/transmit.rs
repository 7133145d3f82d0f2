//! The transmit side: slots that sessions write their frames into.

/// Transmit side of a link. Slots are lent in order; a committed frame leaves at the next flush of the link, or
/// earlier.
pub trait Transmit {
    /// Lends the next transmit slot, `len` bytes from the destination MAC on. Its content is undefined: the caller
    /// fills all of it. `None` if the ring is full or `len` is more than the link carries; another call without a
    /// [`commit`](Transmit::commit) lends the same slot.
    fn slot(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Sets the queue by which frames written from now on leave. A link with one queue ignores it.
    fn steer(&mut self, queue: u8) {
        let _ = queue;
    }

    /// Announces that the next frame is the last for now: a link may send it at its commit, so that it leaves while the
    /// caller does its bookkeeping. Most links wait for the flush all the same.
    fn hasten(&mut self) {}

    /// Queues the slot lent last, with its whole length. Does nothing if no slot was lent since the last commit.
    fn commit(&mut self);
}
