//! Many runs: one after the other on each core, seed by seed, until all are done or one has failed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::broken::Broken;
use crate::overrides::Overrides;
use crate::plan::Plan;
use crate::run_while;
use crate::scenario::Scenario;
use crate::tally::Tally;
use crate::trace::Trace;

/// How often progress is told and wishes to end are heard.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Which runs to make.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// What befalls them.
    pub scenario: Scenario,
    /// What is not left to the seed.
    pub overrides: Overrides,
    /// The first seed.
    pub start: u64,
    /// How many.
    pub seeds: u64,
    /// Threads.
    pub jobs: usize,
    /// Whether to go on after a seed has failed.
    pub keep_going: bool,
}

/// A seed whose run has shown something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// The seed.
    pub seed: u64,
    /// What is wrong.
    pub broken: Broken,
}

/// How far a campaign has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Runs done.
    pub seeds: u64,
    /// Operations that ended in them.
    pub operations: u64,
}

/// What has come of a campaign.
#[derive(Clone, Default)]
pub struct Outcome {
    /// Runs done.
    pub seeds: u64,
    /// What happened in them, the failing ones included.
    pub tally: Tally,
    /// Those that failed, the least seed first.
    pub failing: Vec<Failing>,
    /// How long it took.
    pub wall: Duration,
    /// Processor time of all threads together.
    pub cpu: Duration,
}

/// One run's result on its way to whoever collects them.
struct Done {
    failing: Option<Failing>,
    operations: u64,
}

impl Campaign {
    /// The plan of one seed.
    pub fn plan(&self, seed: u64) -> Plan {
        let mut plan = Plan::draw(self.scenario, seed);
        self.overrides.apply(&mut plan);
        plan
    }

    /// The command that makes one seed's run again and tells its story.
    pub fn command(&self, seed: u64) -> String {
        let (scenario, overrides) = (self.scenario.name(), self.overrides.arguments());
        format!("cxloe-bench sim --seed {seed} --scenario {scenario}{overrides} --trace")
    }

    /// Makes the runs. Ends early when `goes_on` says no, asked ten times a second with the progress made, and when a
    /// seed has failed unless told to keep going; runs that are under way are given up then.
    pub fn run(&self, mut goes_on: impl FnMut(Progress) -> bool) -> Outcome {
        let began = Instant::now();
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let jobs = self.jobs.clamp(1, self.seeds.clamp(1, 1024) as usize);
        let mut outcome = Outcome::default();
        thread::scope(|scope| {
            let (tx, rx) = mpsc::channel();
            let workers: Vec<_> = (0..jobs)
                .map(|_| {
                    let tx = tx.clone();
                    scope.spawn(|| self.work(&next, &stop, tx))
                })
                .collect();
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

    /// Makes the run of the first seed and tells `trace` about it, for as long as `goes_on` says so.
    pub fn run_traced(&self, trace: &Trace, goes_on: &dyn Fn() -> bool) -> Outcome {
        let (began, mut tally) = (Instant::now(), Tally::default());
        let broken = run_while(&self.plan(self.start), &mut tally, trace, goes_on).err();
        let seeds = u64::from(broken != Some(Broken::Stopped));
        let failing = broken.filter(|_| seeds > 0).map(|broken| Failing { seed: self.start, broken });
        let failing = failing.into_iter().collect();
        let wall = began.elapsed();
        Outcome { seeds, tally, failing, wall, cpu: processor_time().unwrap_or(wall) }
    }

    /// One thread's runs: what happened in them, and its processor time.
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
            if broken == Some(Broken::Stopped) {
                break;
            }
            let failing = broken.map(|broken| Failing { seed, broken });
            if tx.send(Done { failing, operations: tally.figures.ended() - before }).is_err() {
                break;
            }
        }
        (tally, processor_time().unwrap_or(began.elapsed()))
    }
}

/// Every run takes some megabytes and gives them back. By default the C library returns them to the kernel, which
/// clears them for the next run, page by page; that takes longer than a short run. glibc's limit for what is returned
/// follows the largest block freed so far, so one that is never touched raises it.
fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(24 << 20)));
}

/// What this thread has had of a processor; `None` where the kernel does not tell.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let on_cpu = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(on_cpu)).filter(|time| !time.is_zero())
}
