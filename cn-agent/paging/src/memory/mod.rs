//! The kernel's side of mapped memory: [`Memory`] over userfaultfds.
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

use super::member::Link;
use super::process::Process;
use crate::uffd::{Access as Pages, Features, Modes, Uffd, UffdError};
use cxloe_cn_core::mapped::Kind;
use cxloe_cn_core::pager::{Access, MappingId, Memory, MemoryError, PAGE_BYTES, Page};

pub use anonymous::Anonymous;
pub use foreign::Foreign;
pub use private::Private;
pub use shared::Shared;

const PAGE: u64 = PAGE_BYTES as u64;

/// A process's mapping of a view.
#[derive(Debug)]
pub struct Mapped {
    /// Its userfaultfd.
    pub uffd: Uffd,
    /// Where it begins.
    pub address: u64,
    /// Which page of the view is its first.
    pub first: u32,
    /// How many pages it has.
    pub pages: u32,
    /// The process; 0 while it is not known.
    pub pid: u32,
    /// The same process, by more than its number; none while it is not known, and of this process's own memory.
    pub process: Option<Process>,
    /// The connection of its helper thread; none of a forked child that has not joined yet.
    pub link: Option<Link>,
    /// Whether the kernel has said that the process has ended.
    gone: Cell<bool>,
}

impl Mapped {
    /// A mapping of `pages` pages of the view from `first` on, at `address`.
    pub fn new(uffd: Uffd, address: u64, first: u32, pages: u32, pid: u32, link: Option<Link>) -> Mapped {
        Mapped { uffd, address, first, pages, pid, process: None, link, gone: Cell::new(false) }
    }

    /// The same, of this process.
    #[must_use]
    pub fn of(self, process: Process) -> Mapped {
        Mapped { pid: process.pid(), process: Some(process), ..self }
    }

    /// The page of the view at `address`, if this mapping has it.
    #[inline]
    pub fn page_at(&self, address: u64) -> Option<u32> {
        let page = address.checked_sub(self.address)? / PAGE;
        (page < u64::from(self.pages)).then(|| self.first + page as u32)
    }

    /// Where pages of the view are, if this mapping has them.
    #[inline]
    pub fn range(&self, pages: &Range<u32>) -> Option<Range<u64>> {
        let start = pages.start.checked_sub(self.first)?;
        let end = pages.end.checked_sub(self.first).filter(|end| *end <= self.pages)?;
        Some(self.address + u64::from(start) * PAGE..self.address + u64::from(end) * PAGE)
    }

    /// What the process's page table says from `address` on.
    #[inline]
    fn entries<const N: usize>(&self, address: u64) -> [u64; N] {
        self.process.as_ref().map_or([0; N], |process| process.entries(address))
    }

    fn one(&self, page: u32) -> Result<Range<u64>, MemoryError> {
        self.range(&(page..page + 1)).ok_or(MemoryError::Gone)
    }

    /// Everything it has.
    pub fn all(&self) -> Range<u64> {
        self.address..self.address + u64::from(self.pages) * PAGE
    }

    /// Whether its process has ended.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Asks the kernel whether there still is a process: one that has no connection whose end would tell. Its first page,
    /// that of the probe, is never protected, so taking its protection off changes nothing.
    pub fn look(&self) {
        let first = self.address..self.address + PAGE;
        if let Err(UffdError::Gone) = self.uffd.unprotect(first, false) {
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
            // Unmapped by the program: nobody waits there any more.
            UffdError::NotMapped => MemoryError::Gone,
            UffdError::Busy => MemoryError::Os(libc::EBUSY),
            UffdError::Os { errno, .. } => MemoryError::Os(errno as i32),
        }
    }

    /// Puts a page where none is.
    #[inline]
    pub fn install(&self, page: u32, bytes: &Page, protect: bool) -> Result<(), MemoryError> {
        let range = self.one(page)?;
        let access = if protect { Pages::Protected } else { Pages::Writable };
        self.uffd.copy(range.start, bytes, access).map(drop).map_err(|error| self.error(error))
    }

    /// Puts neighbours where none are, in one step; how many.
    #[inline]
    pub fn install_run(&self, page: u32, bytes: &[Page], protect: bool) -> Result<usize, MemoryError> {
        let range = self.range(&(page..page + bytes.len() as u32)).ok_or(MemoryError::Gone)?;
        let access = if protect { Pages::Protected } else { Pages::Writable };
        let copied = self.uffd.copy(range.start, bytes.as_flattened(), access);
        copied.map(|copied| copied / PAGE_BYTES).map_err(|error| self.error(error))
    }

    /// Maps a page that the file has.
    #[inline]
    pub fn map(&self, page: u32, protect: bool) -> Result<(), MemoryError> {
        let access = if protect { Pages::Protected } else { Pages::Writable };
        self.uffd.continue_(self.one(page)?, access).map(drop).map_err(|error| self.error(error))
    }

    /// Write-protects those of `pages` that it has.
    #[inline]
    pub fn protect(&self, pages: &Range<u32>) -> Result<(), MemoryError> {
        let mine = pages.start.max(self.first)..pages.end.min(self.first + self.pages);
        match self.range(&mine).filter(|range| range.start < range.end) {
            Some(range) => self.uffd.protect(range).map_err(|error| self.error(error)),
            None => Ok(()),
        }
    }

