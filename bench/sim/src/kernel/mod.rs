//! A simulated kernel for the pager: processes with threads that read and write words, page tables with
//! present and protected bits, the events of userfaultfd, and helpers that drop pages.
//!
//! Threads, chosen by the seed, run before and after every memory operation of the pager ([`memory`]). Every
//! read is compared with the last write, so that a lost write is found whenever it is lost.

mod memory;
mod threads;

use std::collections::VecDeque;
use std::ops::Range;

use cxloe_cn_core::pager::{Access, MappingId, PAGE_BYTES, Page, ViewId};
use cxloe_wire::random::Random;

use crate::planted_fault::PlantedFault;

/// Number of words in each page that threads use, spread over the page's lines.
pub const WORDS: usize = 8;

/// Payload of the panic that simulates the death of the agent.
pub struct Crash;

/// Kind of memory that programs map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySharing {
    /// All processes map the same pages.
    Shared,
    /// Each process has its own pages, which a fork duplicates.
    Private,
}

/// Page table entry of one process. For private memory it also holds the page's content; the content of shared pages is
/// in [`Kernel`].
#[derive(Clone, Debug, Default)]
struct Pte {
    present: bool,
    protected: bool,
    poisoned: bool,
    own: Option<Box<Page>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    Idle,
    /// Stopped by a fault on a page; with `value`, the access is a write.
    Stopped {
        page: u32,
        word: usize,
        value: Option<u64>,
    },
    /// Waits for the agent's answer after asking it to discard a page.
    Discarding {
        page: u32,
        answered: bool,
    },
    /// Waits until the agent has read the event of its fork.
    Forking,
}

#[derive(Clone, Debug)]
struct Thread {
    process: usize,
    /// Next page of the thread's sequential scan.
    scan: u32,
    state: ThreadState,
}

/// A process with its page table, and the expected content of its private memory.
pub struct Process {
    pub mapping: MappingId,
    pub view: ViewId,
    ptes: Vec<Pte>,
    /// Expected content of private memory. The expected content of shared memory is in [`Kernel`].
    expected: Vec<[u64; WORDS]>,
    events: VecDeque<Event>,
    /// True until the agent has read an event that changes mappings, such as a fork.
    changing: bool,
    orders: VecDeque<Vec<Range<u32>>>,
    pub alive: bool,
    pub joined: bool,
    /// Whether the agent reads the process's events. It does not before it has a complete table of a forked child.
    pub served: bool,
    /// Number that the previous agent gave to the process's view (its table of pages).
    pub before: ViewId,
}

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Fault {
        page: u32,
        access: Access,
        write: bool,
    },
    /// A fork; the number is the child's index among the processes of [`Kernel`].
    Fork(usize),
    Discard {
        page: u32,
        thread: usize,
    },
}

/// An event that the agent reads, with the number of the process that caused it.
#[derive(Clone, Debug)]
pub enum KernelEvent {
    Userfault(usize, Event),
    Dropped(usize, Range<u32>),
}

pub struct Kernel {
    random: Random,
    pub kind: MemorySharing,
    pub pages: u32,
    pub processes: Vec<Process>,
    threads: Vec<Thread>,
    /// Content of each page of shared memory; `None` if the page is absent.
    cache: Vec<Option<Box<Page>>>,
    shared: Vec<[u64; WORDS]>,
    dropped: VecDeque<(usize, Range<u32>)>,
    values: u64,
    pub crash_in: Option<u32>,
    pub forks_left: u32,
    /// Probability, in tenths, that a thread continues its sequential scan.
    pub scanning: u32,
    pub mistake: Option<PlantedFault>,
    installed: std::collections::HashMap<(usize, u32), Page>,
    /// Pages of shared memory that the agent has prepared and that processes do not see yet; true if the page
    /// is filled.
    ready: std::collections::HashMap<u32, bool>,
    pub processes_max: usize,
    pub resident_max: usize,
    pub reads: u64,
    pub writes: u64,
    pub sigbus: u64,
    pub crashes: u64,
    /// True if threads are to begin no further accesses.
    pub quiet: bool,
    pub violation: Option<String>,
}

