//! The nodes, the network and the faults of one run, from the plan to the last check.

mod ending;
mod injecting;
mod intruding;
mod making;

use std::time::Duration;

use cxloe_gmm_core::manager::FabricState;
use cxloe_net::sim::SimNetwork;
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use crate::compute_node::ComputeNode;
use crate::control::network::ControlNetwork;
use crate::fabric::Fabric;
use crate::fault::FaultPlan;
use crate::intruder::Intruder;
use crate::memory_node::MemoryNode;
use crate::node_context::NodeContext;
use crate::service_rates::SAMPLE_EVERY;
use crate::tally::Tally;
use crate::trace::{Name, Trace};
use crate::violation::InvariantViolation;

const MS: Duration = Duration::from_millis(1);

/// Number of steps between two calls of `goes_on`.
const ASK_EVERY: u64 = 1024;
/// Maximum number of steps without advance of virtual time; more mean that a node is in an endless loop.
const STEPS_AT_ONCE: u32 = 100_000;

/// State of a run: its nodes, its networks, and the faults still to come.
pub struct World<'a> {
    net: SimNetwork,
    random: Random,
    cns: Vec<ComputeNode>,
    mns: Vec<MemoryNode>,
    batch: usize,
    /// Network between the manager and its callers.
    control: ControlNetwork,
    /// The manager and the operator; `None` with static maps.
    fabric: Option<Fabric>,
    /// Check of nonces, and the unauthorised station if it is planned; `None` if nodes have no keys.
    intruder: Option<Intruder>,
    /// Planted fault: memory nodes accept unregistered keys.
    accepts_unknown: bool,
    max_frame: usize,
    faults: FaultPlan,
    /// Time within which everything has to end after the last fault.
    settle: Duration,
    fault_at: Time,
    healed_at: Option<Time>,
    /// Time of the next sample of the pacers; never if no node has rate control.
    sample_at: Time,
    /// Number of operations that each compute node submits in the run.
    quotas: Vec<u64>,
    /// Time by which all operations must have been submitted.
    end: Time,
    steps: u64,
    /// Number of steps since the virtual time last advanced.
    standing: u32,
    tally: &'a mut Tally,
    trace: Trace,
}

