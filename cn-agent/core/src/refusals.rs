//! Refusals of this node by memory nodes, and those of them that are worth an error in the log: a session is offered
//! again and again, and a memory node may get this node's key and memory from the manager a little after this node.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use core::time::Duration;

use cxloe_wire::session::SessionEvent;
use cxloe_wire::time::Time;

use crate::engine::EngineEvent;
use crate::events;

/// Time after which a refusal that may pass is an error.
pub const PASSES_WITHIN: Duration = Duration::from_secs(5);

/// Reasons by the address that sessions show.
#[derive(Debug, Default)]
pub struct Refusals {
    reasons: BTreeMap<String, Reason>,
}

#[derive(Debug)]
struct Reason {
    text: String,
    since: Time,
    /// Whether the log has it as an error.
    is_error: bool,
}

/// Form in which an event is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAs {
    /// The event itself, at the level of its severity.
    Event,
    /// An error: the refusal has not passed.
    Error,
    /// Nothing: it repeats the last one.
    Nothing,
}

impl Refusals {
    /// Records an event, and decides what the log gets of it.
    pub fn record(&mut self, event: &EngineEvent, now: Time) -> LogAs {
        let EngineEvent::Session { mac, event: session } = event else { return LogAs::Event };
        let peer = mac.to_string();
        let Some(text) = events::refusal(event) else {
            if matches!(session, SessionEvent::Opened { .. }) {
                self.reasons.remove(&peer);
            }
            return LogAs::Event;
        };
        match self.reasons.get_mut(&peer) {
            Some(reason) if reason.text == text => {
                if reason.is_error || now.since(reason.since) < PASSES_WITHIN {
                    return LogAs::Nothing;
                }
                reason.is_error = true;
                LogAs::Error
            }
            _ => {
                self.reasons.insert(peer, Reason { text, since: now, is_error: !events::may_pass(session) });
                LogAs::Event
            }
        }
    }

    /// Reason for which the memory node with this address refuses this node.
    pub fn of(&self, peer: &str) -> Option<&str> {
        self.reasons.get(peer).map(|reason| reason.text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use cxloe_wire::frame::{HelloStatus, Mac};

    use super::*;

    #[test]
    fn a_refusal_is_an_error_once_it_has_not_passed() {
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let peer = mac.to_string();
        let event = |event| EngineEvent::Session { mac, event };
        let refused = |status| event(SessionEvent::Refused { status, version_min: 1, version_max: 1 });
        let (passes, lasts) = (refused(HelloStatus::NotAllowed), refused(HelloStatus::KeyNeeded));
        let mut refusals = Refusals::default();
        let mut at = |event: &EngineEvent, seconds| {
            let said = refusals.record(event, Time::ZERO + Duration::from_secs(seconds));
            (said, refusals.of(&peer).is_some())
        };
        assert_eq!(at(&passes, 10), (LogAs::Event, true));
        assert_eq!(at(&passes, 14), (LogAs::Nothing, true));
        assert_eq!(at(&passes, 15), (LogAs::Error, true));
        assert_eq!(at(&passes, 30), (LogAs::Nothing, true), "once");
        assert_eq!(at(&lasts, 31), (LogAs::Event, true), "for another reason");
        assert_eq!(at(&lasts, 60), (LogAs::Nothing, true), "it was an error at once");
        assert_eq!(at(&event(SessionEvent::Closed), 61), (LogAs::Event, true));
        let opened = event(SessionEvent::Opened { incarnation: 1, resumed: false });
        assert_eq!(at(&opened, 62), (LogAs::Event, false));
        assert_eq!(at(&passes, 63), (LogAs::Event, true), "from the beginning");
    }
}
