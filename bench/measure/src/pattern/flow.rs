//! Flow of accesses to lines: which line is accessed when and how, and the latency of each access.
//!
//! The executor of the flow calls [`Flow::next`] and reports back by [`Flow::read_done`] and
//! [`Flow::write_done`]. In a closed loop, an access is due as soon as one of those in flight has completed.
//! In an open loop, an access is due at its arrival time, and its latency counts from then on, however late
//! it is issued. So waiting in a system that falls behind counts as latency.

use cxloe_cn_core::cache::Line;

use super::arrivals::Arrivals;
use super::line_versions::{LineVersions, stamp};
use super::mix::Turns;
use super::order::Addresses;
use crate::report::Samples;

/// Read or write of one line.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Index of the line in the working set.
    pub line: u64,
    /// Version of the line's content: the one that a read must find or that a write stores.
    pub version: u8,
    /// Time at which the access became due, in nanoseconds from the start of the flow.
    since_ns: u64,
}

impl Access {
    /// Returns the content of the line at `version`.
    #[inline]
    pub fn content(&self) -> Line {
        stamp(self.line, self.version)
    }
}

/// Next step of the executor.
#[derive(Clone, Copy, Debug)]
pub enum FlowAction {
    /// Read the line, and report its content by [`Flow::read_done`].
    Read(Access),
    /// Write the line, and report the end by [`Flow::write_done`].
    Write(Access),
    /// Call again later: no access is due yet.
    NotYet,
    /// Stop: the flow has ended.
    End,
}

/// Limits of a flow, which ends when either is reached, but not before [`LEAST`] accesses.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Maximum duration in nanoseconds.
    pub ns: u64,
    /// Maximum number of accesses.
    pub accesses: u64,
}

/// Counts of a flow's accesses so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    /// Number of accesses that were due but not issued, because the system had fallen too far behind.
    pub not_begun: u64,
    /// Completion time of the last access, in nanoseconds from the start.
    pub last_ns: u64,
}

impl Counts {
    pub fn done(self) -> u64 {
        self.reads + self.writes
    }

    /// Returns the number of accesses that became due, whether or not they were issued.
    pub fn requested(self) -> u64 {
        self.done() + self.not_begun
    }
}

/// Minimum number of accesses of a flow, also on slow machines: with fewer, latencies are not meaningful.
pub const LEAST: u64 = 8;
/// Multiple of the time limit after which an open loop that falls behind is abandoned.
const OVERRUN_FACTOR: u64 = 2;

/// Sequence of accesses, one after the other or at given times. Compares each read with the expected version.
pub struct Flow<'f> {
    addresses: &'f mut Addresses,
    turns: Turns,
    arrivals: Option<Arrivals>,
    versions: &'f mut LineVersions,
    samples: &'f mut Samples,
    extent: Extent,
    begun: u64,
    counts: Counts,
}

