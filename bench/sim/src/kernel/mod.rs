//! A kernel for the pager: processes with threads that read and write words, page tables with present and protected
//! bits, userfaultfd's events, helpers that drop pages.
//!
//! Whatever the pager asks of its memory ([`memory`]), threads go on running before and after it, as a seed decides. Every
//! read is compared with what was written last, so that a write lost anywhere, at any moment, is found.

mod memory;
mod threads;

use std::collections::VecDeque;
use std::ops::Range;

use cxloe_cn_core::pager::{Access, MappingId, PAGE_BYTES, Page, ViewId};
use cxloe_wire::random::Random;

use crate::mistake::Mistake;

/// Words that threads use of each page, spread over its lines.
pub const WORDS: usize = 8;

/// Thrown out of the pager when the agent is to die.
pub struct Crash;

/// Whose the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All processes map the same pages.
    Shared,
    /// Each process has its own, which a fork duplicates.
    Private,
}

/// A process's page: present with this content, and protected or not. Of shared memory the content is elsewhere.
#[derive(Clone, Debug, Default)]
struct Pte {
    present: bool,
    protected: bool,
    poisoned: bool,
    own: Option<Box<Page>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Idle,
    /// Stopped at a page by a fault.
    Stopped {
        page: u32,
        word: usize,
        value: Option<u64>,
    },
    /// Has told the agent that it discards a page, and waits for its answer.
    Discarding {
        page: u32,
        answered: bool,
    },
    /// Waits for its fork event to be read.
    Forking,
}

#[derive(Clone, Debug)]
struct Thread {
    process: usize,
    /// The next page, while it goes through them in order.
    scan: u32,
    doing: Doing,
}

/// A process: a mapping, and what its memory ought to be.
pub struct Process {
    pub mapping: MappingId,
    pub view: ViewId,
    ptes: Vec<Pte>,
    /// Only of private memory; that of shared memory is the world's.
    expected: Vec<[u64; WORDS]>,
    events: VecDeque<Event>,
    /// An event that changes mappings is not read yet.
    changing: bool,
    orders: VecDeque<Vec<Range<u32>>>,
    pub alive: bool,
    pub joined: bool,
    /// Its view with the agent before.
    pub before: ViewId,
}

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Fault {
        page: u32,
        access: Access,
        write: bool,
    },
    /// The child's number.
    Fork(usize),
    Discard {
        page: u32,
        thread: usize,
    },
}

/// What the agent hears of processes.
#[derive(Clone, Debug)]
pub enum News {
    Event(usize, Event),
    Dropped(usize, Range<u32>),
}

pub struct Kernel {
    random: Random,
    pub kind: Kind,
    pub pages: u32,
    pub processes: Vec<Process>,
    threads: Vec<Thread>,
    /// Shared memory.
    cache: Vec<Option<Box<Page>>>,
    shared: Vec<[u64; WORDS]>,
    dropped: VecDeque<(usize, Range<u32>)>,
    values: u64,
    pub crash_in: Option<u32>,
    pub forks_left: u32,
    /// How often threads go on page by page, out of ten.
    pub scanning: u32,
    pub mistake: Option<Mistake>,
    installed: std::collections::HashMap<(usize, u32), Page>,
    /// Pages of shared memory that the agent has made ready, and whether they are filled; nobody else knows of them.
    ready: std::collections::HashMap<u32, bool>,
    pub processes_max: usize,
    pub resident_max: usize,
    pub reads: u64,
    pub writes: u64,
    pub sigbus: u64,
    pub crashes: u64,
    /// Threads begin nothing new.
    pub quiet: bool,
    pub trouble: Option<String>,
}

pub fn offset(word: usize) -> usize {
    // Lines 0, 9, 18, …: some share none.
    word * (64 * 9) % PAGE_BYTES + word * 8 % 64 / 8 * 8
}

pub fn load(page: &Page, word: usize) -> u64 {
    u64::from_le_bytes(page[offset(word)..offset(word) + 8].try_into().expect("eight bytes"))
}

