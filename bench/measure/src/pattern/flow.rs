//! A flow of accesses: line, kind and time of each, and their results.
//!
//! The executor of the flow calls [`Flow::next`] and reports back by [`Flow::read_done`] and [`Flow::write_done`]. In a
//! closed loop an access is due as soon as a place among those in flight is free. In an open loop an access is due at
//! its arrival, and its latency counts from then on, however late it is issued: so waiting in a system that falls
//! behind counts as latency.

use cxloe_cn_core::cache::Line;

use super::arrivals::Arrivals;
use super::line_versions::{LineVersions, stamp};
use super::mix::Turns;
use super::order::Addresses;
use crate::report::Samples;

/// Read or write of one line, at a certain time.
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
    /// Content of the line at `version`.
    #[inline]
    pub fn content(&self) -> Line {
        stamp(self.line, self.version)
    }
}

/// Next step of the flow's executor.
#[derive(Clone, Copy, Debug)]
pub enum FlowAction {
    /// Reads a line and reports the content by [`Flow::read_done`].
    Read(Access),
    /// Writes a line and reports the end by [`Flow::write_done`].
    Write(Access),
    /// No access is due yet.
    NotYet,
    /// The flow has ended.
    End,
}

/// Limits of a flow: it ends when either is reached, but not before [`LEAST`] accesses.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Longest time, in nanoseconds.
    pub ns: u64,
    /// Largest number of accesses.
    pub accesses: u64,
}

/// Numbers of accesses of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of reads that completed.
    pub reads: u64,
    /// Number of writes that completed.
    pub writes: u64,
    /// Accesses that were due but not issued, because the system had fallen too far behind.
    pub not_begun: u64,
    /// Completion time of the last access, in nanoseconds from the start.
    pub last_ns: u64,
}

impl Counts {
    /// Completed accesses.
    pub fn done(self) -> u64 {
        self.reads + self.writes
    }

    /// Accesses that became due, whether or not they were issued.
    pub fn requested(self) -> u64 {
        self.done() + self.not_begun
    }
}

/// Least number of accesses of a flow, also on slow machines: with fewer, times are not meaningful.
pub const LEAST: u64 = 8;
/// Multiple of the time limit after which an open loop that falls behind is abandoned.
const OVERRUN_FACTOR: u64 = 2;

/// Accesses to lines, one after the other or at given times, with their checks.
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
    /// Flow over `addresses` with reads and writes as given by `turns`: an open loop with `arrivals`, else a closed
    /// one.
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

    /// Records for accesses never issued the time they have waited, a lower bound of their latency.
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

    /// Records a completed read; `found` is the content of the line.
    #[inline]
    pub fn read_done(&mut self, access: &Access, now_ns: u64, found: &Line) {
        self.counts.reads += 1;
        self.done(access, now_ns);
        self.versions.check(access.line, access.version, found);
    }

    /// Records a completed write.
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

    /// Counts so far.
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

    /// Acts as a server that takes `service_ns` of virtual time for each access, one at a time.
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
        // With twice the sustainable rate offered, the last access is issued after as long as all accesses take, half
        // of that time after the last arrival.
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