    /// Takes the protection off.
    #[inline]
    pub fn unprotect(&self, page: u32) -> Result<(), MemoryError> {
        match self.range(&(page..page + 1)) {
            Some(range) => self.uffd.unprotect(range, true).map_err(|error| self.error(error)),
            None => Ok(()),
        }
    }

    /// Wakes who waits for a page.
    #[inline]
    pub fn wake(&self, page: u32) {
        if let Some(range) = self.range(&(page..page + 1)) {
            // Who has gone does not wait.
            let _ = self.uffd.wake(range);
        }
    }

    /// Has whoever touches a page get SIGBUS; where the kernel cannot, the process gets it now.
    #[cold]
    pub fn poison(&mut self, page: u32) -> Result<(), MemoryError> {
        if let Some(link) = &mut self.link {
            link.lost(page);
        }
        let range = self.one(page)?;
        let mut poisoned = self.uffd.poison(range.clone());
        if poisoned == Err(UffdError::Exists) {
            // What is there is most likely the mark that a protected page leaves behind when it is taken away.
            let _ = self.uffd.unprotect(range.clone(), false);
            poisoned = self.uffd.poison(range);
        }
        match poisoned {
            Ok(_) => Ok(()),
            Err(UffdError::NotMapped | UffdError::Os { .. })
                if !self.gone.get()
                    && let Some(process) = &self.process =>
            {
                tracing::error!(
                    pid = self.pid,
                    "data is lost; the process is ended, for want of UFFDIO_POISON"
                );
                process.kill(libc::SIGBUS);
                Err(MemoryError::Gone)
            }
            Err(error) => Err(self.error(error)),
        }
    }
}

/// The memory of a space, of whichever kind.
#[derive(Debug)]
pub enum KernelMemory {
    /// Of several processes.
    Shared(Shared),
    /// Of each its own.
    Private(Private),
    /// Of a virtual machine.
    Foreign(Foreign),
}

impl KernelMemory {
    /// As the pager sees it.
    #[inline]
    pub fn as_memory(&mut self) -> &mut dyn Memory {
        match self {
            KernelMemory::Shared(memory) => memory,
            KernelMemory::Private(memory) => memory,
            KernelMemory::Foreign(memory) => memory,
        }
    }

    /// All mappings, by their number.
    #[inline]
    pub fn mappings(&self) -> &Mappings {
        match self {
            KernelMemory::Shared(memory) => &memory.mappings,
            KernelMemory::Private(memory) => &memory.mappings,
            KernelMemory::Foreign(memory) => &memory.mappings,
        }
    }

    /// All mappings, by their number.
    #[inline]
    pub fn mappings_mut(&mut self) -> &mut Mappings {
        match self {
            KernelMemory::Shared(memory) => &mut memory.mappings,
            KernelMemory::Private(memory) => &mut memory.mappings,
            KernelMemory::Foreign(memory) => &mut memory.mappings,
        }
    }
}

/// What a userfaultfd of a new member of a space of this kind has to be able to, and what it is registered for.
pub fn wanted(kind: Kind) -> (Features, Modes) {
    let shared = Features::WRITE_PROTECT
        | Features::MISSING_SHMEM
        | Features::MINOR_SHMEM
        | Features::WRITE_PROTECT_SHMEM;
    match kind {
        Kind::Shared => (shared, Modes::MISSING | Modes::MINOR | Modes::WRITE_PROTECT),
        Kind::Private => {
            (Features::WRITE_PROTECT | Features::EVENT_FORK, Modes::MISSING | Modes::WRITE_PROTECT)
        }
        // Set up by whoever hands it over.
        Kind::Foreign => (Features::empty(), Modes::MISSING),
    }
}

/// What a thread did.
#[inline]
pub fn access(wp: bool, minor: bool) -> Access {
    match (wp, minor) {
        (true, _) => Access::Protected,
        (false, true) => Access::Unmapped,
        (false, false) => Access::Missing,
    }
}

/// Mappings by their number.
#[derive(Debug, Default)]
pub struct Mappings(Vec<Option<Mapped>>);

impl Mappings {
    /// The mapping of this number.
    #[inline]
    pub fn get(&self, mapping: MappingId) -> Option<&Mapped> {
        self.0.get(usize::from(mapping.0)).and_then(Option::as_ref)
    }

    /// The mapping of this number.
    #[inline]
    pub fn get_mut(&mut self, mapping: MappingId) -> Option<&mut Mapped> {
        self.0.get_mut(usize::from(mapping.0)).and_then(Option::as_mut)
    }

    /// Adds a mapping under a number that is free.
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

    /// All, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (MappingId, &Mapped)> {
        let each = self.0.iter().enumerate();
        each.filter_map(|(at, mapped)| Some((MappingId(at as u16), mapped.as_ref()?)))
    }

    /// All, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (MappingId, &mut Mapped)> {
        let each = self.0.iter_mut().enumerate();
        each.filter_map(|(at, mapped)| Some((MappingId(at as u16), mapped.as_mut()?)))
    }

    /// How many numbers there are or were.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there never was one.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    fn of(&self, mapping: MappingId) -> Result<&Mapped, MemoryError> {
        self.get(mapping).ok_or(MemoryError::Gone)
    }
}
