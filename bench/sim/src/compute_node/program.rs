//! The program at a worker of a compute node: its operations, its regions with their expected content, and the steps
//! that it takes in a round of the engine.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use cxloe_cn_core::engine::{Engine, EngineEvent, Sink};
use cxloe_cn_core::node::{Frames, Users};
use cxloe_net::Link;
use cxloe_wire::Transmit;
use cxloe_wire::frame::Mac;
use cxloe_wire::random::Random;
use cxloe_wire::session::SessionEvent;
use cxloe_wire::time::Time;

use super::ending::CompletedOperations;
use super::managed::{Managed, Orders};
use super::ownership::Uses;
use super::paged::Paged;
use crate::layout::Layout;
use crate::node_context::NodeContext;
use crate::operation::Operation;
use crate::planted_fault::PlantedFault;
use crate::region::Region;
use crate::register::Shape;
use crate::tally::Tally;
use crate::trace::{Name, Trace};
use crate::verdict::check_write_back;
use crate::violation::InvariantViolation;

/// State of a memory node as reported by the sessions of one process of the compute node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    /// Incarnation of the memory node's content.
    pub incarnation: Option<u64>,
    /// True if a session has reported that the content of this incarnation is lost.
    pub lost: bool,
}

/// Load of a worker: either a program that reads and writes lines, and checks each against a register (the line's
/// expected values), or programs with mapped memory.
pub(super) struct Program {
    pub mac: Mac,
    /// Address of the worker's first queue, by which the trace names the worker.
    pub name: Mac,
    pub index: usize,
    /// Number of the worker, from 0.
    pub worker: usize,
    /// Number of operations still to be submitted, by the programs of all workers together.
    pub quota: u64,
    /// Time of the program's last round.
    pub now: Time,
    pub random: Random,
    pub shape: Shape,
    /// Parts of regions (a part is a region's memory on one memory node). Without a manager there is one part for each
    /// memory node, in the order of the memory nodes.
    pub regions: Vec<Region>,
    pub layout: Layout,
    pub mistake: Option<PlantedFault>,
    pub reported: BTreeMap<Mac, Reported>,
    /// Operations in flight, each with its request id, in order of submission.
    pub under_way: Vec<(u32, Operation)>,
    pub ended: CompletedOperations,
    pub next_user: u32,
    pub next_value: u64,
    pub pending: Option<Operation>,
    /// Operations on the remaining pieces of the current range of addresses; they are submitted without a pause.
    pub parts: VecDeque<Operation>,
    /// Index of a line. Half of the operations on an interleaved region access lines near it, so that they collide.
    pub hot: u64,
    pub issue_at: Time,
    pub pause: Duration,
    /// Last delay of the pending operation, which the engine has refused as busy. The delay doubles with each refusal.
    pub put_off: Duration,
    /// Maximum number of stranded lines (modified lines whose memory node is unreachable) so far.
    pub stranded: usize,
    pub depth: usize,
    /// Maximum number of operations submitted in direct succession.
    pub together: usize,
    pub wait_limit: Duration,
    pub all_succeed: bool,
    pub trace: Trace,
    /// Regions that the manager has assigned; `None` with a static map.
    pub managed: Option<Managed>,
    /// Orders that the worker has not carried out yet; `None` if there are none.
    pub orders: Option<Orders>,
    /// Mapped memory; `None` for a program that submits operations.
    pub paged: Option<Box<Paged>>,
    /// Structures used since the last check of their owners.
    pub uses: Uses,
}

impl Program {
    /// Returns true if operations remain to be submitted.
    pub fn has_more(&self) -> bool {
        self.pending.is_some() || !self.parts.is_empty() || self.quota > 0 && !self.layout.parts().is_empty()
    }

    /// Abandons the operations that access one of these parts of regions and were not submitted yet.
    pub fn give_up(&mut self, parts: &[usize]) {
        self.pending = self.pending.filter(|op| !parts.contains(&op.region));
        self.parts.retain(|op| !parts.contains(&op.region));
    }

