//! What a page fault costs when the page is here already: the floor under every fault of remote memory.
//!
//! ```text
//!   uffd_floor4k          measuring thread          serving thread                memory node's worker
//!                         touches a page, sleeps -> spins on the userfaultfd      polls its link meanwhile
//!                         goes on         <-------- copies the page in
//!   uffd_inline_floor4k   touches a page, gets the signal, copies the page in itself
//! ```
//!
//! The mapping is what a mapped region is: a file in memory, shared, write-protected as it comes. Each page is
//! touched once, in an order without steps that anybody could foresee.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::MeasureError;
use super::floor_mapping::{Inline, Mapping};
use crate::machine;
use crate::report::Samples;

/// Faults before those that count.
const WARM: usize = 64;
/// Pages of the mapping, a power of two: faults of a trial at most, with those to warm up.
const PAGES: usize = 8192;

/// The largest number of faults in a trial.
pub const FAULTS_MAX: u64 = (PAGES - WARM) as u64;

/// All pages, each once, the next one never at a constant distance: a generator of full period.
#[derive(Clone, Debug)]
pub struct Order {
    at: usize,
    mask: usize,
}

impl Order {
    /// Over `pages` pages, a power of two, from one that `seed` names.
    pub fn new(pages: usize, seed: usize) -> Order {
        assert!(pages.is_power_of_two());
        Order { at: seed & (pages - 1), mask: pages - 1 }
    }

    /// The next page.
    #[inline]
    pub fn draw(&mut self) -> usize {
        // A multiplier one above a multiple of four and an odd increment visit everything (Hull and Dobell). The low
        // bits alone would alternate; the high ones are taken to the front.
        self.at = (self.at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)) & self.mask;
        let bits = self.mask.count_ones();
        if bits == 0 { 0 } else { self.at.reverse_bits() >> (usize::BITS - bits) }
    }
}

/// Both floors of faults.
pub struct FaultFloors {
    served: Mapping,
    inline: Mapping,
    pager_cpu: Option<usize>,
    trials: usize,
}

impl FaultFloors {
    /// Mappings for both. The serving thread runs on `pager_cpu`, or where the measuring thread may.
    pub fn new(pager_cpu: Option<usize>) -> Result<FaultFloors, MeasureError> {
        let (served, inline) = (Mapping::new(PAGES, false)?, Mapping::new(PAGES, true)?);
        Ok(FaultFloors { served, inline, pager_cpu, trials: 0 })
    }

    /// `uffd_floor4k`: `count` faults served by another thread. One trial.
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

    /// `uffd_inline_floor4k`: `count` faults served by the thread that makes them. One trial.
    pub fn inline(&mut self, count: u64, samples: &mut Samples) -> Result<(), MeasureError> {
        self.trials += 1;
        self.inline.empty()?;
        let inline = Inline::begin(&self.inline)?;
        faults(self.trials, count, samples, |page| inline.touch(page));
        Ok(())
    }
}

/// Touches `count` pages that are absent, and times each.
fn faults(trial: usize, count: u64, samples: &mut Samples, touch: impl Fn(usize) -> u64) {
    let mut order = Order::new(PAGES, trial * 37);
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
            let mut order = Order::new(pages, 5);
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
