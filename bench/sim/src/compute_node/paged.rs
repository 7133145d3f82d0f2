//! A region that programs have mapped: the pager of `cn-agent`, the pager's transfers through the engine, and the
//! simulated kernel between the programs and the pager.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cxloe_cn_core::engine::{Engine, EngineError, RequestId};
use cxloe_cn_core::pager::{
    Entry, Fault, Io, MappingId, NO_SLOT, PAGE_BYTES, Page, PageBuffers, PageState, PageTable, Pager,
    PagerOptions, Slots, ViewId,
};
use cxloe_cn_core::transfers::{BufferSource, FinishedTransfer, PageIo, Transfers};
use cxloe_wire::Transmit;
use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use crate::kernel::{Crash, Event, Kernel, KernelEvent, MemorySharing, WORDS, load};
use crate::plan::{PAGES, PagingPlan};
use crate::planted_fault::PlantedFault;
use crate::tally::Figures;

/// Maximum time between two steps of threads and pager.
const STEP: Duration = Duration::from_micros(2);
/// Maximum time between two steps of threads and pager once all steps of the plan were made, while the rest of the run
/// goes on, and at its end, when threads begin no further accesses. Longer steps let both take fewer rounds.
const QUIET_STEP: Duration = Duration::from_micros(20);
/// Maximum number of kernel operations that an agent still makes before its planned death.
const DYING: u64 = 60;
/// Number that identifies the region in the pager's transfers.
const SPACE: u16 = 0;

type PageTableWords = Arc<[AtomicU64]>;

/// State of the write-backs of the whole region that are made at random times while threads continue. Only shared
/// memory has them, with half of the seeds.
struct Saving {
    random: Random,
    wanted: bool,
    /// Next page to write back; `None` if no write-back is pending.
    from: Option<u32>,
}

/// Stage of the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    /// All threads stop and pending actions end; then every thread reads all pages again, of which the page with this
    /// number is next.
    Settle(u32),
    /// All modified pages are being written back.
    Clean,
    Done,
}

/// A region that programs have mapped, with everything that serves them.
pub(super) struct Paged {
    plan: PagingPlan,
    kernel: Kernel,
    pager: Pager,
    transfers: Transfers,
    tables: Vec<(ViewId, PageTableWords)>,
    /// Forked children whose tables are not complete yet.
    children: Vec<PendingChild>,
    ended: Vec<FinishedTransfer>,
    /// First HPA at which the region is attached; `None` until it is attached.
    pub hpa: Option<u64>,
    steps: u64,
    next_at: Time,
    finish: Finish,
    saving: Saving,
    /// True after the agent was killed during an action, until another agent has taken over its state.
    died: bool,
    /// First violation found, until [`Paged::broken`] takes it.
    broken: Option<String>,
}

/// A forked child whose table is being copied. A successor of the agent does not know it.
struct PendingChild {
    /// Number of the process in the kernel.
    process: usize,
    view: ViewId,
    table: PageTableWords,
}

struct PagerBuffers<'a>(&'a mut Pager);

impl BufferSource for PagerBuffers<'_> {
    fn buffers(&mut self, _: u16) -> Option<&mut PageBuffers> {
        Some(self.0.buffers())
    }
}

fn table() -> PageTableWords {
    (0..PAGES).map(|_| AtomicU64::new(Entry::absent(NO_SLOT).0)).collect()
}

fn slots(kind: MemorySharing, fresh: bool) -> Slots {
    match kind {
        MemorySharing::Shared => Slots::own(PAGES, fresh),
        MemorySharing::Private => Slots::pool(PAGES * 4, fresh),
    }
}

/// A pager without views, for a region that was never written if `fresh`. It goes through whole tables in a number of
/// steps that differs between runs.
fn pager(plan: &PagingPlan, fresh: bool) -> Pager {
    let options = PagerOptions { pages: PAGES, limit: plan.limit, prefetch: true, evict: true };
    let mut pager = Pager::new(options, slots(plan.kind, fresh));
    pager.set_walk_step(1 + (plan.steps % u64::from(PAGES)) as u32);
    pager
}

