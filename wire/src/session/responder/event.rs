//! What happens to sessions, until it is taken.
//!
//! Room is bounded. What anybody can bring about by asking has a bounded part of it, so that a flood of it pushes nothing
//! else out.

use alloc::collections::VecDeque;

use crate::frame::{Mac, PublicKey};

/// Events kept until polled; the oldest go first.
const EVENTS_MAX: usize = 64;
/// Of these, those that anybody can bring about: further ones are not kept.
const COMPLAINTS_MAX: usize = 16;

/// What happens to sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponderEvent {
    /// A session has started.
    Started {
        /// The compute node.
        cn: Mac,
        /// Whether it replaced an earlier one.
        replaced: bool,
    },
    /// A session has ended in order.
    Ended(Mac),
    /// A session was forgotten after silence.
    Expired(Mac),
    /// A second agent with the same address was turned away.
    Conflict(Mac),
    /// A CN speaks another version.
    VersionMismatch {
        /// The compute node.
        cn: Mac,
        /// Its version.
        version: u16,
    },
    /// Somebody asked for a session in the name of a CN whose key is known, and did not show that key.
    KeyRefused {
        /// The compute node.
        cn: Mac,
        /// The key that was shown; none if none was.
        shown: Option<PublicKey>,
    },
    /// The session of a CN ended because its key is another by now, or none.
    Revoked(Mac),
}

impl ResponderEvent {
    /// Whether anybody can bring it about, as often as wanted.
    fn is_complaint(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::VersionMismatch { .. } | Self::KeyRefused { .. })
    }

    /// Whether another one of the same kind says as much.
    fn is_said_by(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::KeyRefused { cn, shown }, Self::KeyRefused { cn: of, shown: by }) => {
                (cn, shown.is_some()) == (of, by.is_some())
            }
            (one, other) => one == other,
        }
    }
}

/// Events not yet taken.
pub(super) struct Events {
    queue: VecDeque<ResponderEvent>,
    complaints: usize,
}

impl Events {
    pub fn new() -> Events {
        Events { queue: VecDeque::with_capacity(EVENTS_MAX), complaints: 0 }
    }

    /// Keeps an event; a complaint once until it is taken.
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

    /// The oldest.
    pub fn pop(&mut self) -> Option<ResponderEvent> {
        let event = self.queue.pop_front()?;
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
        // Taken, there is room for others.
        events.push(ResponderEvent::Conflict(cn(0)));
        assert_eq!(events.pop(), Some(ResponderEvent::Conflict(cn(0))));
        // Of the rest the oldest go.
        (0..100).for_each(|n| events.push(ResponderEvent::Ended(cn(n))));
        assert_eq!(events.pop(), Some(ResponderEvent::Ended(cn(36))));
    }
}
