//! Who may write which lines, among the connections of one export.
//!
//! A part of a line is written by reading the line, changing it and writing it whole. Whoever writes the same line
//! meanwhile would be undone; so the parts of a line are written alone, while whole lines, which need no such care, are
//! written side by side. The export is cut into stretches, and every so many of them share a lock.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes of a stretch: what is written at once. A multiple of the line.
pub const STRETCH: u64 = 256 << 10;
/// Locks; a power of two.
const LOCKS: usize = 64;

/// The locks of an export.
#[derive(Debug)]
pub struct Stripes([RwLock<()>; LOCKS]);

impl Default for Stripes {
    fn default() -> Stripes {
        Stripes(std::array::from_fn(|_| RwLock::new(())))
    }
}

impl Stripes {
    /// Held while whole lines of the stretch around `offset` are written.
    pub fn whole(&self, offset: u64) -> RwLockReadGuard<'_, ()> {
        // A poisoned lock guards no value: whoever panicked left none half changed.
        self.of(offset).read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while a part of the line around `offset` is written.
    pub fn part(&self, offset: u64) -> RwLockWriteGuard<'_, ()> {
        self.of(offset).write().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, offset: u64) -> &RwLock<()> {
        &self.0[(offset / STRETCH) as usize % LOCKS]
    }
}
