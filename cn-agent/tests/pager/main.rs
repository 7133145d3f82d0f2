//! The pager against threads that write while pages come and go: no write is ever lost, whatever happens when.
//!
//! Each run is a seed: which thread does what, when events are read, when transfers end and whether they do, when
//! helpers drop pages, when the agent dies and its successor goes on. A seed that fails runs the same again:
//! `CXLOE_PAGER_SEED=17 cargo test -p cxloe-cn --test pager`.

mod nodes;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cxloe_cn_core::pager::{
    Access, Entry, Fault, Io, LIMIT_MIN, Lost, MappingId, NO_SLOT, PAGE_BYTES, PageTable, Pager,
    PagerCounters, PagerOptions, Slots, State, ViewId,
};
use nodes::{Ended, Nodes};
use rand::Rng;
use world::{Crash, Event, Kind, News, Plant, WORDS, World, load};

/// Pages of each view.
const PAGES: u32 = 48;

#[derive(Clone, Copy)]
struct Scenario {
    kind: Kind,
    /// Whether the region has content from before.
    filled: bool,
    failing: u32,
    crashes: u32,
    forks: u32,
    /// Threads that go through memory page by page, out of ten.
    scanning: u32,
    /// Pages that may be resident.
    limit: u32,
    /// What the kernel does wrong.
    plant: Option<Plant>,
    steps: u32,
}

/// The least that a pager can do with.
const CALM: Scenario = Scenario {
    kind: Kind::Shared,
    filled: false,
    failing: 0,
    crashes: 0,
    forks: 0,
    scanning: 0,
    limit: LIMIT_MIN,
    plant: None,
    steps: 6000,
};

type Table = Arc<[AtomicU64]>;

