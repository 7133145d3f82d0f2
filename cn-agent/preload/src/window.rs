//! The window: the one stretch of addresses whose pages are remote. It is reserved whole at the start, registered with
//! the agent whole, and its parts are given to whoever maps memory, as the kernel gives out all other addresses.
//!
//! ```text
//!   base                                                                 base + bytes
//!   | probe page | unused |  a large block  | arena 1  | arena 1 | a mapping | free ...
//!   '------ granule ------'                 '- granule-'
//! ```
//!
//! It has more addresses than the region has pages, for programs that reserve addresses (PROT_NONE) long before they
//! commit parts of them to memory, as Java does with its heap. Pages that may be touched are *committed*, and there are
//! never more of these than the region has; what is free or only reserved is PROT_NONE, so that touching it is SIGSEGV.
//!
//! What is known about the pages lies outside: which are in use ([`Ranges`]), which of them are only reserved, whose a
//! granule is, how long a block is that begins at a page. So neither taking nor giving back touches remote memory.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};

use libc::{MADV_DONTNEED, MADV_NOHUGEPAGE, PROT_NONE, PROT_READ, PROT_WRITE};

use crate::lock::Lock;
use crate::ranges::Ranges;
use crate::sys::{self, PAGE};

/// Pages of a granule: arenas take whole ones, so that an address tells its arena.
pub const GRANULE_PAGES: usize = 16;
const GRANULE: usize = GRANULE_PAGES * PAGE;

/// Says to the agent that the pages are about to be discarded, and returns when it knows. `false`: it cannot be told, and
/// they must not be.
pub type Announce = fn(Range<usize>) -> bool;

/// What pages of the window are used for.
#[derive(Debug)]
struct Use {
    /// Those that somebody has.
    taken: Ranges<'static>,
    /// Those of them that are addresses only, to be committed later.
    reserved: Ranges<'static>,
    /// How many are taken and not only reserved.
    committed: usize,
    /// How many may be.
    committed_max: usize,
    /// How many are only reserved.
    idle: usize,
    /// How many are no part of the window any more.
    lost: usize,
}

impl Use {
    /// Commits pages, whoever had them or nobody; `false`, and nothing is changed, when that would be too many.
    fn commit(&mut self, pages: Range<usize>) -> bool {
        let idle = self.reserved.count(pages.clone());
        let more = pages.len() - self.taken.count(pages.clone()) + idle;
        if self.committed + more > self.committed_max {
            return false;
        }
        self.taken.set(pages.clone(), true);
        self.reserved.set(pages, false);
        self.idle -= idle;
        self.committed += more;
        true
    }

    /// Makes addresses only of pages, whoever had them or nobody.
    fn reserve(&mut self, pages: Range<usize>) {
        let (taken, idle) = (self.taken.count(pages.clone()), self.reserved.count(pages.clone()));
        self.committed -= taken - idle;
        self.idle += pages.len() - idle;
        self.taken.set(pages.clone(), true);
        self.reserved.set(pages, true);
    }

    /// Pages that were taken do not count any more, though they may stay taken.
    fn uncount(&mut self, pages: Range<usize>) {
        let idle = self.reserved.count(pages.clone());
        self.committed -= self.taken.count(pages.clone()) - idle;
        self.idle -= idle;
        self.reserved.set(pages, false);
    }
}

/// What became of pages that somebody wants where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// They are the caller's.
    Made,
    /// There may not be so many.
    NoRoom,
    /// They are no part of the window, or not any more.
    NotOurs,
}

/// The window of this process.
#[derive(Debug)]
pub struct Window {
    base: usize,
    pages: usize,
    announce: Announce,
    use_of: Lock<Use>,
    /// Whether addresses have ever been taken: who asks for protections in a signal handler need not wait for a lock then.
    reserves: AtomicBool,
    /// Pages that somebody has mapped something else over: they are no part of the window any more.
    lost: Lock<Ranges<'static>>,
    /// Of each granule, the arena it belongs to; 0: none.
    owners: &'static [AtomicU8],
    /// Of each page where a block begins, how many pages it has; 0: none begins there.
    lengths: &'static [AtomicU32],
}