pub fn offset(word: usize) -> usize {
    // Words 0, 1, 2, … are in lines 0, 9, 18, …, each at another offset of its line.
    word * (64 * 9) % PAGE_BYTES + word * 8 % 64 / 8 * 8
}

pub fn load(page: &Page, word: usize) -> u64 {
    u64::from_le_bytes(page[offset(word)..offset(word) + 8].try_into().expect("eight bytes"))
}

fn store(page: &mut Page, word: usize, value: u64) {
    page[offset(word)..offset(word) + 8].copy_from_slice(&value.to_le_bytes());
}

impl Kernel {
    pub fn new(random: Random, kind: MemorySharing, pages: u32) -> Kernel {
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
            violation: None,
        }
    }

    /// Adds a process with `threads` threads; returns the number of the process.
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
            served: true,
            before: view,
        });
        let process = self.processes.len() - 1;
        self.threads.extend((0..threads).map(|_| Thread { process, scan: 0, state: ThreadState::Idle }));
        process
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Returns true with this probability in thousandths.
    pub fn chance(&mut self, of_a_thousand: u64) -> bool {
        self.random.below(1000) < of_a_thousand
    }

    fn wrong(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn of(&self, mapping: MappingId) -> Option<usize> {
        self.processes.iter().rposition(|process| process.mapping == mapping && process.alive)
    }

    fn expected(&mut self, process: usize, page: u32) -> &mut [u64; WORDS] {
        match self.kind {
            MemorySharing::Shared => &mut self.shared[page as usize],
            MemorySharing::Private => &mut self.processes[process].expected[page as usize],
        }
    }

    pub fn resident(&self) -> usize {
        match self.kind {
            MemorySharing::Shared => self.cache.iter().flatten().count(),
            MemorySharing::Private => {
                let alive = self.processes.iter().filter(|process| process.alive);
                alive.map(|process| process.ptes.iter().filter(|pte| pte.present).count()).sum()
            }
        }
    }

    /// Runs threads and helpers for a few steps. The agent may die in this call.
    pub fn meanwhile(&mut self) {
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
            MemorySharing::Shared => {
                self.cache[page as usize] = None;
                for process in &mut self.processes {
                    let pte = &mut process.ptes[page as usize];
                    (pte.present, pte.protected) = (false, false);
                }
            }
            MemorySharing::Private => {
                self.processes[process].ptes[page as usize] = Pte::default();
            }
        }
    }

    /// Makes one step of a process's helper, which drops the pages that the agent has ordered it to drop.
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

    /// Simulates the death of the agent, which loses the events that it has read and the pages that it was
    /// preparing.
    pub fn agent_dies(&mut self) {
        self.crash_in = None;
        self.crashes += 1;
        self.ready.clear();
        for process in 0..self.processes.len() {
            // Before a helper connects to the next agent, it completes the orders to drop pages that it has received.
            while !self.processes[process].orders.is_empty() && self.processes[process].alive {
                self.help(process);
            }
        }
        self.dropped.clear();
    }

    /// Makes all waiting threads repeat their accesses, since the faults that the dead agent had read are
    /// lost.
    pub fn wake_everybody(&mut self) {
        for process in 0..self.processes.len() {
            (0..self.pages).for_each(|page| self.wake_threads(process, page));
        }
    }

    /// Chooses the initial content of a page and expects programs to read it.
    pub fn fill(&mut self, page: u32) -> Page {
        let mut content = [0; PAGE_BYTES];
        for word in 0..WORDS {
            self.values += 1;
            store(&mut content, word, self.values);
            self.shared[page as usize][word] = self.values;
        }
        content
    }

    /// Takes the next event for the agent, if there is one, from a process chosen at random.
    pub fn next_event(&mut self) -> Option<KernelEvent> {
        if self.chance(300)
            && let Some((process, range)) = self.dropped.pop_front()
        {
            return Some(KernelEvent::Dropped(process, range));
        }
        let count = self.processes.len();
        let from = self.below(count as u64) as usize;
        for process in (0..count).map(|i| (from + i) % count) {
            if self.processes[process].served
                && let Some(event) = self.processes[process].events.pop_front()
            {
                return Some(KernelEvent::Userfault(process, event));
            }
        }
        None
    }

    /// Puts back an event that the agent cannot handle yet.
    pub fn put_back(&mut self, process: usize, event: Event) {
        self.processes[process].events.push_front(event);
    }

    /// Ends the wait of the forking thread after the agent has read the fork event. If the agent has assigned the child
    /// a mapping and a view (`numbers`), the child runs from then on. It is served when the agent says so.
    pub fn forked(&mut self, parent: usize, child: usize, numbers: Option<(MappingId, ViewId)>) {
        self.processes[parent].changing = false;
        for thread in &mut self.threads {
            if thread.process == parent && thread.state == ThreadState::Forking {
                thread.state = ThreadState::Idle;
            }
        }
        if let Some((mapping, view)) = numbers {
            let child = &mut self.processes[child];
            (child.mapping, child.view, child.alive, child.served) = (mapping, view, true, false);
        }
    }

    /// Handles the agent's answer to a discard. A page of shared memory is removed at once; a page of private memory is
    /// removed later, by the discarding thread.
    pub fn discard_answered(&mut self, thread: usize, page: u32) {
        if self.kind == MemorySharing::Shared {
            self.take_away(0, page);
        }
        if let ThreadState::Discarding { answered, .. } = &mut self.threads[thread].state {
            *answered = true;
        }
    }

    /// Ends a process at once, with all its unread events.
    pub fn exit(&mut self, process: usize) {
        let of = &mut self.processes[process];
        of.alive = false;
        of.events.clear();
        of.orders.clear();
        self.dropped.retain(|(from, _)| *from != process);
    }

    pub fn can_exit(&self, process: usize) -> bool {
        let of = &self.processes[process];
        let forking = |t: &Thread| t.process == process && t.state == ThreadState::Forking;
        of.alive
            && of.joined
            && self.processes.iter().filter(|p| p.alive).count() > 1
            && !self.threads.iter().any(forking)
    }

    /// Returns the number of threads of live processes that wait for the agent.
    pub fn stopped(&self) -> usize {
        self.threads
            .iter()
            .filter(|t| self.processes[t.process].alive && t.state != ThreadState::Idle)
            .count()
    }

    /// Returns the pages at which threads are stopped by faults that the agent has read.
    pub fn reported_pages(&self) -> impl Iterator<Item = (MappingId, u32)> {
        self.threads.iter().filter_map(|thread| {
            let ThreadState::Stopped { page, .. } = thread.state else { return None };
            let of = &self.processes[thread.process];
            let untold =
                of.events.iter().any(|event| matches!(event, Event::Fault { page: at, .. } if *at == page));
            (of.alive && of.joined && !untold).then_some((of.mapping, page))
        })
    }

    /// Returns the values that a process must read from a page.
    pub fn expectation(&self, process: usize, page: u32) -> [u64; WORDS] {
        match self.kind {
            MemorySharing::Shared => self.shared[page as usize],
            MemorySharing::Private => self.processes[process].expected[page as usize],
        }
    }

    /// Makes every idle thread read this page once more, at the end of a run.
    pub fn read_all(&mut self, page: u32) {
        for thread in 0..self.threads.len() {
            let process = self.threads[thread].process;
            if self.processes[process].alive && self.threads[thread].state == ThreadState::Idle {
                let word = self.below(WORDS as u64) as usize;
                self.access(thread, page, word, None);
            }
        }
    }
}
