//! The *quiet* event: no operation is in flight that was begun before the changes of this event were applied. The
//! manager reuses CMem addresses only after that: a late request must not reach memory that has another owner.

use crate::engine::Engine;

/// Tracks the end of operations begun before an event.
#[derive(Debug, Default)]
pub struct QuietMark {
    /// Event whose earlier operations are those marked in the engine.
    marked: Option<u64>,
    /// Latest event whose changes have been applied.
    latest: Option<u64>,
}

impl QuietMark {
    /// Records that all changes up to `event` have been applied.
    pub fn follow(&mut self, event: u64) {
        self.latest = Some(event);
    }

    /// The latest quiet event, if it has changed since the last call. If several events have occurred, the first is
    /// returned first, and then the last.
    pub fn poll(&mut self, engine: &mut Engine) -> Option<u64> {
        let quiet = self.marked.filter(|_| engine.marked() == 0);
        if quiet.is_some() {
            self.marked = None;
        }
        // The engine has one set of marks, so a later event has to wait for the end of an earlier one.
        if self.marked.is_none() && self.latest.is_some() {
            engine.mark();
            self.marked = self.latest.take();
        }
        quiet
    }
}