impl Paged {
    pub fn new(
        plan: PagingPlan,
        random: Random,
        mut savings: Random,
        mistake: Option<PlantedFault>,
    ) -> Paged {
        let wanted = plan.kind == MemorySharing::Shared && savings.below(2) == 0;
        let mut kernel = Kernel::new(random, plan.kind, PAGES);
        (kernel.forks_left, kernel.scanning, kernel.mistake) = (plan.forks, plan.scanning, mistake);
        let mut pager = pager(&plan, !plan.filled);
        let first = table();
        let view = pager.add_view(PageTable::new(Arc::clone(&first)), true).expect("the first");
        let processes = if plan.kind == MemorySharing::Shared { 3 } else { 1 };
        for _ in 0..processes {
            let mapping = pager.add_mapping(view).expect("one of few");
            kernel.process(mapping, view, 3);
        }
        Paged {
            plan,
            kernel,
            pager,
            transfers: Transfers::new(0),
            tables: vec![(view, first)],
            children: Vec::new(),
            ended: Vec::new(),
            hpa: None,
            steps: plan.steps,
            next_at: Time::ZERO,
            finish: Finish::Settle(0),
            saving: Saving { random: savings, wanted, from: None },
            died: false,
            broken: None,
        }
    }

    pub fn plant(&mut self, mistake: PlantedFault) {
        self.kernel.mistake = Some(mistake);
    }

    /// Lets programs begin, because the region is now attached at `hpa`. Returns the content that the region's pages
    /// must have at the memory nodes from the beginning; empty if the region is new.
    pub fn begin(&mut self, hpa: u64) -> Vec<Page> {
        self.hpa = Some(hpa);
        if !self.plan.filled {
            return Vec::new();
        }
        let (_, table) = &self.tables[0];
        let pages = (0..PAGES).map(|page| {
            table[page as usize].store(Entry::absent(page).0, Ordering::Relaxed);
            self.kernel.fill(page)
        });
        pages.collect()
    }

    /// Returns true if steps of threads and pager are left.
    pub fn has_work(&self) -> bool {
        self.steps > 0
    }

    /// Returns the time of the next step of threads and pager.
    pub fn steps_at(&self) -> Option<Time> {
        self.hpa.map(|_| self.next_at)
    }

    /// Returns the time at which the next failed transfer is retried.
    pub fn deadline(&self) -> Deadline {
        self.transfers.deadline()
    }

    /// Returns true if requests for pages wait for room in the engine.
    pub fn is_waiting(&self) -> bool {
        self.transfers.is_waiting()
    }

    /// Makes the agent die during one of its next kernel operations, which may be in the middle of an action of the
    /// pager.
    pub fn kill_soon(&mut self) {
        let within = 1 + self.kernel.below(DYING);
        self.kernel.crash_in = Some(within as u32);
    }

    /// Returns true if the agent has died and no other agent has taken over its state yet.
    pub fn has_died(&self) -> bool {
        self.died
    }

    /// Takes the first violation found, if there is one.
    pub fn broken(&mut self) -> Option<String> {
        self.broken.take()
    }

    /// Handles completed transfers, and requests the pages that threads wait for; returns the number of
    /// actions.
    pub fn demand(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        self.act(|paged| {
            paged.transfers.set_now(now);
            paged.take_ended();
            let Paged { transfers, pager, ended, .. } = paged;
            transfers.advance_demand(engine, now, tx, &mut PagerBuffers(pager), ended)
        })
    }

    /// Makes the steps that are due, and sends the requests that wait; returns the number of actions.
    pub fn turn(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        self.act(|paged| {
            paged.take_ended();
            if now >= paged.next_at {
                paged.step(now);
            }
            let Paged { transfers, pager, ended, .. } = paged;
            let sent = transfers.advance(engine, now, tx, &mut PagerBuffers(pager), ended);
            paged.take_ended();
            sent
        })
    }

    /// Calls `act` if the agent is alive and has a region; catches the agent's simulated death during the
    /// call.
    fn act(&mut self, act: impl FnOnce(&mut Paged) -> usize) -> usize {
        if self.died || self.hpa.is_none() {
            return 0;
        }
        catch_unwind(AssertUnwindSafe(|| act(self))).unwrap_or_else(|panic| {
            self.died = true;
            rethrow(panic);
            0
        })
    }

