//! Load on a region: writes lines with version numbers in batches, reads them back, and compares the versions. The
//! agent may be unreachable at any time, and operations may fail.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::client::{self, Client};
use cxloe_lab::Interrupt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::ChaosError;
use crate::versions::{Versions, WrongLines, content};

const LINE: u64 = 64;
/// Number of lines in a batch: the lines of one page, so that one operation of the agent covers all of them.
const BATCH: usize = 64;
/// Pause before the next attempt to reach an agent that does not answer.
const RETRY: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LoadCounts {
    /// Lines whose writes were acknowledged.
    pub written: u64,
    /// Lines read and compared.
    pub read: u64,
    /// Batches that failed; their writes may have been carried out.
    pub failed: u64,
    /// Number of connections made to the agent.
    pub connected: u64,
    /// Lines whose content was neither the last acknowledged version nor one whose write failed afterwards.
    pub wrong: u64,
}

/// Duration of the longest operation since the last [`take_ms`](Self::take_ms); clones share it.
#[derive(Clone, Debug, Default)]
pub struct Longest(Arc<AtomicU64>);

impl Longest {
    fn note(&self, time: Duration) {
        self.0.fetch_max(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Returns the longest duration in milliseconds, and resets it to 0.
    pub fn take_ms(&self) -> f64 {
        self.0.swap(0, Ordering::Relaxed) as f64 / 1e3
    }
}

/// The load, with the versions of all lines.
pub struct Load {
    socket: PathBuf,
    port: Option<(Client, u64)>,
    lines: Vec<Versions>,
    random: StdRng,
    longest: Longest,
    counts: LoadCounts,
    /// Start of the first attempt after the last successful operation; `None` if no attempt was made since then.
    waits_since: Option<Instant>,
    wrong: WrongLines,
}

impl Load {
    /// A load on the region of `bytes` bytes that the agent at `socket` has attached.
    pub fn new(socket: PathBuf, bytes: u64, seed: u64) -> Load {
        Load {
            socket,
            port: None,
            lines: vec![Versions::default(); (bytes / LINE) as usize],
            random: StdRng::seed_from_u64(seed),
            longest: Longest::default(),
            counts: LoadCounts::default(),
            waits_since: None,
            wrong: WrongLines::default(),
        }
    }

    /// Handle by which another thread reads the duration of the longest operation.
    pub fn longest(&self) -> Longest {
        self.longest.clone()
    }

    pub fn counts(&self) -> LoadCounts {
        self.counts
    }

    /// Writes every line once, with repeated attempts until `limit`.
    pub fn fill(&mut self, limit: Duration, interrupt: &Interrupt) -> Result<(), ChaosError> {
        let began = Instant::now();
        for first in (0..self.lines.len()).step_by(BATCH) {
            while !self.write(first) {
                interrupt.check()?;
                if began.elapsed() > limit {
                    return Err(format!("the region was not written within {limit:?}").into());
                }
            }
        }
        // The operations of the fill are not part of the measured load.
        self.longest.take_ms();
        Ok(())
    }

    /// One step: writes a batch at random, or reads one and compares it.
    pub fn step(&mut self) {
        let first = self.random.random_range(0..self.lines.len() / BATCH) * BATCH;
        // As a program would, the load repeats failed attempts. So the duration of an operation counts from its first
        // attempt.
        let began = *self.waits_since.get_or_insert_with(Instant::now);
        let done = if self.random.random_bool(0.5) { self.write(first) } else { self.read(first) };
        if done {
            self.longest.note(began.elapsed());
            self.waits_since = None;
        } else {
            thread::sleep(RETRY);
        }
    }

    /// Reads and compares every line.
    ///
    /// # Errors
    /// The agent does not answer within `limit`, or a line was wrong at any time.
    pub fn verify_all(&mut self, limit: Duration, interrupt: &Interrupt) -> Result<(), ChaosError> {
        let began = Instant::now();
        for first in (0..self.lines.len()).step_by(BATCH) {
            while !self.read(first) {
                interrupt.check()?;
                if began.elapsed() > limit {
                    return Err(format!("the region was not read within {limit:?}").into());
                }
                thread::sleep(RETRY);
            }
        }
        self.wrong.check()
    }

    /// Connection to the agent, and address of the region; `None` if the agent cannot be reached or has not
    /// attached the region.
    fn port(&mut self) -> Option<&mut (Client, u64)> {
        if self.port.is_none() {
            let region = client::regions(&self.socket).ok()?.into_iter().next()?;
            self.port = Some((Client::connect(&self.socket).ok()?, region.hpa));
            self.counts.connected += 1;
        }
        self.port.as_mut()
    }

    fn write(&mut self, first: usize) -> bool {
        let versions: Vec<u32> = self.lines[first..first + BATCH].iter().map(|line| line.tried + 1).collect();
        let Some((port, hpa)) = self.port() else { return false };
        let hpa = *hpa;
        let lines: Vec<(u64, [u8; 64])> = versions
            .iter()
            .enumerate()
            .map(|(at, version)| {
                let at = (first + at) as u64;
                (hpa + at * LINE, content(at, *version))
            })
            .collect();
        let done = port.write_batch(&lines).is_ok();
        for (line, version) in self.lines[first..].iter_mut().zip(versions) {
            line.tried = version;
            if done {
                line.answered = version;
            }
        }
        self.note(done, true)
    }

    fn read(&mut self, first: usize) -> bool {
        let Some((port, hpa)) = self.port() else { return false };
        let hpas: Vec<u64> = (first..first + BATCH).map(|at| *hpa + at as u64 * LINE).collect();
        let mut found = vec![[0; 64]; BATCH];
        let done = port.read_batch(&hpas, &mut found).is_ok();
        if done {
            self.counts.wrong += self.wrong.judge(first as u64, &mut self.lines[first..], &found);
        }
        self.note(done, false)
    }

    fn note(&mut self, done: bool, wrote: bool) -> bool {
        match (done, wrote) {
            (true, true) => self.counts.written += BATCH as u64,
            (true, false) => self.counts.read += BATCH as u64,
            (false, _) => {
                self.counts.failed += 1;
                // The agent may have been restarted, so the next operation connects again.
                self.port = None;
            }
        }
        done
    }
}
