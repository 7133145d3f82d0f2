//! A flow of accesses: which line, read or write, when; and what has come of each.
//!
//! Whoever serves the flow asks [`Flow::next`] and reports back, [`Flow::read_done`] and [`Flow::write_done`]. In a
//! closed loop an access is wanted as soon as there is room for it. In an open loop it is wanted at its arrival,
//! and its time runs from then on, however late it is begun: a system that falls behind is charged for the waiting.

use cxloe_cn_core::cache::Line;

use super::arrivals::Arrivals;
use super::ledger::{Ledger, stamp};
use super::mix::Turns;
use super::order::Addresses;
use crate::report::Samples;

/// One access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The line.
    pub line: u64,
    /// The version it is to have: found by a read, left by a write.
    pub version: u8,
    /// When it was wanted, in nanoseconds from the start of the flow.
    since_ns: u64,
}

impl Access {
    /// What the line holds at this version.
    #[inline]
    pub fn content(&self) -> Line {
        stamp(self.line, self.version)
    }
}

/// What is to be done next.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// Read a line.
    Read(Access),
    /// Write a line.
    Write(Access),
    /// Nothing is wanted yet.
    NotYet,
    /// Nothing more will be.
    End,
}

/// For how long accesses are wanted: until one of both is reached, but [`LEAST`] of them however long they take.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Nanoseconds.
    pub ns: u64,
    /// Accesses.
    pub accesses: u64,
}

/// What a flow has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads done.
    pub reads: u64,
    /// Writes done.
    pub writes: u64,
    /// Accesses wanted that were never begun, since the system had fallen too far behind.
    pub not_begun: u64,
    /// When the last access was done, in nanoseconds from the start.
    pub last_ns: u64,
}

impl Counts {
    /// Accesses done.
    pub fn done(self) -> u64 {
        self.reads + self.writes
    }

    /// Accesses wanted.
    pub fn wanted(self) -> u64 {
        self.done() + self.not_begun
    }
}

/// However slow the machine is just then, so many accesses are made: fewer are no measurement.
pub const LEAST: u64 = 8;
/// An open loop that is behind by this many times its extent is given up.
const PATIENCE: u64 = 2;

/// A flow.
pub struct Flow<'f> {
    addresses: &'f mut Addresses,
    turns: Turns,
    arrivals: Option<Arrivals>,
    ledger: &'f mut Ledger,
    samples: &'f mut Samples,
    extent: Extent,
    begun: u64,
    counts: Counts,
}

