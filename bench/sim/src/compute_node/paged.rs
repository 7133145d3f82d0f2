//! A region that programs have mapped: the pager, its transfers over the engine, and the kernel between both.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cxloe_cn_core::engine::{Engine, EngineError};
use cxloe_cn_core::pager::{
    Entry, Fault, Io, MappingId, NO_SLOT, PAGE_BYTES, Page, PageBuffers, PageTable, Pager, PagerOptions,
    Slots, State, ViewId,
};
use cxloe_cn_core::transfers::{BufferSource, Ended, PAGING, PageIo, Transfers};
use cxloe_wire::Transmit;
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use crate::kernel::{Crash, Event, Kernel, Kind, News, WORDS, load};
use crate::mistake::Mistake;
use crate::plan::{PAGES, PagingPlan};
use crate::tally::Figures;

/// From one step of threads and pager to the next, at most.
const STEP: Duration = Duration::from_micros(2);
/// The same, once nobody begins anything new.
const QUIET_STEP: Duration = Duration::from_micros(20);
/// How soon pages are sent for again for which the engine had no room.
const AGAIN: Duration = Duration::from_micros(10);
/// How long a killed agent may go on until it gets to the point where it dies, in operations of its kernel.
const DYING: u64 = 60;
/// Its region's number among those that transfers are for.
const SPACE: u16 = 0;

type Table = Arc<[AtomicU64]>;

/// Programs that have everything written back in the midst of all, beside others that go on: of half of the seeds.
struct Saving {
    random: Random,
    wanted: bool,
    /// The page to go on with, while somebody waits for it.
    from: Option<u32>,
}

/// How far a run has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    /// Everybody stops, and what is under way ends; then everybody reads this page once more.
    Settle(u32),
    /// Everything is written back.
    Clean,
    /// All is as it should be.
    Done,
}

/// A region that programs have mapped.
pub(super) struct Paged {
    plan: PagingPlan,
    kernel: Kernel,
    pager: Pager,
    transfers: Transfers,
    tables: Vec<(ViewId, Table)>,
    ended: Vec<Ended>,
    /// Where the region is attached.
    pub hpa: Option<u64>,
    steps: u64,
    next_at: Time,
    finish: Finish,
    saving: Saving,
    /// It was killed in the midst of something.
    died: bool,
    /// What does not hold.
    broken: Option<String>,
}

struct Source<'a>(&'a mut Pager);

impl BufferSource for Source<'_> {
    fn buffers(&mut self, _: u16) -> Option<&mut PageBuffers> {
        Some(self.0.buffers())
    }
}

fn table() -> Table {
    (0..PAGES).map(|_| AtomicU64::new(Entry::absent(NO_SLOT).0)).collect()
}

fn slots(kind: Kind, fresh: bool) -> Slots {
    match kind {
        Kind::Shared => Slots::own(PAGES, fresh),
        Kind::Private => Slots::pool(PAGES * 4, fresh),
    }
}

fn options(limit: u32) -> PagerOptions {
    PagerOptions { pages: PAGES, limit, prefetch: true, evict: true }
}

/// Whether an operation is one of a pager.
pub(super) fn is_paging(user: u64) -> bool {
    user & PAGING != 0
}

