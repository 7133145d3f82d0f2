//! The table of a view's pages: one [`Entry`] each, in the agent's own memory or in memory that outlives it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use super::entry::Entry;

/// Memory for entries, wherever it is.
pub trait Entries: Deref<Target = [AtomicU64]> + Send {}
impl<T: Deref<Target = [AtomicU64]> + Send> Entries for T {}

/// A table of pages.
pub struct PageTable(Box<dyn Entries>);

impl fmt::Debug for PageTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageTable of {} pages", self.len())
    }
}

impl PageTable {
    /// A table in this memory, as it is.
    pub fn new(entries: impl Entries + 'static) -> PageTable {
        PageTable(Box::new(entries))
    }

    /// A table of `pages` in the agent's own memory, all zeros and never written.
    pub fn local(pages: u32) -> PageTable {
        let empty = Entry::absent(super::entry::NO_SLOT).0;
        PageTable::new((0..pages).map(|_| AtomicU64::new(empty)).collect::<Vec<_>>())
    }

    /// How many pages.
    #[inline]
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is known of a page.
    #[inline]
    pub fn get(&self, page: u32) -> Entry {
        Entry(self.0[page as usize].load(Ordering::Relaxed))
    }

    /// Changes what is known of a page, before anything is done that relies on it.
    #[inline]
    pub fn set(&self, page: u32, entry: Entry) {
        self.0[page as usize].store(entry.0, Ordering::Release);
    }
}
