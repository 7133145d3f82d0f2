//! What the pager needs of the kernel: the pages of mapped memory, put in place, protected, copied out and taken away.
//!
//! Behind the trait stand userfaultfd and its ioctls, or a model of them in the simulation.

use core::ops::Range;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// A page's content.
pub type Page = [u8; PAGE_BYTES];

/// One table of pages: of a region that processes share, or of one process whose memory is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewId(pub u16);

/// One process's mapping of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MappingId(pub u16);

/// Why the kernel did not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The mapping is changing: its events have to be read first.
    #[error("the mapping is changing; its events have to be read first")]
    Again,
    /// The page is there already.
    #[error("the page is there already")]
    Exists,
    /// The page is not there.
    #[error("the page is not there")]
    Absent,
    /// The process has ended, or the mapping.
    #[error("the process has ended, or has unmapped the memory")]
    Gone,
    /// Anything else.
    #[error("the kernel refused: error {0}")]
    Os(i32),
}

/// Whether pages are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// They are.
    Done,
    /// Their process was asked to; [`Pager::dropped`](super::Pager::dropped) says when it has.
    Ordered,
}

/// The pages of mapped memory. Page numbers count from the start of the view.
pub trait Memory {
    /// Puts a page where none is, write-protected or not, and wakes who waits for it in this mapping.
    ///
    /// # Errors
    /// [`MemoryError::Exists`] when one is there.
    fn install(
        &mut self,
        mapping: MappingId,
        page: u32,
        bytes: &Page,
        protect: bool,
    ) -> Result<(), MemoryError>;

    /// Puts neighbours, the first of them at `page`, where none are; how many, fewer if something stopped it between two.
    ///
    /// # Errors
    /// Those of [`install`](Self::install), when not even the first could be.
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

    /// Whether it pays to [make ready](Self::make_ready) for pages that are on their way.
    fn makes_ready(&self) -> bool {
        false
    }

    /// Takes memory for an absent page that is on its way, so that less is left to do when it comes. Nobody finds a page there
    /// before it is installed. It may be left undone.
    fn make_ready(&mut self, _view: ViewId, _page: u32) {}

    /// What [`install`](Self::install) will put in place, if that was made ready. To be called while the page still counts as
    /// being fetched: an agent that dies in the middle of it leaves half a page behind.
    fn fill(&mut self, _view: ViewId, _page: u32, _bytes: &Page) {}

    /// A page does not come, though memory may have been made ready for it.
    fn give_up(&mut self, _view: ViewId, _page: u32) {}

    /// Lets this mapping have a page that the shared memory has, write-protected or not, and wakes who waits for it.
    ///
    /// # Errors
    /// [`MemoryError::Exists`] when it has it, [`MemoryError::Absent`] when there is none.
    fn map(&mut self, mapping: MappingId, page: u32, protect: bool) -> Result<(), MemoryError>;

    /// Write-protects pages in this mapping: from here on a write is a fault.
    ///
    /// # Errors
    /// [`MemoryError::Again`], [`MemoryError::Gone`]; nothing is protected then, or only some.
    fn protect(&mut self, mapping: MappingId, pages: Range<u32>) -> Result<(), MemoryError>;

    /// Takes the protection off a page in this mapping, and wakes who waits for it.
    ///
    /// # Errors
    /// [`MemoryError::Again`], [`MemoryError::Gone`].
    fn unprotect(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError>;

    /// Copies a page that is there and protected.
    ///
    /// # Errors
    /// [`MemoryError::Absent`] when it is not there after all, [`MemoryError::Gone`].
    fn snapshot(&mut self, view: ViewId, page: u32, into: &mut Page) -> Result<(), MemoryError>;

    /// Takes pages away from all mappings of the view, ranges in ascending order.
    ///
    /// # Errors
    /// Nothing was taken away then.
    fn drop_pages(&mut self, view: ViewId, ranges: &[Range<u32>]) -> Result<Drop, MemoryError>;

    /// Whether pages are taken away by messages to their process ([`Drop::Ordered`]), each of which costs about the same
    /// whatever it says.
    fn drops_by_order(&self) -> bool {
        false
    }

    /// Whether the page is there: in the shared memory, or in the process's own.
    fn is_present(&mut self, view: ViewId, page: u32) -> bool;

    /// At which of the 64 pages from `first` on the process has something where no page should be put unasked, a bit each:
    /// a page, or a guard of its own, which a page would replace.
    fn occupied(&mut self, _view: ViewId, _first: u32) -> u64 {
        0
    }

    /// Wakes who waits for a page in this mapping, to try again.
    fn wake(&mut self, mapping: MappingId, page: u32);

    /// Has every access to this absent page end with SIGBUS, and wakes who waits for it.
    ///
    /// # Errors
    /// When the kernel cannot (before 6.6); the process has to be ended then.
    fn poison(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError>;
}
