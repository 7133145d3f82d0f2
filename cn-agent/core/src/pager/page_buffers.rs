//! Page buffers: pages of the agent's own, for what is on its way and for twins.
//!
//! A twin is the page as the memory node has acknowledged it; what differs from it is what has to be written back.
//! Their number is bounded by the resident limit. Room for them is taken in chunks, so that a buffer costs nothing
//! before it is needed for the first time and nothing is allocated afterwards.

use super::memory::{MappingId, PAGE_BYTES, Page, ViewId};
use super::replacement::Heat;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// A buffer. Below 2^24 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// Page buffers there can be at most: 64 GiB of them.
pub const FRAMES_MAX: u32 = (1 << 24) - 1;

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nothing.
    Free,
    /// A page of this view is being fetched into it, or has been.
    Fetch {
        /// The view; `None` when it has ended meanwhile.
        view: Option<ViewId>,
        /// The page.
        page: u32,
        /// The mapping whose fault it was, if it was one.
        mapping: Option<MappingId>,
        /// Whether the fault was a write.
        write: bool,
    },
    /// A copy of a page on its way to a slot.
    Write {
        /// The view; `None` when it has ended meanwhile.
        view: Option<ViewId>,
        /// The page.
        page: u32,
        /// Where it goes.
        slot: u32,
        /// The slot to give up when it is done, or when it is not.
        old: Option<u32>,
        /// How hot the page is, if it is to leave memory.
        heat: Heat,
    },
    /// A page as CMem has it that has left memory, or is about to: kept for whoever wants it again soon.
    Kept {
        /// The page.
        page: u32,
        /// How hot it was.
        heat: Heat,
    },
    /// What CMem has of a dirty page.
    Twin,
}

/// Page buffers in one allocation.
const CHUNK: usize = 256;

/// The buffers.
#[derive(Debug)]
pub struct PageBuffers {
    chunks: Vec<Box<[Page]>>,
    uses: Vec<Use>,
    free: Vec<BufferId>,
    limit: u32,
    /// Those that are [`Use::Kept`], and [`Use::Write`].
    kept: usize,
    writing: usize,
}

impl PageBuffers {
    /// Up to `limit` buffers.
    pub fn new(limit: u32) -> PageBuffers {
        PageBuffers {
            chunks: Vec::new(),
            uses: Vec::new(),
            free: Vec::new(),
            limit: limit.min(FRAMES_MAX),
            kept: 0,
            writing: 0,
        }
    }

    /// Changes how many there may be; those in use stay.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.min(FRAMES_MAX);
    }

    /// Takes all the memory there may be, so that nothing is allocated later.
    pub fn reserve(&mut self) {
        while self.uses.len() < self.limit as usize {
            self.grow();
        }
        self.chunks.iter_mut().flat_map(|chunk| chunk.iter_mut()).for_each(|page| page[0] = 0);
    }

    #[cold]
    fn grow(&mut self) {
        let first = self.uses.len() as u32;
        let count = CHUNK.min(self.limit.saturating_sub(first) as usize);
        // Zeroed memory is taken from the kernel without touching it.
        self.chunks.push(vec![[0; PAGE_BYTES]; CHUNK].into_boxed_slice());
        self.uses.resize(self.uses.len() + count, Use::Free);
        self.free.reserve(self.uses.len());
        self.free.extend((first..first + count as u32).rev().map(BufferId));
    }

    /// Page buffers in use.
    #[inline]
    pub fn used(&self) -> usize {
        self.uses.len() - self.free.len()
    }

    /// Page buffers that may still be taken.
    #[inline]
    pub fn room(&self) -> usize {
        (self.limit as usize).saturating_sub(self.used())
    }

    /// A buffer for `purpose`, if there may be one more.
    #[inline]
    pub fn take(&mut self, purpose: Use) -> Option<BufferId> {
        if self.used() >= self.limit as usize {
            return None;
        }
        if self.free.is_empty() {
            // Chunks are filled one after the other; a limit lowered and raised again leaves them as they are.
            if !self.uses.len().is_multiple_of(CHUNK) {
                return None;
            }
            self.grow();
        }
        let buffer = self.free.pop()?;
        self.set_purpose(buffer, purpose);
        Some(buffer)
    }

    /// Gives a buffer back.
    #[inline]
    pub fn give(&mut self, buffer: BufferId) {
        debug_assert_ne!(self.purpose(buffer), Use::Free);
        self.set_purpose(buffer, Use::Free);
        self.free.push(buffer);
    }

    /// What a buffer is for.
    #[inline]
    pub fn purpose(&self, buffer: BufferId) -> Use {
        self.uses[buffer.0 as usize]
    }

    /// Changes what a buffer is for.
    #[inline]
    pub fn set_purpose(&mut self, buffer: BufferId, purpose: Use) {
        let is_kept = |purpose: &Use| usize::from(matches!(purpose, Use::Kept { .. }));
        let is_write = |purpose: &Use| usize::from(matches!(purpose, Use::Write { .. }));
        let before = core::mem::replace(&mut self.uses[buffer.0 as usize], purpose);
        self.kept = self.kept + is_kept(&purpose) - is_kept(&before);
        self.writing = self.writing + is_write(&purpose) - is_write(&before);
    }

    /// Page buffers whose pages are on their way to memory nodes.
    #[inline]
    pub fn writing(&self) -> usize {
        self.writing
    }

    /// Page buffers that keep pages for whoever wants them again.
    #[inline]
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Each buffer's use, to change what it says and not what it is.
    pub fn uses_mut(&mut self) -> impl Iterator<Item = &mut Use> {
        self.uses.iter_mut()
    }

    /// A buffer's content.
    #[inline]
    pub fn page(&self, buffer: BufferId) -> &Page {
        &self.chunks[buffer.0 as usize / CHUNK][buffer.0 as usize % CHUNK]
    }

    /// Copies one buffer's content to another's.
    pub fn copy(&mut self, from: BufferId, to: BufferId) {
        let page = *self.page(from);
        *self.page_mut(to) = page;
    }

    /// A buffer's content.
    #[inline]
    pub fn page_mut(&mut self, buffer: BufferId) -> &mut Page {
        &mut self.chunks[buffer.0 as usize / CHUNK][buffer.0 as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_up_to_the_limit_and_used_again() {
        let mut buffers = PageBuffers::new(300);
        let taken: Vec<_> = std::iter::from_fn(|| buffers.take(Use::Twin)).collect();
        assert_eq!((taken.len(), buffers.used(), buffers.room()), (300, 300, 0));
        buffers.page_mut(taken[299])[4095] = 7;
        assert_eq!(buffers.page(taken[299])[4095], 7);
        buffers.give(taken[17]);
        assert_eq!(buffers.take(Use::Twin), Some(taken[17]));
        buffers.set_limit(10);
        taken.iter().for_each(|buffer| buffers.give(*buffer));
        assert_eq!(buffers.room(), 10);
    }
}
