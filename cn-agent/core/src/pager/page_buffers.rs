//! Page buffers: the agent's own pages, for transfers and for twins.
//!
//! A twin is the page as the memory node has acknowledged it; differences from it have to be written back. The
//! resident limit bounds the number of twins. Memory for buffers is allocated in chunks, so that a buffer costs
//! nothing before its first use, and nothing is allocated afterwards.

use super::memory::{MappingId, PAGE_BYTES, Page, ViewId};
use super::replacement::Heat;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// A buffer's index, below 2^24 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// Maximum number of page buffers, which take 64 GiB.
pub const FRAMES_MAX: u32 = (1 << 24) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferUse {
    Free,
    /// The buffer is for a page being fetched, or holds the page after the fetch.
    Fetch {
        /// View of the page; `None` once the view has ended.
        view: Option<ViewId>,
        page: u32,
        /// Mapping of the fault that the page is fetched for, if any.
        mapping: Option<MappingId>,
        /// Whether the fault was a write.
        write: bool,
    },
    /// The buffer holds a copy of a page that is being written to a slot.
    Write {
        /// View of the page; `None` once the view has ended.
        view: Option<ViewId>,
        page: u32,
        /// Slot to which the copy is being written.
        slot: u32,
        /// Slot to be released when the write has ended.
        old: Option<u32>,
        /// Heat of the page (how often it returned early after an eviction), if it is to be evicted.
        heat: Heat,
    },
    /// The buffer holds a page that was evicted, or is about to be, and equals CMem; it is kept in case the page is
    /// used again soon.
    Kept {
        page: u32,
        /// Heat of the page when evicted.
        heat: Heat,
    },
    /// The buffer holds the content in CMem of a dirty page.
    Twin {
        view: ViewId,
        page: u32,
    },
    /// The buffer holds a copy of a page that is compared, and is then freed or gets another purpose.
    Scratch,
}

/// Number of page buffers allocated at a time.
const CHUNK: usize = 256;

/// Page buffers of a space, with the purpose of each.
#[derive(Debug)]
pub struct PageBuffers {
    chunks: Vec<Box<[Page]>>,
    /// Purposes of the buffers of each chunk.
    uses: Vec<Box<[BufferUse]>>,
    /// Number of buffers that there are, the last of them in the last chunk.
    count: usize,
    free: Vec<BufferId>,
    limit: u32,
    /// Number of buffers that keep evicted pages ([`BufferUse::Kept`]).
    kept: usize,
    writing: usize,
}

impl PageBuffers {
    /// Returns a set of up to `limit` buffers; none is allocated yet.
    pub fn new(limit: u32) -> PageBuffers {
        PageBuffers {
            chunks: Vec::new(),
            uses: Vec::new(),
            count: 0,
            free: Vec::new(),
            limit: limit.min(FRAMES_MAX),
            kept: 0,
            writing: 0,
        }
    }

