//! The window: the one stretch of addresses whose pages are remote. It is reserved whole at the start, registered with
//! the agent whole, and its parts are given to whoever maps memory, as the kernel gives out all other addresses.
//!
//! ```text
//!   base                                                                 base + bytes
//!   | probe page | unused |  a large block  | arena 1  | arena 1 | a mapping | free ...
//!   '------ granule ------'                 '- granule-'
//! ```
//!
//! What is known about the pages lies outside: which are in use ([`Ranges`]), whose a granule is, how long a block is that
//! begins at a page. So neither taking nor giving back touches remote memory.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32};

use libc::{MADV_DONTNEED, MADV_NOHUGEPAGE, PROT_READ, PROT_WRITE};

use crate::lock::Lock;
use crate::ranges::Ranges;
use crate::sys::{self, PAGE};

/// Pages of a granule: arenas take whole ones, so that an address tells its arena.
pub const GRANULE_PAGES: usize = 16;
const GRANULE: usize = GRANULE_PAGES * PAGE;

/// Says to the agent that the pages are about to be discarded, and returns when it knows. `false`: it cannot be told, and
/// they must not be.
pub type Announce = fn(Range<usize>) -> bool;

/// The window of this process.
#[derive(Debug)]
pub struct Window {
    base: usize,
    pages: usize,
    announce: Announce,
    ranges: Lock<Ranges<'static>>,
    /// Pages that somebody has mapped something else over: they are no part of the window any more.
    lost: Lock<Ranges<'static>>,
    /// Of each granule, the arena it belongs to; 0: none.
    owners: &'static [AtomicU8],
    /// Of each page where a block begins, how many pages it has; 0: none begins there.
    lengths: &'static [AtomicU32],
}

impl Window {
    /// Reserves a window with room for `bytes` bytes. `None` when there are not so many addresses.
    pub fn reserve(bytes: usize, announce: Announce) -> Option<Window> {
        let bytes = bytes.checked_next_multiple_of(GRANULE)?.checked_add(GRANULE)?;
        let pages = bytes / PAGE;
        u32::try_from(pages).ok()?;
        let whole = sys::fresh(bytes.checked_add(GRANULE)?)? as usize;
        let base = whole.next_multiple_of(GRANULE);
        // SAFETY: what lies around the aligned part of a mapping that nobody has used.
        unsafe {
            sys::munmap(whole as *mut c_void, base - whole);
            sys::munmap((base + bytes) as *mut c_void, whole + GRANULE - base);
            sys::madvise(base as *mut c_void, bytes, MADV_NOHUGEPAGE);
        }
        let mut ranges = Ranges::new(table(Ranges::words(pages))?, pages, base / PAGE);
        // The probe page, and its granule with it.
        ranges.take_at(0..GRANULE_PAGES);
        let lost = Ranges::new(table(Ranges::words(pages))?, pages, base / PAGE);
        Some(Window {
            base,
            pages,
            announce,
            ranges: Lock::new(ranges),
            lost: Lock::new(lost),
            owners: table(pages / GRANULE_PAGES)?,
            lengths: table(pages)?,
        })
    }

