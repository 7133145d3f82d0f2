//! Actions of the simulated programs' threads: loads and stores of words, scans, discards and forks; stops at
//! faults, and wake-ups.

use cxloe_cn_core::pager::{Access, MappingId, ViewId};

use super::{Event, Kernel, MemorySharing, Thread, ThreadState, WORDS, load, store};

impl Kernel {
    /// Makes one step of a random helper or thread.
    pub fn step(&mut self) {
        self.resident_max = self.resident_max.max(self.resident());
        if self.chance(200) {
            let process = self.below(self.processes.len() as u64) as usize;
            return self.help(process);
        }
        let thread = self.below(self.threads.len() as u64) as usize;
        let Thread { process, state, .. } = self.threads[thread];
        if !self.processes[process].alive {
            return;
        }
        match state {
            ThreadState::Stopped { .. }
            | ThreadState::Forking
            | ThreadState::Discarding { answered: false, .. } => {}
            ThreadState::Discarding { page, answered: true } => {
                self.take_away(process, page);
                self.threads[thread].state = ThreadState::Idle;
            }
            ThreadState::Idle if self.quiet => {}
            ThreadState::Idle => self.act(thread, process),
        }
    }

    fn act(&mut self, thread: usize, process: usize) {
        // Some pages are used far more than others, so that threads collide and the pager has pages worth
        // keeping.
        let page = match self.below(10) as u32 {
            roll if roll < self.scanning => {
                let page = self.threads[thread].scan;
                self.threads[thread].scan = (page + 1) % self.pages;
                page
            }
            roll if roll % 2 == 0 => self.below(u64::from(self.pages / 4)) as u32,
            _ => self.below(self.pages.into()) as u32,
        };
        let discarding =
            |t: &Thread| matches!(t.state, ThreadState::Discarding { page: other, .. } if other == page);
        if self.threads.iter().any(discarding) {
            return;
        }
        match self.below(1000) {
            0..4 => {
                // A discard requires that no other thread is stopped at the page, since the values that it
                // would read are undefined.
                let uses =
                    |t: &Thread| matches!(t.state, ThreadState::Stopped { page: other, .. } if other == page);
                let shares = |t: &Thread| self.kind == MemorySharing::Shared || t.process == process;
                if !self.threads.iter().any(|t| shares(t) && uses(t)) {
                    *self.expected(process, page) = [0; WORDS];
                    self.threads[thread].state = ThreadState::Discarding { page, answered: false };
                    self.processes[process].events.push_back(Event::Discard { page, thread });
                }
            }
            4..6 if self.forks_left > 0 && self.processes.len() < self.processes_max => {
                self.fork(thread, process);
            }
            roll => {
                let word = self.below(WORDS as u64) as usize;
                let value = (roll % 2 == 0).then(|| {
                    self.values += 1;
                    self.values
                });
                self.access(thread, page, word, value);
            }
        }
    }

    fn fork(&mut self, thread: usize, parent: usize) {
        // A fork while a page is being discarded would leave the child's content undefined.
        let busy = |t: &Thread| {
            t.process == parent && matches!(t.state, ThreadState::Discarding { .. } | ThreadState::Forking)
        };
        if self.kind == MemorySharing::Shared || self.threads.iter().any(busy) {
            return;
        }
        self.forks_left -= 1;
        // The agent assigns the child's mapping and view when it reads the fork event.
        let child = self.process(MappingId(u16::MAX), ViewId(u16::MAX), 2);
        self.processes[child].ptes = self.processes[parent].ptes.clone();
        self.processes[child].expected = self.processes[parent].expected.clone();
        // The child starts to run when the agent has read the fork event; its helper connects to the agent later.
        (self.processes[child].alive, self.processes[child].joined) = (false, false);
        self.processes[parent].changing = true;
        self.processes[parent].events.push_back(Event::Fork(child));
        self.threads[thread].state = ThreadState::Forking;
    }

    /// Loads the word or, with `value`, stores it; stops the thread if the page is not present or the store
    /// is not permitted.
    pub(super) fn access(&mut self, thread: usize, page: u32, word: usize, value: Option<u64>) {
        let process = self.threads[thread].process;
        let write = value.is_some();
        let pte = &self.processes[process].ptes[page as usize];
        if pte.poisoned {
            self.sigbus += 1;
            self.threads[thread].state = ThreadState::Idle;
            // The page's data is lost. A real program gets SIGBUS here, so there is no value to check.
            return;
        }
        let cached = self.kind == MemorySharing::Shared && self.cache[page as usize].is_some();
        let access = match () {
            () if !pte.present && cached => Access::Unmapped,
            () if !pte.present => Access::Missing,
            () if write && pte.protected => Access::Protected,
            () => {
                self.threads[thread].state = ThreadState::Idle;
                return self.touch(process, page, word, value);
            }
        };
        self.threads[thread].state = ThreadState::Stopped { page, word, value };
        self.processes[process].events.push_back(Event::Fault { page, access, write });
    }

    fn touch(&mut self, process: usize, page: u32, word: usize, value: Option<u64>) {
        let expected = self.expected(process, page)[word];
        if let Some(value) = value {
            self.expected(process, page)[word] = value;
        }
        let content = match self.kind {
            MemorySharing::Shared => self.cache[page as usize].as_mut(),
            MemorySharing::Private => self.processes[process].ptes[page as usize].own.as_mut(),
        };
        let Some(content) = content else {
            return self.wrong(format!("page {page} is mapped and has no content"));
        };
        match value {
            Some(value) => {
                store(content, word, value);
                self.writes += 1;
            }
            None => {
                let found = load(content, word);
                self.reads += 1;
                if found != expected {
                    self.wrong(format!(
                        "process {process} reads {found} at page {page} word {word}, not {expected}"
                    ));
                }
            }
        }
    }

    /// Wakes the threads of a process that wait for a page; each repeats its access.
    pub(super) fn wake_threads(&mut self, process: usize, page: u32) {
        // An unread fault event disappears when its thread no longer waits.
        let events = &mut self.processes[process].events;
        events.retain(|event| !matches!(event, Event::Fault { page: at, .. } if *at == page));
        let stopped = |thread: &Thread| match thread.state {
            ThreadState::Stopped { page: at, word, value } if thread.process == process && at == page => {
                Some((word, value))
            }
            _ => None,
        };
        let woken: Vec<_> = self.threads.iter().map(stopped).enumerate().collect();
        for (thread, again) in woken {
            let Some((word, value)) = again else { continue };
            self.threads[thread].state = ThreadState::Idle;
            // The thread repeats the access at once, or is interrupted and makes another one later.
            if self.chance(800) {
                self.access(thread, page, word, value);
            }
        }
    }
}