fn store(page: &mut Page, word: usize, value: u64) {
    page[offset(word)..offset(word) + 8].copy_from_slice(&value.to_le_bytes());
}

impl Kernel {
    pub fn new(random: Random, kind: Kind, pages: u32) -> Kernel {
        Kernel {
            random,
            kind,
            pages,
            processes: Vec::new(),
            threads: Vec::new(),
            cache: vec![None; pages as usize],
            shared: vec![[0; WORDS]; pages as usize],
            dropped: VecDeque::new(),
            values: 0,
            crash_in: None,
            forks_left: 0,
            scanning: 0,
            mistake: None,
            installed: Default::default(),
            ready: Default::default(),
            processes_max: 8,
            resident_max: 0,
            reads: 0,
            writes: 0,
            sigbus: 0,
            crashes: 0,
            quiet: false,
            trouble: None,
        }
    }

    /// A process of so many threads; its number.
    pub fn process(&mut self, mapping: MappingId, view: ViewId, threads: usize) -> usize {
        let pages = self.pages as usize;
        self.processes.push(Process {
            mapping,
            view,
            ptes: vec![Pte::default(); pages],
            expected: vec![[0; WORDS]; pages],
            events: VecDeque::new(),
            changing: false,
            orders: VecDeque::new(),
            alive: true,
            joined: true,
            before: view,
        });
        let process = self.processes.len() - 1;
        self.threads.extend((0..threads).map(|_| Thread { process, scan: 0, doing: Doing::Idle }));
        process
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Whether something happens that does so many times in a thousand.
    pub fn chance(&mut self, of_a_thousand: u64) -> bool {
        self.random.below(1000) < of_a_thousand
    }

    fn wrong(&mut self, what: String) {
        self.trouble.get_or_insert(what);
    }

    fn of(&self, mapping: MappingId) -> Option<usize> {
        self.processes.iter().rposition(|process| process.mapping == mapping && process.alive)
    }

    fn expected(&mut self, process: usize, page: u32) -> &mut [u64; WORDS] {
        match self.kind {
            Kind::Shared => &mut self.shared[page as usize],
            Kind::Private => &mut self.processes[process].expected[page as usize],
        }
    }

    pub fn resident(&self) -> usize {
        match self.kind {
            Kind::Shared => self.cache.iter().flatten().count(),
            Kind::Private => {
                let alive = self.processes.iter().filter(|process| process.alive);
                alive.map(|process| process.ptes.iter().filter(|pte| pte.present).count()).sum()
            }
        }
    }

    /// Lets threads and helpers run a little; and perhaps the agent dies.
    fn meanwhile(&mut self) {
        for _ in 0..self.below(4) {
            self.step();
        }
        if let Some(left) = &mut self.crash_in {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.crash_in = None;
                std::panic::resume_unwind(Box::new(Crash));
            }
        }
    }

    fn take_away(&mut self, process: usize, page: u32) {
        match self.kind {
            Kind::Shared => {
                self.cache[page as usize] = None;
                for process in &mut self.processes {
                    let pte = &mut process.ptes[page as usize];
                    (pte.present, pte.protected) = (false, false);
                }
            }
            Kind::Private => {
                self.processes[process].ptes[page as usize] = Pte::default();
            }
        }
    }

    /// A step of a process's helper.
    fn help(&mut self, process: usize) {
        if !self.processes[process].alive || !self.processes[process].joined {
            return;
        }
        if let Some(ranges) = self.processes[process].orders.pop_front() {
            for range in ranges {
                range.clone().for_each(|page| self.take_away(process, page));
                self.dropped.push_back((process, range));
            }
        }
    }

    /// The agent has died: what it had in hand is lost with it.
    pub fn agent_dies(&mut self) {
        self.crash_in = None;
        self.crashes += 1;
        self.ready.clear();
        for process in 0..self.processes.len() {
            // Helpers carry out what they have heard before they call the next agent.
            while !self.processes[process].orders.is_empty() && self.processes[process].alive {
                self.help(process);
            }
        }
        self.dropped.clear();
    }

