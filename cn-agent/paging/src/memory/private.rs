//! Private memory of processes: a view for each process, and one mapping of it.
//!
//! Pages are copied out of the process through files that the process opened itself when it joined. So the
//! agent never reads memory that the process may not read, even if another process gets the same id, or the
//! process executes another program ([`process`](crate::process)). Without the files, the process's pages are
//! not evicted. Pages are removed by the process's own helper thread, by order. If the program has silently
//! discarded a page, the copy fails, and the page table shows the cause. If the kernel makes the copy wait
//! for such a page instead, the agent waits for itself: then a [`Watchdog`] installs zeros.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::AsFd;

use super::{Mapped, Mappings, PAGE};
use crate::uffd::pagemap::{self, SOMETHING, is_something};
use crate::watchdog::Watchdog;
use cxloe_cn_core::pager::{Drop, MappingId, Memory, MemoryError, Page, PageRecords, VIEWS_MAX, ViewId};

/// Memory of all processes of a space.
#[derive(Debug)]
pub struct PrivatePages {
    /// Mappings of the processes, one for each view.
    pub mappings: Mappings,
    of_view: Vec<Option<MappingId>>,
    dog: Watchdog,
    /// Whether this kernel shows write protection in `/proc/PID/pagemap`.
    shows_protection: bool,
}

impl PrivatePages {
    /// Creates the memory of a space without processes; `dog` watches the copies of pages out of processes.
    pub fn new(dog: Watchdog) -> PrivatePages {
        PrivatePages {
            mappings: Mappings::default(),
            of_view: vec![None; VIEWS_MAX],
            dog,
            shows_protection: pagemap::shows_protection(),
        }
    }

    pub fn add(&mut self, view: ViewId, mapping: MappingId, mapped: Mapped) {
        self.mappings.add(mapping, mapped);
        self.of_view[usize::from(view.0)] = Some(mapping);
    }

    pub fn of_view(&self, view: ViewId) -> Option<MappingId> {
        self.of_view.get(usize::from(view.0)).copied().flatten()
    }

    /// Forgets which view the ended mapping `mapping` belonged to. The caller removes the mapping itself from
    /// `mappings`.
    pub fn forget(&mut self, mapping: MappingId) {
        for place in &mut self.of_view {
            if *place == Some(mapping) {
                *place = None;
            }
        }
    }

    fn mapped(&self, view: ViewId) -> Result<&Mapped, MemoryError> {
        self.mappings.of(self.of_view(view).ok_or(MemoryError::Gone)?)
    }
}

impl Memory for PrivatePages {
    #[inline]
    fn install(
        &mut self,
        mapping: MappingId,
        page: u32,
        bytes: &Page,
        protect: bool,
    ) -> Result<(), MemoryError> {
        self.mappings.of(mapping)?.install(page, bytes, protect)
    }

    #[inline]
    fn install_run(
        &mut self,
        mapping: MappingId,
        page: u32,
        bytes: &[Page],
        protect: bool,
    ) -> Result<usize, MemoryError> {
        self.mappings.of(mapping)?.install_run(page, bytes, protect)
    }

    fn map(&mut self, _mapping: MappingId, _page: u32, _protect: bool) -> Result<(), MemoryError> {
        Err(MemoryError::Exists)
    }

    #[inline]
    fn protect(&mut self, mapping: MappingId, pages: Range<u32>) -> Result<(), MemoryError> {
        self.mappings.of(mapping)?.protect(&pages)
    }

    #[inline]
    fn unprotect(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError> {
        self.mappings.of(mapping)?.unprotect(page)
    }

    fn snapshot(&mut self, view: ViewId, page: u32, into: &mut Page) -> Result<(), MemoryError> {
        let mapped = self.mapped(view)?;
        let address = mapped.one(page)?.start;
        let process =
            mapped.process.as_ref().filter(|process| process.is_readable()).ok_or(MemoryError::Gone)?;
        let watch = self.dog.watch(mapped.uffd.as_fd(), address);
        // The copy reads `/proc/PID/mem`, as a debugger does: this works even for pages that the program itself cannot
        // read at present (PROT_NONE).
        let read = process.read(address, into);
        if watch.was_zeroed() {
            return Err(MemoryError::Absent);
        }
        match read {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                self.mapped(view)?.gone.set(true);
                Err(MemoryError::Gone)
            }
            // The copy failed because the program has discarded the page.
            Err(_) if !self.is_present(view, page) => Err(MemoryError::Absent),
            Err(error) => Err(MemoryError::Os(error.raw_os_error().unwrap_or(libc::EFAULT))),
        }
    }

    fn drop_pages(&mut self, view: ViewId, ranges: &[Range<u32>]) -> Result<Drop, MemoryError> {
        let mapping = self.of_view(view).ok_or(MemoryError::Again)?;
        let mapped = self.mappings.get_mut(mapping).ok_or(MemoryError::Gone)?;
        if mapped.gone.get() {
            return Err(MemoryError::Gone);
        }
        let link = mapped.link.as_mut().ok_or(MemoryError::Again)?;
        if link.order_drop(ranges) { Ok(Drop::Ordered) } else { Err(MemoryError::Again) }
    }

    fn drops_by_order(&self) -> bool {
        true
    }

    fn is_present(&mut self, view: ViewId, page: u32) -> bool {
        let Ok(mapped) = self.mapped(view) else { return false };
        let [entry] = mapped.range(&(page..page + 1)).map_or([0], |range| mapped.entries(range.start));
        is_something(entry)
    }

    fn shows_protection(&self) -> bool {
        self.shows_protection
    }

    fn records(&mut self, view: ViewId, first: u32) -> PageRecords {
        let Ok(mapped) = self.mapped(view) else { return PageRecords::UNKNOWN };
        let address = mapped.address + u64::from(first) * PAGE;
        let entries = mapped.process.as_ref().and_then(|process| process.try_entries(address).ok());
        entries.map_or(PageRecords::UNKNOWN, |entries| pagemap::records(&entries))
    }

    fn occupied(&mut self, view: ViewId, first: u32) -> u64 {
        let Ok(mapped) = self.mapped(view) else { return 0 };
        let entries: [u64; u64::BITS as usize] = mapped.entries(mapped.address + u64::from(first) * PAGE);
        let bits = entries.iter().enumerate().map(|(bit, entry)| u64::from(entry & SOMETHING != 0) << bit);
        bits.fold(0, |all, bit| all | bit)
    }

    #[inline]
    fn wake(&mut self, mapping: MappingId, page: u32) {
        if let Some(mapped) = self.mappings.get(mapping) {
            mapped.wake(page);
        }
    }

    fn poison(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError> {
        self.mappings.get_mut(mapping).ok_or(MemoryError::Gone)?.poison(page)
    }
}
