//! The pager's interface to the kernel: pages of mapped memory, installed, protected, copied out and removed.
//!
//! Implemented by userfaultfd and its ioctls, and by a model of them in the simulation.

use core::ops::Range;

/// Bytes of a page, the unit of transfers and evictions.
pub const PAGE_BYTES: usize = 4096;

/// Content of a page, as installed or copied out.
pub type Page = [u8; PAGE_BYTES];

/// Number of a table of pages: of a region that processes share, or of one process's private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewId(pub u16);

/// Number of one process's mapping of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MappingId(pub u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    #[error("the mapping is changing; its events have to be read first")]
    Again,
    #[error("the page is there already")]
    Exists,
    #[error("the page is not there")]
    Absent,
    #[error("the process has ended, or has unmapped the memory")]
    Gone,
    /// Any other error, by its `errno`.
    #[error("the kernel refused: error {0}")]
    Os(i32),
}

/// The kernel's records of the 64 pages from a given one on: a bit for each page, the lowest for the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRecords {
    /// Pages that are resident.
    pub present: u64,
    /// Pages that are write-protected, so that nothing has written to them since they were protected.
    pub protected: u64,
}

impl PageRecords {
    /// Records of pages that are all resident and protected.
    pub const KEPT: PageRecords = PageRecords { present: u64::MAX, protected: u64::MAX };
    /// Records of pages that are all resident and may have changed.
    pub const UNKNOWN: PageRecords = PageRecords { present: u64::MAX, protected: 0 };
}

/// State of a removal of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// The pages are removed already.
    Done,
    /// The process of the pages was ordered to remove them; [`Pager::dropped`](super::Pager::dropped) is
    /// called when it has done so.
    Ordered,
}

/// Pages of mapped memory in the kernel. Page numbers count from the start of the view.
pub trait Memory {
    /// Installs a page where none is, write-protected if `protect`, and wakes threads that wait for it in this
    /// mapping.
    ///
    /// # Errors
    /// [`MemoryError::Exists`] if a page is in place.
    fn install(
        &mut self,
        mapping: MappingId,
        page: u32,
        bytes: &Page,
        protect: bool,
    ) -> Result<(), MemoryError>;

    /// Installs neighbouring pages from `page` on, where none is in place. Returns the number installed, which is
    /// smaller if an error occurred.
    ///
    /// # Errors
    /// Those of [`install`](Self::install), if not even the first page was installed.
    fn install_run(
        &mut self,
        mapping: MappingId,
        page: u32,
        bytes: &[Page],
        protect: bool,
    ) -> Result<usize, MemoryError> {
        for (index, bytes) in bytes.iter().enumerate() {
            match self.install(mapping, page + index as u32, bytes, protect) {
                Ok(()) => {}
                Err(error) if index == 0 => return Err(error),
                Err(_) => return Ok(index),
            }
        }
        Ok(bytes.len())
    }

    /// Whether it saves time to [prepare](Self::make_ready) memory for pages in flight.
    fn makes_ready(&self) -> bool {
        false
    }

    /// Allocates memory for an absent page in flight, so that less is left to do when the page arrives. The memory is
    /// not visible before the page is installed. May do nothing.
    fn make_ready(&mut self, _view: ViewId, _page: u32) {}

    /// Stores the content that [`install`](Self::install) will install, if memory was prepared for the page. To be
    /// called while the page still counts as being fetched: an agent that dies during the call leaves a partial page
    /// behind.
    fn fill(&mut self, _view: ViewId, _page: u32, _bytes: &Page) {}

    /// Releases the memory prepared for a page that is not installed.
    fn give_up(&mut self, _view: ViewId, _page: u32) {}

    /// Maps a page of the shared memory in this mapping, write-protected if `protect`, and wakes threads that wait
    /// for it.
    ///
    /// # Errors
    /// [`MemoryError::Exists`] if it is mapped already, [`MemoryError::Absent`] if the shared memory has no such
    /// page.
    fn map(&mut self, mapping: MappingId, page: u32, protect: bool) -> Result<(), MemoryError>;

    /// Write-protects pages in this mapping: each later write is a fault.
    ///
    /// # Errors
    /// [`MemoryError::Again`], [`MemoryError::Gone`]; some of the pages may be protected then.
    fn protect(&mut self, mapping: MappingId, pages: Range<u32>) -> Result<(), MemoryError>;

    /// Unprotects a page in this mapping, and wakes threads that wait for it.
    ///
    /// # Errors
    /// [`MemoryError::Again`], [`MemoryError::Gone`].
    fn unprotect(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError>;

    /// Copies the content of a resident, write-protected page.
    ///
    /// # Errors
    /// [`MemoryError::Absent`] if the page is not resident after all, [`MemoryError::Gone`].
    fn snapshot(&mut self, view: ViewId, page: u32, into: &mut Page) -> Result<(), MemoryError>;

    /// Removes pages from all mappings of the view, ranges in ascending order.
    ///
    /// # Errors
    /// Any error of the kernel; then no page was removed.
    fn drop_pages(&mut self, view: ViewId, ranges: &[Range<u32>]) -> Result<Drop, MemoryError>;

    /// Whether pages are removed by messages to their process ([`Drop::Ordered`]), the cost of which hardly depends
    /// on the number of pages.
    fn drops_by_order(&self) -> bool {
        false
    }

    /// Whether the page is resident: in the shared memory, or in the process's private memory.
    fn is_present(&mut self, view: ViewId, page: u32) -> bool;

    /// Mask of those of the 64 pages from `first` on at which no page should be installed ahead: the process has a
    /// page there, or a guard page, which an installed page would replace.
    fn occupied(&mut self, _view: ViewId, _first: u32) -> u64 {
        0
    }

    /// Whether the kernel shows which pages are write-protected (Linux 5.13). On other kernels, a resident page counts
    /// as changed when it is evicted, and is sent whole.
    fn shows_protection(&self) -> bool {
        true
    }

    /// The kernel's records of the 64 pages from `first` on. The default is for memory whose page table
    /// entries change only by the pager's orders.
    fn records(&mut self, _view: ViewId, _first: u32) -> PageRecords {
        PageRecords::KEPT
    }

    /// Wakes threads that wait for a page in this mapping, so that they retry their accesses.
    fn wake(&mut self, mapping: MappingId, page: u32);

    /// Makes every access to this absent page raise SIGBUS, and wakes threads that wait for the page.
    ///
    /// # Errors
    /// If the kernel cannot do that (before Linux 6.6); then the process has to be ended.
    fn poison(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError>;
}
