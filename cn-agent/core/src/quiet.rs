//! The *quiet* event: the last event for which no operation is in flight that began before the event's changes were
//! applied. The manager reuses CMem addresses only after such an event: a late request must not reach memory that has
//! another owner.

use crate::engine::Engine;

/// Tracks the end of operations begun before an event.
#[derive(Debug, Default)]
pub struct QuietMark {
    /// Event to be reported as quiet when the operations marked in the engine, which began before it was applied, have
    /// ended.
    marked: Option<u64>,
    /// Latest event whose changes have been applied.
    latest: Option<u64>,
}

impl QuietMark {
    /// Records that all changes up to `event` have been applied.
    pub fn follow(&mut self, event: u64) {
        self.latest = Some(event);
    }

    /// The latest quiet event, if it has changed since the last call. If several events are applied while operations
    /// are in flight, only the first and then the last of them are returned.
    pub fn poll(&mut self, engine: &mut Engine) -> Option<u64> {
        let quiet = self.marked.filter(|_| engine.marked() == 0);
        if quiet.is_some() {
            self.marked = None;
        }
        // The engine has one set of marks, so the operations before a later event are marked only when those of the
        // earlier event have ended.
        if self.marked.is_none() && self.latest.is_some() {
            engine.mark();
            self.marked = self.latest.take();
        }
        quiet
    }
}