    /// Submits the operations that are due; returns the number of those that the engine has accepted.
    fn submit(
        &mut self,
        engine: &mut Engine,
        now: Time,
        tx: &mut dyn Transmit,
        around: NodeContext<'_>,
        tally: &mut Tally,
    ) -> Result<usize, InvariantViolation> {
        if now < self.issue_at || !self.has_more() {
            return Ok(0);
        }
        let before = self.next_user;
        // The pauses of all submitted operations are added up, so that a program that submits several at once takes as
        // long as one that submits them singly.
        let mut pauses = Duration::ZERO;
        for made in 1..=self.together {
            self.issue(engine, now, tx, around, tally)?;
            if self.pending.is_some() || !self.has_more() {
                break;
            }
            pauses += self.issue_at.since(now);
            if made == self.together {
                self.issue_at = now + pauses;
            }
        }
        let made = self.next_user - before;
        Ok(made.saturating_sub(u32::from(self.pending.is_some())) as usize)
    }

    /// Checks what the engine has reported: losses of content, and completed operations.
    pub fn take(
        &mut self,
        engine: &mut Engine,
        now: Time,
        around: NodeContext<'_>,
        tally: &mut Tally,
    ) -> Result<(), InvariantViolation> {
        self.take_events(engine, now, around, tally)?;
        self.take_ended(now, around, tally)
    }

    fn take_events(
        &mut self,
        engine: &mut Engine,
        now: Time,
        around: NodeContext<'_>,
        tally: &mut Tally,
    ) -> Result<(), InvariantViolation> {
        while let Some(event) = engine.poll_event() {
            self.trace.log(now, Name(self.name), || match &event {
                EngineEvent::Session { mac, event } => format!("session with {}: {event:?}", Name(*mac)),
                EngineEvent::LegSilent { mac, .. } => format!("leg at {} silent", Name(*mac)),
                EngineEvent::LegFilled { mac, .. } => format!("leg at {} filled", Name(*mac)),
                EngineEvent::WriteBackRefused { hpa, error } => format!("line at {hpa:#x} refused: {error}"),
            });
            match event {
                EngineEvent::Session { mac, event: SessionEvent::DataLost { before, now } } => {
                    let reported = self.reported.entry(mac).or_default();
                    if reported.incarnation != Some(before) || before == now {
                        let known = reported.incarnation;
                        return Err(self.broken(mac, &format!("{before:#x} is lost, which had {known:x?}")));
                    }
                    reported.lost = true;
                    tally.figures.losses_told += 1;
                }
                EngineEvent::Session { mac, event: SessionEvent::Opened { incarnation, .. } } => {
                    let at = around.mns.iter().position(|mn| mn.mac == mac).expect("a known node");
                    let reported =
                        self.reported.insert(mac, Reported { incarnation: Some(incarnation), lost: false });
                    if let Some(Reported { incarnation: Some(before), lost }) = reported
                        && lost != (before != incarnation)
                    {
                        let why =
                            if lost { "said to be lost, and is not" } else { "lost, and nobody said so" };
                        return Err(self.broken(mac, &format!("its content is {why}")));
                    }
                    let losses = around.mns[at].incarnations.iter().position(|i| *i == incarnation);
                    let losses = losses.expect("one of the node's");
                    let regions = self.regions.iter_mut().filter(|region| region.origin.mn == at);
                    regions.for_each(|region| region.opened(incarnation, losses));
                    // Operations are refused without a session. A session has opened, so the next operation is tried at
                    // once.
                    self.issue_at = self.issue_at.min(now);
                }
                EngineEvent::Session { event: SessionEvent::Dead, .. } => tally.figures.deaths += 1,
                EngineEvent::Session { .. } => {}
                // Regions of a simulated run are not mirrored, so no leg (a copy on one memory node) can replace
                // another.
                EngineEvent::LegSilent { .. } | EngineEvent::LegFilled { .. } => {}
                EngineEvent::WriteBackRefused { hpa, error } => {
                    let place = self.layout.place(hpa);
                    let (part, _) = place.ok_or_else(|| {
                        InvariantViolation::Rule(format!("{hpa:#x} is no line of a region"))
                    })?;
                    check_write_back(hpa, error, &self.regions[part], around)?;
                    tally.figures.write_backs_refused += 1;
                }
            }
        }
        Ok(())
    }

