//! The one way out: what sessions write their frames into.

/// Where frames to be sent are written. Slots are lent in order; what is committed leaves when the
/// link is flushed, or earlier.
pub trait Transmit {
    /// Lends the next transmit slot, `len` bytes from the destination MAC on. Its content is undefined: the
    /// writer fills all of it. `None` when the ring is full or `len` is more than the link carries; asking
    /// again without a [`commit`](Transmit::commit) lends the same slot.
    fn slot(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Says by which queue what is written from now on leaves. A link of one queue knows no other.
    fn steer(&mut self, queue: u8) {
        let _ = queue;
    }

    /// Says that nothing follows the next frame for now: a link may send it as soon as it is committed, so that it is on its
    /// way while its sender keeps its books. Most wait for the flush all the same.
    fn hasten(&mut self) {}

    /// Queues the slot lent last, whole. Does nothing if none was lent since the last commit.
    fn commit(&mut self);
}
