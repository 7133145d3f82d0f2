//! A queue whose memory comes in small chunks. It grows without moving its entries, so that an addition never touches
//! much new memory at once, and stale entries are removed chunk by chunk, in passes between which other work is done.
//!
//! ```text
//!   chunks:  [examined, full] [examined] [] [] [to be examined] [to be examined] [last]
//!                                 ^ kept       ^ next
//! ```
//!
//! Entries keep their order. Emptied chunks are used again, and their memory stays with the queue.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

/// Number of entries of a chunk: 4 KiB of entries of 16 bytes.
pub(super) const CHUNK: usize = 256;
/// Maximum number of chunks that are partly filled: the first, the last, and those at the two ends of what a pass has
/// examined.
const PARTLY_FILLED_MAX: usize = 4;

/// Progress of a pass that removes stale entries.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    /// Number of chunks, from the front, that hold the examined entries that stay.
    kept: usize,
    /// Index of the chunk to be examined next. The chunks from `kept` to this one are empty, and have no memory.
    next: usize,
}

/// A first-in, first-out queue in chunks.
#[derive(Debug)]
pub(super) struct ChunkedQueue<T> {
    /// The first chunk is not empty.
    chunks: VecDeque<VecDeque<T>>,
    /// Empty chunks, each with its memory.
    spare: Vec<VecDeque<T>>,
    len: usize,
    pass: Option<Pass>,
}

impl<T> Default for ChunkedQueue<T> {
    fn default() -> ChunkedQueue<T> {
        ChunkedQueue { chunks: VecDeque::new(), spare: Vec::new(), len: 0, pass: None }
    }
}

impl<T> ChunkedQueue<T> {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Allocates memory for `entries` entries in all.
    pub fn reserve(&mut self, entries: usize) {
        let chunks = entries.div_ceil(CHUNK) + PARTLY_FILLED_MAX;
        self.chunks.reserve(chunks.saturating_sub(self.chunks.len()));
        self.spare.reserve(chunks.saturating_sub(self.spare.len()));
        while self.chunks.len() + self.spare.len() < chunks {
            self.spare.push(VecDeque::with_capacity(CHUNK));
        }
    }

    #[inline]
    pub fn front(&self) -> Option<&T> {
        self.chunks.front()?.front()
    }