impl World<'_> {
    fn log(&self, what: impl FnOnce() -> String) {
        self.trace.log(self.net.now(), "*", what);
    }

    /// Carries out the whole run, with all checks.
    ///
    /// # Errors
    /// Returns the first violation, or [`InvariantViolation::Stopped`] if `goes_on` returns false.
    pub fn run(mut self, goes_on: &dyn Fn() -> bool) -> Result<(), InvariantViolation> {
        let outcome = self.live(goes_on).and_then(|()| self.settle());
        for cn in &self.cns {
            cn.retire(self.tally);
        }
        self.count_frames();
        outcome
    }

    fn live(&mut self, goes_on: &dyn Fn() -> bool) -> Result<(), InvariantViolation> {
        let ordering = |fabric: &Option<Fabric>| fabric.as_ref().is_some_and(|f| !f.operator.is_done());
        while self.faults.count > 0
            || self.healed_at.is_some()
            || self.cns.iter().any(ComputeNode::has_work)
            || ordering(&self.fabric)
        {
            if self.net.now() > self.end {
                return Err(self.activity());
            }
            self.steps += 1;
            if self.steps.is_multiple_of(ASK_EVERY) && !goes_on() {
                return Err(InvariantViolation::Stopped);
            }
            self.step(None)?;
            self.sample_rates();
        }
        Ok(())
    }

    fn sample_rates(&mut self) {
        let now = self.net.now();
        if now >= self.sample_at && self.cns.iter().any(ComputeNode::is_connected) {
            self.sample_at = now + SAMPLE_EVERY;
            self.cns.iter_mut().for_each(|cn| cn.sample_paces(now, self.tally));
            if self.cns.iter().any(|cn| cn.quota() == 0) {
                let alike = self.quotas.windows(2).all(|pair| pair[0] == pair[1]);
                let made = self.cns.iter().zip(&self.quotas).map(|(cn, quota)| quota - cn.quota());
                if alike {
                    self.tally.paces.served(made);
                }
                // After one node has submitted all of its operations, not all nodes compete for the memory node, so
                // sampling ends.
                self.sample_at = Time(u64::MAX);
            }
        }
    }

    /// Checks that every machine was driven by its contract: polled, and without an output that nobody has taken.
    fn check_machines(&self, now: Time) -> Result<(), InvariantViolation> {
        self.mns.iter().try_for_each(|mn| mn.check_machines(now))?;
        self.cns.iter().try_for_each(ComputeNode::check_machines)?;
        self.fabric.as_ref().map_or(Ok(()), |fabric| fabric.manager.check_machines(now))
    }

    fn count_frames(&mut self) {
        let figures = &mut self.tally.figures;
        let messages = self.control.counts();
        figures.messages += messages.sent;
        figures.messages_lost += messages.lost;
        figures.messages_repeated += messages.repeated;
        let counters = self.net.counters();
        figures.frames += counters.sent;
        figures.lost += counters.lost;
        figures.cut += counters.cut;
        figures.overflowed += counters.full;
        figures.repeated += counters.late;
        let (cns, mns) = (&self.cns, &self.mns);
        let cns = cns.iter().flat_map(ComputeNode::addresses);
        for (cn, mn) in cns.flat_map(|cn| mns.iter().map(move |mn| (cn, mn.mac))) {
            for faults in [self.net.faults(cn, mn), self.net.faults(mn, cn)] {
                figures.repeated += faults.duplicated;
                figures.reordered += faults.reordered;
                figures.corrupted += faults.corrupted;
            }
        }
        figures.cookies += self.mns.iter_mut().map(MemoryNode::cookies).sum::<u64>();
        figures.virtual_ns += self.net.now().0;
    }

    fn activity(&self) -> InvariantViolation {
        let fabric = self.fabric.as_ref().and_then(|fabric| fabric.activity(&self.mns, &self.cns));
        let states: Vec<_> = fabric.into_iter().chain(self.cns.iter().map(ComputeNode::state)).collect();
        InvariantViolation::NotIdle(states.join("; "))
    }

    fn until(
        &mut self,
        end: Time,
        mut done: impl FnMut(&mut Self) -> Result<bool, InvariantViolation>,
    ) -> Result<(), InvariantViolation> {
        while !done(self)? {
            if self.net.now() >= end {
                return Err(self.activity());
            }
            self.step(Some(end))?;
        }
        Ok(())
    }

    /// Advances the virtual time to the next event, and runs the nodes until none of them has work at that
    /// time.
    fn step(&mut self, end: Option<Time>) -> Result<(), InvariantViolation> {
        let before = self.net.now();
        let fault = if end.is_none() { self.next_fault() } else { None };
        // A step takes at most 1 ms of virtual time, even if nothing is due: a full transmit ring may have room by
        // then.
        let mut next = end.unwrap_or(Time(u64::MAX)).min(before + MS);
        self.cns.iter().for_each(|cn| next = next.min(cn.deadline()));
        self.mns.iter().filter_map(|mn| mn.deadline(before)).for_each(|at| next = next.min(at));
        let fabric = self.fabric.as_ref().and_then(|fabric| fabric.deadline(&self.control, &self.mns));
        let intruder = self.intruder.as_ref().and_then(Intruder::deadline);
        self.net
            .next_event()
            .into_iter()
            .chain(fault)
            .chain(intruder)
            .chain(fabric)
            .for_each(|at| next = next.min(at));
        self.net.step(next);
        let now = self.net.now();
        self.standing = if now == before { self.standing + 1 } else { 0 };
        if self.standing > STEPS_AT_ONCE {
            return Err(InvariantViolation::NotIdle(format!("time stands still at {now}")));
        }
        if fault.is_some_and(|at| at <= now) {
            self.inject(now);
        }
        self.check_intruder(now)?;
        let mut busy = true;
        while busy {
            busy = false;
            for mn in &mut self.mns {
                busy |= mn.work(now, self.batch);
                if let Some(cn) = mn.serves_revoked() {
                    let (mn, cn) = (Name(mn.mac), Name(cn));
                    return Err(InvariantViolation::Rule(format!(
                        "{mn} serves {cn}, whose key was taken back"
                    )));
                }
            }
            if let Some(fabric) = &mut self.fabric {
                busy |= fabric.work(&mut self.control, &mut self.mns, &mut self.cns, now, self.tally)?;
            }
            let around = NodeContext { mns: &self.mns, state: state_of(&self.fabric) };
            for cn in &mut self.cns {
                busy |= cn.work(now, self.batch, around, self.tally)?;
                if cn.has_died() {
                    cn.kill(now, &mut self.control, self.tally);
                    busy = true;
                }
            }
        }
        self.check_machines(now)
    }
}

/// Returns the committed state of the manager; `None` with static maps.
fn state_of(fabric: &Option<Fabric>) -> Option<&FabricState> {
    fabric.as_ref().map(|fabric| fabric.manager.state())
}
