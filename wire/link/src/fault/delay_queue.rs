//! Frames that the fault injector holds back, in buffers allocated once.

use cxloe_wire::time::Time;

/// Frame that is held back, and the condition of its release.
#[derive(Debug)]
pub(super) struct Delayed {
    bytes: Box<[u8]>,
    len: usize,
    /// Count of frames passed in this direction at which the frame becomes due.
    after: u64,
    /// Time at which the frame is due even if too few frames have passed.
    deadline: Time,
}

impl Delayed {
    pub fn frame(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

/// Held frames of one direction, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct DelayQueue {
    frames: Vec<Delayed>,
    spare: Vec<Box<[u8]>>,
}

impl DelayQueue {
    /// Makes a queue for `places` frames of up to `frame_max` bytes each.
    pub fn new(places: usize, frame_max: usize) -> Self {
        let spare = (0..places).map(|_| vec![0; frame_max].into_boxed_slice()).collect();
        DelayQueue { frames: Vec::with_capacity(places), spare }
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Keeps a copy of `frame`. Returns `false` if no buffer is free.
    pub fn put(&mut self, frame: &[u8], after: u64, deadline: Time) -> bool {
        let Some(mut bytes) = self.spare.pop_if(|b| b.len() >= frame.len()) else { return false };
        bytes[..frame.len()].copy_from_slice(frame);
        self.frames.push(Delayed { bytes, len: frame.len(), after, deadline });
        true
    }

    /// Removes and returns the oldest frame that is due after `passed` frames or at the time `now()`. The
    /// clock is read only if frames wait.
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

    /// Returns a frame to the front of the queue, because it could not be sent.
    pub fn put_back(&mut self, delayed: Delayed) {
        self.frames.insert(0, delayed);
    }

    /// Takes back the buffer of a frame that was sent.
    pub fn recycle(&mut self, delayed: Delayed) {
        self.spare.push(delayed.bytes);
    }

    /// Time at which the next frame is due; [`Time::ZERO`] for a frame that waits only for a slot.
    pub fn next_deadline(&self, passed: u64) -> Option<Time> {
        self.frames.iter().map(|h| if h.after <= passed { Time::ZERO } else { h.deadline }).min()
    }
}