    /// Changes the limit; buffers in use stay.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.min(FRAMES_MAX);
    }

    /// Allocates all memory up to the limit.
    pub fn reserve(&mut self) {
        while self.count < self.limit as usize {
            self.grow();
        }
        // Every page is touched, so that the kernel provides its memory now.
        self.chunks.iter_mut().flat_map(|chunk| chunk.iter_mut()).for_each(|page| page[0] = 0);
    }

    /// Adds buffers, up to the limit: the rest of the last chunk, if the limit was lower when that chunk was allocated, or
    /// else those of a new chunk.
    #[cold]
    fn grow(&mut self) {
        let first = self.count;
        if first == self.chunks.len() * CHUNK {
            // The kernel provides zeroed memory on first touch.
            self.chunks.push(vec![[0; PAGE_BYTES]; CHUNK].into_boxed_slice());
            self.uses.push(vec![BufferUse::Free; CHUNK].into_boxed_slice());
        }
        let end = (self.chunks.len() * CHUNK).min(self.limit as usize).max(first);
        self.count = end;
        self.free.reserve(end);
        self.free.extend((first as u32..end as u32).rev().map(BufferId));
    }

    /// Number of buffers taken and not freed yet.
    #[inline]
    pub fn used(&self) -> usize {
        self.count - self.free.len()
    }

    /// Number of page buffers that can still be taken.
    #[inline]
    pub fn room(&self) -> usize {
        (self.limit as usize).saturating_sub(self.used())
    }

    /// Takes a buffer for `purpose`, if the limit allows.
    #[inline]
    pub fn take(&mut self, purpose: BufferUse) -> Option<BufferId> {
        if self.used() >= self.limit as usize {
            return None;
        }
        if self.free.is_empty() {
            self.grow();
        }
        let buffer = self.free.pop()?;
        self.set_purpose(buffer, purpose);
        Some(buffer)
    }

    /// Frees a buffer, which then may be taken for another page.
    #[inline]
    pub fn give(&mut self, buffer: BufferId) {
        debug_assert_ne!(self.purpose(buffer), BufferUse::Free);
        self.set_purpose(buffer, BufferUse::Free);
        self.free.push(buffer);
    }

    #[inline]
    pub fn purpose(&self, buffer: BufferId) -> BufferUse {
        self.uses[buffer.0 as usize / CHUNK][buffer.0 as usize % CHUNK]
    }

    #[inline]
    pub(crate) fn set_purpose(&mut self, buffer: BufferId, purpose: BufferUse) {
        let is_kept = |purpose: &BufferUse| usize::from(matches!(purpose, BufferUse::Kept { .. }));
        let is_write = |purpose: &BufferUse| usize::from(matches!(purpose, BufferUse::Write { .. }));
        let place = &mut self.uses[buffer.0 as usize / CHUNK][buffer.0 as usize % CHUNK];
        let before = core::mem::replace(place, purpose);
        self.kept = self.kept + is_kept(&purpose) - is_kept(&before);
        self.writing = self.writing + is_write(&purpose) - is_write(&before);
    }

    /// Number of page buffers that are being written to memory nodes.
    #[inline]
    pub fn writing(&self) -> usize {
        self.writing
    }

    /// Number of page buffers that keep evicted pages.
    #[inline]
    pub fn kept_count(&self) -> usize {
        self.kept
    }

    /// All buffers of some chunks, in use or not.
    pub(crate) fn ids(&self, chunks: Range<usize>) -> impl Iterator<Item = BufferId> + use<> {
        let end = (chunks.end * CHUNK).min(self.count);
        ((chunks.start * CHUNK) as u32..end as u32).map(BufferId)
    }

    /// Number of chunks of buffers.
    pub(crate) fn chunks(&self) -> usize {
        self.uses.len()
    }

    /// Purposes of all buffers of some chunks, for changes of their fields but not of their variants.
    pub(crate) fn uses_mut(&mut self, chunks: Range<usize>) -> impl Iterator<Item = &mut BufferUse> {
        self.uses[chunks].iter_mut().flat_map(|uses| uses.iter_mut())
    }

    /// Content of a buffer; page data only once a fetch has ended.
    #[inline]
    pub fn page(&self, buffer: BufferId) -> &Page {
        &self.chunks[buffer.0 as usize / CHUNK][buffer.0 as usize % CHUNK]
    }

    pub fn copy(&mut self, from: BufferId, to: BufferId) {
        let page = *self.page(from);
        *self.page_mut(to) = page;
    }

    #[inline]
    pub(crate) fn page_mut(&mut self, buffer: BufferId) -> &mut Page {
        &mut self.chunks[buffer.0 as usize / CHUNK][buffer.0 as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_up_to_the_limit_and_used_again() {
        let mut buffers = PageBuffers::new(300);
        let taken: Vec<_> = std::iter::from_fn(|| buffers.take(BufferUse::Scratch)).collect();
        assert_eq!((taken.len(), buffers.used(), buffers.room()), (300, 300, 0));
        buffers.page_mut(taken[299])[4095] = 7;
        assert_eq!(buffers.page(taken[299])[4095], 7);
        buffers.give(taken[17]);
        assert_eq!(buffers.take(BufferUse::Scratch), Some(taken[17]));
        buffers.set_limit(10);
        taken.iter().for_each(|buffer| buffers.give(*buffer));
        assert_eq!(buffers.room(), 10);
    }

    /// The number of buffers before the change is no multiple of those allocated at a time.
    #[test]
    fn a_raised_limit_gives_more_buffers() {
        let mut buffers = PageBuffers::new(300);
        buffers.reserve();
        buffers.set_limit(1000);
        let taken: Vec<_> = std::iter::from_fn(|| buffers.take(BufferUse::Scratch)).collect();
        assert_eq!((taken.len(), buffers.used(), buffers.room()), (1000, 1000, 0));
        for (number, buffer) in taken.iter().enumerate() {
            buffers.page_mut(*buffer)[..2].copy_from_slice(&(number as u16).to_le_bytes());
        }
        let each = |(number, buffer): (usize, &BufferId)| {
            buffers.page(*buffer)[..2] == (number as u16).to_le_bytes()
        };
        assert!(taken.iter().enumerate().all(each), "each buffer has memory of its own");
    }
}
