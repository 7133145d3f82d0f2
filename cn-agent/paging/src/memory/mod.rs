//! Pages of mapped memory in the kernel: implementations of [`Memory`] that use userfaultfds.
//!
//! * [`anonymous`]: memory of this process alone, which serves its own faults.
//! * [`shared`]: memory of several processes.
//! * [`private`]: anonymous memory of a process, and of its children.
//! * [`foreign`]: memory of a virtual machine.

pub mod anonymous;
pub mod foreign;
pub mod private;
pub mod shared;

use std::cell::Cell;
use std::ops::Range;

use super::member::MemberLink;
use super::process::Process;
use crate::uffd::{Access as Pages, Features, Modes, Uffd, UffdError};
use cxloe_cn_core::mapped::MappingKind;
use cxloe_cn_core::pager::{Access, MappingId, Memory, MemoryError, PAGE_BYTES, Page};

pub use anonymous::AnonymousPages;
pub use foreign::ForeignPages;
pub use private::PrivatePages;
pub use shared::SharedPages;

const PAGE: u64 = PAGE_BYTES as u64;

/// The mapping of a view (a table of pages) in one process, with the descriptors through which the agent changes it.
#[derive(Debug)]
pub struct Mapped {
    /// Userfaultfd through which the mapping's faults are served.
    pub uffd: Uffd,
    /// Address of the mapping's first byte in the process.
    pub address: u64,
    /// Number of the mapping's first page in the view.
    pub first: u32,
    pub pages: u32,
    /// Process id; 0 while unknown.
    pub pid: u32,
    /// Identity of the process beyond its id; `None` while unknown, and for this process's own memory.
    pub process: Option<Process>,
    /// First word of the random content by which the agent verified the process's files; 0 without files.
    pub nonce: u64,
    /// Number that a forked child reads from its probe page and shows when it joins; 0 for other processes.
    pub(crate) proof: u64,
    /// Connection of the process's helper thread; `None` for a forked child that has not joined yet.
    pub link: Option<MemberLink>,
    /// Whether epoll reports the mapping's faults.
    pub(crate) watched: bool,
    /// Whether the kernel has reported the end of the process.
    gone: Cell<bool>,
}

impl Mapped {
    pub fn new(
        uffd: Uffd,
        address: u64,
        first: u32,
        pages: u32,
        pid: u32,
        link: Option<MemberLink>,
    ) -> Mapped {
        let (process, gone) = (None, Cell::new(false));
        let (nonce, proof, watched) = (0, 0, false);
        Mapped { uffd, address, first, pages, pid, process, nonce, proof, link, watched, gone }
    }

    /// Sets the mapping's process, whose files were verified with random content that begins with `nonce`.
    #[must_use]
    pub(crate) fn of(self, process: Process, nonce: u64) -> Mapped {
        Mapped { process: Some(process), nonce, ..self }
    }

    /// Sets the number that a forked child has to show when it joins.
    #[must_use]
    pub(crate) fn of_child(self, proof: u64) -> Mapped {
        Mapped { proof, ..self }
    }

    /// Number in the view of the page at `address`; `None` if the address lies outside this mapping.
    #[inline]
    pub(crate) fn page_at(&self, address: u64) -> Option<u32> {
        let page = address.checked_sub(self.address)? / PAGE;
        (page < u64::from(self.pages)).then(|| self.first + page as u32)
    }

    /// Addresses of pages of the view, if all of them lie in this mapping.
    #[inline]
    pub fn range(&self, pages: &Range<u32>) -> Option<Range<u64>> {
        let start = pages.start.checked_sub(self.first)?;
        let end = pages.end.checked_sub(self.first).filter(|end| *end <= self.pages)?;
        Some(self.address + u64::from(start) * PAGE..self.address + u64::from(end) * PAGE)
    }

    /// Entries of the process's page table for the pages from `address` on; all 0 if the process is unknown.
    #[inline]
    fn entries<const N: usize>(&self, address: u64) -> [u64; N] {
        self.process.as_ref().map_or([0; N], |process| process.entries(address))
    }

