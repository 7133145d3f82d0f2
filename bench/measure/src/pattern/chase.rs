//! Pointer chase: each line contains the index of the next one, so that no request can be sent before the
//! previous answer.
//!
//! The chain is one cycle over all lines in an unpredictable order. Each line also contains its own index; a step that
//! returns another line is an error, and the last step must end at the computed end of the path.

use std::time::{Duration, Instant};

use cxloe_cn_core::cache::Line;
use cxloe_wire::frame::LINE_SIZE;

use super::flow::LEAST;
use super::memory::{LINE_BYTES, Memory};
use super::order::Scatter;
use super::results::{Results, Setting};
use super::sweep::fill;
use super::{Pattern, Plan};
use crate::report::Samples;
use crate::{MeasureError, clock_cost_ns};

/// Number of steps between two checks for Ctrl-C.
const LOOK_EVERY: u64 = 1024;

/// Chain through all lines of a memory, by the order in which it visits them.
pub struct Chain(Scatter);

impl Chain {
    /// Writes a chain through all lines of `memory`.
    pub fn lay(memory: &mut dyn Memory, seed: u64) -> Result<Chain, MeasureError> {
        let order = Scatter::new(memory.lines(), seed);
        fill(memory, |line| link(order.place(order.position(line) + 1), line))?;
        Ok(Chain(order))
    }

    /// Measures a walk along the chain, after a walk of equal kind that warms the caches, and adds the result
    /// to `results`.
    pub fn run(
        &self,
        memory: &mut dyn Memory,
        plan: &Plan,
        setting: &Setting,
        results: &mut Results,
    ) -> Result<(), MeasureError> {
        let mut conditions = setting.conditions(Pattern::Chase, "chase", memory);
        let mut samples = Samples::new(&conditions.name);
        let mut chase = Chase { at: self.0.place(0), steps: 0, wrong: 0 };
        let until_warm = setting.warm_accesses(memory);
        chase.go(memory, plan.time, until_warm, None)?;
        let warm = chase.steps;
        let took = chase.go(memory, plan.time, u64::MAX, Some(&mut samples))?;
        conditions.operations = chase.steps - warm;
        conditions.checked = chase.steps + 1;
        conditions.wrong = chase.wrong + u64::from(chase.at != self.0.place(chase.steps));
        results.add(conditions, Some(samples), LINE_BYTES, took);
        Ok(())
    }
}

/// Returns the content of a line of the chain: the next line's index, then its own.
fn link(next: u64, own: u64) -> Line {
    let mut line = [0; LINE_SIZE];
    line[..8].copy_from_slice(&next.to_le_bytes());
    line[8..16].copy_from_slice(&own.to_le_bytes());
    line
}

/// State of a walk: index of the present line, steps so far, and lines that were not those expected.
struct Chase {
    at: u64,
    steps: u64,
    wrong: u64,
}

impl Chase {
    /// Follows the chain for `time` or `most` steps, whichever ends first, but for at least [`LEAST`] steps
    /// unless `most` is fewer. Returns the time taken.
    fn go(
        &mut self,
        memory: &mut dyn Memory,
        time: Duration,
        most: u64,
        mut samples: Option<&mut Samples>,
    ) -> Result<Duration, MeasureError> {
        let clock = clock_cost_ns() as u64;
        let last_line = memory.lines() - 1;
        let start = Instant::now();
        let (mut before, end) = (start, self.steps.saturating_add(most));
        let least = self.steps + LEAST;
        while (before - start < time || self.steps < least) && self.steps < end {
            if self.steps.is_multiple_of(LOOK_EVERY) {
                memory.check()?;
            }
            let line = memory.read(self.at)?;
            let words = line.as_chunks::<8>().0;
            self.wrong += u64::from(u64::from_le_bytes(words[1]) != self.at);
            // The mask keeps the index in the working set even if a line is damaged.
            self.at = u64::from_le_bytes(words[0]) & last_line;
            self.steps += 1;
            let now = Instant::now();
            if let Some(samples) = &mut samples {
                samples.record_ns(((now - before).as_nanos() as u64).saturating_sub(clock));
            }
            before = now;
        }
        Ok(before - start)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::local;
    use super::*;

    #[test]
    fn the_chain_leads_once_through_every_line_and_a_wrong_line_is_noticed() {
        let mut memory = local(256 * LINE_BYTES, None);
        let chain = Chain::lay(&mut memory, 4).unwrap();
        let start = chain.0.place(0);
        let mut chase = Chase { at: start, steps: 0, wrong: 0 };
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..256 {
            seen.insert(chase.at);
            chase.go(&mut memory, Duration::from_secs(9), 1, None).unwrap();
        }
        assert_eq!((seen.len(), chase.at, chase.wrong), (256, start, 0));
        let other = memory.read((start + 1) % 256).unwrap();
        memory.write(start, &other).unwrap();
        chase.go(&mut memory, Duration::from_secs(9), 1, None).unwrap();
        assert_eq!(chase.wrong, 1);
    }
}
