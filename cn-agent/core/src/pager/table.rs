//! The table of a view's pages: one [`Entry`] each, in the agent's own memory or in memory that outlives it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, Range};
use core::sync::atomic::{AtomicU64, Ordering};

use super::entry::Entry;

/// Memory for entries: the agent's own, or memory that outlives it.
pub trait Entries: Deref<Target = [AtomicU64]> + Send {}
impl<T: Deref<Target = [AtomicU64]> + Send> Entries for T {}

/// Entries of all pages of a view, by page number.
pub struct PageTable(Box<dyn Entries>);

/// The word of one page's entry.
pub(super) struct EntryWord<'a>(&'a AtomicU64);

impl EntryWord<'_> {
    /// As [`PageTable::get`].
    #[inline]
    pub(super) fn get(&self) -> Entry {
        Entry(self.0.load(Ordering::Relaxed))
    }

    /// As [`PageTable::set`].
    #[inline]
    pub(super) fn set(&self, entry: Entry) {
        self.0.store(entry.0, Ordering::Release);
    }
}

impl fmt::Debug for PageTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageTable of {} pages", self.len())
    }
}

impl PageTable {
    /// A table in the memory `entries`, with the content that it has.
    pub fn new(entries: impl Entries + 'static) -> PageTable {
        PageTable(Box::new(entries))
    }

    /// A table of `pages` pages in the agent's own memory, all never written.
    pub fn local(pages: u32) -> PageTable {
        let empty = Entry::absent(super::entry::NO_SLOT).0;
        PageTable::new((0..pages).map(|_| AtomicU64::new(empty)).collect::<Vec<_>>())
    }

    /// The words of the entries of `pages`, which must be in the table, for loops over many of them: the memory is
    /// looked up once for all.
    #[inline]
    pub(super) fn words(&self, pages: Range<u32>) -> impl Iterator<Item = EntryWord<'_>> {
        self.0[pages.start as usize..pages.end as usize].iter().map(EntryWord)
    }

    /// Sets all entries, each to what `entry` returns for its page.
    pub fn fill(&self, entry: impl Fn(u32) -> Entry) {
        (0..).zip(self.words(0..self.len())).for_each(|(page, word)| word.set(entry(page)));
    }

    #[inline]
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Entry of `page`, read atomically.
    #[inline]
    pub fn get(&self, page: u32) -> Entry {
        Entry(self.0[page as usize].load(Ordering::Relaxed))
    }

    /// Sets the entry of a page. To be called before any action that the entry announces.
    #[inline]
    pub fn set(&self, page: u32, entry: Entry) {
        self.0[page as usize].store(entry.0, Ordering::Release);
    }
}
