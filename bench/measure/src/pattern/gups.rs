//! GUPS, the RandomAccess test of the HPC Challenge: words of a table are xored with the values of a pseudo-random
//! sequence, and the values also select the words.
//!
//! The test's rules permit reading up to 1024 updates before the first of them is written, and this program does so.
//! Xor is its own inverse: if the same updates are made again, each word of the table must have its initial value, the
//! word's own index. The rules tolerate one wrong word in a hundred; here every wrong word is an error.

use std::time::{Duration, Instant};

use super::memory::{LINE_BYTES, Memory};
use super::results::{Results, Setting};
use super::sweep::{fill, scan};
use super::{Pattern, Plan};
use crate::MeasureError;

/// Number of updates read together before they are written, the maximum that the rules permit.
const BATCH: usize = 1024;
const LINE_WORDS: u64 = LINE_BYTES / 8;
/// Bytes counted for each update, which reads a word and writes it.
const UPDATE_BYTES: u64 = 16;
/// Updates of a whole run for each word of the table, as the rules demand.
const UPDATES_PER_WORD: u64 = 4;

/// Number of streams of the sequence that are used in rotation, as in the HPC Challenge: successive values of
/// one stream are similar.
const STREAMS: usize = 128;
/// Number of values after which the sequence repeats.
const PERIOD: u64 = 1_317_624_576_693_539_401;
/// Distance in the sequence between the first values of two streams.
const SPACING: u64 = PERIOD / (STREAMS as u64 + 1);

/// A stream of the HPC Challenge's sequence: the powers of x modulo x^64 + x^2 + x + 1, over GF(2).
#[derive(Clone, Copy, Debug)]
struct Register(u64);

impl Register {
    /// Returns the stream that begins at x to the power `position`.
    fn at(position: u64) -> Register {
        let (mut power, mut square, mut left) = (1, 2, position);
        while left > 0 {
            if left & 1 == 1 {
                power = times(power, square);
            }
            square = times(square, square);
            left >>= 1;
        }
        Register(power)
    }

    /// Returns the next value: x times the previous value.
    #[inline]
    fn draw(&mut self) -> u64 {
        // The term x^64 that the shift drops is equal to x^2 + x + 1, which is 7.
        let carry = if self.0 >> 63 == 1 { 7 } else { 0 };
        self.0 = (self.0 << 1) ^ carry;
        self.0
    }
}

/// Returns the product of two polynomials, modulo that of the sequence.
fn times(a: u64, b: u64) -> u64 {
    let mut shifted = Register(a);
    let mut product = 0;
    for bit in 0..64 {
        if b >> bit & 1 == 1 {
            product ^= shifted.0;
        }
        shifted.draw();
    }
    product
}

/// Generator of the updates of a table, in order. `mask` limits a value to the index of a word.
struct Updates {
    streams: [Register; STREAMS],
    turn: usize,
    mask: u64,
    batch: Vec<(u64, u64)>,
}

impl Updates {
    fn new(words: u64) -> Updates {
        // Evenly spaced starts, none of them at the beginning of the sequence, where values have few bits
        // set.
        let streams = std::array::from_fn(|stream| Register::at((stream as u64 + 1) * SPACING));
        Updates { streams, turn: 0, mask: words - 1, batch: Vec::with_capacity(BATCH) }
    }

    /// Makes the next `count` updates, at most [`BATCH`].
    fn make(&mut self, memory: &mut dyn Memory, count: usize) -> Result<(), MeasureError> {
        self.batch.clear();
        for _ in 0..count {
            let value = self.streams[self.turn].draw();
            self.turn = (self.turn + 1) % STREAMS;
            self.batch.push((value & self.mask, value));
        }
        memory.check()?;
        memory.update(&self.batch)
    }

    /// Makes updates in whole batches for `time`, or until there are `most`. Returns the number of updates
    /// and the time.
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

/// Fills the table, measures updates for the plan's time, and checks the table.
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

/// Sets every word to its own index.
fn lay_table(memory: &mut dyn Memory) -> Result<(), MeasureError> {
    fill(memory, |line| {
        let mut content = [0; LINE_BYTES as usize];
        for (index, word) in (line * LINE_WORDS..).zip(content.as_chunks_mut::<8>().0) {
            *word = index.to_le_bytes();
        }
        content
    })
}

/// Repeats the first `count` updates, which undoes them, and returns the number of words that then differ
/// from their index.
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
        assert_eq!(Register::at(PERIOD).0, 1);
        for position in [0, 1, 63, 64, 66, 1000] {
            let mut walked = Register(1);
            for _ in 0..position {
                walked.draw();
            }
            assert_eq!(Register::at(position).0, walked.0, "{position}");
        }
    }

    #[test]
    fn updates_go_everywhere() {
        let mut updates = Updates::new(1 << 10);
        let mut memory = local(1 << 13, None);
        let mut seen = [0_u32; 1 << 10];
        for _ in 0..100 {
            updates.make(&mut memory, BATCH).unwrap();
            updates.batch.iter().for_each(|(word, _)| seen[*word as usize] += 1);
        }
        // The average is a hundred; the sequence is not perfectly uniform.
        let most = seen.iter().filter(|n| (60..160).contains(*n)).count();
        assert!(most > 950 && !seen.contains(&0), "{seen:?}");
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
        assert!(changed > 3000, "{changed} words changed");
        assert_eq!(undo(&mut memory, 5 * BATCH as u64).unwrap(), 0);
        // At this point the table has its initial content, so the single update that `undo` makes leaves one wrong
        // word.
        assert_eq!(undo(&mut memory, 1).unwrap(), 1);
    }
}
