//! The network between the manager and all others: messages are delayed, lost, and duplicated.

use std::collections::BTreeMap;
use std::time::Duration;

use cxloe_wire::random::{Probability, Random};
use cxloe_wire::time::Time;

use super::message::{Caller, ControlMessage};
use crate::trace::Trace;

/// Delays and faults of messages on the control network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Shortest time from sending to arrival.
    pub delay: Duration,
    /// Largest additional delay; each message draws its own.
    pub jitter: Duration,
    /// Probability that a message is lost.
    pub lose: Probability,
    /// Probability that a call arrives twice, one directly behind the other.
    pub repeat: Probability,
    /// Probability that a message arrives after its receiver has timed out.
    pub late: Probability,
}

/// Longest delay of late messages.
const LATE: Duration = Duration::from_millis(80);

impl Conditions {
    /// A network without faults.
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
    /// Messages that callers and manager have sent.
    pub sent: u64,
    /// Messages dropped by loss or by a cut.
    pub lost: u64,
    /// Calls that arrived twice.
    pub repeated: u64,
}

/// Messages in flight between the manager and its callers, and the network's faults.
pub struct ControlNetwork {
    on_the_way: BTreeMap<(Time, u64), ControlMessage>,
    sent: u64,
    random: Random,
    conditions: Conditions,
    /// A cut, and its end: until then no message of this caller arrives in either direction; of any caller if `None`.
    cut: Option<(Option<Caller>, Time)>,
    counts: Counts,
    trace: Trace,
}

impl ControlNetwork {
    /// A network without messages, under these conditions.
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
        // An abandoned order of the operator must not take effect after later ones: orders identify a region by name
        // only, and a later region may have the same name. Nodes' calls contain registration numbers.
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

    /// Delays a message that has arrived until `until`.
    pub fn put_off(&mut self, until: Time, message: ControlMessage) {
        self.put(until, message);
    }

    /// Arrival time of the next message.
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

    /// Ends the cut, and all loss and duplication.
    pub fn heal(&mut self) {
        self.cut = None;
        self.conditions = Conditions::GOOD;
    }

    /// Counts since the start of the run.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
