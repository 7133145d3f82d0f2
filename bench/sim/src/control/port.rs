//! A caller's end of the control network: one call at a time, and an end to waiting for its answer.

use std::time::Duration;

use cxloe_wire::time::Time;

use super::message::{Caller, Message, Request};
use super::network::ControlNetwork;

/// How long an answer may take beyond what the call asked the manager to wait.
const PATIENCE: Duration = Duration::from_millis(10);

/// A caller's end.
#[derive(Debug)]
pub struct Port {
    caller: Caller,
    call: u64,
    /// The call under way is given up then.
    until: Option<Time>,
}

impl Port {
    /// The end of `caller`.
    pub fn new(caller: Caller) -> Port {
        Port { caller, call: 0, until: None }
    }

    /// Calls the manager, which may wait for `wait` before it answers.
    pub fn call(&mut self, request: Request, wait: Duration, now: Time, net: &mut ControlNetwork) {
        self.call += 1;
        self.until = Some(now + wait + PATIENCE);
        net.send(now, Message::Call { caller: self.caller, call: self.call, request });
    }

    /// Whether an answer is to the call under way, which ends with it.
    pub fn takes(&mut self, call: u64) -> bool {
        let takes = self.until.is_some() && call == self.call;
        if takes {
            self.until = None;
        }
        takes
    }

    /// Whether a call is under way.
    pub fn is_calling(&self) -> bool {
        self.until.is_some()
    }

    /// When the call under way is given up.
    pub fn deadline(&self) -> Option<Time> {
        self.until
    }

    /// Whether the call under way has taken too long; it is given up then.
    pub fn has_given_up(&mut self, now: Time) -> bool {
        let late = self.until.is_some_and(|until| now >= until);
        if late {
            self.until = None;
        }
        late
    }

    /// The process ends: no answer is taken any more.
    pub fn hang_up(&mut self) {
        self.call += 1;
        self.until = None;
    }
}
