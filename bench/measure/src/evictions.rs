//! Latencies of page faults without and with eviction. With eviction, only a quarter of the pages may be
//! resident, so that each page that arrives evicts another.

use std::hint::black_box;
use std::time::Instant;

use cxloe_port::inline::InlineOptions;

use super::fault::Agent;
use super::fault_words::{PAGE_BYTES, Words};
use super::floor_fault::PageOrder;
use super::glance::{Glance, in_batches};
use super::{MeasureError, MeasuredRegion};
use crate::report::Samples;

/// Fraction of the working set that may be resident during eviction, as a divisor: one quarter.
const PARTS: u64 = 4;
/// Number of untimed touches before each batch, which wake a serving process after a pause.
const AWAKE: usize = 4;

/// Condition of the pages that are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// No page is evicted, since all may be resident.
    Never,
    /// Clean pages, which have only been read.
    Clean,
    /// Dirty pages, each with one written line.
    Dirty,
}

/// Names of the samples in the order of the report: for each condition, faults through the agent, then inline
/// faults.
const KINDS: [(Leaving, [&str; 2]); 3] = [
    (Leaving::Never, ["fault4k", "fault4k_inline"]),
    (Leaving::Clean, ["fault4k_evict", "fault4k_inline_evict"]),
    (Leaving::Dirty, ["fault4k_evict_dirty", "fault4k_inline_evict_dirty"]),
];

pub struct EvictionResults {
    /// One entry for each name in `KINDS`; without an agent, the samples of faults through the agent are empty.
    pub samples: Vec<Samples>,
}

/// Measures faults with and without eviction, over the port of `target` and through `agent`, and returns the
/// target. First writes a mark to every page, by which a wrong page is found. Calls `progress` for each of
/// `trials * 6` steps.
pub fn evictions(
    mut target: MeasuredRegion,
    agent: Option<&Agent>,
    (trials, count): (u32, u64),
    progress: &mut dyn FnMut(&str),
) -> Result<(MeasuredRegion, EvictionResults), MeasureError> {
    target.mark()?;
    if let Some(agent) = agent {
        agent.mark(&target)?;
    }
    let mut all: Vec<[Samples; 2]> = KINDS.iter().map(|(_, names)| names.map(Samples::new)).collect();
    for trial in 0..trials as usize {
        for ((leaving, names), [through_agent, inline]) in KINDS.into_iter().zip(&mut all) {
            target.check()?;
            progress(names[0]);
            if let Some(agent) = agent {
                let parts = if leaving == Leaving::Never { 1 } else { PARTS };
                let glance = agent.glance(&target);
                agent.mapped(&target, parts, true, |words| {
                    touch((words, leaving), (count, trial), &glance, through_agent)
                })?;
            }
            progress(names[1]);
            let whole = target.whole_region();
            let local = if leaving == Leaving::Never { whole } else { whole / PARTS };
            let options = InlineOptions { local, ..InlineOptions::default() };
            let glance = target.glance();
            (target, (), _) = target
                .inline(whole, options, |words| touch((words, leaving), (count, trial), &glance, inline))?;
        }
    }
    Ok((target, EvictionResults { samples: all.into_iter().flatten().collect() }))
}

/// Touches `count` absent pages, times each touch, and checks that the page has its own mark.
fn touch(
    (words, leaving): (Words<'_>, Leaving),
    (count, seed): (u64, usize),
    glance: &Glance,
    samples: &mut Samples,
) -> Result<(), MeasureError> {
    let pages = words.pages();
    let mut order = PageOrder::new(pages, seed);
    let value = (seed as u64 + 1) << 1;
    let one = |order: &mut PageOrder| -> Result<u64, MeasureError> {
        let page = order.draw();
        let start = Instant::now();
        let word = black_box(words.touch(page));
        let took = start.elapsed();
        words.check(page, word)?;
        if leaving == Leaving::Dirty {
            words.write(page, 1, value);
        }
        Ok(took.as_nanos() as u64)
    };
    // Number of touches after which the limit of resident pages is reached, so that each further one evicts.
    let warm = if leaving == Leaving::Never { 64 } else { pages / PARTS as usize + 64 };
    for _ in 0..warm.min(pages / 3) {
        one(&mut order)?;
    }
    in_batches(glance, count.min(pages as u64 / 2), samples, |some, samples| {
        for _ in 0..AWAKE {
            one(&mut order)?;
        }
        for _ in 0..some {
            samples.record_ns(one(&mut order)?);
        }
        Ok(())
    })
}

/// Returns the size in bytes of a region that has enough pages for `count` faults of a trial, each on another
/// page.
pub fn region_bytes(count: u64) -> u64 {
    (2 * count).next_power_of_two() * PAGE_BYTES as u64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::super::fault_words::marks;
    use super::*;

    #[test]
    fn every_touch_is_of_another_page_and_dirty_ones_are_written() {
        const PAGES: usize = 1024;
        for (leaving, _) in KINDS {
            let memory: Vec<AtomicU64> = (0..PAGES * PAGE_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
            for (at, line) in marks(0, PAGES) {
                let word = u64::from_ne_bytes(line[..8].try_into().unwrap());
                memory[at as usize / 8].store(word, std::sync::atomic::Ordering::Relaxed);
            }
            let mut samples = Samples::new("x");
            touch((Words(&memory), leaving), (10_000, 3), &Glance::default(), &mut samples).unwrap();
            assert_eq!(samples.summary().unwrap().count, PAGES as u64 / 2, "as many as are left");
            let written =
                memory.iter().filter(|word| word.load(std::sync::atomic::Ordering::Relaxed) == 8).count();
            assert_eq!(written > PAGES / 2, leaving == Leaving::Dirty, "{leaving:?}: {written}");
        }
        assert_eq!(region_bytes(2000), 16 << 20);
    }
}