impl Paged {
    pub fn new(plan: PagingPlan, random: Random, mut savings: Random, mistake: Option<Mistake>) -> Paged {
        let wanted = plan.kind == Kind::Shared && savings.below(2) == 0;
        let mut kernel = Kernel::new(random, plan.kind, PAGES);
        (kernel.forks_left, kernel.scanning, kernel.mistake) = (plan.forks, plan.scanning, mistake);
        let mut pager = Pager::new(options(plan.limit), slots(plan.kind, !plan.filled));
        let first = table();
        let view = pager.add_view(PageTable::new(Arc::clone(&first)), true).expect("the first");
        let processes = if plan.kind == Kind::Shared { 3 } else { 1 };
        for _ in 0..processes {
            let mapping = pager.add_mapping(view).expect("one of few");
            kernel.process(mapping, view, 3);
        }
        Paged {
            plan,
            kernel,
            pager,
            transfers: Transfers::new(|| Time::ZERO),
            tables: vec![(view, first)],
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

    pub fn plant(&mut self, mistake: Mistake) {
        self.kernel.mistake = Some(mistake);
    }

    /// The region is attached: programs run. Returns what its pages are to hold, if it is not new.
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

    /// Whether it has steps to make.
    pub fn has_work(&self) -> bool {
        self.steps > 0
    }

    /// When it goes on.
    pub fn deadline(&self, now: Time) -> Time {
        let again = if self.transfers.is_waiting() { Some(now + AGAIN) } else { None };
        let due = [Some(self.next_at), again, self.transfers.deadline()];
        due.into_iter().flatten().min().filter(|_| self.hpa.is_some()).unwrap_or(Time(u64::MAX))
    }

    /// It is killed within its next operations.
    pub fn kill_soon(&mut self) {
        let within = 1 + self.kernel.below(DYING);
        self.kernel.crash_in = Some(within as u32);
    }

    /// Whether it has died, and another one has to take its place.
    pub fn has_died(&self) -> bool {
        self.died
    }

    /// What does not hold, if anything does not.
    pub fn broken(&mut self) -> Option<String> {
        self.broken.take()
    }

    /// Does what is due.
    pub fn work(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) {
        if self.died || self.hpa.is_none() {
            return;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| self.act(engine, now, tx)));
        if let Err(panic) = outcome {
            self.died = true;
            rethrow(panic);
        }
    }

    fn act(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) {
        self.transfers.set_now(now);
        self.take_ended();
        if now >= self.next_at {
            let step = if self.kernel.quiet { QUIET_STEP } else { STEP };
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
        let Paged { transfers, pager, ended, .. } = self;
        transfers.go_on(engine, now, tx, &mut Source(pager), ended);
        self.take_ended();
    }

    /// An operation of a transfer has ended.
    pub fn arrived(&mut self, user: u64, outcome: Result<&[u8], EngineError>) {
        let Paged { transfers, pager, ended, .. } = self;
        match outcome {
            Ok([]) => transfers.written(user, ended),
            Ok(data) => transfers.read(user, data, &mut Source(pager), ended),
            Err(error) => transfers.failed(user, error, ended),
        }
    }

    fn take_ended(&mut self) {
        for Ended { buffer, fetch, outcome, .. } in std::mem::take(&mut self.ended) {
            self.with_io(|pager, io| {
                if fetch { pager.fetched(buffer, outcome, io) } else { pager.written(buffer, outcome, io) }
            });
        }
    }

    /// The pager, and what it acts through.
    fn with_io<T>(&mut self, act: impl FnOnce(&mut Pager, &mut Io<'_>) -> T) -> T {
        let Paged { kernel, transfers, pager, hpa, plan, .. } = self;
        let (hpa, patience) = (hpa.unwrap_or_default(), plan.patience);
        let mut store = PageIo { transfers, space: SPACE, hpa, patience };
        act(pager, &mut Io { memory: kernel, store: &mut store })
    }

    /// Something the agent does: hears of one thing, or takes a turn.
    fn agent(&mut self) {
        if self.kernel.below(10) < 5
            && let Some(news) = self.kernel.news()
        {
            return self.hear(news);
        }
        self.with_io(|pager, io| pager.turn(io));
        while let Some(mapping) = self.pager.take_ended() {
            let view = self.pager.view_of(mapping);
            self.pager.end_mapping(mapping);
            if let (Kind::Private, Some(view)) = (self.plan.kind, view) {
                self.end_view(view);
            }
        }
    }

    /// Goes on with writing everything back, if somebody wants it.
    fn save(&mut self) {
        let Saving { random, wanted, from } = &mut self.saving;
        if *wanted && !self.kernel.quiet && from.is_none() && random.below(100) == 0 {
            *from = Some(0);
        }
        if let Some(page) = *from {
            let view = self.tables[0].0;
            self.saving.from = self.with_io(|pager, io| pager.clean_from(view, page, io));
        }
    }

    fn end_view(&mut self, view: ViewId) {
        self.pager.end_view(view);
        self.tables.retain(|(of, _)| *of != view);
    }

    fn hear(&mut self, news: News) {
        let (process, event) = match news {
            News::Event(process, event) => (process, event),
            News::Dropped(process, range) => {
                let view = self.kernel.processes[process].view;
                return self.with_io(|pager, io| pager.dropped(view, range, io));
            }
        };
        let (mapping, view) = (self.kernel.processes[process].mapping, self.kernel.processes[process].view);
        match event {
            Event::Fault { page, access, write } => {
                // The kernel says whether it was a write only if it was asked to.
                let told = access != cxloe_cn_core::pager::Access::Missing || self.kernel.chance(900);
                let fault = Fault { mapping, page, access, write: write && told };
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
                    self.tables.push((view, room));
                    (self.pager.add_mapping(view).expect("one of few"), view)
                });
                self.kernel.forked(process, child, numbers);
            }
        }
    }

    /// Helpers of children come; processes end.
    fn join_and_exit(&mut self) {
        if self.plan.kind == Kind::Shared {
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
        // The agent hears of an end by the helper's connection, sooner or later; or when the kernel refuses something.
        let processes = &self.kernel.processes;
        let ended = |view| !processes.iter().any(|p| p.view == view && p.alive);
        let views: Vec<ViewId> =
            self.tables.iter().map(|(view, _)| *view).filter(|view| ended(*view)).collect();
        for view in views {
            if self.kernel.chance(20) {
                self.end_view(view);
            }
        }
    }

    /// What programs have seen, and who is to wake those that wait.
    fn check(&mut self) {
        let trouble = self.kernel.trouble.take();
        // Who is not woken by the kernel asks the pager whether to go on waiting.
        let mut forgotten = self.kernel.told().filter(|(mapping, page)| !self.pager.owes(*mapping, *page));
        let forgotten =
            forgotten.next().map(|(_, page)| format!("nobody is to wake those who wait for page {page}"));
        self.broken = self.broken.take().or(trouble).or(forgotten);
    }

    /// The agent has been killed, and another one goes on from what it left.
    pub fn succeed(&mut self, figures: &mut Figures) {
        self.retire(figures);
        figures.successions += 1;
        self.died = false;
        self.kernel.agent_dies();
        self.ended.clear();
        self.saving.from = None;
        self.transfers = Transfers::new(|| Time::ZERO);
        let kind = self.plan.kind;
        self.pager = Pager::new(options(self.plan.limit), slots(kind, false));
        self.pager.expect_more();
        // Numbers are given anew: old ones must not be taken for them.
        for process in &mut self.kernel.processes {
            (process.before, process.view, process.mapping) =
                (process.view, ViewId(u16::MAX), MappingId(u16::MAX));
        }
        for (old, table) in std::mem::take(&mut self.tables) {
            let view = self.pager.add_view(PageTable::new(Arc::clone(&table)), true).expect("one of few");
            self.tables.push((view, table));
            // Processes are known by their views; new numbers must not be taken for old ones.
            for process in self.kernel.processes.iter_mut().filter(|p| p.alive && p.before == old) {
                process.view = view;
                process.mapping = self.pager.add_mapping(view).expect("one of few");
                process.joined = true;
            }
            let ended = !self.kernel.processes.iter().any(|p| p.view == view && p.alive);
            self.pager.take_over(view, &mut self.kernel);
            if ended && kind == Kind::Private {
                self.pager.end_view(view);
                self.tables.pop();
            }
        }
        self.pager.complete();
        self.kernel.wake_everybody();
    }

    /// Takes over what the pager has counted: it has come to its end.
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

    /// Whether everything has ended, and was found to be as it should.
    pub fn is_finished(&self) -> bool {
        self.finish == Finish::Done
    }

    /// Nothing goes wrong any more: whether everything has ended.
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
                let view = self.tables[0].0;
                let clean =
                    self.plan.kind == Kind::Private || self.with_io(|pager, io| pager.clean_all(view, io));
                if clean {
                    self.finish = Finish::Done;
                }
            }
            Finish::Done => {}
        }
        self.finish == Finish::Done
    }

    /// What the pages of a region that processes share are to hold at their memory nodes, those whose data is lost aside.
    pub fn expected(&self) -> Vec<(u32, [u64; WORDS])> {
        if self.plan.kind == Kind::Private {
            return Vec::new();
        }
        let view = self.tables[0].0;
        let known =
            |page: &u32| self.pager.look(view, *page).is_some_and(|entry| entry.state() != State::Lost);
        (0..PAGES).filter(known).map(|page| (page, self.kernel.expectation(0, page))).collect()
    }

    /// What keeps it from coming to rest, for a message.
    pub fn state(&self) -> String {
        let (stopped, resident) = (self.kernel.stopped(), self.pager.resident());
        let (count, waiting) = (self.transfers.count(), self.transfers.is_waiting());
        let finish = self.finish;
        format!(
            "{stopped} threads stopped, {resident} pages resident, {count} transfers, waiting {waiting}, {finish:?}"
        )
    }
}

/// The words of a page.
pub(super) fn words(page: &Page) -> [u64; WORDS] {
    std::array::from_fn(|word| load(page, word))
}

/// Bytes of a page, as a number of HPA.
pub(super) const PAGE: u64 = PAGE_BYTES as u64;

/// Goes on with a panic that is none of an agent's death.
fn rethrow(panic: Box<dyn Any + Send>) {
    if panic.downcast_ref::<Crash>().is_none() {
        resume_unwind(panic);
    }
}
