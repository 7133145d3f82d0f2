//! CPU time of an agent's workers for each operation, by number of workers. More workers must not make an
//! operation more expensive: only then does the throughput of a node grow with its cores.
//!
//! ```text
//!   regions 0..8, one after the other: 64 lines, or one page   --->  agent with 1, 2, 4 or 8 workers  --->  memory node
//!                                                                    CPU time: /proc/PID/task/TID/schedstat
//! ```
//!
//! One thread does the same operations whatever the number of workers, region by region: so one worker at a time has
//! work, and a figure does not depend on how many cores there are.

#![expect(unsafe_code, reason = "a touch of a page is a volatile read")]

use std::path::Path;

use cxloe_client::client::{self, Client};
use cxloe_client::mapping::{MapOptions, Mapping};
use cxloe_fabric::model::Protection;
use cxloe_lab::Interrupt;
use cxloe_wire::random::Random;
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::eventually::eventually;
use crate::star::{LIMIT, Star};

/// Any failure of a run.
pub type WorkersError = Box<dyn std::error::Error + Send + Sync>;

/// Number of regions, equal to the maximum number of workers compared.
pub const REGIONS: usize = 8;
const REGION: u64 = 4 << 20;
/// Bytes of each region that may be resident.
const RESIDENT: u64 = 256 << 10;
/// Number of lines in one request.
const BATCH: usize = 64;
const PAGE: u64 = 4096;

#[derive(Clone, Debug)]
pub struct WorkersOptions {
    /// Numbers of workers to be compared.
    pub workers: Vec<u8>,
    /// Number of measurements for each number of workers; the numbers alternate.
    pub trials: u32,
    /// Operations of each kind on each region, in a trial: batches of 64 lines, or pages.
    pub operations: u32,
}

/// One measurement with one number of workers.
#[derive(Clone, Debug, Serialize)]
pub struct WorkersTrial {
    pub workers: u8,
    /// CPU time of all workers for a line read in a batch of 64, in nanoseconds.
    pub line_ns: f64,
    /// CPU time of all workers for a page fault with its eviction, in nanoseconds.
    pub fault_ns: f64,
}

/// One memory node and one compute node.
struct Rig(Star);

/// Makes a memory node and a compute node with files below `folder`, and measures. `said` gets a line for each trial.
///
/// # Errors
/// The nodes cannot be made, or an operation fails.
pub fn run(
    options: &WorkersOptions,
    folder: &Path,
    interrupt: &Interrupt,
    said: &dyn Fn(&WorkersTrial),
) -> Result<Vec<WorkersTrial>, WorkersError> {
    let mut star = Star::new(folder, 1, 1)?;
    star.start("gmm", &[])?;
    let pool = (REGION * REGIONS as u64 + (32 << 20)).to_string();
    star.start("mn0", &["--link", "packet", "--wait", "sleep", "--pool-size", &pool])?;
    let mut rig = Rig(star);
    // The first agent has the maximum number of workers, so that it places the regions in as many bands (ranges of
    // addresses, each served by one worker).
    rig.start_agent(options.workers.iter().max().copied().unwrap_or(1))?;
    rig.create_regions(interrupt)?;
    let mut trials = Vec::new();
    for _ in 0..options.trials {
        for workers in &options.workers {
            rig.0.end("cn0", Signal::SIGTERM)?;
            rig.start_agent(*workers)?;
            let trial = rig.trial(*workers, options.operations, interrupt)?;
            said(&trial);
            trials.push(trial);
        }
    }
    Ok(trials)
}

impl Rig {
    fn start_agent(&mut self, workers: u8) -> Result<(), WorkersError> {
        let workers = workers.to_string();
        let options = ["--link", "packet", "--wait", "sleep", "--cache-size", "0", "--workers", &workers];
        self.0.start("cn0", &options)
    }

