//! The network between the manager and all others: messages take their time, get lost, and come twice.

use std::collections::BTreeMap;
use std::time::Duration;

use cxloe_wire::random::{Probability, Random};
use cxloe_wire::time::Time;

use super::message::{Caller, Message};
use crate::trace::Trace;

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// From sending to arrival, at least.
    pub delay: Duration,
    /// Up to this much more, drawn for each message.
    pub jitter: Duration,
    /// Messages that never arrive.
    pub lose: Probability,
    /// Calls that arrive twice, one behind the other.
    pub repeat: Probability,
    /// Messages that arrive when nobody waits for them any more.
    pub late: Probability,
}

/// How late messages are that are, at most.
const LATE: Duration = Duration::from_millis(80);

impl Conditions {
    /// A network that does nothing wrong.
    pub const GOOD: Conditions = Conditions {
        delay: Duration::from_micros(100),
        jitter: Duration::ZERO,
        lose: Probability::NEVER,
        repeat: Probability::NEVER,
        late: Probability::NEVER,
    };
}

/// What has happened to messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent.
    pub sent: u64,
    /// Never arrived.
    pub lost: u64,
    /// Arrived twice.
    pub repeated: u64,
}

/// The control network.
pub struct ControlNetwork {
    on_the_way: BTreeMap<(Time, u64), Message>,
    sent: u64,
    random: Random,
    conditions: Conditions,
    /// Nothing of this caller arrives, either way, nor of anybody where it says so, until then.
    cut: Option<(Option<Caller>, Time)>,
    counts: Counts,
    trace: Trace,
}

impl ControlNetwork {
    /// A network in these conditions.
    pub fn new(random: Random, conditions: Conditions, trace: Trace) -> ControlNetwork {
        let (on_the_way, counts) = (BTreeMap::new(), Counts::default());
        ControlNetwork { on_the_way, sent: 0, random, conditions, cut: None, counts, trace }
    }

    /// Sends a message.
    pub fn send(&mut self, now: Time, message: Message) {
        self.counts.sent += 1;
        let caller = match &message {
            Message::Call { caller, .. } | Message::Answer { caller, .. } => Some(*caller),
            Message::HungUp(..) => None,
        };
        let cut = self.cut.is_some_and(|(whose, until)| now < until && (whose.is_none() || whose == caller));
        if cut || self.random.chance(self.conditions.lose) {
            self.counts.lost += 1;
            self.trace.say(now, "control", || format!("{message}  LOST"));
            return;
        }
        // What an operator asked for and gave up must not come about after what was asked for later: nothing in it says
        // which of two regions of one name it is about, as registrations do for nodes.
        let in_order = matches!(message, Message::Call { caller: Caller::Operator, .. });
        let at = if in_order { now + self.conditions.delay } else { self.arrival(now) };
        if matches!(message, Message::Call { .. }) && self.random.chance(self.conditions.repeat) {
            self.counts.repeated += 1;
            self.trace.say(now, "control", || format!("{message}  sent TWICE"));
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

    fn put(&mut self, at: Time, message: Message) {
        self.sent += 1;
        self.on_the_way.insert((at, self.sent), message);
    }

    /// A message that arrived waits until then.
    pub fn put_off(&mut self, until: Time, message: Message) {
        self.put(until, message);
    }

    /// When the next message arrives.
    pub fn next_arrival(&self) -> Option<Time> {
        self.on_the_way.keys().next().map(|(at, _)| *at)
    }

    /// A message that has arrived.
    pub fn take(&mut self, now: Time) -> Option<Message> {
        let entry = self.on_the_way.first_entry().filter(|entry| entry.key().0 <= now)?;
        let message = entry.remove();
        self.trace.say(now, "control", || message.to_string());
        Some(message)
    }

    /// Nothing arrives of one caller, or of anybody, until then.
    pub fn cut(&mut self, whose: Option<Caller>, until: Time) {
        self.cut = Some((whose, until));
    }

    /// From here on, messages arrive.
    pub fn heal(&mut self) {
        self.cut = None;
        self.conditions = Conditions::GOOD;
    }

    /// What has happened.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
