//! Faults served by an agent: this process maps a region through the agent, and only touches pages.
//!
//! The agent uses a link and a memory node of its own, because exchanges of frames without a session occupy the link
//! and the memory node of the port. If this measurement started both memory nodes, it stops the one not being measured:
//! two cores have room for only one polling memory node.

#![expect(unsafe_code, reason = "mapped memory is accessed as a slice of atomics")]

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use cxloe_client::client::{Client, ClientError, regions};
use cxloe_client::mapping::{MapError, MapOptions, Mapping};
use cxloe_cn_core::engine::EngineError;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fault_inline::touch;
use super::fault_words::{PAGE_BYTES, Words, marks};
use super::floor_fault::PageOrder;
use super::glance::Glance;
use super::{MeasureError, MeasuredRegion};
use crate::report::Samples;

/// Number of lines written in one call of the agent.
const CALL_LINES: usize = 1024;
/// Maximum wait until a previous mapping has been written back.
const WRITE_BACK_MAX: Duration = Duration::from_secs(5);

/// An agent, with one of its regions that this process may map.
#[derive(Clone, Debug)]
pub struct Agent {
    pub socket: PathBuf,
    pub region: String,
    /// Processes that run only during this agent's measurements: the agent and its memory node, if this measurement
    /// started them; else empty.
    pub processes: Vec<Pid>,
}

/// A period in which the agent runs and the port's memory node is stopped; ends when it is dropped.
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
        self.agent.pause();
        signal(self.other, Signal::SIGCONT);
    }
}

