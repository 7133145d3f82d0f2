//! Memory of a virtual machine: its monitor has registered it, knows nothing of us but that we serve its faults, and may
//! have it in several pieces. Pages come, writable at once, and never leave: what is known of a page is known of one
//! machine's, so that no page is served to a second one.

use std::ops::Range;

use super::Mappings;
use super::private::{Table, pagemap};
use cxloe_cn_core::pager::{Drop, MappingId, Memory, MemoryError, Page, ViewId};

/// The memory.
#[derive(Debug, Default)]
pub struct Foreign {
    /// Its pieces.
    pub mappings: Mappings,
    /// The pages of all pieces there are or were.
    given: Vec<Range<u32>>,
    /// The monitor's page table.
    table: Table,
}

impl Foreign {
    /// Gives pages to a piece; `false` if some of them were another's.
    pub fn give(&mut self, pages: Range<u32>) -> bool {
        let fresh = self.given.iter().all(|other| pages.end <= other.start || other.end <= pages.start);
        if fresh {
            self.given.push(pages);
        }
        fresh
    }

    /// The piece that has an address, and which page it is there: all pieces may share one userfaultfd.
    pub fn find(&self, address: u64) -> Option<(MappingId, u32)> {
        self.mappings.iter().find_map(|(id, mapped)| Some((id, mapped.page_at(address)?)))
    }
}

impl Memory for Foreign {
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
        let found = self.mappings.iter().find_map(|(_, m)| Some((m.pid, m.range(&(page..page + 1))?.start)));
        found.is_some_and(|(pid, address)| pagemap(&mut self.table, pid, address))
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
        let mut memory = Foreign::default();
        assert!(memory.give(0..10) && memory.give(20..30) && memory.give(10..20));
        assert!([0..1, 29..40, 5..25, 15..16].into_iter().all(|pages| !memory.give(pages)));
        assert!(memory.give(30..31));
    }
}
