//! A caller's end of the control network: one call at a time, each with a time-out.

use std::time::Duration;

use cxloe_wire::time::Time;

use super::message::{Caller, ControlMessage, ManagerCall};
use super::network::ControlNetwork;

/// Time-out of a call. It starts at the end of the time for which the manager may delay its answer.
const CALL_TIMEOUT: Duration = Duration::from_millis(10);

/// A caller's end of the control network, with at most one pending call. Calls are numbered.
#[derive(Debug)]
pub struct Port {
    caller: Caller,
    call: u64,
    /// Time at which the pending call times out; `None` without a pending call.
    until: Option<Time>,
}

impl Port {
    /// Makes the end that belongs to `caller`, without a pending call.
    pub fn new(caller: Caller) -> Port {
        Port { caller, call: 0, until: None }
    }

    /// Calls the manager, which may wait for `wait` before it answers.
    pub fn call(&mut self, request: ManagerCall, wait: Duration, now: Time, net: &mut ControlNetwork) {
        self.call += 1;
        self.until = Some(now + wait + CALL_TIMEOUT);
        net.send(now, ControlMessage::Call { caller: self.caller, call: self.call, request });
    }

    /// Returns true if the answer with the number `call` belongs to the pending call, and ends that call.
    pub fn takes(&mut self, call: u64) -> bool {
        let takes = self.until.is_some() && call == self.call;
        if takes {
            self.until = None;
        }
        takes
    }

    pub(crate) fn is_calling(&self) -> bool {
        self.until.is_some()
    }

    /// Returns the time at which the pending call times out.
    pub fn deadline(&self) -> Option<Time> {
        self.until
    }

    /// Returns true if the pending call has timed out, and abandons it.
    pub(crate) fn has_given_up(&mut self, now: Time) -> bool {
        let late = self.until.is_some_and(|until| now >= until);
        if late {
            self.until = None;
        }
        late
    }

    /// Abandons the pending call when the caller's process ends. Calls of the next process have other numbers, so a
    /// late answer is ignored.
    pub fn hang_up(&mut self) {
        self.call += 1;
        self.until = None;
    }
}