impl Agent {
    /// Begins a period in which the agent runs, until the returned value is dropped. If this measurement
    /// started the agent's memory node, the port's memory node is stopped meanwhile.
    pub(crate) fn turn(&self, target: &MeasuredRegion) -> Turn<'_> {
        let other = target.memory_node.filter(|_| !self.processes.is_empty());
        signal(other, Signal::SIGSTOP);
        self.resume();
        Turn { agent: self, other }
    }

    /// Stops the agent's processes until [`Agent::resume`] or the agent's next turn.
    pub fn pause(&self) {
        signal(self.processes.iter().copied(), Signal::SIGSTOP);
    }

    /// Resumes the agent's processes. Needed before they are ended too: a stopped process cannot shut down.
    pub fn resume(&self) {
        signal(self.processes.iter().copied(), Signal::SIGCONT);
    }

    /// Maps and unmaps the region, to check that this user has the permission.
    ///
    /// # Errors
    /// Returns the error of mapping.
    pub fn check(&self) -> Result<(), MeasureError> {
        self.open(true).map(drop)
    }

    /// Maps the region with all its pages absent; waits for the end of a previous mapping.
    pub(crate) fn open(&self, prefetch: bool) -> Result<Mapping, MeasureError> {
        // While a previous mapping is still written back, its pages may be resident, and touching them would
        // fetch nothing.
        let until = Instant::now() + WRITE_BACK_MAX;
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

    /// Writes the page's mark to the first line of each page; a wrong page is detected by its mark.
    pub(super) fn mark(&self, target: &MeasuredRegion) -> Result<(), MeasureError> {
        let _turn = self.turn(target);
        let attached = regions(&self.socket)?.into_iter().find(|r| r.region.as_str() == self.region);
        let attached = attached.ok_or_else(|| MeasureError::NotAttached(self.region.clone()))?;
        let mut client = Client::connect(&self.socket)?;
        let lines: Vec<_> = marks(attached.hpa, attached.size as usize / PAGE_BYTES).collect();
        let until = Instant::now() + WRITE_BACK_MAX;
        for some in lines.chunks(CALL_LINES) {
            // Line writes are refused until a previous mapping has been written back.
            while let Err(error) = client.write_batch(some) {
                if !matches!(error, ClientError::Engine(EngineError::Mapped(_))) || Instant::now() > until {
                    return Err(error.into());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(client.flush()?)
    }

    /// Maps the region with at most 1/`share` of it resident, runs `body` with the mapping, and unmaps it.
    pub(super) fn mapped<R>(
        &self,
        target: &MeasuredRegion,
        share: u64,
        prefetch: bool,
        body: impl FnOnce(Words<'_>) -> Result<R, MeasureError>,
    ) -> Result<R, MeasureError> {
        let _turn = self.turn(target);
        self.mapped_now(share, prefetch, body)
    }

    /// Does what [`mapped`](Self::mapped) does, outside of a turn: the agent runs.
    pub(super) fn mapped_now<R>(
        &self,
        share: u64,
        prefetch: bool,
        body: impl FnOnce(Words<'_>) -> Result<R, MeasureError>,
    ) -> Result<R, MeasureError> {
        let mapping = self.open(prefetch)?;
        let bytes = mapping.len() as u64;
        mapping.set_limit(bytes / share)?;
        let pages = mapping.len() / PAGE_BYTES;
        // [`PageOrder`] needs a power of two of pages.
        let words = (1_usize << pages.ilog2()) * PAGE_BYTES / size_of::<u64>();
        // SAFETY: the mapping is page-aligned, outlives the slice, and holds plain words. Other processes may change
        // the words at any time, which is permitted for atomics.
        let words = unsafe { std::slice::from_raw_parts(mapping.as_ptr().cast::<AtomicU64>(), words) };
        body(Words(words))
    }

    /// Returns a meter of the latency between cores for use while the agent runs. The meter pauses only
    /// processes that this measurement started, and measures nothing if there are none.
    pub(super) fn glance(&self, target: &MeasuredRegion) -> Glance {
        let cores = target.cores.filter(|_| !self.processes.is_empty());
        Glance { cores, pause: self.processes.clone() }
    }

    /// Makes one trial of the latency `fault4k`: `count` first touches of pages in an unpredictable order.
    pub(super) fn faults(
        &self,
        target: &MeasuredRegion,
        count: u64,
        seed: usize,
        samples: &mut Samples,
    ) -> Result<(), MeasureError> {
        let glance = self.glance(target);
        self.mapped(target, 1, true, |words| touch(words, count, seed, &glance, samples))
    }

    /// Reads the first `pages` pages in order, with at most a quarter of the region resident. Returns the
    /// number of pages and the time.
    pub(super) fn read_through(
        &self,
        target: &MeasuredRegion,
        pages: usize,
    ) -> Result<(u64, Duration), MeasureError> {
        self.mapped(target, 4, true, |words| read_through(words, pages))
    }

    /// Reads `count` pages in an unpredictable order, with or without prefetcher. Returns the number of pages and the
    /// time.
    pub(super) fn read_at_random(
        &self,
        target: &MeasuredRegion,
        count: usize,
        seed: usize,
        prefetch: bool,
    ) -> Result<(u64, Duration), MeasureError> {
        self.mapped(target, 4, prefetch, |words| read_at_random(words, count, seed))
    }
}

/// Reads the first `pages` pages in order; returns the number of pages and the time.
pub(super) fn read_through(words: Words<'_>, pages: usize) -> Result<(u64, Duration), MeasureError> {
    let pages = pages.min(words.pages());
    let start = Instant::now();
    words.read_through(pages)?;
    Ok((pages as u64, start.elapsed()))
}

/// Reads `count` pages in an unpredictable order; returns the number of pages and the time.
pub(super) fn read_at_random(
    words: Words<'_>,
    count: usize,
    seed: usize,
) -> Result<(u64, Duration), MeasureError> {
    let mut order = PageOrder::new(words.pages(), seed);
    let count = count.min(words.pages());
    let start = Instant::now();
    for _ in 0..count {
        let page = order.draw();
        words.check(page, words.touch(page))?;
    }
    Ok((count as u64, start.elapsed()))
}