    /// Makes a few steps of threads and one step of the agent, at random, and checks the outcome.
    fn step(&mut self, now: Time) {
        let step = if self.kernel.quiet || self.steps == 0 { QUIET_STEP } else { STEP };
        self.next_at = now + Duration::from_nanos(1 + self.kernel.below(step.as_nanos() as u64));
        self.steps = self.steps.saturating_sub(1);
        for _ in 0..self.kernel.below(3) {
            self.kernel.step();
        }
        self.agent();
        self.save();
        self.join_and_exit();
        self.check();
    }

    /// Handles the end of one request of a transfer.
    pub fn arrived(&mut self, id: RequestId, outcome: Result<&[u8], EngineError>) {
        let Paged { transfers, pager, ended, .. } = self;
        match outcome {
            Ok([]) => transfers.written(id, ended),
            Ok(data) => transfers.read(id, data, &mut PagerBuffers(pager), ended),
            Err(error) => transfers.failed(id, error, ended),
        }
    }

    fn take_ended(&mut self) {
        for FinishedTransfer { buffer, fetch, outcome, .. } in std::mem::take(&mut self.ended) {
            self.with_io(|pager, io| {
                if fetch { pager.fetched(buffer, outcome, io) } else { pager.written(buffer, outcome, io) }
            });
        }
    }

