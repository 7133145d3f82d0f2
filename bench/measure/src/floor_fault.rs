//! Lower limit of page faults of remote memory: the cost of a fault whose page is already local.
//!
//! ```text
//!   uffd_floor4k          measuring thread          serving thread                memory node's worker
//!                         touches a page, sleeps -> spins on the userfaultfd      polls its link meanwhile
//!                         continues       <-------- copies the page in
//!   uffd_inline_floor4k   touches a page, gets the signal, copies the page in itself
//! ```
//!
//! The mapping resembles a mapped region: a shared file in memory, whose pages are installed write-protected. Each page
//! is touched once, in an order without a constant stride.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::MeasureError;
use super::floor_mapping::{Inline, Mapping};
use crate::machine;
use crate::report::Samples;

/// Number of untimed faults at the beginning of a trial.
const WARM: usize = 64;
/// Number of pages of the mapping, a power of two: an upper bound of the faults of a trial, untimed ones
/// included.
const PAGES: usize = 8192;

/// Maximum number of timed faults in a trial.
pub const FAULTS_MAX: u64 = (PAGES - WARM) as u64;

/// Permutation of all pages without a constant stride, so that no prefetcher predicts the next page.
#[derive(Clone, Debug)]
pub struct PageOrder {
    at: usize,
    mask: usize,
}

impl PageOrder {
    /// Starts a permutation of `pages` pages, a power of two; `seed` selects the first page.
    pub fn new(pages: usize, seed: usize) -> PageOrder {
        assert!(pages.is_power_of_two());
        PageOrder { at: seed & (pages - 1), mask: pages - 1 }
    }

    /// Returns the next page of the permutation, which repeats after all pages.
    #[inline]
    pub fn draw(&mut self) -> usize {
        // With a multiplier of 4k + 1 and an odd increment the period is full (Hull and Dobell). The lowest
        // bit of the state alternates, so the bits are used in reverse order.
        self.at = (self.at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)) & self.mask;
        let bits = self.mask.count_ones();
        if bits == 0 { 0 } else { self.at.reverse_bits() >> (usize::BITS - bits) }
    }
}

/// The lower limits of page faults that another thread serves, and of those that the faulting thread serves
/// itself.
pub struct FaultFloors {
    served: Mapping,
    inline: Mapping,
    pager_cpu: Option<usize>,
    trials: usize,
}

impl FaultFloors {
    /// Makes one mapping for each limit. The serving thread runs on `pager_cpu`, or else on the measuring
    /// thread's CPUs.
    pub fn new(pager_cpu: Option<usize>) -> Result<FaultFloors, MeasureError> {
        let (served, inline) = (Mapping::new(PAGES, false)?, Mapping::new(PAGES, true)?);
        Ok(FaultFloors { served, inline, pager_cpu, trials: 0 })
    }

    /// Makes one trial of the latency `uffd_floor4k`: `count` faults that another thread serves.
    pub fn served(&mut self, count: u64, samples: &mut Samples) -> Result<(), MeasureError> {
        self.trials += 1;
        let (mapping, pager_cpu) = (&self.served, self.pager_cpu);
        mapping.empty()?;
        let stop = AtomicBool::new(false);
        let served = thread::scope(|scope| {
            let pager = scope.spawn(|| {
                let served = pager_cpu
                    .map_or(Ok(()), machine::pin)
                    .map_err(MeasureError::from)
                    .and_then(|()| Ok(mapping.serve_until(&stop)?));
                // After an error nobody serves the faults any more, and the measuring thread would wait for its page
                // for ever.
                if served.is_err() {
                    mapping.abandon();
                }
                served
            });
            faults(self.trials, count, samples, |page| mapping.touch(page));
            stop.store(true, Ordering::Relaxed);
            pager.join()
        });
        served.expect("the serving thread does not panic")
    }

    /// Makes one trial of the latency `uffd_inline_floor4k`: `count` faults that the faulting thread serves
    /// itself.
    pub fn inline(&mut self, count: u64, samples: &mut Samples) -> Result<(), MeasureError> {
        self.trials += 1;
        self.inline.empty()?;
        let inline = Inline::begin(&self.inline)?;
        faults(self.trials, count, samples, |page| inline.touch(page));
        Ok(())
    }
}

/// Touches `count` absent pages by `touch`, and times each touch.
fn faults(trial: usize, count: u64, samples: &mut Samples, touch: impl Fn(usize) -> u64) {
    let mut order = PageOrder::new(PAGES, trial * 37);
    // The first faults meet cold caches, and a serving thread that has just started.
    for _ in 0..WARM {
        black_box(touch(order.draw()));
    }
    for _ in 0..count.min(FAULTS_MAX) {
        let page = order.draw();
        let start = Instant::now();
        black_box(touch(page));
        samples.record_ns(start.elapsed().as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_visits_every_page_once_and_without_even_steps() {
        for pages in [1, 2, 64, PAGES] {
            let mut order = PageOrder::new(pages, 5);
            let drawn: Vec<usize> = (0..pages).map(|_| order.draw()).collect();
            let mut sorted = drawn.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..pages).collect::<Vec<_>>());
            if pages > 4 {
                let even = drawn.windows(3).filter(|w| w[1].wrapping_sub(w[0]) == w[2].wrapping_sub(w[1]));
                assert!(even.count() < pages / 16, "steps that a prefetcher could go by");
            }
        }
    }

    #[test]
    fn faults_are_served_by_another_thread_and_in_place() {
        let mut floors = FaultFloors::new(None).unwrap();
        let (mut served, mut inline) = (Samples::new("uffd_floor4k"), Samples::new("uffd_inline_floor4k"));
        for _ in 0..3 {
            floors.served(100, &mut served).unwrap();
            floors.inline(100, &mut inline).unwrap();
        }
        served.end_trial(None);
        inline.end_trial(None);
        let (served, inline) = (served.summary().unwrap(), inline.summary().unwrap());
        assert_eq!((served.count, inline.count), (300, 300));
    }
}
