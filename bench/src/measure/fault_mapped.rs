//! A region mapped through an agent: this process only touches pages, the agent beside it serves them.
//!
//! The agent has a link and a memory node of its own, since bare frames need the port's. Where both memory nodes are
//! ours, whichever is not measured is stopped: on two cores there is room for one that polls.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use cxloe_client::client::{Client, regions};
use cxloe_client::mapping::{MapError, MapOptions, Mapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fault_inline::touch;
use super::fault_words::{PAGE_BYTES, Words, marks};
use super::floor_fault::Order;
use super::glance::Glance;
use super::{MeasureError, Target};
use crate::report::Samples;

/// Lines written in one call.
const CALL_LINES: usize = 1024;

/// An agent, and a region of its that may be mapped.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Its socket.
    pub socket: PathBuf,
    /// The region.
    pub region: String,
    /// Processes that run only while something is measured through it: itself and its memory node, if they are ours.
    pub processes: Vec<Pid>,
}

/// The agent's turn: the port's memory node is stopped until this ends.
pub(crate) struct Turn<'a> {
    agent: &'a Agent,
    other: Option<Pid>,
}

fn signal(processes: impl IntoIterator<Item = Pid>, signal: Signal) {
    for process in processes {
        let _ = kill(process, signal);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        signal(self.agent.processes.iter().copied(), Signal::SIGSTOP);
        signal(self.other, Signal::SIGCONT);
    }
}

impl Agent {
    /// Gives it the machine until what comes back is dropped.
    pub(crate) fn turn(&self, target: &Target) -> Turn<'_> {
        let other = target.memory_node.filter(|_| !self.processes.is_empty());
        signal(other, Signal::SIGSTOP);
        self.go_on();
        Turn { agent: self, other }
    }

    /// Lets its processes run, as they have to in order to end.
    pub fn go_on(&self) {
        signal(self.processes.iter().copied(), Signal::SIGCONT);
    }

    /// Maps the region and unmaps it again: whether this user may.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn check(&self) -> Result<(), MeasureError> {
        self.open(true).map(drop)
    }

    /// Maps the region, of which nothing is in memory then.
    pub(crate) fn open(&self, prefetch: bool) -> Result<Mapping, MeasureError> {
        // A space that has just ended may still be writing back, or still be there with its pages: those would not be fetched.
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let options = MapOptions { prefetch, ..MapOptions::default() };
            match Mapping::open(&self.socket, &self.region, options) {
                Err(MapError::Agent(_)) if Instant::now() < until => {}
                Ok(mapping) if Instant::now() < until && mapping.paging()?.resident > 0 => drop(mapping),
                other => return Ok(other?),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Marks the first line of each page of the region.
    pub(super) fn mark(&self, target: &Target) -> Result<(), MeasureError> {
        let _turn = self.turn(target);
        let attached = regions(&self.socket)?.into_iter().find(|r| r.region.as_str() == self.region);
        let attached = attached.ok_or_else(|| MeasureError::NotAttached(self.region.clone()))?;
        let mut client = Client::connect(&self.socket)?;
        let lines: Vec<_> = marks(attached.hpa, attached.size as usize / PAGE_BYTES).collect();
        for some in lines.chunks(CALL_LINES) {
            client.write_batch(some)?;
        }
        Ok(client.flush()?)
    }

    /// Maps the region, does `body` with it, and unmaps it.
    pub(super) fn mapped<R>(
        &self,
        target: &Target,
        share: u64,
        prefetch: bool,
        body: impl FnOnce(Words<'_>) -> Result<R, MeasureError>,
    ) -> Result<R, MeasureError> {
        let _turn = self.turn(target);
        let mapping = self.open(prefetch)?;
        let bytes = mapping.len() as u64;
        mapping.set_limit(bytes / share)?;
        let pages = mapping.len() / PAGE_BYTES;
        let words = (1_usize << pages.ilog2()) * PAGE_BYTES / size_of::<u64>();
        // SAFETY: the mapping begins at a page, lives as long as the slice, and holds plain words, which others change
        // meanwhile as they may change atomics.
        let words = unsafe { std::slice::from_raw_parts(mapping.as_ptr().cast::<AtomicU64>(), words) };
        body(Words(words))
    }

    /// Looks at the cores during its turn. Others' processes are not ours to pause.
    pub(super) fn glance(&self, target: &Target) -> Glance {
        let cores = target.cores.filter(|_| !self.processes.is_empty());
        Glance { cores, pause: self.processes.clone() }
    }

    /// `fault4k`: `count` pages touched for the first time, in an order that nobody foresees. One trial.
    pub(super) fn faults(
        &self,
        target: &Target,
        count: u64,
        seed: usize,
        samples: &mut Samples,
    ) -> Result<(), MeasureError> {
        let glance = self.glance(target);
        self.mapped(target, 1, true, |words| touch(words, count, seed, &glance, samples))
    }

    /// Reads the first `pages` pages through, in order, a quarter of the region being resident at most. Returns the pages
    /// read and the time it took.
    pub(super) fn read_through(
        &self,
        target: &Target,
        pages: usize,
    ) -> Result<(u64, Duration), MeasureError> {
        self.mapped(target, 4, true, |words| read_through(words, pages))
    }

    /// Reads `count` pages that nobody foresees, with or without a prefetcher that tries to. Returns the pages read and the
    /// time it took.
    pub(super) fn read_at_random(
        &self,
        target: &Target,
        count: usize,
        seed: usize,
        prefetch: bool,
    ) -> Result<(u64, Duration), MeasureError> {
        self.mapped(target, 4, prefetch, |words| read_at_random(words, count, seed))
    }
}

/// Times reading through.
pub(super) fn read_through(words: Words<'_>, pages: usize) -> Result<(u64, Duration), MeasureError> {
    let pages = pages.min(words.pages());
    let start = Instant::now();
    words.read_through(pages)?;
    Ok((pages as u64, start.elapsed()))
}

/// Times reading at random.
pub(super) fn read_at_random(
    words: Words<'_>,
    count: usize,
    seed: usize,
) -> Result<(u64, Duration), MeasureError> {
    let mut order = Order::new(words.pages(), seed);
    let count = count.min(words.pages());
    let start = Instant::now();
    for _ in 0..count {
        let page = order.draw();
        words.check(page, words.touch(page))?;
    }
    Ok((count as u64, start.elapsed()))
}
