//! Times at which a worker of a compute node runs a round. Its thread sleeps in virtual time as [`IdlePolicy`] decides
//! for the agent's workers, or [`Waiter`] for a port. Only the events in this table end the sleep.
//!
//! | wakes a worker | wakes a port |
//! |---|---|
//! | a frame | a frame |
//! | the doorbell of a program with a new operation, a page fault | its program's next call |
//! | an order of the node's control | |
//! | the end of the sleep | the end of the sleep |
//!
//! A timer that is overdue while its node sleeps is a violation, and so is an output of the engine that is not taken
//! before the sleep ([`cxloe_wire::machine`]).

use std::time::Duration;

use cxloe_cn_core::engine::Engine;
use cxloe_cn_core::node::{self, Found};
use cxloe_net::Link;
use cxloe_net::wait::idle::{IdlePolicy, Pending, Rest, Seen};
use cxloe_net::wait::{Idle, WaitStyle, Waiter};
use cxloe_wire::machine::{self, Deadline, StateMachine};
use cxloe_wire::time::Time;

use super::Worker;
use super::program::{Program, SimulatedLink, Step};
use crate::node_context::NodeContext;
use crate::planted_fault::PlantedFault;
use crate::tally::Tally;
use crate::trace::Name;
use crate::violation::InvariantViolation;

/// Time between two rounds of a thread that spins (polls without sleeping) and finds nothing. An arriving frame ends
/// this time at once.
const SPIN_ROUND: Duration = Duration::from_micros(10);
/// Time between two rounds if an overdue timer cannot be served because the transmit ring is full.
const ROUND: Duration = Duration::from_micros(1);

/// Thread that calls a node's engine.
pub(super) enum Driver {
    /// The agent's worker, which other threads can wake.
    Agent(IdlePolicy),
    /// The program itself, through a port.
    Port(Waiter),
}

/// Sleep of the thread that calls the engine.
pub(super) struct Waking {
    pub driver: Driver,
    /// Time until which the thread runs no round unless an event occurs.
    until: Time,
    /// True if the thread sleeps until the time `until`; false if it polls.
    sleeps: bool,
}

impl Waking {
    pub fn new(style: WaitStyle, by_port: bool) -> Waking {
        let driver =
            if by_port { Driver::Port(Waiter::new(style)) } else { Driver::Agent(IdlePolicy::new(style)) };
        Waking { driver, until: Time::ZERO, sleeps: false }
    }

    /// Ends the sleep, because of a region change or a new process.
    pub fn wake(&mut self) {
        self.until = Time::ZERO;
        if let Driver::Agent(policy) = &mut self.driver {
            policy.keep_house_soon();
        }
    }

    /// Shortens the sleep, because requests were submitted to the engine outside of the thread's rounds.
    pub fn wake_soon(&mut self, now: Time) {
        (self.until, self.sleeps) = (self.until.min(now + SPIN_ROUND), false);
    }

    fn is_port(&self) -> bool {
        matches!(self.driver, Driver::Port(_))
    }
}

impl Program {
    /// Returns the time at which the program wakes the thread that calls the engine. An operation that the
    /// engine has refused does not wake an agent's worker, which retries it by itself.
    fn rings_at(&self, by_port: bool) -> Option<Time> {
        let calls = self.has_more() && (by_port || self.pending.is_none());
        let faults = self.paged.as_ref().and_then(|paged| paged.steps_at());
        calls.then_some(self.issue_at).into_iter().chain(faults).min()
    }

    /// Returns what the sleep policy needs to know about engine and program after a round.
    fn seen(&self, engine: &Engine, found: Found) -> Seen {
        let drains = self.managed.as_ref().is_some_and(|managed| managed.drains.makes_progress());
        let pages = self.paged.as_ref().is_some_and(|paged| paged.is_waiting());
        Seen {
            work: found.work(),
            in_flight: engine.in_flight() > 0,
            backpressured: self.pending.is_some() || drains || pages,
            maps: self.paged.is_some(),
            woke_client: false,
        }
    }

    /// Returns the time of the earliest timer of engine and program, and its reason.
    fn timer(&self, engine: &Engine) -> Deadline {
        let pages = self.paged.as_ref().map_or(Deadline::NEVER, |paged| paged.deadline());
        engine.deadline().min(pages)
    }
}

impl Worker {
    /// Returns the time of the worker's next action.
    pub fn deadline(&self) -> Time {
        let rings = self.program.rings_at(self.waking.is_port());
        rings.map_or(self.waking.until, |at| at.min(self.waking.until))
    }

