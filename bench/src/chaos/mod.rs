//! Chaos: a fabric of real daemons, of which one at random is killed at intervals, under a load that checks every line of
//! a mirrored region.
//!
//! ```text
//!   one thread: write versions, read them back, compare      another: kill -9, start again, now and then without content
//!             |                                                           |
//!          cn-agent  ------ both copies ------> mn-server x 3          gmm, cn-agent, mn-server
//! ```
//!
//! An acknowledged write must be visible to all later reads. A write that failed may have been carried out or not;
//! the next read shows which.

mod fabric;
mod load;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::Interrupt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use fabric::ChaosFabric;
use load::Load;
pub use load::LoadCounts;

/// Maximum wait until both copies of the region are in sync, at the start and after the last kill.
const WHOLE_LIMIT: Duration = Duration::from_secs(120);
/// Interval of checks whether the time for the next kill has come.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Maximum time between the kill of a daemon and its restart, in milliseconds.
const AWAY_MAX_MS: u64 = 1000;

/// Any failure to carry out a run. Wrong lines do not end a run: they are counted.
pub type ChaosError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Debug)]
pub struct ChaosOptions {
    /// Time during which daemons are killed.
    pub duration: Duration,
    /// Interval of kills.
    pub every: Duration,
    /// Seed of all random choices of the run: victims, moments, lines.
    pub seed: u64,
    /// Number of memory nodes, at least 2.
    pub memory_nodes: usize,
    /// Size of the region in bytes, a multiple of 2 MiB.
    pub bytes: u64,
}

/// Kill of one daemon, with its effect on the load.
#[derive(Clone, Debug, Serialize)]
pub struct Kill {
    /// Time since the start in milliseconds.
    pub at_ms: u64,
    /// Name of the daemon that was killed.
    pub victim: String,
    /// True if a memory node was started again without its content.
    pub emptied: bool,
    /// Longest operation between this kill and the next one, in milliseconds.
    pub longest_ms: f64,
}

/// Result of a run, in the layout of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Chaos {
    pub seed: u64,
    /// Duration in seconds, from the first kill to the last check.
    pub seconds: f64,
    pub kills: Vec<Kill>,
    pub load: LoadCounts,
    /// Time in seconds until both copies were in sync after the last kill.
    pub whole_after_s: f64,
    /// Number of times that the manager declared a leg (a copy on one memory node) stale.
    pub legs_stale: u64,
    /// Number of times that a stale leg (a copy on one memory node) was filled again.
    pub legs_filled: u64,
}

/// Groups kills by kind of daemon: their number, and the longest operation after a kill in milliseconds, as
/// median and maximum.
pub fn by_kind(kills: &[Kill]) -> BTreeMap<String, (usize, f64, f64)> {
    let mut longest: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for kill in kills {
        let kind = kill.victim.trim_end_matches(|c: char| c.is_ascii_digit());
        let kind = if kill.emptied { format!("{kind}, emptied") } else { kind.to_owned() };
        longest.entry(kind).or_default().push(kill.longest_ms);
    }
    let summary = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        (times.len(), times[times.len() / 2], times.last().copied().unwrap_or_default())
    };
    longest.into_iter().map(|(kind, times)| (kind, summary(times))).collect()
}

/// Makes a fabric with files below `folder`, and kills its daemons one by one under a load. Calls `said` with a line of
/// text for each kill.
///
/// # Errors
/// The fabric cannot be made, a daemon does not start again, or the copies of the region are not in sync in time. Wrong
/// lines are counted.
pub fn run(
    options: &ChaosOptions,
    folder: &Path,
    interrupt: &Interrupt,
    said: &(dyn Fn(&str) + Sync),
) -> Result<Chaos, ChaosError> {
    let mut fabric = ChaosFabric::start(folder, options.memory_nodes, options.bytes, interrupt)?;
    let mut load = Load::new(fabric.agent_socket(), options.bytes, options.seed ^ 1);
    load.fill(WHOLE_LIMIT, interrupt)?;
    let (began, stop, longest) = (Instant::now(), AtomicBool::new(false), load.longest());
    let (kills, fabric) = thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let kills = kill_at_random(options, &mut fabric, began, &longest, interrupt, said);
            stop.store(true, Ordering::Release);
            kills.map(|kills| (kills, fabric))
        });
        while !stop.load(Ordering::Acquire) && interrupt.check().is_ok() {
            load.step();
        }
        killer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    interrupt.check()?;
    let last = Instant::now();
    fabric.wait_whole(interrupt)?;
    let whole_after_s = last.elapsed().as_secs_f64();
    load.verify_all(WHOLE_LIMIT, interrupt)?;
    let (legs_stale, legs_filled) = fabric.leg_events()?;
    Ok(Chaos {
        seed: options.seed,
        seconds: began.elapsed().as_secs_f64(),
        kills,
        load: load.counts(),
        whole_after_s,
        legs_stale,
        legs_filled,
    })
}

fn kill_at_random(
    options: &ChaosOptions,
    fabric: &mut ChaosFabric,
    began: Instant,
    longest: &load::Longest,
    interrupt: &Interrupt,
    said: &(dyn Fn(&str) + Sync),
) -> Result<Vec<Kill>, ChaosError> {
    let mut random = StdRng::seed_from_u64(options.seed);
    let victims = fabric.daemons();
    let mut kills: Vec<Kill> = Vec::new();
    let end = began + options.duration;
    let mut next = began + options.every;
    while next < end {
        while Instant::now() < next {
            interrupt.check()?;
            thread::sleep(LOOK_EVERY);
        }
        next += options.every;
        if let Some(last) = kills.last_mut() {
            last.longest_ms = longest.take_ms();
        }
        let victim = victims[random.random_range(0..victims.len())].clone();
        let away =
            Duration::from_millis(random.random_range(0..AWAY_MAX_MS.min(options.every.as_millis() as u64)));
        let empties = random.random_bool(0.5) && victim.starts_with("mn");
        // A memory node is emptied only if both copies are in sync. Otherwise it may have the only current content,
        // whose loss would be no error of the fabric.
        let emptied = empties && fabric.is_whole();
        fabric.kill(&victim)?;
        let at_ms = began.elapsed().as_millis() as u64;
        thread::sleep(away);
        fabric.start_again(&victim, emptied)?;
        let with = if emptied { ", started without its content" } else { "" };
        said(&format!("{:>8.1} s  {victim} killed, away for {away:.1?}{with}", at_ms as f64 / 1e3));
        kills.push(Kill { at_ms, victim, emptied, longest_ms: 0.0 });
    }
    if let Some(last) = kills.last_mut() {
        // The load continues for a while, so that the effects of the last kill are observed.
        thread::sleep(options.every.min(Duration::from_secs(2)));
        last.longest_ms = longest.take_ms();
    }
    Ok(kills)
}