    /// Calls `act` with the pager, and with the kernel and the transfers that the pager acts through.
    fn with_io<T>(&mut self, act: impl FnOnce(&mut Pager, &mut Io<'_>) -> T) -> T {
        let Paged { kernel, transfers, pager, hpa, plan, .. } = self;
        let (hpa, wait_limit) = (hpa.unwrap_or_default(), plan.wait_limit);
        let mut store = PageIo { transfers, space: SPACE, hpa, wait_limit, now: Time::ZERO };
        act(pager, &mut Io { memory: kernel, store: &mut store })
    }

    /// Makes one step of the agent, which handles an event of the kernel or continues with its own work.
    fn agent(&mut self) {
        let walks = self.pager.is_walking();
        if self.kernel.below(10) < 5
            && let Some(event) = self.kernel.next_event()
        {
            match event {
                // A discard is answered, and the page removed, once the pager has handled it.
                KernelEvent::Userfault(process, event @ Event::Discard { .. }) if walks => {
                    self.kernel.put_back(process, event);
                }
                event => return self.handle(event),
            }
        }
        if walks {
            self.kernel.meanwhile();
        }
        self.with_io(|pager, io| pager.turn(io));
        self.admit_children();
        while let Some(mapping) = self.pager.take_ended() {
            let view = self.pager.view_of(mapping);
            self.pager.end_mapping(mapping);
            if let (MemorySharing::Private, Some(view)) = (self.plan.kind, view) {
                self.end_view(view);
            }
        }
    }

    /// Begins a write-back of the whole region at random times, and continues one that is in progress.
    fn save(&mut self) {
        let Saving { random, wanted, from } = &mut self.saving;
        if *wanted && !self.kernel.quiet && from.is_none() && random.below(100) == 0 {
            *from = Some(0);
        }
        if let Some(page) = *from {
            let view = self.tables[0].0;
            self.saving.from = self.with_io(|pager, io| pager.clean_from(view, page, true, io));
        }
    }

    fn end_view(&mut self, view: ViewId) {
        self.pager.end_view(view);
        self.tables.retain(|(of, _)| *of != view);
        self.children.retain(|child| child.view != view);
    }

    /// Serves the forked children whose tables are complete from now on.
    fn admit_children(&mut self) {
        let (pending, complete) = std::mem::take(&mut self.children)
            .into_iter()
            .partition::<Vec<_>, _>(|child| self.pager.is_copying(child.view));
        self.children = pending;
        for PendingChild { process, view, table } in complete {
            self.kernel.processes[process].served = true;
            self.tables.push((view, table));
        }
    }

    fn handle(&mut self, event: KernelEvent) {
        let (process, event) = match event {
            KernelEvent::Userfault(process, event) => (process, event),
            KernelEvent::Dropped(process, range) => {
                let view = self.kernel.processes[process].view;
                return self.with_io(|pager, io| pager.dropped(view, range, io));
            }
        };
        let (mapping, view) = (self.kernel.processes[process].mapping, self.kernel.processes[process].view);
        match event {
            Event::Fault { page, access, write } => {
                // The kernel reports whether the fault was a write only if that userfaultfd feature is enabled.
                let reported = access != cxloe_cn_core::pager::Access::Missing || self.kernel.chance(900);
                let fault = Fault { mapping, page, access, write: write && reported };
                self.with_io(|pager, io| pager.fault(fault, io));
            }
            Event::Discard { page, thread } => {
                self.pager.discarded(view, page..page + 1);
                self.kernel.discard_answered(thread, page);
            }
            Event::Fork(child) => {
                let room = table();
                let view = self.pager.forked(view, PageTable::new(Arc::clone(&room))).ok();
                let numbers = view.map(|view| {
                    self.children.push(PendingChild { process: child, view, table: room });
                    (self.pager.add_mapping(view).expect("one of few"), view)
                });
                self.kernel.forked(process, child, numbers);
                self.admit_children();
            }
        }
    }

    /// At random times: connects helpers of forked children to the agent, lets processes exit, and ends the views (the
    /// pager's page tables) of exited processes.
    fn join_and_exit(&mut self) {
        if self.plan.kind == MemorySharing::Shared {
            return;
        }
        for process in 0..self.kernel.processes.len() {
            let of = &self.kernel.processes[process];
            if of.alive && !of.joined && (self.kernel.quiet || self.kernel.chance(20)) {
                self.kernel.processes[process].joined = true;
                let view = self.kernel.processes[process].view;
                self.pager.set_droppable(view, true);
            }
        }
        let process = self.kernel.below(self.kernel.processes.len() as u64) as usize;
        if self.kernel.chance(2) && !self.kernel.quiet && self.kernel.can_exit(process) {
            self.kernel.exit(process);
        }
        // The agent notices the end of a process at a random time: by the closed connection of the process's
        // helper, or by an error of the kernel.
        let processes = &self.kernel.processes;
        let ended = |view| !processes.iter().any(|p| p.view == view && p.alive);
        let pending = self.children.iter().map(|child| child.view);
        let known = self.tables.iter().map(|(view, _)| *view).chain(pending);
        let views: Vec<ViewId> = known.filter(|view| ended(*view)).collect();
        for view in views {
            if self.kernel.chance(20) {
                self.end_view(view);
            }
        }
    }

    /// Checks the values that programs have read, and that each waiting thread has a pending fault, so that it will be
    /// woken.
    fn check(&mut self) {
        let violation = self.kernel.violation.take();
        // For each waiting thread that the kernel does not wake, the pager must have a pending fault.
        let mut forgotten = self
            .kernel
            .reported_pages()
            .filter(|(mapping, page)| !self.pager.has_pending_fault(*mapping, *page));
        let forgotten =
            forgotten.next().map(|(_, page)| format!("nobody is to wake those who wait for page {page}"));
        self.broken = self.broken.take().or(violation).or(forgotten);
    }

    /// Starts a successor of a killed agent, which takes over the state of pages and mappings.
    pub fn succeed(&mut self, figures: &mut Figures) {
        self.retire(figures);
        figures.successions += 1;
        self.died = false;
        // The supervisor ends the children of which the successor has no complete table.
        for child in std::mem::take(&mut self.children) {
            self.kernel.exit(child.process);
        }
        self.kernel.agent_dies();
        self.ended.clear();
        self.saving.from = None;
        self.transfers = Transfers::new(0);
        let kind = self.plan.kind;
        self.pager = pager(&self.plan, false);
        self.pager.expect_more();
        // The new agent numbers its views (the pager's page tables) from the beginning. A number from the dead agent
        // must not be mistaken for one of the new agent, so the old numbers are moved to `before`.
        for process in &mut self.kernel.processes {
            (process.before, process.view, process.mapping) =
                (process.view, ViewId(u16::MAX), MappingId(u16::MAX));
        }
        for (old, table) in std::mem::take(&mut self.tables) {
            let view = self.pager.add_view(PageTable::new(Arc::clone(&table)), true).expect("one of few");
            self.tables.push((view, table));
            // The new number of a view may equal the old number of another view. So the processes of a view are found
            // by the old number in `before`.
            for process in self.kernel.processes.iter_mut().filter(|p| p.alive && p.before == old) {
                process.view = view;
                process.mapping = self.pager.add_mapping(view).expect("one of few");
                process.joined = true;
            }
            let ended = !self.kernel.processes.iter().any(|p| p.view == view && p.alive);
            self.pager.take_over(view, &mut self.kernel);
            if ended && kind == MemorySharing::Private {
                self.pager.end_view(view);
                self.tables.pop();
            }
        }
        self.pager.complete();
        self.kernel.wake_everybody();
    }

    /// Adds the counters of a pager that ends to `figures`.
    pub fn retire(&self, figures: &mut Figures) {
        let counters = self.pager.counters();
        figures.faults += counters.faults;
        figures.write_faults += counters.write_faults;
        figures.pages_ahead += counters.prefetched;
        figures.pages_evicted += counters.evicted;
        figures.pages_written_back += counters.written_back;
        figures.pages_lost += counters.lost;
        figures.forks += counters.forks;
        figures.discards += counters.discarded;
    }

    /// Returns true if the end of the run is complete: all threads have read all pages again, and the modified pages of
    /// shared memory have been written back.
    pub fn is_finished(&self) -> bool {
        self.finish == Finish::Done
    }

    /// Continues with the end of the run, in which threads begin no further accesses; returns true when the end is
    /// complete.
    pub fn finish(&mut self) -> bool {
        (self.kernel.quiet, self.kernel.crash_in, self.steps) = (true, None, 0);
        if self.died || self.hpa.is_none() {
            return false;
        }
        let at_rest = self.kernel.stopped() == 0
            && self.pager.resident() <= self.plan.limit
            && self.transfers.count() == 0;
        match self.finish {
            Finish::Settle(page) if at_rest && page < PAGES => {
                self.kernel.read_all(page);
                self.finish = Finish::Settle(page + 1);
            }
            Finish::Settle(_) if at_rest => self.finish = Finish::Clean,
            Finish::Settle(_) => {}
            Finish::Clean => {
                let clean = self.plan.kind == MemorySharing::Private || {
                    let view = self.tables[0].0;
                    self.with_io(|pager, io| pager.clean_all(view, io))
                };
                if clean {
                    self.finish = Finish::Done;
                }
            }
            Finish::Done => {}
        }
        self.finish == Finish::Done
    }

    /// Returns the content that the pages of a shared region must have at the memory nodes, except for pages
    /// whose data is lost.
    pub fn expected(&self) -> Vec<(u32, [u64; WORDS])> {
        if self.plan.kind == MemorySharing::Private {
            return Vec::new();
        }
        let view = self.tables[0].0;
        let known = |page: &u32| {
            self.pager.entry_of(view, *page).is_some_and(|entry| entry.state() != PageState::Lost)
        };
        (0..PAGES).filter(known).map(|page| (page, self.kernel.expectation(0, page))).collect()
    }

    /// Describes why the region is not idle, for the message about a run that does not end.
    pub fn state(&self) -> String {
        let (stopped, resident) = (self.kernel.stopped(), self.pager.resident());
        let (count, waiting) = (self.transfers.count(), self.transfers.is_waiting());
        let finish = self.finish;
        format!(
            "{stopped} threads stopped, {resident} pages resident, {count} transfers, waiting {waiting}, {finish:?}"
        )
    }
}

/// Returns the words of a page that threads use.
pub(super) fn words(page: &Page) -> [u64; WORDS] {
    std::array::from_fn(|word| load(page, word))
}

/// Size of a page in bytes, as `u64` for arithmetic with HPAs.
pub(super) const PAGE: u64 = PAGE_BYTES as u64;

/// Resumes a panic, unless it simulates the death of an agent.
fn rethrow(panic: Box<dyn Any + Send>) {
    if panic.downcast_ref::<Crash>().is_none() {
        resume_unwind(panic);
    }
}
