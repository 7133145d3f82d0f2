//! Rekeying under load: times of line reads while the session rekeys continuously, and while it does not.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::site::Site;
use super::{KeysError, Times};
use cxloe_lab::Interrupt;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Length of the compared windows of time; a handshake takes one or two milliseconds.
pub const WINDOW: Duration = Duration::from_millis(5);
const NO_REKEY: Duration = Duration::from_secs(3600);

/// Parameters of the measurement of rekeying.
#[derive(Clone, Copy, Debug)]
pub struct RekeyPlan {
    /// Time from one rekeying to the next.
    pub every: Duration,
    /// Number of turns with rekeying, which is also the number of turns without.
    pub rounds: u32,
    /// Duration of a turn.
    pub each: Duration,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Rekeyed {
    /// Read times without rekeying.
    pub without: Times,
    /// Number of reads without rekeying that took longer than a millisecond.
    pub without_over_1ms: usize,
    /// Read times in the turns with rekeying.
    pub with: Times,
    /// Number of reads with rekeying that took longer than a millisecond.
    pub with_over_1ms: usize,
    /// Number of rekeyings in the turns with rekeying.
    pub changes: u64,
    /// Times of the reads during which the session changed to new keys.
    pub across: Times,
    /// Number of reads across a change of keys that took longer than a millisecond.
    pub across_over_1ms: usize,
    /// Longest read of each time window with a change of keys, in the turns with rekeying; [`WINDOW`] is the
    /// length of a window.
    pub worst_with: Times,
    /// Number of windows with a change of keys whose longest read exceeds a millisecond.
    pub worst_with_over_1ms: usize,
    /// Longest read of each time window without a change of keys, in the turns with rekeying.
    pub worst_without: Times,
    /// Number of windows without a change of keys whose longest read exceeds a millisecond.
    pub worst_without_over_1ms: usize,
    pub failed: u64,
}

/// Longest read of each window, separately for windows with and without a change of keys; disturbances of the machine
/// affect both equally.
#[derive(Default)]
struct Windows {
    with: Vec<u64>,
    without: Vec<u64>,
    /// Longest read of the previous window, kept until the present one ends: a handshake may begin in one window and
    /// end in the next.
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
struct ReadTimes {
    ns: Vec<u64>,
    across: Vec<u64>,
    windows: Windows,
    changes: u64,
    failed: u64,
}

/// Measures reads with and without rekeying alternately.
///
/// # Errors
/// Returns any [`KeysError`] except failed reads, which are counted.
pub fn rekeying(site: &Site, plan: &RekeyPlan, interrupt: &Interrupt) -> Result<Rekeyed, KeysError> {
    let mut taken = [ReadTimes::default(), ReadTimes::default()];
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
            // The next turn uses another session, so no window may extend into it.
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
