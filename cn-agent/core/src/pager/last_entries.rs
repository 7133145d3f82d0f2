//! Which entry in the queues of replacement counts for a page: the last one. A page gets an entry each time that it
//! becomes resident, and earlier ones may still be in the queues, because its program has discarded the page, or its
//! number belonged to a view that has ended. If all of them counted while the page is resident, a program that discards
//! pages and touches them again would add entries without a bound.
//!
//! Entries are told apart by a serial number of eight bits for each page. One whose number recurs, after 256 later ones,
//! counts again: then its page may be evicted early.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Number of pages whose serial numbers are allocated at a time: those of 16 MiB.
const GROUP: usize = 4096;

/// Mark of an entry, which tells it from other entries of its page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EntryMark {
    generation: u8,
    serial: u8,
}

/// Marks of the last entries of a view's pages.
#[derive(Debug, Default)]
pub(super) struct LastEntries {
    /// Number of earlier views that had the view's number, modulo 256.
    generation: u8,
    /// Serial numbers of the pages' last entries; `None` for a group whose pages have no entry.
    serials: Vec<Option<Box<[u8]>>>,
}

impl LastEntries {
    /// Number that tells the view from others that had its number before.
    #[inline]
    pub fn generation(&self) -> u8 {
        self.generation
    }

    /// Allocates the serial numbers of a view's pages, so that [`renew`](Self::renew) allocates nothing.
    pub fn reserve(&mut self, pages: u32) {
        let groups = (pages as usize).div_ceil(GROUP);
        self.serials.resize(self.serials.len().max(groups), None);
        for serials in &mut self.serials[..groups] {
            serials.get_or_insert_with(|| vec![0; GROUP].into_boxed_slice());
        }
    }

    /// Returns the mark of a new entry of a page, whose earlier ones do not count from now on.
    #[inline]
    pub fn renew(&mut self, page: u32) -> EntryMark {
        let (group, at) = (page as usize / GROUP, page as usize % GROUP);
        if self.serials.len() <= group {
            self.serials.resize(group + 1, None);
        }
        let serials = self.serials[group].get_or_insert_with(|| vec![0; GROUP].into_boxed_slice());
        serials[at] = serials[at].wrapping_add(1);
        EntryMark { generation: self.generation, serial: serials[at] }
    }

    /// Whether the entry with this mark is the last one of its page.
    #[inline]
    pub fn is_last(&self, page: u32, mark: EntryMark) -> bool {
        let serials = self.serials.get(page as usize / GROUP).and_then(Option::as_ref);
        self.generation == mark.generation
            && serials.is_some_and(|serials| serials[page as usize % GROUP] == mark.serial)
    }

    /// Has no entry count, because the view has ended and another one may get its number.
    pub fn end(&mut self) {
        *self = LastEntries { generation: self.generation.wrapping_add(1), serials: Vec::new() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page fault of an inline mapping may be one of the allocator itself.
    #[test]
    fn what_is_reserved_is_allocated() {
        let mut last = LastEntries::default();
        last.reserve(GROUP as u32 + 1);
        assert!(last.serials.len() == 2 && last.serials.iter().all(Option::is_some));
        last.renew(GROUP as u32);
        last.reserve(1);
        assert!(last.is_last(GROUP as u32, EntryMark { generation: 0, serial: 1 }), "what is there stays");
    }

    #[test]
    fn the_last_entry_of_a_page_counts() {
        let (mut last, far) = (LastEntries::default(), 3 * GROUP as u32);
        assert!(!last.is_last(far, EntryMark::default()), "it has none");
        let first = last.renew(far);
        assert!(last.is_last(far, first) && !last.is_last(far + 1, first) && !last.is_last(7, first));
        let second = last.renew(far);
        assert_eq!([first, second].map(|mark| last.is_last(far, mark)), [false, true]);
        last.renew(far + 1);
        assert!(last.is_last(far, second));
        last.end();
        assert_eq!((last.is_last(far, second), last.generation()), (false, 1));
        let third = last.renew(far);
        assert_eq!([first, third].map(|mark| last.is_last(far, mark)), [false, true]);
    }
}
