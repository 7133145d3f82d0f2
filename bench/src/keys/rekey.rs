//! New keys under load: lines read one by one, while the session gets new keys all the time, and while it does not.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::site::Site;
use super::{KeysError, Times};
use cxloe_lab::Interrupt;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const NO_REKEY: Duration = Duration::from_secs(3600);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct RekeyPlan {
    /// From one change of keys to the next.
    pub every: Duration,
    /// Turns of each.
    pub rounds: u32,
    /// How long a turn is.
    pub each: Duration,
}

/// What has been found.
#[derive(Clone, Debug, Serialize)]
pub struct Rekeyed {
    /// Reads without any change of keys.
    pub without: Times,
    /// Those of them that took longer than a millisecond.
    pub without_over_1ms: usize,
    /// Reads with changes of keys.
    pub with: Times,
    /// Those of them that took longer than a millisecond.
    pub with_over_1ms: usize,
    /// Changes of keys.
    pub changes: u64,
    /// The reads during which the session was taken over.
    pub across: Times,
    /// Those of them that took longer than a millisecond.
    pub across_over_1ms: usize,
    /// Reads that failed.
    pub failed: u64,
}

#[derive(Default)]
struct Taken {
    ns: Vec<u64>,
    across: Vec<u64>,
    changes: u64,
    failed: u64,
}

/// Measures both by turns.
///
/// # Errors
/// Any [`KeysError`] but failed reads, which are counted.
pub fn rekeying(site: &Site, plan: &RekeyPlan, interrupt: &Interrupt) -> Result<Rekeyed, KeysError> {
    let mut taken = [Taken::default(), Taken::default()];
    for _ in 0..plan.rounds {
        for (taken, every) in taken.iter_mut().zip([NO_REKEY, plan.every]) {
            interrupt.check()?;
            let mut port = site.port(every)?;
            port.connect(CONNECT_LIMIT)?;
            let sessions = |port: &mut cxloe_port::port::Port| port.engine().sessions()[0].counters.sessions;
            let mut before = sessions(&mut port);
            let started = Instant::now();
            while started.elapsed() < plan.each {
                for line in 0..64 {
                    let start = Instant::now();
                    let read = port.read(line * 64);
                    let ns = start.elapsed().as_nanos() as u64;
                    taken.failed += u64::from(read.is_err());
                    taken.ns.push(ns);
                    let now = sessions(&mut port);
                    if now != before {
                        taken.changes += now - before;
                        taken.across.push(ns);
                        before = now;
                    }
                }
            }
            port.close()?;
        }
    }
    let over = |ns: &[u64]| ns.iter().filter(|ns| **ns > 1_000_000).count();
    let [without, with] = taken;
    Ok(Rekeyed {
        without_over_1ms: over(&without.ns),
        without: Times::of(without.ns),
        with_over_1ms: over(&with.ns),
        with: Times::of(with.ns),
        changes: with.changes,
        across_over_1ms: over(&with.across),
        across: Times::of(with.across),
        failed: without.failed + with.failed,
    })
}