    /// Runs a round, unless the worker sleeps. Returns true if the next round follows at once.
    ///
    /// # Errors
    /// Returns a violation found in the round.
    pub fn work(
        &mut self,
        now: Time,
        batch: usize,
        around: NodeContext<'_>,
        tally: &mut Tally,
    ) -> Result<bool, InvariantViolation> {
        let rings = self.program.rings_at(self.waking.is_port()).is_some_and(|at| now >= at);
        if now < self.waking.until && !rings && !self.link.holds(1) {
            return self.check_timers(now);
        }
        let found = self.round(now, batch, around, tally)?;
        self.program.stranded = self.program.stranded.max(self.engine.stranded());
        self.look_at_uses();
        Ok(!self.has_died() && self.rest(now, found, around, tally)?)
    }

    /// Checks that the worker does not sleep while a timer is due. Without a violation, the result is false: no further
    /// round is needed now.
    fn check_timers(&self, now: Time) -> Result<bool, InvariantViolation> {
        let due = self.program.timer(&self.engine);
        if self.waking.sleeps && due.at < now {
            let (name, until) = (Name(self.program.name), self.waking.until);
            return Err(InvariantViolation::Rule(format!(
                "{name} sleeps until {until}, but a timer was due: {due}"
            )));
        }
        Ok(false)
    }

    fn round(
        &mut self,
        now: Time,
        batch: usize,
        around: NodeContext<'_>,
        tally: &mut Tally,
    ) -> Result<Found, InvariantViolation> {
        let by_port = self.waking.is_port();
        let Worker { engine, link, program, .. } = self;
        program.now = now;
        let mut link = SimulatedLink { link: &mut **link, now };
        let mut step = Step { program, around, tally, submits: !by_port, found: Ok(()) };
        let mut found = Found::default();
        if by_port {
            // A program with a port first submits its requests, and then polls the link without reading the clock.
            step.call(engine, &mut link, now);
            let Ok(polled) = node::round(engine, &mut link, &mut step, None, batch);
            found = polled;
        }
        if found.at.is_none() {
            let Ok(looked) = node::round(engine, &mut link, &mut step, Some(now), batch);
            found = looked;
        }
        // A drain may have ended operations, or given up lines, after the program's last look.
        step.check(|program, around, tally| program.take(engine, now, around, tally));
        step.found.map(|()| found)
    }

    /// Decides on the time of the next round. Returns true if the round follows at once.
    fn rest(
        &mut self,
        now: Time,
        found: Found,
        around: NodeContext<'_>,
        tally: &mut Tally,
    ) -> Result<bool, InvariantViolation> {
        let Worker { engine, program, waking, .. } = self;
        let mut due = program.timer(engine).at;
        if program.mistake == Some(PlantedFault::ForgetsTimers) {
            due = Deadline::NEVER.at;
        }
        let rest = match &mut waking.driver {
            Driver::Agent(policy) => {
                let seen = program.seen(engine, found);
                // Polling empty rings takes no virtual time, so the policy's spinning phase ends at once.
                while policy.spins(seen, false) {}
                if policy.yields(false) {
                    policy.yielded(now, now);
                }
                policy.rest(now, || Pending { deadline: due, computing: false, unsent: false })
            }
            Driver::Port(waiter) => match waiter.after(found.received, now, Some(due)) {
                Idle::Poll => Rest::Round,
                Idle::Sleep(most) => Rest::Sleep(most),
            },
        };
        waking.sleeps = matches!(rest, Rest::Sleep(_));
        if waking.sleeps {
            let name = Name(program.name);
            machine::check(engine, now)
                .map_err(|breach| InvariantViolation::Rule(format!("{name} {breach}")))?;
        }
        waking.until = match rest {
            Rest::Round if found.work() > 0 => now,
            Rest::Round if due <= now => now + ROUND,
            Rest::Round => due.min(now + SPIN_ROUND),
            Rest::Housekeeping => {
                program.follow_orders(engine, now);
                program.take(engine, now, around, tally)?;
                // The planted fault: the thread sleeps for the time that was determined before the region change
                // arrived.
                if program.mistake == Some(PlantedFault::SleepsOnOrders) {
                    waking.sleeps = true;
                    (now + Waiter::SLEEP_MAX).min(due.max(now + ROUND))
                } else {
                    now
                }
            }
            Rest::Sleep(most) => now + most,
        };
        Ok(waking.until == now)
    }
}