impl<'f> Flow<'f> {
    /// A flow over `addresses` with reads and writes by `turns`: an open loop with `arrivals`, else a closed one.
    pub fn new(
        addresses: &'f mut Addresses,
        turns: Turns,
        arrivals: Option<Arrivals>,
        extent: Extent,
        ledger: &'f mut Ledger,
        samples: &'f mut Samples,
    ) -> Flow<'f> {
        Flow { addresses, turns, arrivals, ledger, samples, extent, begun: 0, counts: Counts::default() }
    }

    /// What is to be done at `now_ns`.
    #[inline]
    pub fn next(&mut self, now_ns: u64) -> Next {
        if self.begun >= self.extent.accesses {
            return Next::End;
        }
        let since_ns = match &mut self.arrivals {
            None if now_ns >= self.extent.ns && self.begun >= LEAST => return Next::End,
            None => now_ns,
            Some(arrivals) => {
                let at = arrivals.next_ns();
                if at >= self.extent.ns {
                    return Next::End;
                }
                if at > now_ns {
                    return Next::NotYet;
                }
                if now_ns >= self.extent.ns.saturating_mul(PATIENCE) && self.begun >= LEAST {
                    self.give_up(now_ns);
                    return Next::End;
                }
                arrivals.advance();
                at
            }
        };
        self.begun += 1;
        let line = self.addresses.next_line();
        if self.turns.reads() {
            Next::Read(Access { line, version: self.ledger.version(line), since_ns })
        } else {
            Next::Write(Access { line, version: self.ledger.next_version(line), since_ns })
        }
    }

    /// Charges what was wanted and never begun with the time it has waited: it would have taken longer still.
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

    /// A read is done: its line held `found`.
    #[inline]
    pub fn read_done(&mut self, access: &Access, now_ns: u64, found: &Line) {
        self.counts.reads += 1;
        self.done(access, now_ns);
        self.ledger.check(access.line, access.version, found);
    }

    /// A write is done.
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

    /// What has been counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::super::arrivals::Spacing;
    use super::super::memory::local;
    use super::super::mix::Mix;
    use super::*;

    /// A server that takes `service_ns` for each access, one at a time, in virtual time.
    fn serve(
        per_s: Option<f64>,
        service_ns: u64,
        extent: Extent,
    ) -> (Counts, crate::report::Latency, Ledger) {
        let mut ledger = Ledger::fill(&mut local(1 << 16, None)).unwrap();
        let (mut addresses, mut samples) = (Addresses::sequential(1024), Samples::new("x"));
        let arrivals = per_s.map(|per_s| Arrivals::new(per_s, Spacing::Even, 1));
        let turns = "1:1".parse::<Mix>().unwrap().turns();
        let mut flow = Flow::new(&mut addresses, turns, arrivals, extent, &mut ledger, &mut samples);
        let mut now = 0;
        loop {
            match flow.next(now) {
                Next::Read(access) => {
                    now += service_ns;
                    flow.read_done(&access, now, &access.content());
                }
                Next::Write(access) => {
                    now += service_ns;
                    flow.write_done(&access, now);
                }
                Next::NotYet => now += 1,
                Next::End => break,
            }
        }
        let counts = flow.counts();
        (counts, samples.summary().unwrap(), ledger)
    }

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_closed_loop_times_what_it_serves() {
        let (counts, times, ledger) = serve(None, 1000, Extent { ns: SECOND, accesses: u64::MAX });
        assert_eq!((counts.done(), counts.reads, counts.not_begun), (1000, 500, 0));
        assert_eq!((times.min, times.max), (1000.0, 1000.0));
        assert_eq!((ledger.checked, ledger.wrong), (500, 0));
        let (counts, ..) = serve(None, 1000, Extent { ns: SECOND, accesses: 7 });
        assert_eq!(counts.done(), 7);
        let (counts, ..) = serve(None, SECOND, Extent { ns: 10, accesses: u64::MAX });
        assert_eq!(counts.done(), LEAST, "however slow it is");
    }

    #[test]
    fn an_open_loop_within_capacity_waits_for_nobody() {
        let (counts, times, _) = serve(Some(500_000.0), 1000, Extent { ns: SECOND, accesses: u64::MAX });
        assert_eq!(counts.wanted(), 499);
        assert!(times.max < 1010.0, "{}", times.max);
    }

    #[test]
    fn one_that_is_asked_too_much_is_charged_for_the_queue() {
        // Twice what it can: the last access begins as late as all of them take, half of it after the last arrival.
        let (counts, times, _) = serve(Some(2_000_000.0), 1000, Extent { ns: SECOND, accesses: u64::MAX });
        assert_eq!((counts.wanted(), counts.not_begun), (1999, 0));
        assert!((0.45e6..0.55e6).contains(&times.p50), "{}", times.p50);
        assert!((0.95e6..1.05e6).contains(&times.max), "{}", times.max);
    }

    #[test]
    fn one_that_is_hopelessly_behind_is_given_up_and_still_charged() {
        let (counts, times, _) = serve(Some(10_000_000.0), 1000, Extent { ns: SECOND, accesses: u64::MAX });
        assert_eq!(counts.wanted(), 9999);
        assert_eq!(counts.done(), 2000);
        assert_eq!(times.count, 9999, "what was never begun has its time too");
        assert!(times.p99 > 1e6, "{}", times.p99);
    }
}