    fn broken(&self, mn: Mac, why: &str) -> InvariantViolation {
        InvariantViolation::Rule(format!("{}, session with {}: {why}", Name(self.name), Name(mn)))
    }
}

/// The program as the user of its engine in one round, with the state that its checks need.
pub(super) struct Step<'a> {
    pub program: &'a mut Program,
    pub around: NodeContext<'a>,
    pub tally: &'a mut Tally,
    /// True if the program submits its operations within the round. A program with a port submits them before the
    /// round.
    pub submits: bool,
    /// First violation found in the round, as an error.
    pub found: Result<(), InvariantViolation>,
}

impl Step<'_> {
    /// Takes one step of the program, unless a violation was found before.
    pub fn check<T: Default>(
        &mut self,
        step: impl FnOnce(&mut Program, NodeContext<'_>, &mut Tally) -> Result<T, InvariantViolation>,
    ) -> T {
        if self.found.is_err() {
            return T::default();
        }
        step(self.program, self.around, self.tally).unwrap_or_else(|broken| {
            self.found = Err(broken);
            T::default()
        })
    }

    /// Carries out one call of the program's port: submits operations and sends their frames.
    pub fn call(&mut self, engine: &mut Engine, link: &mut SimulatedLink<'_>, now: Time) {
        if self.shares_frames() {
            engine.hold();
        }
        let tx = link.transmit();
        self.check(|program, around, tally| program.submit(engine, now, tx, around, tally));
        engine.release(now, link.transmit());
        let Ok(()) = link.flush();
    }
}

impl Users for Step<'_> {
    fn sink(&mut self) -> &mut dyn Sink {
        &mut self.program.ended
    }

    fn shares_frames(&self) -> bool {
        self.program.together > 1
    }

    fn received(&mut self, engine: &mut Engine, frames: usize, now: Time) {
        if frames == 0 {
            return;
        }
        // A received frame may have reported a loss, which must be recorded before new operations are
        // submitted.
        self.check(|program, around, tally| program.take(engine, now, around, tally));
        let program = &mut *self.program;
        if program.pending.is_some() || !program.parts.is_empty() {
            // The pending operation may have waited for one of these frames, so it is tried again at once.
            program.issue_at = program.issue_at.min(now);
        }
    }

    fn submit(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        if !self.submits {
            return 0;
        }
        self.check(|program, around, tally| program.submit(engine, now, tx, around, tally))
    }

    fn demand(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        self.check(|program, around, _| program.demand_pages(engine, now, tx, around))
    }

    fn background(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        self.check(|program, _, _| program.turn_pages(engine, now, tx))
    }

    fn handshakes(&mut self, engine: &mut Engine, now: Time) {
        while let Some((session, job)) = engine.poll_handshake() {
            engine.handshake_done(session, job.run(), now);
        }
        // The engine's timers may have ended operations, so completions are checked again.
        self.check(|program, around, tally| program.take(engine, now, around, tally));
    }

    fn drain(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) {
        self.check(|program, around, _| program.drain(engine, now, tx, around));
    }
}

/// The link of a node in one round, which receives the frames that have arrived by the round's time.
pub(super) struct SimulatedLink<'a> {
    pub link: &'a mut dyn Link,
    pub now: Time,
}

impl Frames for SimulatedLink<'_> {
    type Error = Infallible;

    fn receive(
        &mut self,
        budget: usize,
        mut on_frame: impl FnMut(&mut [u8], Time, &mut dyn Transmit),
    ) -> Result<usize, Infallible> {
        let now = self.now;
        Ok(self.link.receive(budget, &mut |frame, tx| on_frame(frame, now, tx)).expect("a simulated link"))
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        self.link.transmit()
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        self.link.flush().expect("a simulated link");
        Ok(())
    }
}