    fn create_regions(&self, interrupt: &Interrupt) -> Result<(), WorkersError> {
        self.0.wait_reachable(interrupt)?;
        // Each region is created after the agent has attached the previous ones: the agent selects a region's worker by
        // the regions that it has already.
        (0..REGIONS)
            .try_for_each(|number| self.0.create(&region_name(number), REGION, Protection::None, interrupt))
    }

    fn trial(
        &self,
        workers: u8,
        operations: u32,
        interrupt: &Interrupt,
    ) -> Result<WorkersTrial, WorkersError> {
        let socket = self.0.socket(0);
        let mut hpas = Vec::new();
        eventually("the agent has all regions", LIMIT, interrupt, || {
            let Ok(mut client) = Client::connect(&socket) else { return false };
            hpas = client.regions().unwrap_or_default().iter().map(|region| region.hpa).collect();
            hpas.len() == REGIONS && hpas.iter().all(|hpa| client.read(*hpa).is_ok())
        })?;
        let line_ns = self.lines(&hpas, operations, interrupt)?;
        let fault_ns = self.faults(operations, interrupt)?;
        Ok(WorkersTrial { workers, line_ns, fault_ns })
    }

    fn lines(&self, hpas: &[u64], operations: u32, interrupt: &Interrupt) -> Result<f64, WorkersError> {
        let mut client = Client::connect(&self.0.socket(0))?;
        let (mut addresses, mut lines) = (Random::new(1), [[0; 64]; BATCH]);
        let mut batches = |count: u32| -> Result<(), WorkersError> {
            for hpa in hpas {
                interrupt.check()?;
                for _ in 0..count {
                    let batch: [u64; BATCH] =
                        std::array::from_fn(|_| hpa + addresses.below(REGION / 64) * 64);
                    client.read_batch(&batch, &mut lines)?;
                }
            }
            Ok(())
        };
        // The first batches warm up, and are not measured.
        batches(operations / 10 + 1)?;
        let before = self.cpu_ns()?;
        batches(operations)?;
        let count = f64::from(operations) * (hpas.len() * BATCH) as f64;
        Ok((self.cpu_ns()? - before) as f64 / count)
    }

    fn faults(&self, operations: u32, interrupt: &Interrupt) -> Result<f64, WorkersError> {
        let options = || MapOptions { limit: RESIDENT, prefetch: false, ..MapOptions::default() };
        let open = |number| Mapping::open(&self.0.socket(0), &region_name(number), options());
        let mappings = (0..REGIONS).map(open).collect::<Result<Vec<_>, _>>()?;
        let mut pages = Random::new(2);
        let mut touch = |count: u32| -> Result<(), WorkersError> {
            for mapping in &mappings {
                interrupt.check()?;
                for _ in 0..count {
                    let at = pages.below(mapping.len() as u64 / PAGE) * PAGE;
                    // SAFETY: the byte lies in the mapping, which lives as long as this loop; nothing writes to it.
                    std::hint::black_box(unsafe { mapping.as_ptr().add(at as usize).read_volatile() });
                }
            }
            Ok(())
        };
        // The first touches warm up, and are not measured.
        touch(operations / 10 + 1)?;
        let faults = || Ok::<_, WorkersError>(client::counters(&self.0.socket(0))?.paging.faults);
        let (before, faulted) = (self.cpu_ns()?, faults()?);
        touch(operations)?;
        let (after, count) = (self.cpu_ns()?, faults()? - faulted);
        Ok((after - before) as f64 / count.max(1) as f64)
    }

    /// CPU time of the agent's workers so far, in nanoseconds.
    fn cpu_ns(&self) -> Result<u64, WorkersError> {
        let agent = self.0.process("cn0").ok_or("no agent runs")?;
        let mut sum = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", agent.id()))? {
            let task = task?.path();
            if std::fs::read_to_string(task.join("comm"))?.starts_with("worker") {
                let times = std::fs::read_to_string(task.join("schedstat"))?;
                sum += times.split_whitespace().next().ok_or("no CPU time")?.parse::<u64>()?;
            }
        }
        Ok(sum)
    }
}

fn region_name(number: usize) -> String {
    format!("scale{number}")
}