    /// Its first address; the probe page is there.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.pages * PAGE
    }

    /// Whether an address lies in it.
    #[inline]
    pub fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.pages * PAGE
    }

    /// The part of `bytes` bytes from `address` on that lies in the window, as pages.
    pub fn part(&self, address: usize, bytes: usize) -> Range<usize> {
        let end = address.saturating_add(bytes).saturating_sub(self.base).div_ceil(PAGE).min(self.pages);
        let start = (address.saturating_sub(self.base) / PAGE).min(end);
        start..end
    }

    /// The address of a page.
    #[inline]
    pub fn address(&self, page: usize) -> *mut u8 {
        (self.base + page * PAGE) as *mut u8
    }

    /// The page of an address in the window.
    #[inline]
    pub fn page(&self, address: usize) -> usize {
        (address - self.base) / PAGE
    }

    /// Takes `count` pages of zeros for whoever maps memory.
    pub fn take(&self, count: usize, align: usize) -> Option<usize> {
        self.ranges.lock().take(count.max(1), align)
    }

    /// Takes these pages, if all of them are free.
    pub fn take_at(&self, pages: Range<usize>) -> bool {
        self.ranges.lock().take_at(pages)
    }

    /// Makes pages the caller's, whoever had them or nobody. Not if they are no part of the window any more.
    pub fn claim(&self, pages: Range<usize>) -> bool {
        if pages.start < GRANULE_PAGES || self.lost.lock().next_used(pages.clone()).is_some() {
            return false;
        }
        let mut ranges = self.ranges.lock();
        let mut at = pages.start;
        while at < pages.end {
            let used = ranges.next_used(at..pages.end).unwrap_or(pages.end..pages.end);
            if at < used.start {
                ranges.take_at(at..used.start);
            }
            at = used.end;
        }
        true
    }

    /// Takes granules of zeros for an arena (not 0).
    pub fn take_granules(&self, bytes: usize, arena: u8) -> Option<(*mut u8, usize)> {
        let pages = bytes.checked_next_multiple_of(GRANULE)? / PAGE;
        let first = self.take(pages, GRANULE_PAGES)?;
        let granules = first / GRANULE_PAGES..(first + pages) / GRANULE_PAGES;
        self.owners[granules].iter().for_each(|owner| owner.store(arena, Relaxed));
        Some((self.address(first), pages * PAGE))
    }

    /// An arena gives granules back.
    pub fn give_granules(&self, address: usize, bytes: usize) {
        let pages = self.part(address, bytes);
        let granules = pages.start / GRANULE_PAGES..pages.end / GRANULE_PAGES;
        self.owners[granules].iter().for_each(|owner| owner.store(0, Relaxed));
        self.give(pages);
    }

    /// The arena that an address in the window belongs to; 0: none.
    #[inline]
    pub fn owner(&self, address: usize) -> u8 {
        self.owners[self.page(address) / GRANULE_PAGES].load(Relaxed)
    }

    /// The pages of the block that begins at an address; 0 when none begins there.
    pub fn block(&self, address: usize) -> usize {
        if !address.is_multiple_of(PAGE) {
            return 0;
        }
        self.lengths[self.page(address)].load(Relaxed) as usize
    }

    /// A block of so many pages begins at a page, or, with 0, none any more.
    pub fn set_block(&self, page: usize, pages: usize) {
        self.lengths[page].store(pages as u32, Relaxed);
    }

    /// Gives pages back, whatever was done to them; they become zeros. Pages that are free already stay so.
    pub fn give(&self, pages: Range<usize>) {
        let mut at = pages.start;
        while let Some(used) = {
            // Not over the probe page.
            let from = at.max(GRANULE_PAGES);
            let used = (from < pages.end).then(|| self.ranges.lock().next_used(from..pages.end));
            used.flatten()
        } {
            at = used.end;
            self.give_used(used);
        }
    }

    fn give_used(&self, pages: Range<usize>) {
        let mut at = pages.start;
        while at < pages.end {
            let lost = self.lost.lock().next_used(at..pages.end);
            let whole = at..lost.as_ref().map_or(pages.end, |lost| lost.start);
            if !whole.is_empty() {
                self.clear(whole.clone());
                self.ranges.lock().give(whole);
            }
            let Some(lost) = lost else { return };
            at = lost.end;
            // What was mapped over goes; its addresses are not used again.
            // SAFETY: these pages were taken, and their owner gives them back.
            unsafe { sys::munmap(self.address(lost.start).cast(), lost.len() * PAGE) };
        }
    }

    /// Makes zeros of pages, as they were at first.
    pub fn clear(&self, pages: Range<usize>) {
        self.discard(pages.clone());
        let address = self.address(pages.start).cast();
        // SAFETY: pages of the window, whose owner wants them as new.
        unsafe { sys::mprotect(address, pages.len() * PAGE, PROT_READ | PROT_WRITE) };
    }

    /// Makes zeros of pages.
    pub fn discard(&self, pages: Range<usize>) {
        let announced = (self.announce)(pages.clone());
        let (address, bytes) = (self.address(pages.start), pages.len() * PAGE);
        // SAFETY: pages of the window, whose owner wants zeros in their place.
        unsafe {
            if announced {
                sys::madvise(address.cast(), bytes, MADV_DONTNEED);
            } else {
                sys::mprotect(address.cast(), bytes, PROT_READ | PROT_WRITE);
                address.write_bytes(0, bytes);
            }
        }
    }

    /// Something else has been mapped over pages: neither the window's content nor its addresses any more.
    pub fn lose(&self, pages: Range<usize>) {
        (self.announce)(pages.clone());
        let mut at = pages.start;
        let mut lost = self.lost.lock();
        while at < pages.end {
            let known = lost.next_used(at..pages.end);
            let end = known.as_ref().map_or(pages.end, |known| known.start);
            if at < end {
                lost.take_at(at..end);
            }
            at = known.map_or(pages.end, |known| known.end);
        }
    }

    /// Its locks are held from before a fork until after it.
    pub fn hold(&self) {
        self.ranges.hold();
        self.lost.hold();
    }

    /// After a fork, in the parent.
    pub fn let_go(&self) {
        self.lost.let_go();
        self.ranges.let_go();
    }

    /// After a fork, in the child.
    pub fn reset(&self) {
        self.lost.reset();
        self.ranges.reset();
    }
}