    #[inline]
    pub fn push_back(&mut self, entry: T) {
        self.len += 1;
        match self.chunks.back_mut() {
            Some(last) if last.len() < CHUNK => last.push_back(entry),
            _ => {
                let mut chunk = self.spare.pop().unwrap_or_else(|| VecDeque::with_capacity(CHUNK));
                chunk.push_back(entry);
                self.chunks.push_back(chunk);
            }
        }
    }

    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        let first = self.chunks.front_mut()?;
        let entry = first.pop_front()?;
        self.len -= 1;
        if first.is_empty() {
            self.trim_front();
        }
        Some(entry)
    }

    /// Removes empty chunks from the front.
    fn trim_front(&mut self) {
        while self.chunks.front().is_some_and(VecDeque::is_empty) {
            self.spare.extend(self.chunks.pop_front().filter(|chunk| chunk.capacity() > 0));
            if let Some(Pass { kept, next }) = &mut self.pass {
                (*kept, *next) = (kept.saturating_sub(1), next.saturating_sub(1));
            }
        }
    }

    /// All entries, the first one first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// Begins a pass over all entries, unless one is under way; [`retain_some`](Self::retain_some) continues it.
    pub fn begin_pass(&mut self) {
        self.pass.get_or_insert_default();
    }

    /// Whether a pass is under way.
    #[inline]
    pub fn has_pass(&self) -> bool {
        self.pass.is_some()
    }

    /// Continues the pass with one chunk: removes the entries for which `stays` is false. Returns the number of entries
    /// examined.
    pub fn retain_some(&mut self, stays: impl FnMut(&T) -> bool) -> usize {
        let Some(mut pass) = self.pass.take() else { return 0 };
        let mut examined = 0;
        if let Some(place) = self.chunks.get_mut(pass.next) {
            let mut chunk = mem::take(place);
            examined = chunk.len();
            chunk.retain(stays);
            self.len -= examined - chunk.len();
            pass.next += 1;
            // The chunk before it is filled first: all but a few chunks are full, so that their number stays bounded.
            if let Some(before) = pass.kept.checked_sub(1) {
                let before = &mut self.chunks[before];
                let moved = (CHUNK - before.len()).min(chunk.len());
                before.extend(chunk.drain(..moved));
            }
            if chunk.is_empty() {
                self.spare.push(chunk);
            } else {
                self.chunks[pass.kept] = chunk;
                pass.kept += 1;
            }
        }
        if pass.next < self.chunks.len() {
            self.pass = Some(pass);
        } else {
            self.chunks.truncate(pass.kept);
        }
        self.trim_front();
        examined
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn in_order(queue: &ChunkedQueue<u32>) -> Vec<u32> {
        queue.iter().copied().collect()
    }

    /// Additions, removals and passes at random, compared with a plain queue. An entry that is stale when its chunk is
    /// examined is removed from both.
    #[test]
    fn entries_keep_their_order_whatever_passes_remove() {
        for seed in 0..8 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut queue, mut expected) = (ChunkedQueue::default(), VecDeque::new());
            let (mut next, mut examined) = (0_u32, 0);
            for _ in 0..1500 {
                match random.random_range(0..10) {
                    0..5 => {
                        for _ in 0..random.random_range(1..200) {
                            queue.push_back(next);
                            expected.push_back(next);
                            next += 1;
                        }
                    }
                    5..8 => {
                        for _ in 0..random.random_range(1..220) {
                            assert_eq!(queue.pop_front(), expected.pop_front(), "seed {seed}");
                        }
                    }
                    8 => queue.begin_pass(),
                    _ => {
                        let (part, mut removed) = (random.random_range(1..5_u32), Vec::new());
                        examined += queue.retain_some(|entry| {
                            let stays = entry % part == 0;
                            removed.extend((!stays).then_some(*entry));
                            stays
                        });
                        expected.retain(|entry| removed.binary_search(entry).is_err());
                    }
                }
                assert_eq!((queue.len(), queue.front()), (expected.len(), expected.front()), "seed {seed}");
                assert_eq!(queue.is_empty(), expected.is_empty());
            }
            assert_eq!(in_order(&queue), Vec::from(expected), "seed {seed}");
            assert!(examined > 10 * CHUNK, "{examined}");
        }
    }

    #[test]
    fn a_pass_examines_each_entry_once_and_leaves_full_chunks() {
        let mut queue = ChunkedQueue::default();
        (0..8 * CHUNK as u32).for_each(|entry| queue.push_back(entry));
        queue.begin_pass();
        let (mut examined, mut steps) = (0, 0);
        while queue.has_pass() {
            examined += queue.retain_some(|entry| entry % 3 == 0);
            steps += 1;
        }
        assert_eq!((examined, steps), (8 * CHUNK, 8));
        assert!(in_order(&queue).into_iter().eq((0..8 * CHUNK as u32).step_by(3)));
        assert_eq!(
            (queue.chunks.len(), queue.chunks.len() + queue.spare.len()),
            (3, 8),
            "all memory is kept"
        );
        queue.begin_pass();
        while queue.has_pass() {
            queue.retain_some(|_| false);
        }
        assert_eq!((queue.len(), queue.chunks.len(), queue.spare.len()), (0, 0, 8));
    }

    /// Each second entry of the reserved number is stale, and more entries come while the stale ones are removed.
    #[test]
    fn what_was_reserved_is_enough() {
        let (entries, mut queue) = (20 * CHUNK, ChunkedQueue::default());
        queue.reserve(entries);
        let memory = queue.chunks.len() + queue.spare.len();
        for round in 0..50 {
            while queue.len() < entries - CHUNK {
                queue.push_back(queue.len());
            }
            for _ in 0..round * 7 {
                queue.pop_front();
            }
            queue.begin_pass();
            while queue.has_pass() {
                queue.retain_some(|entry| entry % 2 == 0);
                queue.push_back(0);
            }
        }
        let held = queue.chunks.iter().filter(|chunk| chunk.capacity() > 0).count();
        assert_eq!(held + queue.spare.len(), memory);
        assert!(queue.chunks.iter().chain(&queue.spare).all(|chunk| chunk.capacity() == CHUNK));
    }
}
