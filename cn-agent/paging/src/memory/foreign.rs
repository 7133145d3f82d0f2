//! Memory of a virtual machine. The machine's monitor registers the memory, possibly in several pieces, and passes
//! the userfaultfd to this process. Pages are installed writable and never evicted. A page of the region belongs to
//! one piece only, so that it is never served to a second machine.

use std::ops::Range;

use super::{Mappings, PAGE};
use crate::uffd::pagemap::is_something;
use cxloe_cn_core::pager::{Drop, MappingId, Memory, MemoryError, Page, ViewId};

/// Pages in the memory of a virtual machine.
#[derive(Debug, Default)]
pub struct ForeignPages {
    /// Mappings of the pieces of memory that the machine has at present.
    pub mappings: Mappings,
    /// Page numbers of the region that were assigned to present and former pieces of the machine's memory.
    given: Vec<Range<u32>>,
}

impl ForeignPages {
    /// Assigns pages to a piece; `false` if some of them belong to another piece.
    pub fn give(&mut self, pages: Range<u32>) -> bool {
        let fresh = self.given.iter().all(|other| pages.end <= other.start || other.end <= pages.start);
        if fresh {
            self.given.push(pages);
        }
        fresh
    }

    /// Pages, of all pieces, that lie in an address range.
    pub(crate) fn pages_in(&self, addresses: Range<u64>) -> impl Iterator<Item = Range<u32>> {
        self.mappings.iter().filter_map(move |(_, mapped)| {
            let all = mapped.all();
            let (start, end) = (all.start.max(addresses.start), all.end.min(addresses.end));
            let page = |address: u64| mapped.first + ((address - all.start) / PAGE) as u32;
            (start < end).then(|| page(start)..page(end.next_multiple_of(PAGE)))
        })
    }

    /// Piece of the memory that contains an address, and the page there: several pieces may share one
    /// userfaultfd.
    pub fn find(&self, address: u64) -> Option<(MappingId, u32)> {
        self.mappings.iter().find_map(|(id, mapped)| Some((id, mapped.page_at(address)?)))
    }
}

impl Memory for ForeignPages {
    fn install(
        &mut self,
        mapping: MappingId,
        page: u32,
        bytes: &Page,
        _protect: bool,
    ) -> Result<(), MemoryError> {
        self.mappings.of(mapping)?.install(page, bytes, false)
    }

    fn map(&mut self, _mapping: MappingId, _page: u32, _protect: bool) -> Result<(), MemoryError> {
        Err(MemoryError::Exists)
    }

    fn protect(&mut self, _mapping: MappingId, _pages: Range<u32>) -> Result<(), MemoryError> {
        Err(MemoryError::Os(libc::EOPNOTSUPP))
    }

    fn unprotect(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError> {
        self.wake(mapping, page);
        Ok(())
    }

    fn snapshot(&mut self, _view: ViewId, _page: u32, _into: &mut Page) -> Result<(), MemoryError> {
        Err(MemoryError::Os(libc::EOPNOTSUPP))
    }

    fn drop_pages(&mut self, _view: ViewId, _ranges: &[Range<u32>]) -> Result<Drop, MemoryError> {
        Err(MemoryError::Os(libc::EOPNOTSUPP))
    }

    fn is_present(&mut self, _view: ViewId, page: u32) -> bool {
        let found = self.mappings.iter().find_map(|(_, m)| Some((m, m.range(&(page..page + 1))?.start)));
        found.is_some_and(|(mapped, address)| is_something(mapped.entries::<1>(address)[0]))
    }

    fn wake(&mut self, mapping: MappingId, page: u32) {
        if let Some(mapped) = self.mappings.get(mapping) {
            mapped.wake(page);
        }
    }

    fn poison(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError> {
        self.mappings.get_mut(mapping).ok_or(MemoryError::Gone)?.poison(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_is_given_twice() {
        let mut memory = ForeignPages::default();
        assert!(memory.give(0..10) && memory.give(20..30) && memory.give(10..20));
        assert!([0..1, 29..40, 5..25, 15..16].into_iter().all(|pages| !memory.give(pages)));
        assert!(memory.give(30..31));
    }
}