/// A table of zeros outside the window, for ever.
fn table<T: Zeroed>(entries: usize) -> Option<&'static mut [T]> {
    let memory = sys::fresh(entries.checked_mul(size_of::<T>())?.max(1))?;
    // SAFETY: fresh memory of this size, aligned to a page, all zeros, which every `Zeroed` is valid as; nobody else
    // has it, and it is never unmapped.
    Some(unsafe { std::slice::from_raw_parts_mut(memory.cast(), entries) })
}

/// # Safety
/// All zeros are a value of it.
unsafe trait Zeroed {}
// SAFETY: 0.
unsafe impl Zeroed for u64 {}
// SAFETY: 0.
unsafe impl Zeroed for AtomicU8 {}
// SAFETY: 0.
unsafe impl Zeroed for AtomicU32 {}

#[cfg(test)]
mod tests {
    use super::*;

    fn unannounced(_: Range<usize>) -> bool {
        true
    }

    /// Reads a byte of a page.
    fn byte(window: &Window, page: usize) -> u8 {
        // SAFETY: pages of a window are mapped, and these tests share theirs with nobody.
        unsafe { window.address(page).read_volatile() }
    }

    fn fill(window: &Window, pages: Range<usize>) {
        // SAFETY: as above.
        unsafe { window.address(pages.start).write_bytes(0xAA, pages.len() * PAGE) };
    }

    #[test]
    fn pages_come_as_zeros_and_never_twice() {
        let window = Window::reserve(1 << 20, unannounced).unwrap();
        assert_eq!(window.bytes(), (1 << 20) + GRANULE);
        assert!(window.base().is_multiple_of(GRANULE));
        let first = window.take(100, 1).unwrap();
        assert!(first >= GRANULE_PAGES, "the probe page is nobody's");
        fill(&window, first..first + 100);
        window.give(first + 10..first + 20);
        let again = window.take(10, 1).unwrap();
        assert_eq!(again, first + 10);
        assert!((again..again + 10).all(|page| byte(&window, page) == 0));
        assert_eq!((byte(&window, again - 1), byte(&window, again + 10)), (0xAA, 0xAA));
        assert!(window.take(200, 1).is_none(), "more than there is");
        window.give(0..window.bytes() / PAGE);
        assert_eq!(window.take(256, 1), Some(GRANULE_PAGES), "giving all back leaves the probe page");
    }

    #[test]
    fn pages_that_cannot_be_discarded_are_zeros_all_the_same() {
        let window = Window::reserve(1 << 20, |_| false).unwrap();
        let first = window.take(8, 1).unwrap();
        fill(&window, first..first + 8);
        // SAFETY: pages of the window, which nobody else uses.
        unsafe { sys::mprotect(window.address(first).cast(), PAGE, libc::PROT_NONE) };
        window.give(first..first + 4);
        assert_eq!(window.take(4, 1), Some(first));
        assert_eq!([0, 3, 4].map(|page| byte(&window, first + page)), [0, 0, 0xAA]);
    }

    #[test]
    fn granules_know_their_arena() {
        let window = Window::reserve(1 << 20, unannounced).unwrap();
        window.take(1, 1).unwrap();
        let (address, bytes) = window.take_granules(GRANULE + 1, 3).unwrap();
        assert_eq!((bytes, address as usize % GRANULE), (2 * GRANULE, 0));
        let address = address as usize;
        assert_eq!([0, bytes - 1].map(|at| window.owner(address + at)), [3, 3]);
        assert_eq!(window.owner(address - 1), 0);
        window.give_granules(address + GRANULE, GRANULE);
        assert_eq!([0, GRANULE].map(|at| window.owner(address + at)), [3, 0]);
    }

    #[test]
    fn what_is_mapped_over_is_lost_and_not_given_out_again() {
        let window = Window::reserve(1 << 20, unannounced).unwrap();
        let first = window.take(30, 1).unwrap();
        window.lose(first + 10..first + 15);
        window.lose(first + 12..first + 20);
        window.give(first..first + 30);
        assert_eq!(window.take(10, 1), Some(first));
        assert_eq!(window.take(10, 1), Some(first + 20), "the pages between are gone");
        assert_eq!(window.take(1, 1), Some(first + 30));
    }

    #[test]
    fn parts_are_cut_to_the_window() {
        let window = Window::reserve(1 << 20, unannounced).unwrap();
        let (base, pages) = (window.base(), window.bytes() / PAGE);
        assert_eq!(window.part(base - 4096, 8192), 0..1);
        assert_eq!(window.part(base + 4096, 1), 1..2);
        assert_eq!(window.part(base, usize::MAX), 0..pages);
        assert!(window.part(base - 8192, 8192).is_empty());
        assert!(window.part(base + window.bytes(), 4096).is_empty());
    }
}