    /// Whether the agent can copy pages out of the mapping, so that they may be evicted.
    pub(crate) fn is_readable(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_readable)
    }

    fn one(&self, page: u32) -> Result<Range<u64>, MemoryError> {
        self.range(&(page..page + 1)).ok_or(MemoryError::Gone)
    }

    pub fn all(&self) -> Range<u64> {
        self.address..self.address + u64::from(self.pages) * PAGE
    }

    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Checks whether the process still exists, and records if it has ended. This detects the end of a process whose
    /// connection stays open, or that has none.
    pub fn check_alive(&self) {
        // The first page is the probe page. It is never protected, so unprotecting it changes nothing.
        let first = self.address..self.address + PAGE;
        if let Err(UffdError::Gone) = self.uffd.unprotect(first, false) {
            self.gone.set(true);
        }
    }

    /// As [`check_alive`](Self::check_alive), for memory without a probe page.
    pub fn check_alive_by_protecting(&self) {
        // At worst, the next write to the page is a fault more.
        if let Err(UffdError::Gone) = self.uffd.protect(self.address..self.address + PAGE) {
            self.gone.set(true);
        }
    }

    #[cold]
    fn error(&self, error: UffdError) -> MemoryError {
        match error {
            UffdError::Again => MemoryError::Again,
            UffdError::Exists => MemoryError::Exists,
            UffdError::NoPage => MemoryError::Absent,
            UffdError::Gone => {
                self.gone.set(true);
                MemoryError::Gone
            }
            // The program has unmapped the page, so no thread waits for it any more.
            UffdError::NotMapped => MemoryError::Gone,
            UffdError::Busy => MemoryError::Os(libc::EBUSY),
            UffdError::Os { errno, .. } => MemoryError::Os(errno as i32),
        }
    }

    #[inline]
    pub fn install(&self, page: u32, bytes: &Page, protect: bool) -> Result<(), MemoryError> {
        let range = self.one(page)?;
        let access = if protect { Pages::Protected } else { Pages::Writable };
        self.uffd.copy(range.start, bytes, access).map(drop).map_err(|error| self.error(error))
    }

    /// Installs consecutive absent pages by one system call; returns the number installed.
    #[inline]
    pub fn install_run(&self, page: u32, bytes: &[Page], protect: bool) -> Result<usize, MemoryError> {
        let range = self.range(&(page..page + bytes.len() as u32)).ok_or(MemoryError::Gone)?;
        let access = if protect { Pages::Protected } else { Pages::Writable };
        let copied = self.uffd.copy(range.start, bytes.as_flattened(), access);
        copied.map(|copied| copied / PAGE_BYTES).map_err(|error| self.error(error))
    }

    /// Maps a page that is present in the memory file and absent from this mapping.
    #[inline]
    pub fn map(&self, page: u32, protect: bool) -> Result<(), MemoryError> {
        let access = if protect { Pages::Protected } else { Pages::Writable };
        self.uffd.continue_(self.one(page)?, access).map(drop).map_err(|error| self.error(error))
    }

    /// Write-protects those of `pages` that lie in this mapping.
    #[inline]
    pub fn protect(&self, pages: &Range<u32>) -> Result<(), MemoryError> {
        let mine = pages.start.max(self.first)..pages.end.min(self.first + self.pages);
        match self.range(&mine).filter(|range| range.start < range.end) {
            Some(range) => self.uffd.protect(range).map_err(|error| self.error(error)),
            None => Ok(()),
        }
    }

    /// Unprotects a page, and wakes threads that wait to write to it.
    #[inline]
    pub fn unprotect(&self, page: u32) -> Result<(), MemoryError> {
        match self.range(&(page..page + 1)) {
            Some(range) => self.uffd.unprotect(range, true).map_err(|error| self.error(error)),
            None => Ok(()),
        }
    }

    #[inline]
    pub fn wake(&self, page: u32) {
        if let Some(range) = self.range(&(page..page + 1)) {
            // A wake-up fails only if the process has ended; then no thread waits.
            let _ = self.uffd.wake(range);
        }
    }

    /// Makes an access to a page raise SIGBUS. Where the kernel cannot do that, the process's helper sends
    /// SIGBUS now.
    #[cold]
    pub fn poison(&mut self, page: u32) -> Result<(), MemoryError> {
        if let Some(link) = &mut self.link {
            link.lost(page);
        }
        let range = self.one(page)?;
        let mut poisoned = self.uffd.poison(range.clone());
        if poisoned == Err(UffdError::Exists) {
            // An evicted page that was write-protected has probably left a marker at this address; unprotecting removes
            // the marker.
            let _ = self.uffd.unprotect(range.clone(), false);
            poisoned = self.uffd.poison(range);
        }
        match poisoned {
            Ok(_) => Ok(()),
            Err(UffdError::NotMapped | UffdError::Os { .. })
                if !self.gone.get()
                    && let Some(link) = &mut self.link =>
            {
                tracing::error!(
                    pid = self.pid,
                    "data is lost; the process is to end itself, because the kernel lacks UFFDIO_POISON"
                );
                link.unmarked(page);
                Err(MemoryError::Gone)
            }
            Err(error) => Err(self.error(error)),
        }
    }
}

