//! Campaigns: many runs with ascending seeds on several threads, until all are done or one has failed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::overrides::Overrides;
use crate::plan::Plan;
use crate::run_while;
use crate::scenario::Scenario;
use crate::tally::Tally;
use crate::trace::Trace;
use crate::violation::InvariantViolation;

/// Interval between reports of progress, each of which can stop the campaign.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs of one scenario over a range of seeds.
#[derive(Clone, Debug)]
pub struct Campaign {
    pub scenario: Scenario,
    /// Values that replace those drawn from each seed.
    pub overrides: Overrides,
    /// First seed; the others follow in ascending order.
    pub start: u64,
    /// Number of seeds, one run each.
    pub seeds: u64,
    /// Number of threads that carry out runs.
    pub jobs: usize,
    /// True if the campaign continues after a seed has failed.
    pub keep_going: bool,
}

/// Seed of a run that has found a violation, with that violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedSeed {
    /// Seed, which is enough to repeat the run.
    pub seed: u64,
    /// First violation in the run.
    pub broken: InvariantViolation,
}

/// Progress of a campaign since its start, as progress reports show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub seeds: u64,
    pub operations: u64,
}

#[derive(Clone, Default)]
pub struct CampaignResults {
    /// Number of completed runs, one for each seed, the failed ones included.
    pub seeds: u64,
    /// Counts of all runs, the failed ones included.
    pub tally: Tally,
    /// Failed runs, by ascending seed.
    pub failing: Vec<FailedSeed>,
    pub wall: Duration,
    /// CPU time of all threads together.
    pub cpu: Duration,
}

/// Result of one run, sent from the thread that made the run to the one that collects results.
struct Done {
    failing: Option<FailedSeed>,
    operations: u64,
}

impl Campaign {
    /// Draws the plan of a run from its seed, and applies the overrides.
    pub fn plan(&self, seed: u64) -> Plan {
        let mut plan = Plan::draw(self.scenario, seed);
        self.overrides.apply(&mut plan);
        plan
    }

    /// Returns the command that repeats the run of one seed with a full trace.
    pub fn command(&self, seed: u64) -> String {
        let (scenario, overrides) = (self.scenario, self.overrides.arguments());
        format!("cxloe-bench sim --seed {seed} --scenario {scenario}{overrides} --trace")
    }

    /// Makes all runs, and calls `goes_on` with the progress at least ten times a second. Ends early if `goes_on`
    /// returns false, or if a seed fails and `keep_going` is not set; runs in progress are then stopped.
    pub fn run(&self, mut goes_on: impl FnMut(Progress) -> bool) -> CampaignResults {
        let began = Instant::now();
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let jobs = self.jobs.clamp(1, self.seeds.clamp(1, 1024) as usize);
        let mut outcome = CampaignResults::default();
        thread::scope(|scope| {
            let (tx, rx) = mpsc::channel();
            let workers: Vec<_> = (0..jobs)
                .map(|_| {
                    let tx = tx.clone();
                    scope.spawn(|| self.work(&next, &stop, tx))
                })
                .collect();
            // The channel closes once each of the threads has dropped its own sender.
            drop(tx);
            let mut progress = Progress::default();
            loop {
                let done: Option<Done> = match rx.recv_timeout(LOOK_EVERY) {
                    Ok(done) => Some(done),
                    Err(mpsc::RecvTimeoutError::Timeout) => None,
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                };
                for Done { failing, operations } in done.into_iter().chain(rx.try_iter()) {
                    progress.seeds += 1;
                    progress.operations += operations;
                    stop.fetch_or(failing.is_some() && !self.keep_going, Relaxed);
                    outcome.failing.extend(failing);
                }
                stop.fetch_or(!goes_on(progress), Relaxed);
            }
            outcome.seeds = progress.seeds;
            for worker in workers {
                let (tally, cpu) = worker.join().expect("runs catch what panics in them");
                outcome.tally.add(&tally);
                outcome.cpu += cpu;
            }
        });
        outcome.failing.sort_by_key(|f| f.seed);
        outcome.wall = began.elapsed();
        outcome
    }

    /// Makes the run of the first seed with trace `trace`, as long as `goes_on` returns true.
    pub fn run_traced(&self, trace: &Trace, goes_on: &dyn Fn() -> bool) -> CampaignResults {
        let (began, mut tally) = (Instant::now(), Tally::default());
        let broken = run_while(&self.plan(self.start), &mut tally, trace, goes_on).err();
        let seeds = u64::from(broken != Some(InvariantViolation::Stopped));
        let failing = broken.filter(|_| seeds > 0).map(|broken| FailedSeed { seed: self.start, broken });
        let failing = failing.into_iter().collect();
        let wall = began.elapsed();
        CampaignResults { seeds, tally, failing, wall, cpu: processor_time().unwrap_or(wall) }
    }

    /// Makes the runs of one thread, one after the other; returns their counts and the CPU time of the
    /// thread.
    fn work(&self, next: &AtomicU64, stop: &AtomicBool, tx: mpsc::Sender<Done>) -> (Tally, Duration) {
        keep_freed_memory();
        let mut tally = Tally::default();
        let began = Instant::now();
        while !stop.load(Relaxed) {
            let index = next.fetch_add(1, Relaxed);
            if index >= self.seeds {
                break;
            }
            let seed = self.start.wrapping_add(index);
            let before = tally.figures.ended();
            let goes_on = || !stop.load(Relaxed);
            let broken = run_while(&self.plan(seed), &mut tally, &Trace::NONE, &goes_on).err();
            // A stopped run has no result to report.
            if broken == Some(InvariantViolation::Stopped) {
                break;
            }
            let failing = broken.map(|broken| FailedSeed { seed, broken });
            if tx.send(Done { failing, operations: tally.figures.ended() - before }).is_err() {
                break;
            }
        }
        (tally, processor_time().unwrap_or(began.elapsed()))
    }
}

/// Makes the allocator keep freed memory for the next run. By default glibc returns the megabytes that a run
/// frees to the kernel, which zeroes them page by page when they are allocated again; that takes longer than
/// a short run. The size from which glibc returns memory rises to that of the largest block freed so far.
/// This function therefore allocates and frees a large block, without touching it.
fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(24 << 20)));
}

/// Returns the CPU time of this thread; `None` if the kernel does not report it.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let on_cpu = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(on_cpu)).filter(|time| !time.is_zero())
}
