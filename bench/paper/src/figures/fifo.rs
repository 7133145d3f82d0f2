//! The memory node's receive FIFO: entries arrive one by one, a reader removes them, and PFC frames are sent
//! while the number of entries exceeds the threshold.
//!
//! Only an arrival makes the FIFO fuller, so the threshold is checked at each arrival, after the reader has removed the
//! entries due since the previous one.

use std::collections::VecDeque;

use cxloe_wire::random::Random;

use super::model::Model;
use super::time::Ps;

pub(super) struct Fifo {
    threshold: usize,
    window: usize,
    patience: Ps,
    read: Ps,
    repeat: Ps,
    stalls: Stalls,
    /// Arrival times of the entries, oldest first.
    entries: VecDeque<Ps>,
    /// Time at which the reader finishes the last entry that it has begun.
    reader_free: Ps,
    /// Time of the last PFC frame; `None` if there was none, or if the number of entries has fallen to the threshold
    /// since then.
    signalled_at: Option<Ps>,
    peak: usize,
}

impl Fifo {
    pub fn new(model: &Model, threshold: u32, seed: u64) -> Fifo {
        Fifo {
            threshold: threshold as usize,
            window: model.window as usize,
            patience: model.patience.into(),
            read: model.read.into(),
            repeat: model.repeat.into(),
            stalls: Stalls::new(model, seed),
            entries: VecDeque::new(),
            reader_free: Ps::ZERO,
            signalled_at: None,
            peak: 0,
        }
    }

    /// Adds an entry at the time `now`. Returns true if a PFC frame is sent.
    pub fn push(&mut self, now: Ps) -> bool {
        // The reader's progress since the previous arrival is computed only now.
        while self.take(now) {}
        if self.entries.len() <= self.threshold {
            self.signalled_at = None;
        }
        self.entries.push_back(now);
        self.peak = self.peak.max(self.entries.len());
        let due = self.signalled_at.is_none_or(|signalled_at| now >= signalled_at + self.repeat);
        if self.entries.len() <= self.threshold || !due {
            return false;
        }
        self.signalled_at = Some(now);
        true
    }

    /// Returns the maximum number of entries so far.
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// Removes the oldest entry if the reader has finished it by `now`, else returns false. The reader begins
    /// an entry when a whole window of entries has arrived after it, or when the entry has waited for
    /// `patience`.
    fn take(&mut self, now: Ps) -> bool {
        let Some(&oldest) = self.entries.front() else { return false };
        let followed = self.entries.get(self.window).copied().unwrap_or(Ps::NEVER);
        let due = followed.min(oldest + self.patience).max(self.reader_free);
        if due > now {
            return false;
        }
        let done = self.stalls.after(due) + self.read;
        if done > now {
            return false;
        }
        self.entries.pop_front();
        self.reader_free = done;
        true
    }
}

/// Periods in which the reader stalls, at random distances; `from` is the start of the present or next one.
struct Stalls {
    random: Random,
    from: Ps,
    length: Ps,
    gap: (Ps, Ps),
}

impl Stalls {
    fn new(model: &Model, seed: u64) -> Stalls {
        let gap = (model.stall_gap_min.into(), model.stall_gap_max.into());
        let mut stalls =
            Stalls { random: Random::new(seed), from: Ps::ZERO, length: model.stall.into(), gap };
        stalls.from = stalls.draw();
        stalls
    }

    /// Returns a random time from the start of one stall to the start of the next.
    fn draw(&mut self) -> Ps {
        let (least, most) = self.gap;
        least + Ps(self.random.below((most - least).0 + 1))
    }

    /// Returns the earliest time from `at` on at which the reader does not stall. `at` must not decrease from
    /// call to call.
    fn after(&mut self, at: Ps) -> Ps {
        while at >= self.from + self.length {
            self.from = self.from + self.draw();
        }
        if at >= self.from { self.from + self.length } else { at }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NS: u64 = 1000;

    /// Returns a model whose reader takes 4 ns for an entry, has no window, and stalls from 10 to 11
    /// microseconds.
    fn model() -> Model {
        let us = Duration::from_micros;
        Model { window: 0, stall: us(1), stall_gap_min: us(10), stall_gap_max: us(10), ..Model::default() }
    }

    /// Adds an entry every `every` nanoseconds from `from` until `until`; returns the times of PFC frames in
    /// nanoseconds.
    fn fill(fifo: &mut Fifo, every: u64, from: u64, until: u64) -> Vec<u64> {
        (from..until).step_by(every as usize).filter(|ns| fifo.push(Ps(ns * NS))).collect()
    }

    #[test]
    fn a_reader_that_keeps_up_leaves_no_queue() {
        let mut fifo = Fifo::new(&model(), 2, 1);
        assert!(fill(&mut fifo, 10, 0, 10_000).is_empty());
        assert_eq!(fifo.peak(), 1);
    }

    #[test]
    fn a_stall_fills_it_and_then_it_drains() {
        let mut fifo = Fifo::new(&model(), 1000, 1);
        fill(&mut fifo, 10, 0, 11_000);
        assert_eq!(fifo.peak(), 100, "one in 10 ns for a microsecond");
        // The reader removes an entry in 4 ns, while one arrives every 10 ns: 100 entries are gone after 667
        // ns.
        fill(&mut fifo, 10, 11_000, 11_700);
        assert!(fifo.entries.len() <= 2, "{} left", fifo.entries.len());
        assert!(fifo.peak() <= 101);
    }

    #[test]
    fn pfc_leaves_on_rising_above_the_threshold_and_again_while_above() {
        let mut fifo = Fifo::new(&Model { repeat: Duration::from_nanos(350), ..model() }, 10, 1);
        // The 11th entry in the stall arrives 100 ns after its start. Near 11.6 us the number of entries falls to ten,
        // and one more entry exceeds the threshold again.
        let first = fill(&mut fifo, 10, 0, 12_000);
        assert_eq!(first, [10_100, 10_450, 10_800, 11_150, 11_500, 11_600]);
        // The next stall starts at 20 us, and during it the number of entries exceeds the threshold again.
        assert_eq!(fill(&mut fifo, 10, 12_000, 20_300), [20_100]);
    }

    #[test]
    fn the_window_stays_until_patience_ends() {
        let model = Model { window: 5, patience: Duration::from_nanos(500), ..model() };
        let mut fifo = Fifo::new(&model, 1000, 1);
        fill(&mut fifo, 10, 0, 400);
        assert_eq!(fifo.entries.len(), 6, "five, and the one that let the reader go on");
        while fifo.take(Ps(880 * NS)) {}
        assert_eq!(fifo.entries.len(), 2, "those of 380 and 390 ns have not waited 500");
        while fifo.take(Ps(2_000 * NS)) {}
        assert_eq!(fifo.entries.len(), 0);
    }

    #[test]
    fn stalls_come_as_far_apart_as_the_model_says() {
        let model = Model::default();
        let mut stalls = Stalls::new(&model, 7);
        let mut starts = Vec::new();
        for ns in (0..10_000_000).step_by(100) {
            if stalls.after(Ps(ns * NS)) != Ps(ns * NS) && starts.last() != Some(&stalls.from) {
                starts.push(stalls.from);
            }
        }
        let gaps: Vec<u64> = starts.windows(2).map(|pair| (pair[1] - pair[0]).0 / NS).collect();
        assert!(gaps.iter().all(|gap| (8_000..=30_000).contains(gap)), "{gaps:?}");
        let mean = gaps.iter().sum::<u64>() / gaps.len() as u64;
        assert!((18_000..20_000).contains(&mean), "{mean} ns on average, of {}", gaps.len());
    }
}