/// Memory of a space, by the kind of its mappings.
#[derive(Debug)]
pub enum KernelMemory {
    /// A memory file that all processes of the space map.
    Shared(SharedPages),
    /// Anonymous memory of processes, each with its own view (table of pages).
    Private(PrivatePages),
    /// Memory that a virtual machine's monitor has registered.
    Foreign(ForeignPages),
}

impl KernelMemory {
    /// The memory as the pager uses it.
    #[inline]
    pub(crate) fn as_memory(&mut self) -> &mut dyn Memory {
        match self {
            KernelMemory::Shared(memory) => memory,
            KernelMemory::Private(memory) => memory,
            KernelMemory::Foreign(memory) => memory,
        }
    }

    #[inline]
    pub fn mappings(&self) -> &Mappings {
        match self {
            KernelMemory::Shared(memory) => &memory.mappings,
            KernelMemory::Private(memory) => &memory.mappings,
            KernelMemory::Foreign(memory) => &memory.mappings,
        }
    }

    #[inline]
    pub(crate) fn mappings_mut(&mut self) -> &mut Mappings {
        match self {
            KernelMemory::Shared(memory) => &mut memory.mappings,
            KernelMemory::Private(memory) => &mut memory.mappings,
            KernelMemory::Foreign(memory) => &mut memory.mappings,
        }
    }
}

/// Features and registration modes required of a new member's userfaultfd, by kind of space.
pub fn required_features(kind: MappingKind) -> (Features, Modes) {
    let shared = Features::WRITE_PROTECT
        | Features::MISSING_SHMEM
        | Features::MINOR_SHMEM
        | Features::WRITE_PROTECT_SHMEM;
    match kind {
        MappingKind::Shared => (shared, Modes::MISSING | Modes::MINOR | Modes::WRITE_PROTECT),
        MappingKind::Private => {
            (Features::WRITE_PROTECT | Features::EVENT_FORK, Modes::MISSING | Modes::WRITE_PROTECT)
        }
        // The virtual machine's monitor has negotiated and registered already.
        MappingKind::Foreign => (Features::empty(), Modes::MISSING),
    }
}

/// Kind of access, from the flags of a fault.
#[inline]
pub fn access(wp: bool, minor: bool) -> Access {
    match (wp, minor) {
        (true, _) => Access::Protected,
        (false, true) => Access::Unmapped,
        (false, false) => Access::Missing,
    }
}

/// Mappings of a space; the index is the mapping's number.
#[derive(Debug, Default)]
pub struct Mappings(Vec<Option<Mapped>>);

impl Mappings {
    #[inline]
    pub fn get(&self, mapping: MappingId) -> Option<&Mapped> {
        self.0.get(usize::from(mapping.0)).and_then(Option::as_ref)
    }

    #[inline]
    pub fn get_mut(&mut self, mapping: MappingId) -> Option<&mut Mapped> {
        self.0.get_mut(usize::from(mapping.0)).and_then(Option::as_mut)
    }

    /// Adds a mapping under a number that must be free.
    pub fn add(&mut self, mapping: MappingId, mapped: Mapped) {
        let at = usize::from(mapping.0);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(mapped);
    }

    /// Removes a mapping; its userfaultfd and its connection close with it.
    pub fn remove(&mut self, mapping: MappingId) -> Option<Mapped> {
        self.0.get_mut(usize::from(mapping.0)).and_then(Option::take)
    }

    /// The numbers in use, ascending.
    pub fn ids(&self) -> impl Iterator<Item = MappingId> + use<'_> {
        self.iter().map(|(id, _)| id)
    }

    /// All mappings, by ascending numbers.
    pub fn iter(&self) -> impl Iterator<Item = (MappingId, &Mapped)> {
        let each = self.0.iter().enumerate();
        each.filter_map(|(at, mapped)| Some((MappingId(at as u16), mapped.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (MappingId, &mut Mapped)> {
        let each = self.0.iter_mut().enumerate();
        each.filter_map(|(at, mapped)| Some((MappingId(at as u16), mapped.as_mut()?)))
    }

    #[inline]
    fn of(&self, mapping: MappingId) -> Result<&Mapped, MemoryError> {
        self.get(mapping).ok_or(MemoryError::Gone)
    }
}
