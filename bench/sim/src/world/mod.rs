//! The nodes, the network between them, and what befalls both: one run, from its plan to the last check.

mod befalling;
mod ending;
mod intruding;
mod making;

use std::time::Duration;

use cxloe_gmm::manager::State;
use cxloe_link::sim::SimNetwork;
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use crate::broken::Broken;
use crate::compute_node::ComputeNode;
use crate::control::network::ControlNetwork;
use crate::fabric::Fabric;
use crate::intruder::Intruder;
use crate::memory_node::MemoryNode;
use crate::paces::SAMPLE_EVERY;
use crate::surroundings::Surroundings;
use crate::tally::Tally;
use crate::trace::{Name, Trace};
use crate::trouble::Troubles;

const MS: Duration = Duration::from_millis(1);

/// Steps from one question whether to go on to the next.
const ASK_EVERY: u64 = 1024;
/// Steps without any time passing, at most: beyond that, somebody always finds something to do at once.
const STEPS_AT_ONCE: u32 = 100_000;

/// A run.
pub struct World<'a> {
    net: SimNetwork,
    random: Random,
    cns: Vec<ComputeNode>,
    mns: Vec<MemoryNode>,
    batch: usize,
    /// To the manager and from it.
    control: ControlNetwork,
    /// Where the manager says which regions there are.
    fabric: Option<Fabric>,
    /// Where nodes have keys: who watches that no nonce comes twice, and perhaps means harm.
    intruder: Option<Intruder>,
    /// Memory nodes take who calls under an unknown key for who it says it is.
    accepts_unknown: bool,
    max_frame: usize,
    troubles: Troubles,
    /// How long everything may take to end once nothing goes wrong any more.
    settle: Duration,
    trouble_at: Time,
    healed_at: Option<Time>,
    /// When pacers are looked at next; never where there are none.
    sample_at: Time,
    /// Operations that each compute node is to make.
    quotas: Vec<u64>,
    /// When the last operation has been made, at the latest.
    end: Time,
    steps: u64,
    /// Steps made since time last passed.
    standing: u32,
    tally: &'a mut Tally,
    trace: Trace,
}

impl World<'_> {
    fn say(&self, what: impl FnOnce() -> String) {
        self.trace.say(self.net.now(), "*", what);
    }

    /// Runs until everything has happened and come to rest, checking all the way.
    ///
    /// # Errors
    /// What did not hold; [`Broken::Stopped`] once `goes_on` says no.
    pub fn run(mut self, goes_on: &dyn Fn() -> bool) -> Result<(), Broken> {
        let outcome = self.live(goes_on).and_then(|()| self.settle());
        for cn in &self.cns {
            cn.retire(self.tally);
        }
        self.count_frames();
        outcome
    }

    fn live(&mut self, goes_on: &dyn Fn() -> bool) -> Result<(), Broken> {
        let ordering = |fabric: &Option<Fabric>| fabric.as_ref().is_some_and(|f| !f.operator.is_done());
        while self.troubles.count > 0
            || self.healed_at.is_some()
            || self.cns.iter().any(ComputeNode::has_work)
            || ordering(&self.fabric)
        {
            if self.net.now() > self.end {
                return Err(self.unrest());
            }
            self.steps += 1;
            if self.steps.is_multiple_of(ASK_EVERY) && !goes_on() {
                return Err(Broken::Stopped);
            }
            self.step(None)?;
            self.look_at_paces();
        }
        Ok(())
    }

    fn look_at_paces(&mut self) {
        let now = self.net.now();
        if now >= self.sample_at && self.cns.iter().any(|cn| cn.engine.is_connected()) {
            self.sample_at = now + SAMPLE_EVERY;
            self.cns.iter_mut().for_each(|cn| cn.sample_paces(now, self.tally));
            if self.cns.iter().any(|cn| cn.quota == 0) {
                let alike = self.quotas.windows(2).all(|pair| pair[0] == pair[1]);
                let made = self.cns.iter().zip(&self.quotas).map(|(cn, quota)| quota - cn.quota);
                if alike {
                    self.tally.paces.served(made);
                }
                // From here on they no longer compete all together.
                self.sample_at = Time(u64::MAX);
            }
        }
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

    fn unrest(&self) -> Broken {
        let fabric = self.fabric.as_ref().and_then(|fabric| fabric.unrest(&self.mns, &self.cns));
        let states: Vec<_> = fabric.into_iter().chain(self.cns.iter().map(ComputeNode::state)).collect();
        Broken::Unrest(states.join("; "))
    }

    fn until(
        &mut self,
        end: Time,
        mut done: impl FnMut(&mut Self) -> Result<bool, Broken>,
    ) -> Result<(), Broken> {
        while !done(self)? {
            if self.net.now() >= end {
                return Err(self.unrest());
            }
            self.step(Some(end))?;
        }
        Ok(())
    }

    /// On to whatever happens next.
    fn step(&mut self, end: Option<Time>) -> Result<(), Broken> {
        let before = self.net.now();
        let trouble = if end.is_none() { self.next_trouble() } else { None };
        // Time passes also when nothing is due: a transmit ring that was full may have room again.
        let mut next = end.unwrap_or(Time(u64::MAX)).min(before + MS);
        self.cns.iter().for_each(|cn| next = next.min(cn.deadline()));
        self.mns.iter().filter_map(|mn| mn.deadline(before)).for_each(|at| next = next.min(at));
        let fabric = self.fabric.as_ref().and_then(|fabric| fabric.deadline(&self.control, &self.mns));
        let intruder = self.intruder.as_ref().and_then(Intruder::deadline);
        self.net
            .next_event()
            .into_iter()
            .chain(trouble)
            .chain(intruder)
            .chain(fabric)
            .for_each(|at| next = next.min(at));
        self.net.step(next);
        let now = self.net.now();
        self.standing = if now == before { self.standing + 1 } else { 0 };
        if self.standing > STEPS_AT_ONCE {
            return Err(Broken::Unrest(format!("time stands still at {now}")));
        }
        if trouble.is_some_and(|at| at <= now) {
            self.befall(now);
        }
        self.look_at_intruder(now)?;
        let mut busy = true;
        while busy {
            busy = false;
            for mn in &mut self.mns {
                busy |= mn.work(now, self.batch);
                if let Some(cn) = mn.serves_revoked() {
                    let (mn, cn) = (Name(mn.mac), Name(cn));
                    return Err(Broken::Rule(format!("{mn} serves {cn}, whose key was taken back")));
                }
            }
            if let Some(fabric) = &mut self.fabric {
                busy |= fabric.work(&mut self.control, &mut self.mns, &mut self.cns, now, self.tally)?;
            }
            let around = Surroundings { mns: &self.mns, state: state_of(&self.fabric) };
            for cn in &mut self.cns {
                busy |= cn.work(now, self.batch, around, self.tally)?;
                if cn.has_died() {
                    cn.kill(now, &mut self.control, self.tally);
                    busy = true;
                }
            }
        }
        Ok(())
    }
}

/// What the manager has committed, where there is one.
fn state_of(fabric: &Option<Fabric>) -> Option<&State> {
    fabric.as_ref().map(|fabric| fabric.manager.state())
}
