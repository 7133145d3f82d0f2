//! Frames held back on their way, in buffers allocated once.

use cxloe_wire::time::Time;

/// A frame that waits, and for what.
#[derive(Debug)]
pub(super) struct Delayed {
    bytes: Box<[u8]>,
    len: usize,
    /// Due once this many frames have passed its direction...
    after: u64,
    /// ...or at this time, whichever comes first.
    deadline: Time,
}

impl Delayed {
    pub fn frame(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

/// Frames held back in one direction, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct DelayQueue {
    frames: Vec<Delayed>,
    spare: Vec<Box<[u8]>>,
}

impl DelayQueue {
    /// A queue for `places` frames of up to `frame_max` bytes.
    pub fn new(places: usize, frame_max: usize) -> Self {
        let spare = (0..places).map(|_| vec![0; frame_max].into_boxed_slice()).collect();
        DelayQueue { frames: Vec::with_capacity(places), spare }
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Keeps a copy of `frame`; `false` if there is no room for it.
    pub fn put(&mut self, frame: &[u8], after: u64, deadline: Time) -> bool {
        let Some(mut bytes) = self.spare.pop_if(|b| b.len() >= frame.len()) else { return false };
        bytes[..frame.len()].copy_from_slice(frame);
        self.frames.push(Delayed { bytes, len: frame.len(), after, deadline });
        true
    }

    /// Takes the oldest frame that is due after `passed` frames at the time `now` gives, which is asked only
    /// if frames wait.
    pub fn take_due(&mut self, passed: u64, now: &dyn Fn() -> Time) -> Option<Delayed> {
        if self.frames.is_empty() {
            return None;
        }
        let due = self.frames.iter().position(|h| h.after <= passed).or_else(|| {
            let now = now();
            self.frames.iter().position(|h| h.deadline <= now)
        })?;
        Some(self.frames.remove(due))
    }

    /// Puts a frame that was taken but could not go on back to the front.
    pub fn put_back(&mut self, delayed: Delayed) {
        self.frames.insert(0, delayed);
    }

    /// Takes back the buffer of a frame that has gone on.
    pub fn recycle(&mut self, delayed: Delayed) {
        self.spare.push(delayed.bytes);
    }

    /// When a frame is due at the latest: at once for one that only waited for room.
    pub fn next_deadline(&self, passed: u64) -> Option<Time> {
        self.frames.iter().map(|h| if h.after <= passed { Time::ZERO } else { h.deadline }).min()
    }
}
