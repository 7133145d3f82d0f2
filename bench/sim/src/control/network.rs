//! The network between the manager and its callers, which delays, loses and duplicates messages.

use std::collections::BTreeMap;
use std::time::Duration;

use cxloe_wire::random::{Probability, Random};
use cxloe_wire::time::Time;

use super::message::{Caller, ControlMessage};
use crate::trace::Trace;

/// Delays and faults of the control network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Minimum time from sending to arrival.
    pub delay: Duration,
    /// Maximum additional delay; each message draws its own.
    pub jitter: Duration,
    pub lose: Probability,
    /// Probability that a call arrives twice. The second copy arrives later than the first; for calls of the operator,
    /// both copies arrive at the same time.
    pub repeat: Probability,
    /// Probability that a message is delayed by up to 80 ms, so that it may arrive after its receiver has
    /// timed out.
    pub late: Probability,
}

/// Maximum additional delay of late messages, longer than the wait for an answer.
const LATE: Duration = Duration::from_millis(80);

impl Conditions {
    /// Conditions without faults.
    pub const GOOD: Conditions = Conditions {
        delay: Duration::from_micros(100),
        jitter: Duration::ZERO,
        lose: Probability::NEVER,
        repeat: Probability::NEVER,
        late: Probability::NEVER,
    };
}

/// Counts of messages on the control network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of messages that callers and manager have sent.
    pub sent: u64,
    /// Number of messages dropped by loss or by a cut.
    pub lost: u64,
    /// Number of calls that the network has sent twice.
    pub repeated: u64,
}

/// The control network: messages in flight between the manager and its callers, and the faults to inject.
pub struct ControlNetwork {
    on_the_way: BTreeMap<(Time, u64), ControlMessage>,
    sent: u64,
    random: Random,
    conditions: Conditions,
    /// Caller that is cut off (`None`: all callers), and the end of the cut. Until then, messages that are sent by or
    /// to this caller are lost.
    cut: Option<(Option<Caller>, Time)>,
    counts: Counts,
    trace: Trace,
}

impl ControlNetwork {
    pub fn new(random: Random, conditions: Conditions, trace: Trace) -> ControlNetwork {
        let (on_the_way, counts) = (BTreeMap::new(), Counts::default());
        ControlNetwork { on_the_way, sent: 0, random, conditions, cut: None, counts, trace }
    }

    /// Sends a message, which the network may lose, delay or duplicate.
    pub fn send(&mut self, now: Time, message: ControlMessage) {
        self.counts.sent += 1;
        let caller = match &message {
            ControlMessage::Call { caller, .. } | ControlMessage::Answer { caller, .. } => Some(*caller),
            ControlMessage::HungUp(..) => None,
        };
        let cut = self.cut.is_some_and(|(whose, until)| now < until && (whose.is_none() || whose == caller));
        if cut || self.random.chance(self.conditions.lose) {
            self.counts.lost += 1;
            self.trace.log(now, "control", || format!("{message}  LOST"));
            return;
        }
        // An abandoned order of the operator must not take effect after later ones: orders identify a region
        // by name only, and a later region may have the same name. Calls of nodes may arrive in any order,
        // since they contain registration numbers.
        let in_order = matches!(message, ControlMessage::Call { caller: Caller::Operator, .. });
        let at = if in_order { now + self.conditions.delay } else { self.arrival(now) };
        if matches!(message, ControlMessage::Call { .. }) && self.random.chance(self.conditions.repeat) {
            self.counts.repeated += 1;
            self.trace.log(now, "control", || format!("{message}  sent TWICE"));
            let again = if in_order { at } else { self.arrival(at) };
            self.put(again, message.clone());
        }
        self.put(at, message);
    }

    fn arrival(&mut self, from: Time) -> Time {
        let late = self.random.chance(self.conditions.late);
        let jitter = if late { LATE } else { self.conditions.jitter };
        let jitter = self.random.below(jitter.as_nanos() as u64 + 1);
        from + self.conditions.delay + Duration::from_nanos(jitter)
    }

    fn put(&mut self, at: Time, message: ControlMessage) {
        self.sent += 1;
        self.on_the_way.insert((at, self.sent), message);
    }

    /// Delivers a message to a paused receiver at the time `until` instead of now.
    pub fn put_off(&mut self, until: Time, message: ControlMessage) {
        self.put(until, message);
    }

    /// Returns the time at which the next message arrives.
    pub(crate) fn next_arrival(&self) -> Option<Time> {
        self.on_the_way.keys().next().map(|(at, _)| *at)
    }

    /// Takes the earliest message that has arrived by `now`.
    pub fn take(&mut self, now: Time) -> Option<ControlMessage> {
        let entry = self.on_the_way.first_entry().filter(|entry| entry.key().0 <= now)?;
        let message = entry.remove();
        self.trace.log(now, "control", || message.to_string());
        Some(message)
    }

    /// Drops all messages of one caller, or of all callers, until `until`.
    pub fn cut(&mut self, whose: Option<Caller>, until: Time) {
        self.cut = Some((whose, until));
    }

    /// Ends the cut, and all loss, lateness and duplication.
    pub fn heal(&mut self) {
        self.cut = None;
        self.conditions = Conditions::GOOD;
    }

    /// Returns the counts since the start of the run.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