struct Run {
    world: World,
    nodes: Nodes,
    pager: Pager,
    tables: Vec<(ViewId, Table)>,
    scenario: Scenario,
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

impl Run {
    fn new(seed: u64, scenario: Scenario) -> Run {
        let mut world = World::new(seed, scenario.kind, PAGES);
        (world.forks_left, world.scanning, world.plant) = (scenario.forks, scenario.scanning, scenario.plant);
        let mut nodes = Nodes::new(seed);
        let mut pager = Pager::new(options(scenario.limit), slots(scenario.kind, !scenario.filled));
        let first = table();
        let view = pager.add_view(PageTable::new(Arc::clone(&first)), true).unwrap();
        if scenario.filled {
            for page in 0..PAGES {
                nodes.fill(page, world.fill(page));
                first[page as usize].store(Entry::absent(page).0, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let processes = if scenario.kind == Kind::Shared { 3 } else { 1 };
        for _ in 0..processes {
            let mapping = pager.add_mapping(view).unwrap();
            world.process(mapping, view, 3);
        }
        nodes.failing = scenario.failing;
        Run { world, nodes, pager, tables: vec![(view, first)], scenario }
    }

    /// Something the agent does: hears of one thing, or takes a turn.
    fn agent(&mut self) {
        let roll = self.world.random.random_range(0..10);
        for page in 0..PAGES {
            self.world.trace(page, || {
                format!(
                    "{:?}",
                    self.tables
                        .iter()
                        .map(|(view, _)| (view.0, self.pager.look(*view, page)))
                        .collect::<Vec<_>>()
                )
            });
        }
        match roll {
            0..3 => {
                if let Some(ended) = self.nodes.end_one() {
                    return self.ended(ended);
                }
            }
            3..7 => {
                if let Some(news) = self.world.news() {
                    return self.hear(news);
                }
            }
            _ => {}
        }
        let mut io = Io { memory: &mut self.world, store: &mut self.nodes };
        self.pager.turn(&mut io);
        while let Some(mapping) = self.pager.take_ended() {
            let view = self.pager.view_of(mapping);
            self.pager.end_mapping(mapping);
            if let (Kind::Private, Some(view)) = (self.scenario.kind, view) {
                self.pager.end_view(view);
                self.tables.retain(|(of, _)| *of != view);
            }
        }
    }

    fn ended(&mut self, ended: Ended) {
        let outcome = |lost| if lost { Err(Lost) } else { Ok(()) };
        match ended {
            Ended::Fetched { frame, page, lost } => {
                if !lost {
                    *self.pager.frames().page_mut(frame) = *page;
                }
                let mut io = Io { memory: &mut self.world, store: &mut self.nodes };
                self.pager.fetched(frame, outcome(lost), &mut io);
            }
            Ended::Written { frame, slot, lines, lost } => {
                let page = *self.pager.frames().page(frame);
                // What fails may have arrived in part.
                let arrived = if lost { lines & self.nodes.random.random::<u64>() } else { lines };
                self.nodes.apply(slot, arrived, &page);
                let mut io = Io { memory: &mut self.world, store: &mut self.nodes };
                self.pager.written(frame, outcome(lost), &mut io);
            }
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Event(process, event) => {
                let (mapping, view) =
                    (self.world.processes[process].mapping, self.world.processes[process].view);
                match event {
                    Event::Fault { page, access, write } => {
                        // The kernel says whether it was a write only if it was asked to.
                        let write =
                            write && (access != Access::Missing || self.world.random.random_bool(0.9));
                        let mut io = Io { memory: &mut self.world, store: &mut self.nodes };
                        self.pager.fault(Fault { mapping, page, access, write }, &mut io);
                    }
                    Event::Discard { page, thread } => {
                        self.pager.discarded(view, page..page + 1);
                        self.world.discard_answered(thread, page);
                    }
                    Event::Fork(child) => {
                        let room = table();
                        let numbers =
                            self.pager.forked(view, PageTable::new(Arc::clone(&room))).ok().map(|view| {
                                self.tables.push((view, room));
                                (self.pager.add_mapping(view).unwrap(), view)
                            });
                        self.world.forked(process, child, numbers);
                    }
                }
            }
            News::Dropped(process, range) => {
                let view = self.world.processes[process].view;
                let mut io = Io { memory: &mut self.world, store: &mut self.nodes };
                self.pager.dropped(view, range, &mut io);
            }
        }
    }

    /// The agent is killed and another goes on from what it left.
    fn succeed(&mut self) {
        self.world.agent_dies();
        let frames = self.pager.frames();
        self.nodes.agent_dies(|frame| *frames.page(frame));
        let kind = self.scenario.kind;
        self.pager = Pager::new(options(self.scenario.limit), slots(kind, false));
        self.pager.expect_more();
        // Numbers are given anew: old ones must not be taken for them.
        for process in &mut self.world.processes {
            (process.before, process.view, process.mapping) =
                (process.view, ViewId(u16::MAX), MappingId(u16::MAX));
        }
        for (old, table) in std::mem::take(&mut self.tables) {
            let view = self.pager.add_view(PageTable::new(Arc::clone(&table)), true).unwrap();
            self.tables.push((view, table));
            // Processes are known by their views; new numbers must not be taken for old ones.
            for process in self.world.processes.iter_mut().filter(|p| p.alive && p.before == old) {
                process.view = view;
                process.mapping = self.pager.add_mapping(view).unwrap();
                process.joined = true;
            }
            let ended = !self.world.processes.iter().any(|p| p.view == view && p.alive);
            self.pager.take_over(view, &mut self.world);
            if ended && kind == Kind::Private {
                self.pager.end_view(view);
                self.tables.pop();
            }
        }
        self.pager.complete();
        self.world.wake_everybody();
    }

    fn step(&mut self) {
        let before = self.world.random.random_range(0..3);
        (0..before).for_each(|_| self.world.step());
        if self.scenario.crashes > 0
            && self.world.random.random_range(0..self.scenario.steps / self.scenario.crashes) == 0
        {
            self.world.crash_in = Some(self.world.random.random_range(1..60));
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| self.agent()));
        if let Err(panic) = outcome {
            match panic.downcast::<Crash>() {
                Ok(_) => self.succeed(),
                Err(panic) => resume_unwind(panic),
            }
        }
        self.join_and_exit();
    }

    /// Helpers of children come; processes end.
    fn join_and_exit(&mut self) {
        if self.scenario.kind == Kind::Shared {
            return;
        }
        for process in 0..self.world.processes.len() {
            let of = &self.world.processes[process];
            if of.alive && !of.joined && self.world.random.random_bool(0.02) {
                self.world.processes[process].joined = true;
                let view = self.world.processes[process].view;
                self.pager.set_droppable(view, true);
            }
        }
        let process = self.world.random.random_range(0..self.world.processes.len());
        if self.world.random.random_bool(0.002) && !self.world.quiet && self.world.can_exit(process) {
            self.world.exit(process);
        }
        // The agent hears of an end by the helper's connection, sooner or later; or when the kernel refuses something.
        let ended = |view| !self.world.processes.iter().any(|p| p.view == view && p.alive);
        let views: Vec<ViewId> =
            self.tables.iter().map(|(view, _)| *view).filter(|view| ended(*view)).collect();
        for view in views {
            if self.world.random.random_bool(0.02) {
                self.pager.end_view(view);
                self.tables.retain(|(of, _)| *of != view);
            }
        }
    }

    fn check(&self, what: &str) {
        if let Some(trouble) = &self.world.trouble {
            panic!("{what}: {trouble}");
        }
        // Who is not woken by the kernel asks the pager whether to go on waiting.
        for (mapping, page) in self.world.told() {
            assert!(
                self.pager.owes(mapping, page),
                "{what}: nobody is to wake those who wait for page {page}"
            );
        }
    }
}

/// A run; what its pager has counted in the end.
fn run(seed: u64, scenario: Scenario) -> (PagerCounters, World) {
    let mut run = Run::new(seed, scenario);
    let what = format!("seed {seed}");
    for _ in 0..scenario.steps {
        run.step();
        run.check(&what);
    }
    // Everybody stops; what is under way ends; nobody may be left waiting.
    run.scenario.crashes = 0;
    run.world.crash_in = None;
    run.nodes.failing = 0;
    run.world.quiet = true;
    for process in 0..run.world.processes.len() {
        if run.world.processes[process].alive && !run.world.processes[process].joined {
            run.world.processes[process].joined = true;
            run.pager.set_droppable(run.world.processes[process].view, true);
        }
    }
    settle(&mut run, &what);
    for page in 0..PAGES {
        run.world.read_all(page);
        settle(&mut run, &what);
    }
    // Shared memory is written back as a whole, and the memory nodes have what everybody saw.
    if scenario.kind == Kind::Shared {
        let view = run.tables[0].0;
        for _ in 0..10_000 {
            let mut io = Io { memory: &mut run.world, store: &mut run.nodes };
            if run.pager.clean_all(view, &mut io) {
                break;
            }
            run.agent();
        }
        for page in (0..PAGES).filter(|page| run.pager.look(view, *page).unwrap().state() != State::Lost) {
            let there = run.nodes.page(page);
            let found: [u64; WORDS] = std::array::from_fn(|word| load(&there, word));
            assert_eq!(found, run.world.expectation(0, page), "{what}: page {page} at its memory node");
        }
    }
    (run.pager.counters(), run.world)
}

fn settle(run: &mut Run, what: &str) {
    for _ in 0..20_000 {
        run.agent();
        run.world.step();
        run.join_and_exit();
        run.check(what);
        if run.world.stopped() == 0 && run.pager.resident() <= run.scenario.limit {
            return;
        }
    }
    for (view, _) in &run.tables {
        let entries = (0..PAGES).filter_map(|page| run.pager.look(*view, page)).enumerate();
        let busy = |(page, entry): (usize, Entry)| {
            (entry.state() != State::Absent).then(|| format!("{page} {entry:?}"))
        };
        eprintln!("{view:?}: {:#?}", entries.filter_map(busy).collect::<Vec<_>>());
    }
    eprintln!("{}", run.world.describe());
    panic!(
        "{what}: {} threads are stopped for good, {} pages resident",
        run.world.stopped(),
        run.pager.resident()
    );
}

fn runs(name: &str, count: u64, scenario: Scenario) -> Vec<(PagerCounters, World)> {
    if let Some(seed) = std::env::var("CXLOE_PAGER_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return vec![run(seed, scenario)];
    }
    let count = std::env::var("CXLOE_PAGER_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(count);
    (1..=count)
        .map(|seed| {
            let result = catch_unwind(|| run(seed, scenario));
            result.unwrap_or_else(|panic| {
                eprintln!("{name}: again with CXLOE_PAGER_SEED={seed}");
                resume_unwind(panic)
            })
        })
        .collect()
}

const RUNS: u64 = 60;

/// Each count, over all runs.
fn sum(runs: &[(PagerCounters, World)], count: impl Fn(&PagerCounters) -> u64) -> u64 {
    runs.iter().map(|(counters, _)| count(counters)).sum()
}

#[test]
fn shared_memory_loses_no_write() {
    let runs = runs("shared", RUNS, CALM);
    let each = runs.len() as u64;
    assert!(sum(&runs, |c| c.evicted) > 500 * each && sum(&runs, |c| c.refaulted) > 50 * each);
    assert!(sum(&runs, |c| c.written_back) > 200 * each && sum(&runs, |c| c.write_faults) > 50 * each);
    assert!(sum(&runs, |c| c.cancelled) > 10 * each && sum(&runs, |c| c.discarded) > 2 * each);
    for (counters, world) in runs {
        assert!(counters.waits_for_room > 0 && world.reads > 300 && world.writes > 300 && world.sigbus == 0);
        assert!(world.resident_max <= LIMIT_MIN as usize, "{} pages resident", world.resident_max);
    }
}

#[test]
fn content_from_before_is_there() {
    let filled = Scenario { filled: true, ..CALM };
    for (counters, _) in runs("filled", RUNS / 2, filled) {
        assert!(counters.zero_fills < counters.faults / 2, "{counters:?}");
    }
}

#[test]
fn what_is_read_ahead_is_right_and_kept_in_bounds() {
    for kind in [Kind::Shared, Kind::Private] {
        let filled = kind == Kind::Shared;
        let runs =
            runs("ahead", RUNS, Scenario { kind, filled, scanning: 8, limit: 36, steps: 9000, ..CALM });
        let ahead = sum(&runs, |c| c.prefetched);
        let settled = sum(&runs, |c| c.prefetch_hits) + sum(&runs, |c| c.prefetch_wasted);
        assert!(ahead > 20 * runs.len() as u64 && settled <= ahead, "{ahead} {settled}");
        assert!(sum(&runs, |c| c.held_hits) > 0 && sum(&runs, |c| c.prefetch_hits) > 0, "{:?}", runs[0].0);
        assert!(runs.iter().all(|(_, world)| world.resident_max <= 36));
    }
}

#[test]
fn private_memory_keeps_the_meaning_of_fork() {
    let forking = Scenario { kind: Kind::Private, forks: 12, steps: 9000, ..CALM };
    let runs = runs("forks", RUNS, forking);
    assert!(sum(&runs, |c| c.forks) > 2 * runs.len() as u64 && sum(&runs, |c| c.no_slot) == 0);
    for (counters, world) in runs {
        assert!(counters.evicted > 100 && counters.written_back > 50, "{counters:?}");
        assert!(world.reads > 300 && world.writes > 300 && world.sigbus == 0);
    }
}

#[test]
fn a_successor_goes_on_where_the_agent_was_killed() {
    for (kind, forks) in [(Kind::Shared, 0), (Kind::Private, 8)] {
        let crashing = Scenario { kind, forks, crashes: 12, steps: 9000, ..CALM };
        let runs = runs("crashes", RUNS, crashing);
        let crashes: u64 = runs.iter().map(|(_, world)| world.crashes).sum();
        assert!(crashes > 5 * runs.len() as u64, "{crashes} crashes");
    }
}

#[test]
fn transfers_that_fail_lose_nothing_unnoticed() {
    for kind in [Kind::Shared, Kind::Private] {
        let failing = Scenario { kind, failing: 20, forks: 4, ..CALM };
        let runs = runs("failures", RUNS / 2, failing);
        assert!(sum(&runs, |c| c.write_back_failures) > 0);
        assert!(runs.iter().any(|(_, world)| world.sigbus > 0), "lost pages are noticed");
    }
}

/// What the checks above are worth: a kernel that does one thing wrong is found out.
#[test]
fn what_goes_wrong_is_found() {
    for kind in [Kind::Shared, Kind::Private] {
        for plant in [Plant::NoProtection, Plant::StaleSnapshot, Plant::LateDrop] {
            let planted = Scenario { kind, plant: Some(plant), ..CALM };
            let found = (1..=12).filter(|seed| catch_unwind(|| run(*seed, planted)).is_err()).count();
            assert!(found > 0, "{plant:?} in {kind:?} memory is not noticed");
        }
    }
}

#[test]
fn the_model_holds_whole_pages() {
    let mut words: Vec<usize> = (0..WORDS).map(world::offset).collect();
    words.dedup();
    assert!(words.len() == WORDS && words.iter().all(|at| at + 8 <= PAGE_BYTES));
}
