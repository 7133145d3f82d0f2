//! The burst of frames received last, of which some may not be passed on yet.
//!
//! The frames stay in the device's buffers until the next burst is received, so that no answer waits for their release.

use std::ptr;

use super::plugin::{BURST, Frame};
use super::queue::Queue;

pub(super) struct Burst {
    frames: [Frame; BURST],
    /// Index of the first frame that was not taken yet.
    next: usize,
    /// Number of frames received.
    end: usize,
}

impl Default for Burst {
    fn default() -> Burst {
        Burst { frames: [Frame { bytes: ptr::null_mut(), length: 0 }; BURST], next: 0, end: 0 }
    }
}

impl Burst {
    /// Number of frames that are left.
    #[inline]
    pub fn left(&self) -> usize {
        self.end - self.next
    }

    /// Frames that are left.
    #[inline]
    pub fn rest(&self) -> &[Frame] {
        &self.frames[self.next..self.end]
    }

    /// Whether the burst had as many frames as a burst can have, so that more may wait in the device's ring.
    #[inline]
    pub fn was_full(&self) -> bool {
        self.end == BURST
    }

    /// Receives the next burst, unless frames are left. References to earlier frames must not exist any more.
    #[inline]
    pub fn fill(&mut self, queue: &mut Queue) {
        if self.left() > 0 {
            return;
        }
        self.next = 0;
        self.end = queue.receive(&mut self.frames);
    }

    /// Takes at most `most` of the frames that are left, which are valid until the next burst is received.
    #[inline]
    pub fn take(&mut self, most: usize) -> &[Frame] {
        let first = self.next;
        self.next += self.left().min(most);
        &self.frames[first..self.next]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_taken_in_parts() {
        let mut burst = Burst { end: 5, ..Burst::default() };
        assert!(!burst.was_full() && burst.left() == 5 && burst.rest().len() == 5);
        burst.frames.iter_mut().zip(10..).for_each(|(frame, length)| frame.length = length);
        let mut lengths = |most| burst.take(most).iter().map(|frame| frame.length).collect::<Vec<_>>();
        assert_eq!([lengths(3), lengths(9), lengths(9)], [vec![10, 11, 12], vec![13, 14], vec![]]);
        assert!(burst.left() == 0 && burst.rest().is_empty());
        burst.end = BURST;
        assert!(burst.was_full());
    }
}