impl Window {
    /// Reserves a window of `addresses` bytes, of which `bytes` can be committed at a time. `None` when there are not so
    /// many addresses.
    pub fn reserve(bytes: usize, addresses: usize, announce: Announce) -> Option<Window> {
        let room = |bytes: usize| bytes.checked_next_multiple_of(GRANULE);
        let (committed_max, bytes) = (room(bytes)? / PAGE, room(addresses.max(bytes))?.checked_add(GRANULE)?);
        let pages = bytes / PAGE;
        u32::try_from(pages).ok()?;
        let whole = sys::addresses(bytes.checked_add(GRANULE)?)? as usize;
        let base = whole.next_multiple_of(GRANULE);
        // SAFETY: what lies around the aligned part of a mapping that nobody has used.
        unsafe {
            sys::munmap(whole as *mut c_void, base - whole);
            sys::munmap((base + bytes) as *mut c_void, whole + GRANULE - base);
            sys::madvise(base as *mut c_void, bytes, MADV_NOHUGEPAGE);
            sys::mprotect(base as *mut c_void, PAGE, PROT_READ | PROT_WRITE);
        }
        let ranges = || Some(Ranges::new(table(Ranges::words(pages))?, pages, base / PAGE));
        let mut taken = ranges()?;
        // The probe page, and its granule with it.
        taken.take_at(0..GRANULE_PAGES);
        let reserved = ranges()?;
        Some(Window {
            base,
            pages,
            announce,
            use_of: Lock::new(Use { taken, reserved, committed: 0, committed_max, idle: 0, lost: 0 }),
            reserves: AtomicBool::new(false),
            lost: Lock::new(ranges()?),
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

    /// Bytes of it that can be committed at a time.
    pub fn memory(&self) -> usize {
        self.use_of.lock().committed_max * PAGE
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
        let count = count.max(1);
        let first = {
            let mut use_of = self.use_of.lock();
            if use_of.committed + count > use_of.committed_max {
                return None;
            }
            let first = use_of.taken.take(count, align)?;
            use_of.committed += count;
            first
        };
        self.open(first..first + count).then_some(first)
    }

    /// Takes these pages, if all of them are free.
    pub fn take_at(&self, pages: Range<usize>) -> bool {
        {
            let mut use_of = self.use_of.lock();
            let free = pages.end <= self.pages && use_of.taken.count(pages.clone()) == 0;
            if !free || !use_of.commit(pages.clone()) {
                return false;
            }
        }
        self.open(pages)
    }

    /// Takes `count` pages as addresses, none of which may be touched; not so many that memory would lack addresses.
    pub fn take_addresses(&self, count: usize) -> Option<usize> {
        let mut use_of = self.use_of.lock();
        if use_of.idle + use_of.lost + count > self.pages - GRANULE_PAGES - use_of.committed_max {
            return None;
        }
        let first = use_of.taken.take(count, 1)?;
        self.reserves.store(true, Relaxed);
        use_of.reserved.set(first..first + count, true);
        use_of.idle += count;
        Some(first)
    }

    /// Makes pages the caller's, whoever had them or nobody: to be touched, or as addresses only.
    pub fn claim(&self, pages: Range<usize>, touched: bool) -> Claim {
        if pages.start < GRANULE_PAGES || self.lost.lock().next_used(pages.clone()).is_some() {
            return Claim::NotOurs;
        }
        let mut use_of = self.use_of.lock();
        match touched {
            true if !use_of.commit(pages.clone()) => return Claim::NoRoom,
            true => {}
            false => {
                self.reserves.store(true, Relaxed);
                use_of.reserve(pages);
            }
        }
        Claim::Made
    }

    /// Commits those of these pages that are addresses only. `false`: there may not be so many.
    pub fn commit(&self, pages: Range<usize>) -> bool {
        if !self.reserves.load(Relaxed) {
            return true;
        }
        let mut use_of = self.use_of.lock();
        let more = use_of.reserved.count(pages.clone());
        if use_of.committed + more > use_of.committed_max {
            return false;
        }
        let mut at = pages.start;
        while let Some(reserved) = use_of.reserved.next_used(at..pages.end) {
            at = reserved.end;
            use_of.commit(reserved);
        }
        true
    }

    /// Whether some of these pages are addresses only.
    pub fn reserves(&self, pages: Range<usize>) -> bool {
        self.use_of.lock().reserved.next_used(pages).is_some()
    }

    /// Has pages that have just been taken be touched; gives them back if the kernel refuses.
    fn open(&self, pages: Range<usize>) -> bool {
        let address = self.address(pages.start).cast();
        // SAFETY: pages of the window that nobody else has.
        let opened = unsafe { sys::mprotect(address, pages.len() * PAGE, PROT_READ | PROT_WRITE) } == 0;
        if !opened {
            let mut use_of = self.use_of.lock();
            use_of.uncount(pages.clone());
            use_of.taken.give(pages);
        }
        opened
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
            let used = (from < pages.end).then(|| self.use_of.lock().taken.next_used(from..pages.end));
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
                self.close(whole.clone());
                let mut use_of = self.use_of.lock();
                use_of.uncount(whole.clone());
                use_of.taken.give(whole);
            }
            let Some(lost) = lost else { return };
            at = lost.end;
            // What was mapped over goes; its addresses are not used again.
            // SAFETY: these pages were taken, and their owner gives them back.
            unsafe { sys::munmap(self.address(lost.start).cast(), lost.len() * PAGE) };
        }
    }

    /// Discards pages, and has nobody touch them from here on.
    fn close(&self, pages: Range<usize>) {
        self.discard(pages.clone());
        let address = self.address(pages.start).cast();
        // SAFETY: pages of the window that their owner gives back. If the kernel refuses, touching them gives zeros.
        unsafe { sys::mprotect(address, pages.len() * PAGE, PROT_NONE) };
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
        let mut lost = self.lost.lock();
        let mut use_of = self.use_of.lock();
        let mut at = pages.start;
        while at < pages.end {
            let known = lost.next_used(at..pages.end).unwrap_or(pages.end..pages.end);
            if at < known.start {
                use_of.uncount(at..known.start);
                use_of.lost += known.start - at;
            }
            at = known.end;
        }
        // Nobody gets these addresses again.
        use_of.taken.set(pages.clone(), true);
        lost.set(pages, true);
    }

    /// Its locks are held from before a fork until after it.
    pub fn hold(&self) {
        self.lost.hold();
        self.use_of.hold();
    }

    /// After a fork, in the parent.
    pub fn let_go(&self) {
        self.use_of.let_go();
        self.lost.let_go();
    }

    /// After a fork, in the child.
    pub fn reset(&self) {
        self.lost.reset();
        self.use_of.reset();
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
        let window = Window::reserve(1 << 20, 2 << 20, unannounced).unwrap();
        assert_eq!(window.bytes(), (2 << 20) + GRANULE);
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
        let window = Window::reserve(1 << 20, 2 << 20, |_| false).unwrap();
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
        let window = Window::reserve(1 << 20, 2 << 20, unannounced).unwrap();
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
        let window = Window::reserve(1 << 20, 2 << 20, unannounced).unwrap();
        let first = window.take(30, 1).unwrap();
        window.lose(first + 10..first + 15);
        window.lose(first + 12..first + 20);
        window.give(first..first + 30);
        assert_eq!(window.take(10, 1), Some(first));
        assert_eq!(window.take(10, 1), Some(first + 20), "the pages between are gone");
        assert_eq!(window.take(1, 1), Some(first + 30));
    }

    #[test]
    fn addresses_become_memory_when_they_are_committed_and_no_more_than_there_is() {
        let window = Window::reserve(1 << 20, 2 << 20, unannounced).unwrap();
        let first = window.take_addresses(200).unwrap();
        assert_eq!(window.take_addresses(57), None, "memory needs addresses too");
        assert!(window.commit(first..first + 100) && window.commit(first..first + 100));
        let heap = window.take(156, 1).unwrap();
        fill(&window, heap..heap + 156);
        assert_eq!(window.take(1, 1), None, "all is committed");
        assert!(!window.commit(first..first + 101));
        assert_eq!(window.claim(first + 100..first + 110, true), Claim::NoRoom);
        assert_eq!(window.claim(first..first + 50, true), Claim::Made, "had been committed");
        assert_eq!(window.claim(first..first + 50, false), Claim::Made, "addresses only again");
        assert_eq!(window.claim(first + 100..first + 150, true), Claim::Made);
        assert_eq!(window.take(1, 1), None);
        window.give(first..first + 200);
        let after = window.take(100, 1).unwrap();
        assert!((after..after + 100).all(|page| byte(&window, page) == 0));
        assert_eq!((window.take(1, 1), window.claim(0..1, true)), (None, Claim::NotOurs));
    }

    #[test]
    fn parts_are_cut_to_the_window() {
        let window = Window::reserve(1 << 20, 2 << 20, unannounced).unwrap();
        let (base, pages) = (window.base(), window.bytes() / PAGE);
        assert_eq!(window.part(base - 4096, 8192), 0..1);
        assert_eq!(window.part(base + 4096, 1), 1..2);
        assert_eq!(window.part(base, usize::MAX), 0..pages);
        assert!(window.part(base - 8192, 8192).is_empty());
        assert!(window.part(base + window.bytes(), 4096).is_empty());
    }
}
