//! GUPS, the RandomAccess test of the HPC Challenge: words of a table are xored with a pseudo-random sequence, each
//! wherever the sequence says.
//!
//! As its rules allow, up to 1024 updates are under way before any of them is done. Xor undoes itself: the same updates
//! once more must leave the table as it was at first, each word its own index. The rules tolerate one wrong word in a
//! hundred; here none may be.

use std::time::{Duration, Instant};

use super::ledger::{fill, scan};
use super::memory::{LINE_BYTES, Memory};
use super::results::{Results, Setting};
use super::{Pattern, Plan};
use crate::measure::MeasureError;

/// Updates looked at together.
const BATCH: usize = 1024;
const LINE_WORDS: u64 = LINE_BYTES / 8;
/// An update reads a word and writes one.
const UPDATE_BYTES: u64 = 16;
/// A whole run has this many updates for each word of the table.
const UPDATES_PER_WORD: u64 = 4;

/// The sequence of the HPC Challenge: a shift register with the polynomial x^64 + x^2 + x + 1.
#[derive(Clone, Debug)]
struct Register(u64);

impl Register {
    #[inline]
    fn draw(&mut self) -> u64 {
        let carry = if self.0 >> 63 == 1 { 7 } else { 0 };
        self.0 = (self.0 << 1) ^ carry;
        self.0
    }
}

/// The updates of a table, in order.
struct Updates {
    register: Register,
    mask: u64,
    batch: Vec<(u64, u64)>,
}

impl Updates {
    fn new(words: u64) -> Updates {
        Updates { register: Register(1), mask: words - 1, batch: Vec::with_capacity(BATCH) }
    }

    /// Makes the next `count` updates, at most a batch.
    fn make(&mut self, memory: &mut dyn Memory, count: usize) -> Result<(), MeasureError> {
        self.batch.clear();
        for _ in 0..count {
            let value = self.register.draw();
            self.batch.push((value & self.mask, value));
        }
        memory.check()?;
        memory.update(&self.batch)
    }

    /// Makes updates for `time`, or `most` of them, in whole batches. Returns how many and the time it took.
    fn make_for(
        &mut self,
        memory: &mut dyn Memory,
        time: Duration,
        most: u64,
    ) -> Result<(u64, Duration), MeasureError> {
        let start = Instant::now();
        let mut made = 0;
        while start.elapsed() < time && made < most {
            self.make(memory, BATCH)?;
            made += BATCH as u64;
        }
        Ok((made, start.elapsed()))
    }
}

/// Fills the table, measures updates, and checks it.
pub fn run(
    memory: &mut dyn Memory,
    plan: &Plan,
    setting: &Setting,
    results: &mut Results,
) -> Result<(), MeasureError> {
    let mut conditions = setting.conditions(Pattern::Gups, "gups", memory);
    let words = memory.lines() * LINE_WORDS;
    lay_table(memory)?;
    let mut updates = Updates::new(words);
    let until_warm = setting.warm_accesses(memory);
    let (warm, _) = updates.make_for(memory, plan.time, until_warm)?;
    let (made, took) = updates.make_for(memory, plan.time, UPDATES_PER_WORD * words)?;
    conditions.operations = made;
    conditions.checked = words;
    conditions.wrong = undo(memory, warm + made)?;
    results.add(conditions, None, UPDATE_BYTES, took);
    Ok(())
}

/// Every word its own index.
fn lay_table(memory: &mut dyn Memory) -> Result<(), MeasureError> {
    fill(memory, |line| {
        let mut content = [0; LINE_BYTES as usize];
        for (index, word) in (line * LINE_WORDS..).zip(content.as_chunks_mut::<8>().0) {
            *word = index.to_le_bytes();
        }
        content
    })
}

/// Makes the first `count` updates once more, and counts the words that are not what they were at first.
fn undo(memory: &mut dyn Memory, count: u64) -> Result<u64, MeasureError> {
    let mut again = Updates::new(memory.lines() * LINE_WORDS);
    let mut left = count;
    while left > 0 {
        let some = left.min(BATCH as u64);
        again.make(memory, some as usize)?;
        left -= some;
    }
    let mut wrong = 0;
    scan(memory, |line, content| {
        let words = (line * LINE_WORDS..).zip(content.as_chunks::<8>().0);
        wrong += words.filter(|(index, word)| u64::from_le_bytes(**word) != *index).count() as u64;
    })?;
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::super::memory::local;
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_hpc_challenge() {
        let mut register = Register(1);
        let drawn: Vec<u64> = (0..66).map(|_| register.draw()).collect();
        assert_eq!(drawn[..3], [2, 4, 8]);
        assert_eq!(drawn[62..], [1 << 63, 7, 14, 28]);
    }

    #[test]
    fn updates_undo_themselves_and_a_lost_one_is_counted() {
        let mut memory = local(1 << 16, None);
        lay_table(&mut memory).unwrap();
        let mut updates = Updates::new(1 << 13);
        for _ in 0..5 {
            updates.make(&mut memory, BATCH).unwrap();
        }
        let changed = undo(&mut memory, 0).unwrap();
        assert!(changed > 2000, "{changed} words changed");
        assert_eq!(undo(&mut memory, 5 * BATCH as u64).unwrap(), 0);
        // One update fewer made than undone.
        assert_eq!(undo(&mut memory, 1).unwrap(), 1);
    }
}