impl<'f> Flow<'f> {
    /// Makes a flow over `addresses`, with reads and writes in the order of `turns`: an open loop with
    /// `arrivals`, a closed loop without.
    pub fn new(
        addresses: &'f mut Addresses,
        turns: Turns,
        arrivals: Option<Arrivals>,
        extent: Extent,
        versions: &'f mut LineVersions,
        samples: &'f mut Samples,
    ) -> Flow<'f> {
        Flow { addresses, turns, arrivals, versions, samples, extent, begun: 0, counts: Counts::default() }
    }

    /// Returns the next step at the time `now_ns`.
    #[inline]
    pub fn next(&mut self, now_ns: u64) -> FlowAction {
        if self.begun >= self.extent.accesses {
            return FlowAction::End;
        }
        let since_ns = match &mut self.arrivals {
            // On a slow machine, the flow continues until it has enough accesses to be meaningful.
            None if now_ns >= self.extent.ns && self.begun >= LEAST => return FlowAction::End,
            None => now_ns,
            Some(arrivals) => {
                let at = arrivals.next_ns();
                if at >= self.extent.ns {
                    return FlowAction::End;
                }
                if at > now_ns {
                    return FlowAction::NotYet;
                }
                if now_ns >= self.extent.ns.saturating_mul(OVERRUN_FACTOR) && self.begun >= LEAST {
                    self.give_up(now_ns);
                    return FlowAction::End;
                }
                arrivals.advance();
                at
            }
        };
        self.begun += 1;
        let line = self.addresses.next_line();
        if self.turns.reads() {
            FlowAction::Read(Access { line, version: self.versions.version(line), since_ns })
        } else {
            FlowAction::Write(Access { line, version: self.versions.next_version(line), since_ns })
        }
    }

    /// Ends an open loop that has fallen too far behind. For each access that was never issued, records the
    /// time it has waited as a lower bound of its latency: without these accesses, an overloaded system would
    /// look fast.
    fn give_up(&mut self, now_ns: u64) {
        let Some(arrivals) = &mut self.arrivals else { return };
        while arrivals.next_ns() < self.extent.ns && self.begun < self.extent.accesses {
            self.samples.record_ns(now_ns - arrivals.next_ns());
            self.counts.not_begun += 1;
            self.begun += 1;
            arrivals.advance();
        }
        self.begun = self.extent.accesses;
    }

    /// Records a completed read, and compares `found`, the content of the line, with the expected version.
    #[inline]
    pub fn read_done(&mut self, access: &Access, now_ns: u64, found: &Line) {
        self.counts.reads += 1;
        self.done(access, now_ns);
        self.versions.check(access.line, access.version, found);
    }

    #[inline]
    pub fn write_done(&mut self, access: &Access, now_ns: u64) {
        self.counts.writes += 1;
        self.done(access, now_ns);
    }

    #[inline]
    fn done(&mut self, access: &Access, now_ns: u64) {
        self.counts.last_ns = now_ns;
        self.samples.record_ns(now_ns.saturating_sub(access.since_ns));
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::super::arrivals::Spacing;
    use super::super::memory::local;
    use super::super::mix::Mix;
    use super::super::sweep::stamp_all;
    use super::*;

    /// Acts as a server that takes `service_ns` of virtual time for each access, one access at a time.
    fn serve(
        per_s: Option<f64>,
        service_ns: u64,
        extent: Extent,
    ) -> (Counts, crate::report::Latency, LineVersions) {
        let mut versions = stamp_all(&mut local(1 << 16, None)).unwrap();
        let (mut addresses, mut samples) = (Addresses::sequential(1024), Samples::new("x"));
        let arrivals = per_s.map(|per_s| Arrivals::new(per_s, Spacing::Even, 1));
        let turns = "1:1".parse::<Mix>().unwrap().turns();
        let mut flow = Flow::new(&mut addresses, turns, arrivals, extent, &mut versions, &mut samples);
        let mut now = 0;
        loop {
            match flow.next(now) {
                FlowAction::Read(access) => {
                    now += service_ns;
                    flow.read_done(&access, now, &access.content());
                }
                FlowAction::Write(access) => {
                    now += service_ns;
                    flow.write_done(&access, now);
                }
                FlowAction::NotYet => now += 1,
                FlowAction::End => break,
            }
        }
        let counts = flow.counts();
        (counts, samples.summary().unwrap(), versions)
    }

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_closed_loop_times_what_it_serves() {
        let (counts, times, versions) = serve(None, 1000, Extent { ns: SECOND, accesses: u64::MAX });
        assert_eq!((counts.done(), counts.reads, counts.not_begun), (1000, 500, 0));
        assert_eq!((times.min, times.max), (1000.0, 1000.0));
        assert_eq!((versions.checked, versions.wrong), (500, 0));
        let (counts, ..) = serve(None, 1000, Extent { ns: SECOND, accesses: 7 });
        assert_eq!(counts.done(), 7);
        let (counts, ..) = serve(None, SECOND, Extent { ns: 10, accesses: u64::MAX });
        assert_eq!(counts.done(), LEAST, "however slow it is");
    }

    #[test]
    fn an_open_loop_within_capacity_never_waits() {
        let (counts, times, _) = serve(Some(500_000.0), 1000, Extent { ns: SECOND, accesses: u64::MAX });
        assert_eq!(counts.requested(), 499);
        assert!(times.max < 1010.0, "{}", times.max);
    }

    #[test]
    fn an_overloaded_target_is_charged_for_its_queue() {
        // At twice the sustainable rate, serving all accesses takes twice the time in which they arrive. So
        // the last access waits for half of that time.
        let (counts, times, _) = serve(Some(2_000_000.0), 1000, Extent { ns: SECOND, accesses: u64::MAX });
        assert_eq!((counts.requested(), counts.not_begun), (1999, 0));
        assert!((0.45e6..0.55e6).contains(&times.p50), "{}", times.p50);
        assert!((0.95e6..1.05e6).contains(&times.max), "{}", times.max);
    }

    #[test]
    fn a_reader_far_behind_is_dropped_and_still_charged() {
        let (counts, times, _) = serve(Some(10_000_000.0), 1000, Extent { ns: SECOND, accesses: u64::MAX });
        assert_eq!(counts.requested(), 9999);
        assert_eq!(counts.done(), 2000);
        assert_eq!(times.count, 9999, "what was never begun has its time too");
        assert!(times.p99 > 1e6, "{}", times.p99);
    }
}
