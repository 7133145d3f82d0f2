//! New keys under load: lines read one by one, while the session gets new keys all the time, and while it does not.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::site::Site;
use super::{KeysError, Times};
use cxloe_lab::Interrupt;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Stretches of time that are compared: a handshake takes one or two milliseconds.
pub const WINDOW: Duration = Duration::from_millis(5);
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
    /// The longest read of each window of [`WINDOW`] in which the session was taken over, of the same turns.
    pub worst_with: Times,
    /// Those of them that took longer than a millisecond.
    pub worst_with_over_1ms: usize,
    /// The longest read of each window of the same length without, of the same turns.
    pub worst_without: Times,
    /// Those of them that took longer than a millisecond.
    pub worst_without_over_1ms: usize,
    /// Reads that failed.
    pub failed: u64,
}

/// The longest read of each window, by whether keys changed in it. What the machine does meanwhile is in both.
#[derive(Default)]
struct Windows {
    with: Vec<u64>,
    without: Vec<u64>,
    /// The last one, as long as none has followed: a handshake may begin in it and be over in the next.
    last: Option<u64>,
    since: Option<Instant>,
    worst: u64,
    changed: bool,
}

impl Windows {
    fn note(&mut self, ns: u64, changed: bool) {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.worst = self.worst.max(ns);
        self.changed |= changed;
        if since.elapsed() < WINDOW {
            return;
        }
        if std::mem::take(&mut self.changed) {
            self.with.push(self.worst);
            self.last = None;
        } else {
            self.without.extend(self.last.replace(self.worst));
        }
        (self.since, self.worst) = (None, 0);
    }
}

#[derive(Default)]
struct Taken {
    ns: Vec<u64>,
    across: Vec<u64>,
    windows: Windows,
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
                    taken.windows.note(ns, now != before);
                    if now != before {
                        taken.changes += now - before;
                        taken.across.push(ns);
                        before = now;
                    }
                }
            }
            port.close()?;
            // The next turn is another session.
            (taken.windows.since, taken.windows.worst, taken.windows.last) = (None, 0, None);
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
        worst_with_over_1ms: over(&with.windows.with),
        worst_with: Times::of(with.windows.with),
        worst_without_over_1ms: over(&with.windows.without),
        worst_without: Times::of(with.windows.without),
        across: Times::of(with.across),
        failed: without.failed + with.failed,
    })
}
