//! Events of sessions, kept until the node takes them for its log.
//!
//! The number of kept events is limited. Complaints, the events that any station can cause, get only a small
//! part of the space, so that a flood of them does not displace other events.
//!
//! Events are due to be taken only at intervals. If each were due at once, a station could cause as many lines of the
//! log as it sends frames.

use alloc::collections::VecDeque;

use crate::frame::{Mac, PublicKey};

/// Maximum number of events kept; a further event displaces the oldest.
const EVENTS_MAX: usize = 64;
/// Maximum number of complaints among the events kept; further complaints are dropped.
const COMPLAINTS_MAX: usize = 16;

/// Event of a session, for the node's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponderEvent {
    /// A session has started, and its requests are served.
    Started {
        /// MAC address of the CN.
        cn: Mac,
        /// True if the session replaced an earlier one of the CN.
        replaced: bool,
    },
    /// A session was ended by a Bye.
    Ended(Mac),
    /// A session was removed because no frame had come for
    /// [`idle_after`](super::ResponderConfig::idle_after).
    Expired(Mac),
    /// A second agent with the same MAC address asked for a session and was refused.
    Conflict(Mac),
    /// A Hello was refused because the CN asked for a version that this node does not support.
    VersionMismatch {
        /// Source address of the Hello.
        cn: Mac,
        /// Version that the Hello requested.
        version: u16,
    },
    /// A Hello named a CN that has a key, but did not prove that key.
    KeyRefused {
        /// Source address of the Hello.
        cn: Mac,
        /// Key that the sender proved; `None` if it proved none.
        shown: Option<PublicKey>,
    },
    /// The session of a CN ended because its key was replaced or withdrawn.
    Revoked(Mac),
}

impl ResponderEvent {
    fn is_complaint(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::VersionMismatch { .. } | Self::KeyRefused { .. })
    }

    /// Whether `other` reports the same complaint. Two wrong keys of one CN count as the same, because anyone can
    /// generate keys.
    fn is_said_by(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::KeyRefused { cn, shown }, Self::KeyRefused { cn: of, shown: by }) => {
                (cn, shown.is_some()) == (of, by.is_some())
            }
            (one, other) => one == other,
        }
    }
}

pub(super) struct Events {
    queue: VecDeque<ResponderEvent>,
    complaints: usize,
    /// Number of the oldest events that the caller has to take before it waits.
    due: usize,
}

impl Events {
    pub fn new() -> Events {
        Events { queue: VecDeque::with_capacity(EVENTS_MAX), complaints: 0, due: 0 }
    }

    /// Keeps an event, unless it repeats a complaint that is already kept or there are too many complaints.
    pub fn push(&mut self, event: ResponderEvent) {
        if event.is_complaint() {
            if self.complaints >= COMPLAINTS_MAX || self.queue.iter().any(|known| event.is_said_by(known)) {
                return;
            }
            self.complaints += 1;
        }
        if self.queue.len() == EVENTS_MAX {
            self.pop();
        }
        self.queue.push_back(event);
    }

    /// Makes all events kept so far due to be taken.
    pub fn publish(&mut self) {
        self.due = self.queue.len();
    }

    pub fn is_due(&self) -> bool {
        self.due > 0
    }

    /// Removes and returns the oldest event.
    pub fn pop(&mut self) -> Option<ResponderEvent> {
        let event = self.queue.pop_front()?;
        self.due = self.due.saturating_sub(1);
        self.complaints -= usize::from(event.is_complaint());
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cn(n: u32) -> Mac {
        let [_, b, c, d] = n.to_be_bytes();
        Mac([2, 0, 0, b, c, d])
    }

    #[test]
    fn complaints_push_nothing_out_and_are_said_once() {
        let mut events = Events::new();
        events.push(ResponderEvent::Revoked(cn(7)));
        for n in 0..1_000 {
            events.push(ResponderEvent::VersionMismatch { cn: cn(n), version: 9 });
            events.push(ResponderEvent::KeyRefused { cn: cn(0), shown: Some(PublicKey([n as u8; 32])) });
            events.push(ResponderEvent::Conflict(cn(0)));
        }
        let all: alloc::vec::Vec<_> = core::iter::from_fn(|| events.pop()).collect();
        assert_eq!((all.len(), &all[0]), (1 + COMPLAINTS_MAX, &ResponderEvent::Revoked(cn(7))));
        let conflicts = all.iter().filter(|event| **event == ResponderEvent::Conflict(cn(0))).count();
        assert_eq!(conflicts, 1);
        // A polled complaint makes room for another.
        events.push(ResponderEvent::Conflict(cn(0)));
        assert!(!events.is_due(), "not before the next interval ends");
        events.publish();
        assert!(events.is_due());
        assert_eq!(events.pop(), Some(ResponderEvent::Conflict(cn(0))));
        assert!(!events.is_due());
        // When the list is full, a further event that is not a complaint displaces the oldest one.
        (0..100).for_each(|n| events.push(ResponderEvent::Ended(cn(n))));
        assert_eq!(events.pop(), Some(ResponderEvent::Ended(cn(36))));
    }
}
