//! Schedule of the reads of a load: which line is read when, and the time of each read. All times are nanoseconds from
//! the start, which the caller passes in.
//!
//! ```text
//!   arrivals ---> due ---> slot: in flight ---> ended: its time, from the moment at which it was due
//!                  ^  no slot is free, or the peer has no room: it stays due
//! ```
//!
//! In an open loop, reads are due at moments that do not depend on the reads before, and the time of a read runs from
//! that moment, however late it begins: waiting behind others counts (no coordinated omission). In a closed loop, a
//! read is due as soon as a slot is free: its rate is the highest that this client reaches with so many slots.

use cxloe_measure::pattern::arrivals::{Arrivals, Spacing};
use cxloe_wire::random::Random;

/// Seed of moments and places: all peers get the same ones, at rates of their own.
const SEED: u64 = 0x10AD;
/// Multiple of the duration after which an open loop that has fallen behind begins no further reads.
const OVERRUN_FACTOR: u64 = 2;

#[derive(Debug, Clone, Copy)]
pub struct LoadLimits {
    /// Number of lines of the memory.
    pub lines: u64,
    /// Maximum number of reads in flight.
    pub slots: usize,
    /// Duration in nanoseconds, which is exceeded for `reads_min` reads.
    pub duration_ns: u64,
    pub reads_min: u64,
    pub reads_max: u64,
    /// Number of first reads that are not among the times.
    pub warm: u64,
}

/// Next step of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadStep {
    /// Begin to read the line; report its end by [`LoadSchedule::ended`], or by [`LoadSchedule::refused`] that the peer
    /// has no room for it at present.
    Begin { slot: u32, line: usize },
    /// Wait for reads to end, at most until this time, and ask again.
    Wait { until_ns: u64 },
    /// All reads have ended.
    End,
}

/// Times of a load, and its rate.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadTimes {
    /// Time of each read from the moment at which it was due, in nanoseconds. Of a read that never began, it is the
    /// time for which it has waited.
    pub times_ns: Vec<u64>,
    /// Number of reads that ended in a second.
    pub per_s: f64,
}

#[derive(Debug, Clone, Copy)]
struct DueRead {
    line: usize,
    since_ns: u64,
    is_timed: bool,
}

/// Next read of a load.
enum NextRead {
    Due(DueRead),
    /// None is due before this time.
    Later(u64),
    Never,
}

/// Reads of a load: those that are due, those in flight in their slots, and the times of those that have ended.
#[derive(Debug)]
pub struct LoadSchedule {
    limits: LoadLimits,
    /// Moments of an open loop; `None` for a closed one.
    arrivals: Option<Arrivals>,
    random: Random,
    refused: Option<DueRead>,
    slots: Vec<Option<DueRead>>,
    free: Vec<u32>,
    /// Number of reads that became due.
    requested: u64,
    ended: u64,
    /// Time at which the last read ended.
    last_ns: u64,
    is_over: bool,
    times_ns: Vec<u64>,
}

impl LoadSchedule {
    /// Schedule of a closed loop.
    pub fn closed(limits: LoadLimits) -> LoadSchedule {
        LoadSchedule::new(limits, None)
    }

    /// Schedule of an open loop at `per_s` reads per second on average, which must be above zero.
    pub fn open(limits: LoadLimits, per_s: f64, spacing: Spacing) -> LoadSchedule {
        LoadSchedule::new(limits, Some(Arrivals::new(per_s, spacing, SEED)))
    }

    fn new(limits: LoadLimits, arrivals: Option<Arrivals>) -> LoadSchedule {
        let slots = limits.slots.max(1);
        LoadSchedule {
            limits,
            arrivals,
            random: Random::new(SEED),
            refused: None,
            slots: vec![None; slots],
            free: (0..slots as u32).rev().collect(),
            requested: 0,
            ended: 0,
            last_ns: 0,
            is_over: false,
            times_ns: Vec::new(),
        }
    }

