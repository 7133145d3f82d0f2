//! Refusals of sessions by memory nodes, and how they are logged. A session is offered again and again, and a memory
//! node may receive this node's key and grants of memory from the manager a little later than this node does, so some
//! refusals pass by themselves.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use core::time::Duration;

use cxloe_wire::session::SessionEvent;
use cxloe_wire::time::Time;

use crate::engine::EngineEvent;
use crate::events;

/// Time after which a refusal that may pass is an error.
pub const PASSES_WITHIN: Duration = Duration::from_secs(5);

/// Reasons of the present refusals, by the memory node's MAC address.
#[derive(Debug, Default)]
pub struct Refusals {
    reasons: BTreeMap<String, Reason>,
}

#[derive(Debug)]
struct Reason {
    text: String,
    since: Time,
    /// Whether the refusal has been logged as an error.
    is_error: bool,
}

/// Form in which an event is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAs {
    /// As the event itself, at the level of its severity.
    Event,
    /// As an error, because the refusal has not passed.
    Error,
    /// Not at all, because the refusal is a repetition.
    Nothing,
}

impl Refusals {
    /// Records an event, and decides how it is logged.
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

    /// Reason why the memory node with this MAC address refuses this node; `None` if it does not.
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