    /// Whoever waits tries again: what the dead agent had heard is forgotten.
    pub fn wake_everybody(&mut self) {
        for process in 0..self.processes.len() {
            (0..self.pages).for_each(|page| self.wake_threads(process, page));
        }
    }

    /// Content that shared or inherited memory has from the start.
    pub fn fill(&mut self, page: u32) -> Page {
        let mut content = [0; PAGE_BYTES];
        for word in 0..WORDS {
            self.values += 1;
            store(&mut content, word, self.values);
            self.shared[page as usize][word] = self.values;
        }
        content
    }

    /// What the agent hears next, if anything.
    pub fn news(&mut self) -> Option<News> {
        if self.chance(300)
            && let Some((process, range)) = self.dropped.pop_front()
        {
            return Some(News::Dropped(process, range));
        }
        let count = self.processes.len();
        let from = self.below(count as u64) as usize;
        for process in (0..count).map(|i| (from + i) % count) {
            if let Some(event) = self.processes[process].events.pop_front() {
                return Some(News::Event(process, event));
            }
        }
        None
    }

    /// The fork event has been read: the child runs.
    pub fn forked(&mut self, parent: usize, child: usize, numbers: Option<(MappingId, ViewId)>) {
        self.processes[parent].changing = false;
        for thread in &mut self.threads {
            if thread.process == parent && thread.doing == Doing::Forking {
                thread.doing = Doing::Idle;
            }
        }
        if let Some((mapping, view)) = numbers {
            let child = &mut self.processes[child];
            (child.mapping, child.view, child.alive) = (mapping, view, true);
        }
    }

    /// Shared memory is taken away by the agent, private memory by the thread itself, in its own time.
    pub fn discard_answered(&mut self, thread: usize, page: u32) {
        if self.kind == Kind::Shared {
            self.take_away(0, page);
        }
        if let Doing::Discarding { answered, .. } = &mut self.threads[thread].doing {
            *answered = true;
        }
    }

    /// A process ends at once.
    pub fn exit(&mut self, process: usize) {
        let of = &mut self.processes[process];
        of.alive = false;
        of.events.clear();
        of.orders.clear();
        self.dropped.retain(|(from, _)| *from != process);
    }

    pub fn can_exit(&self, process: usize) -> bool {
        let of = &self.processes[process];
        let forking = |t: &Thread| t.process == process && t.doing == Doing::Forking;
        of.alive
            && of.joined
            && self.processes.iter().filter(|p| p.alive).count() > 1
            && !self.threads.iter().any(forking)
    }

    /// Whether everybody who is stopped is so for good.
    pub fn stopped(&self) -> usize {
        self.threads.iter().filter(|t| self.processes[t.process].alive && t.doing != Doing::Idle).count()
    }

    /// Pages that threads are stopped at, the agent having heard of it.
    pub fn told(&self) -> impl Iterator<Item = (MappingId, u32)> {
        self.threads.iter().filter_map(|thread| {
            let Doing::Stopped { page, .. } = thread.doing else { return None };
            let of = &self.processes[thread.process];
            let untold =
                of.events.iter().any(|event| matches!(event, Event::Fault { page: at, .. } if *at == page));
            (of.alive && of.joined && !untold).then_some((of.mapping, page))
        })
    }

    /// What every process would find, were all pages brought in: compared at the end by the caller, page by page.
    pub fn expectation(&self, process: usize, page: u32) -> [u64; WORDS] {
        match self.kind {
            Kind::Shared => self.shared[page as usize],
            Kind::Private => self.processes[process].expected[page as usize],
        }
    }

    /// Every thread reads every page once more, in order; for the end of a run.
    pub fn read_all(&mut self, page: u32) {
        for thread in 0..self.threads.len() {
            let process = self.threads[thread].process;
            if self.processes[process].alive && self.threads[thread].doing == Doing::Idle {
                let word = self.below(WORDS as u64) as usize;
                self.access(thread, page, word, None);
            }
        }
    }
}