    pub fn next(&mut self, now_ns: u64) -> LoadStep {
        let Some(slot) = self.free.last().copied() else { return LoadStep::Wait { until_ns: u64::MAX } };
        match self.next_read(now_ns) {
            NextRead::Due(due) => {
                self.free.pop();
                self.slots[slot as usize] = Some(due);
                LoadStep::Begin { slot, line: due.line }
            }
            NextRead::Later(until_ns) => LoadStep::Wait { until_ns },
            NextRead::Never if self.in_flight() > 0 => LoadStep::Wait { until_ns: u64::MAX },
            NextRead::Never => LoadStep::End,
        }
    }

    /// Number of reads that have begun and not ended.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn next_read(&mut self, now_ns: u64) -> NextRead {
        if let Some(due) = self.refused.take() {
            return NextRead::Due(due);
        }
        let LoadLimits { lines, duration_ns, reads_min, reads_max, warm, .. } = self.limits;
        if self.is_over || self.requested >= reads_max {
            return NextRead::Never;
        }
        let is_enough = self.requested >= reads_min;
        let since_ns = match &mut self.arrivals {
            None if is_enough && now_ns >= duration_ns => return NextRead::Never,
            None => now_ns,
            Some(arrivals) => {
                let at = arrivals.next_ns();
                if is_enough && at >= duration_ns {
                    return NextRead::Never;
                }
                if at > now_ns {
                    return NextRead::Later(at);
                }
                if is_enough && now_ns >= duration_ns.saturating_mul(OVERRUN_FACTOR) {
                    self.give_up(now_ns);
                    return NextRead::Never;
                }
                arrivals.advance();
                at
            }
        };
        self.requested += 1;
        let line = self.random.below(lines) as usize;
        NextRead::Due(DueRead { line, since_ns, is_timed: self.requested > warm })
    }

    /// Ends an open loop that has fallen too far behind. Each read that was due and never began is among the times with
    /// the time for which it has waited: without these, an overloaded peer would look fast.
    fn give_up(&mut self, now_ns: u64) {
        self.is_over = true;
        let Some(arrivals) = &mut self.arrivals else { return };
        while arrivals.next_ns() < self.limits.duration_ns && self.requested < self.limits.reads_max {
            self.times_ns.push(now_ns.saturating_sub(arrivals.next_ns()));
            self.requested += 1;
            arrivals.advance();
        }
    }

    /// Takes back the read that [`next`](Self::next) has just returned. It stays due.
    pub fn refused(&mut self, slot: u32) {
        self.refused = self.take(slot);
    }

    /// Ends the read in `slot`; returns its line, or `None` if there is no read in this slot.
    pub fn ended(&mut self, slot: u32, now_ns: u64) -> Option<usize> {
        let due = self.take(slot)?;
        self.ended += 1;
        self.last_ns = now_ns;
        if due.is_timed {
            self.times_ns.push(now_ns.saturating_sub(due.since_ns));
        }
        Some(due.line)
    }

    fn take(&mut self, slot: u32) -> Option<DueRead> {
        let due = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(due)
    }

    /// Times and rate of all reads that have ended.
    pub fn into_times(self) -> LoadTimes {
        LoadTimes { times_ns: self.times_ns, per_s: self.ended as f64 * 1e9 / self.last_ns.max(1) as f64 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const LIMITS: LoadLimits = LoadLimits {
        lines: 1024,
        slots: 4,
        duration_ns: 1_000_000,
        reads_min: 30,
        reads_max: 20_000,
        warm: 10,
    };
    /// Time in which the server of these tests answers one read; it answers one after the other.
    const SERVICE_NS: u64 = 1000;

    /// Answers all reads in virtual time. While a moment is in `stall`, nothing is answered.
    fn served(mut schedule: LoadSchedule, stall: std::ops::Range<u64>) -> LoadTimes {
        let (mut now, mut free_at) = (0, 0_u64);
        let mut in_flight: VecDeque<(u32, u64)> = VecDeque::new();
        loop {
            match schedule.next(now) {
                LoadStep::Begin { slot, line } => {
                    assert!(line < 1024);
                    let mut end = free_at.max(now) + SERVICE_NS;
                    if stall.contains(&end) {
                        end = stall.end;
                    }
                    free_at = end;
                    in_flight.push_back((slot, end));
                    assert_eq!(schedule.in_flight(), in_flight.len());
                }
                LoadStep::Wait { until_ns } => match in_flight.front().copied() {
                    Some((slot, end)) if end <= until_ns => {
                        in_flight.pop_front();
                        now = now.max(end);
                        assert!(schedule.ended(slot, now).is_some());
                    }
                    _ => now = until_ns,
                },
                LoadStep::End => break,
            }
        }
        assert_eq!(schedule.in_flight(), 0);
        schedule.into_times()
    }

    fn open(per_s: f64, spacing: Spacing) -> LoadSchedule {
        LoadSchedule::open(LIMITS, per_s, spacing)
    }

    #[test]
    fn a_closed_loop_finds_the_highest_rate() {
        let found = served(LoadSchedule::closed(LIMITS), 0..0);
        assert!((0.99e6..1.01e6).contains(&found.per_s), "{}", found.per_s);
        // Four reads are in flight, so each waits for three others.
        let waited = |time: &u64| *time == 4 * SERVICE_NS;
        assert!(found.times_ns.iter().skip(4).all(waited), "{:?}", &found.times_ns[..20]);
    }

    #[test]
    fn reads_within_the_rate_do_not_wait() {
        let found = served(open(250_000.0, Spacing::Even), 0..0);
        assert_eq!(found.times_ns.len(), 249 - LIMITS.warm as usize, "the first reads are not timed");
        assert!(found.times_ns.iter().all(|time| *time <= SERVICE_NS + 1), "{found:?}");
        assert!((0.24e6..0.26e6).contains(&found.per_s), "{}", found.per_s);
    }

    #[test]
    fn random_gaps_make_queues() {
        let mut times = served(open(900_000.0, Spacing::Poisson), 0..0).times_ns;
        times.sort_unstable();
        assert!(times[0] >= SERVICE_NS && times[times.len() * 9 / 10] > 3 * SERVICE_NS, "{times:?}");
    }

    #[test]
    fn reads_that_were_due_in_a_stall_are_timed_from_then_on() {
        // In 200 µs without an answer, 50 reads become due; only four of them can begin.
        let found = served(open(250_000.0, Spacing::Even), 400_000..600_000);
        let late = found.times_ns.iter().filter(|time| **time > 10 * SERVICE_NS).count();
        assert!((40..70).contains(&late), "{late} reads have waited");
        let longest = found.times_ns.iter().max().copied().unwrap();
        assert!((190_000..=201_000).contains(&longest), "{longest}");
    }

    #[test]
    fn an_overload_ends_and_counts_what_never_began() {
        let found = served(open(10_000_000.0, Spacing::Even), 0..0);
        assert_eq!(found.times_ns.len(), 9_999 - LIMITS.warm as usize, "every read that was due has a time");
        assert!((0.99e6..1.01e6).contains(&found.per_s), "{}", found.per_s);
        assert!(found.times_ns.iter().max().copied().unwrap() >= 1_000_000);
    }

    #[test]
    fn a_refused_read_stays_due() {
        let mut schedule = open(1_000_000.0, Spacing::Even);
        assert_eq!(schedule.next(0), LoadStep::Wait { until_ns: 1_000 });
        let LoadStep::Begin { slot, line } = schedule.next(1_000) else { panic!("it is due") };
        schedule.refused(slot);
        assert_eq!(schedule.in_flight(), 0);
        let LoadStep::Begin { slot, line: again } = schedule.next(500_000) else { panic!("it is due") };
        assert_eq!(again, line);
        assert_eq!(schedule.ended(slot, 600_000), Some(line));
        assert_eq!(schedule.ended(slot, 600_000), None, "it has ended");
    }

    #[test]
    fn a_slow_peer_makes_the_least_number_of_reads() {
        let limits = LoadLimits { duration_ns: 10, ..LIMITS };
        assert_eq!(served(LoadSchedule::closed(limits), 0..0).times_ns.len(), 20);
        let rare = LoadSchedule::open(limits, 1_000.0, Spacing::Even);
        assert_eq!(served(rare, 0..0).times_ns.len(), 20);
        let few = LoadLimits { reads_max: 50, ..LIMITS };
        assert_eq!(served(LoadSchedule::closed(few), 0..0).times_ns.len(), 40);
    }
}
