//! The window: the one range of addresses whose pages are remote. It is reserved and registered with the agent as a
//! whole at the start; callers of `mmap` get parts of it, as they get other addresses from the kernel.
//!
//! ```text
//!   base                                                                 base + bytes
//!   | probe page | unused |  a large block  | arena 1  | arena 1 | a mapping | free ...
//!   '------ granule ------'                 '- granule-'
//! ```
//!
//! The window has more addresses than the region has pages, for programs that reserve addresses (PROT_NONE) long before
//! they commit parts of them to memory, as Java does with its heap. Pages that may be touched are *committed*, and
//! never more pages are committed than the region has; free and reserved pages are PROT_NONE, so that touching them
//! raises SIGSEGV.
//!
//! The records of the pages lie outside the window: pages in use ([`Ranges`]), pages that are only reserved, the owner
//! of each granule, the length of the block that begins at a page. So neither taking nor giving back pages touches
//! remote memory.

#![expect(unsafe_code, reason = "the window is mapped memory, managed by address")]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};

use libc::{MADV_DONTNEED, MADV_NOHUGEPAGE, MADV_UNMERGEABLE, PROT_NONE, PROT_READ, PROT_WRITE};

use crate::lock::Lock;
use crate::protection::{self, ProtectedPart};
use crate::ranges::Ranges;
use crate::sys::{self, PAGE};
use crate::window_use::WindowUse;

/// Number of pages of a granule. Arenas take whole granules, so that an address determines its arena.
pub const GRANULE_PAGES: usize = 16;
const GRANULE: usize = GRANULE_PAGES * PAGE;

/// Announces to the agent that the pages are about to be discarded, and returns when the agent has acknowledged.
/// Returns `false` if the agent cannot be reached; then the pages must not be discarded.
pub type Announce = fn(Range<usize>) -> bool;

/// Purpose for which pages at given addresses are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageUse {
    /// Memory, which counts towards the limit.
    Committed,
    /// Addresses, to be committed later.
    Reserved,
    /// Memory that counts only when it is touched (`MAP_NORESERVE`): the region may be full by then.
    CountsWhenTouched,
}

/// Result of claiming pages at given addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressClaim {
    /// The pages belong to the caller now.
    Made,
    /// The limit of committed pages would be exceeded.
    NoRoom,
    /// Some of the pages do not belong to the window: they are its probe page, or another mapping covers them.
    NotOurs,
}

/// The window of this process, with the records of its pages.
#[derive(Debug)]
pub struct Window {
    base: usize,
    pages: usize,
    announce: Announce,
    use_of: Lock<WindowUse>,
    /// Whether addresses have ever been reserved. Until then, a query for reserved pages in a signal handler needs no
    /// lock.
    reserves: AtomicBool,
    /// Pages that a mapping of the program covers: they do not belong to the window any more.
    lost: Lock<Ranges<'static>>,
    /// Whether pages may have guards (marks by which an access raises SIGSEGV), which a discard does not remove.
    guarded: AtomicBool,
    /// Arena to which each granule belongs; 0 for none.
    owners: &'static [AtomicU8],
    /// Number of pages of the block that begins at each page; 0 if none begins there.
    lengths: &'static [AtomicU32],
}

impl Window {
    /// Reserves a window of `addresses` bytes, of which at most `bytes` bytes can be committed at a time; the
    /// window begins at `at`, a multiple of a granule, if the addresses there are free, and otherwise at any
    /// address. `None` if there are not enough addresses.
    pub fn reserve(bytes: usize, addresses: usize, at: Option<usize>, announce: Announce) -> Option<Window> {
        let room = |bytes: usize| bytes.checked_next_multiple_of(GRANULE);
        let (committed_max, bytes) = (room(bytes)? / PAGE, room(addresses.max(bytes))?.checked_add(GRANULE)?);
        let pages = bytes / PAGE;
        u32::try_from(pages).ok()?;
        let all = bytes.checked_add(GRANULE)?;
        let whole =
            at.and_then(|base| sys::addresses_at(base, all)).or_else(|| sys::addresses(all))? as usize;
        let base = whole.next_multiple_of(GRANULE);
        // SAFETY: the range was mapped a moment ago and is not used yet; the parts in front of and behind the aligned
        // window are unmapped.
        unsafe {
            sys::munmap(whole as *mut c_void, base - whole);
            sys::munmap((base + bytes) as *mut c_void, whole + GRANULE - base);
            sys::madvise(base as *mut c_void, bytes, MADV_NOHUGEPAGE);
            // The process may have been started with all of its memory to be merged with equal pages. A merged page
            // loses its write protection. The kernel refuses this if it merges no pages.
            sys::madvise(base as *mut c_void, bytes, MADV_UNMERGEABLE);
            sys::mprotect(base as *mut c_void, PAGE, PROT_READ | PROT_WRITE);
        }
        let ranges = || Some(Ranges::new(table(Ranges::words(pages))?, pages, base / PAGE));
        let mut taken = ranges()?;
        // The granule of the probe page is never handed out.
        taken.take_at(0..GRANULE_PAGES);
        let (reserved, touchable) = (ranges()?, ranges()?);
        Some(Window {
            base,
            pages,
            announce,
            use_of: Lock::new(WindowUse::new(taken, [reserved, touchable], committed_max)),
            reserves: AtomicBool::new(false),
            lost: Lock::new(ranges()?),
            guarded: AtomicBool::new(false),
            owners: table(pages / GRANULE_PAGES)?,
            lengths: table(pages)?,
        })
    }

    /// First address of the window, where the probe page is.
    pub fn base(&self) -> usize {
        self.base
    }

    pub fn bytes(&self) -> usize {
        self.pages * PAGE
    }

    /// Maximum number of bytes that are committed at a time.
    pub fn memory(&self) -> usize {
        self.use_of.lock().committed_max * PAGE
    }

    #[inline]
    pub fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.pages * PAGE
    }

    /// Pages of the window that the `bytes` bytes from `address` on touch.
    pub fn part(&self, address: usize, bytes: usize) -> Range<usize> {
        let end = address.saturating_add(bytes).saturating_sub(self.base).div_ceil(PAGE).min(self.pages);
        let start = (address.saturating_sub(self.base) / PAGE).min(end);
        start..end
    }

    #[inline]
    pub fn address(&self, page: usize) -> *mut u8 {
        (self.base + page * PAGE) as *mut u8
    }

    #[inline]
    pub fn page(&self, address: usize) -> usize {
        (address - self.base) / PAGE
    }

    /// Takes and commits `count` free pages, which contain zeros; the first is a multiple of `align`.
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

    /// Takes and commits these pages, if all of them are free.
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

    /// Reserves `count` free pages; fails if too few addresses would be left for memory that may still be committed.
    /// The pages may be touched only if `kind` is [`PageUse::CountsWhenTouched`].
    pub fn take_addresses(&self, count: usize, kind: PageUse) -> Option<usize> {
        let first = {
            let mut use_of = self.use_of.lock();
            if use_of.idle + use_of.lost + count > self.pages - GRANULE_PAGES - use_of.committed_max {
                return None;
            }
            self.reserves.store(true, Relaxed);
            use_of.take_reserved(count, kind == PageUse::CountsWhenTouched)?
        };
        (kind == PageUse::Reserved || self.open(first..first + count)).then_some(first)
    }

    /// Takes these pages, free or not, and discards their content; the caller sets their protection.
    pub fn claim(&self, pages: Range<usize>, kind: PageUse) -> AddressClaim {
        if pages.start < GRANULE_PAGES || self.lost.lock().next_used(pages.clone()).is_some() {
            return AddressClaim::NotOurs;
        }
        let emptied = match kind {
            PageUse::Committed => {
                let committed = self.use_of.lock().commit(pages.clone());
                committed && self.empty(pages)
            }
            PageUse::Reserved | PageUse::CountsWhenTouched => {
                // They are emptied first: pages recorded as reserved have no content.
                let emptied = self.empty(pages.clone());
                self.reserves.store(true, Relaxed);
                self.use_of.lock().reserve(pages, kind == PageUse::CountsWhenTouched);
                emptied
            }
        };
        if emptied { AddressClaim::Made } else { AddressClaim::NoRoom }
    }

    /// Commits those of these pages that are reserved; returns `false` if that would exceed the limit.
    pub fn commit(&self, pages: Range<usize>) -> bool {
        if !self.reserves.load(Relaxed) {
            return true;
        }
        self.use_of.lock().commit_reserved(pages)
    }

    /// Whether some of these pages are reserved, and must not be touched.
    pub fn reserves(&self, pages: Range<usize>) -> bool {
        self.use_of.lock().next_untouchable(pages).is_some()
    }

    /// Makes pages that were just taken accessible; frees them if the kernel refuses.
    fn open(&self, pages: Range<usize>) -> bool {
        let address = self.address(pages.start).cast();
        // SAFETY: the pages belong to the window, and were taken a moment ago.
        let opened = unsafe { sys::mprotect(address, pages.len() * PAGE, PROT_READ | PROT_WRITE) } == 0;
        if !opened {
            let mut use_of = self.use_of.lock();
            use_of.uncount(pages.clone());
            use_of.taken.give(pages);
        }
        opened
    }

    /// Takes granules for an arena, whose number is not 0; the memory contains zeros.
    pub fn take_granules(&self, bytes: usize, arena: u8) -> Option<(*mut u8, usize)> {
        let pages = bytes.checked_next_multiple_of(GRANULE)? / PAGE;
        let first = self.take(pages, GRANULE_PAGES)?;
        let granules = first / GRANULE_PAGES..(first + pages) / GRANULE_PAGES;
        self.owners[granules].iter().for_each(|owner| owner.store(arena, Relaxed));
        Some((self.address(first), pages * PAGE))
    }

    /// Frees granules of an arena.
    pub fn give_granules(&self, address: usize, bytes: usize) {
        let pages = self.part(address, bytes);
        let granules = pages.start / GRANULE_PAGES..pages.end / GRANULE_PAGES;
        self.owners[granules].iter().for_each(|owner| owner.store(0, Relaxed));
        self.give(pages);
    }

    /// Arena to which an address of the window belongs; 0 for none.
    #[inline]
    pub fn owner(&self, address: usize) -> u8 {
        self.owners[self.page(address) / GRANULE_PAGES].load(Relaxed)
    }

    /// Number of pages of the block that begins at an address; 0 if none begins there.
    pub fn block(&self, address: usize) -> usize {
        if !address.is_multiple_of(PAGE) {
            return 0;
        }
        self.lengths[self.page(address)].load(Relaxed) as usize
    }

    /// Records that a block of `pages` pages begins at a page; 0 removes the record.
    pub fn set_block(&self, page: usize, pages: usize) {
        self.lengths[page].store(pages as u32, Relaxed);
    }

    /// Frees pages in any state, and discards their content. Pages that are free already stay free.
    pub fn give(&self, pages: Range<usize>) {
        let mut at = pages.start;
        while let Some(used) = {
            // The probe page is never freed.
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
            let lost = self.next_lost(at..pages.end);
            let whole = at..lost.as_ref().map_or(pages.end, |lost| lost.start);
            // Pages that may still have content stay taken: free pages contain zeros.
            if !whole.is_empty() && self.close(whole.clone()) {
                let mut use_of = self.use_of.lock();
                use_of.uncount(whole.clone());
                use_of.taken.give(whole);
            }
            let Some(lost) = lost else { return };
            at = lost.end;
            // A mapping of the program that covers pages of the window is unmapped; its addresses are not used again.
            // SAFETY: these pages were taken, and their owner gives them back.
            unsafe { sys::munmap(self.address(lost.start).cast(), lost.len() * PAGE) };
        }
    }

    /// Discards the content of pages and makes them inaccessible. Returns `false` if they may still have content.
    fn close(&self, pages: Range<usize>) -> bool {
        let (address, bytes) = (self.address(pages.start).cast(), pages.len() * PAGE);
        let emptied = self.empty(pages);
        // SAFETY: the pages belong to the window, and their owner gives them back. If the kernel refuses the call, an
        // access reads zeros.
        unsafe { sys::mprotect(address, bytes, PROT_NONE) };
        emptied
    }

    /// Discards the content of pages and removes their guards; the caller sets their protection afterwards. Returns
    /// `false` if they may still have content.
    pub fn empty(&self, pages: Range<usize>) -> bool {
        if self.guarded.load(Relaxed) {
            let (address, bytes) = (self.address(pages.start).cast(), pages.len() * PAGE);
            // SAFETY: the pages belong to the window, and their owner discards their content.
            unsafe { sys::madvise(address, bytes, sys::MADV_GUARD_REMOVE) };
        }
        if (self.announce)(pages.clone()) {
            self.drop_content(&pages);
            return true;
        }
        self.each_filled(pages, |filled| {
            let (address, bytes) = (self.address(filled.start), filled.len() * PAGE);
            // SAFETY: the pages belong to the window, and their owner discards their content.
            unsafe {
                let opened = sys::mprotect(address.cast(), bytes, PROT_READ | PROT_WRITE) == 0;
                if opened {
                    address.write_bytes(0, bytes);
                }
                opened
            }
        })
    }

    /// Discards the content of pages, which read as zeros afterwards; their protection stays. Returns `false` if some
    /// pages may still have content, because the agent cannot be reached and their protection is not known.
    pub fn discard(&self, pages: Range<usize>) -> bool {
        if (self.announce)(pages.clone()) {
            self.drop_content(&pages);
            return true;
        }
        let mut at = pages.start;
        while let Some(lost) = self.next_lost(at..pages.end) {
            at = lost.end;
            self.drop_content(&lost);
        }
        // A guard stays when content is discarded, and there is no record of which pages have one: a write to it would
        // end the process.
        !self.guarded.load(Relaxed)
            && self.each_filled(pages, |filled| {
                let start = self.address(filled.start) as usize;
                protection::each(start..start + filled.len() * PAGE, |part| write_zeros(&part))
            })
    }

    fn drop_content(&self, pages: &Range<usize>) {
        let address = self.address(pages.start).cast();
        // SAFETY: the pages belong to the window or to a mapping that covers a part of it, and their owner discards
        // their content.
        unsafe { sys::madvise(address, pages.len() * PAGE, MADV_DONTNEED) };
    }

    /// Calls `act` for each run of these pages that may have content, until it returns `false`; for use while the agent
    /// cannot be reached, which would install the former content of dropped pages again. Free pages and pages that are
    /// only reserved contain zeros: if they were written, they would take up room in the region that nothing counts.
    /// Lost pages belong to another mapping.
    fn each_filled(&self, pages: Range<usize>, mut act: impl FnMut(Range<usize>) -> bool) -> bool {
        let mut at = pages.start;
        while let Some(filled) = self.next_filled(at..pages.end) {
            at = filled.end;
            if !act(filled) {
                return false;
            }
        }
        true
    }

    fn next_filled(&self, within: Range<usize>) -> Option<Range<usize>> {
        let (lost, use_of) = (self.lost.lock(), self.use_of.lock());
        let mut at = within.start;
        while let Some(taken) = use_of.taken.next_used(at..within.end) {
            let skipped = [lost.next_used(taken.clone()), use_of.next_untouchable(taken.clone())];
            match skipped.into_iter().flatten().min_by_key(|skipped| skipped.start) {
                None => return Some(taken),
                Some(skipped) if skipped.start > taken.start => return Some(taken.start..skipped.start),
                Some(skipped) => at = skipped.end,
            }
        }
        None
    }

    /// Number of these pages that mappings of the program cover.
    pub fn covered(&self, pages: Range<usize>) -> usize {
        self.lost.lock().count(pages)
    }

    fn next_lost(&self, within: Range<usize>) -> Option<Range<usize>> {
        self.lost.lock().next_used(within)
    }

    /// Puts guards over pages by calling `install`: the content of the pages is discarded, and they read as zeros once
    /// the guards are removed.
    pub fn guard(&self, pages: Range<usize>, install: impl FnOnce() -> c_int) -> c_int {
        self.guarded.store(true, Relaxed);
        if !(self.announce)(pages) {
            // The caller gets the same error as on a kernel without guards.
            // SAFETY: errno belongs to this thread.
            unsafe { *libc::__errno_location() = libc::EINVAL };
            return -1;
        }
        install()
    }

    /// Removes pages that another mapping covers from the window: the window has neither their content nor their
    /// addresses any more.
    pub fn remove_pages(&self, pages: Range<usize>) {
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
        // The addresses of these pages are not handed out again.
        use_of.taken.set(pages.clone(), true);
        lost.set(pages, true);
    }

    /// Takes the window's locks before a fork.
    pub fn lock_before_fork(&self) {
        self.lost.lock_before_fork();
        self.use_of.lock_before_fork();
    }

    /// Releases the window's locks after a fork, in the parent.
    pub fn unlock_after_fork(&self) {
        self.use_of.unlock_after_fork();
        self.lost.unlock_after_fork();
    }

    /// Resets the window's locks after a fork, in the child.
    pub fn reset(&self) {
        self.lost.reset();
        self.use_of.reset();
    }
}

/// Writes zeros over a part of the window, whose protection stays: a program may rely on the signal that a write to it
/// raises, as a garbage collector does. Returns `false` if the kernel refuses to make the part writable.
fn write_zeros(part: &ProtectedPart) -> bool {
    let (address, bytes) = (part.addresses.start as *mut u8, part.addresses.len());
    let protect = |protection| {
        // SAFETY: the part belongs to the window. A write that another thread makes to it meanwhile may be overwritten,
        // as it may be by the discard that the caller asked for.
        unsafe { sys::mprotect(address.cast(), bytes, protection) == 0 }
    };
    let closed = part.protection & PROT_WRITE == 0;
    if closed && !protect(PROT_READ | PROT_WRITE) {
        return false;
    }
    // SAFETY: the part is mapped and writable, and its owner discards its content.
    unsafe { address.write_bytes(0, bytes) };
    !closed || protect(part.protection)
}

/// Allocates a table of zeros outside the window, which is never freed.
fn table<T: Zeroed>(entries: usize) -> Option<&'static mut [T]> {
    let memory = sys::fresh(entries.checked_mul(size_of::<T>())?.max(1))?;
    // SAFETY: new memory of this size, aligned to a page, all zeros, which are a valid value of every `Zeroed` type; it
    // has no other user, and is never unmapped.
    Some(unsafe { std::slice::from_raw_parts_mut(memory.cast(), entries) })
}

/// # Safety
/// All zeros are a valid value of the type.
unsafe trait Zeroed {}
// SAFETY: 0 is a valid value.
unsafe impl Zeroed for u64 {}
// SAFETY: 0 is a valid value.
unsafe impl Zeroed for AtomicU8 {}
// SAFETY: 0 is a valid value.
unsafe impl Zeroed for AtomicU32 {}

#[cfg(test)]
mod tests {
    use super::*;

    fn unannounced(_: Range<usize>) -> bool {
        true
    }

    fn byte(window: &Window, page: usize) -> u8 {
        // SAFETY: the pages of a window are mapped, and each test has a window of its own.
        unsafe { window.address(page).read_volatile() }
    }

    fn fill(window: &Window, pages: Range<usize>) {
        // SAFETY: the pages of a window are mapped, and each test has a window of its own.
        unsafe { window.address(pages.start).write_bytes(0xAA, pages.len() * PAGE) };
    }

    #[test]
    fn pages_come_as_zeros_and_never_twice() {
        let window = Window::reserve(1 << 20, 2 << 20, None, unannounced).unwrap();
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
        let window = Window::reserve(1 << 20, 1 << 20, None, |_| false).unwrap();
        let first = window.take(8, 1).unwrap();
        fill(&window, first..first + 8);
        // SAFETY: the page belongs to the window of this test, and has no other user.
        unsafe { sys::mprotect(window.address(first).cast(), PAGE, libc::PROT_NONE) };
        window.give(first..first + 4);
        assert_eq!(window.take(4, 1), Some(first));
        assert_eq!([0, 3, 4].map(|page| byte(&window, first + page)), [0, 0, 0xAA]);
    }

    fn protect(window: &Window, page: usize, protection: c_int) {
        // SAFETY: the page belongs to the window of a test, which alone uses it.
        assert_eq!(unsafe { sys::mprotect(window.address(page).cast(), PAGE, protection) }, 0);
    }

    fn protections(window: &Window, pages: Range<usize>) -> Vec<c_int> {
        let mut found = Vec::new();
        let addresses = window.address(pages.start) as usize..window.address(pages.end) as usize;
        let read = protection::each(addresses, |part| {
            found.extend(vec![part.protection; part.addresses.len() / PAGE]);
            true
        });
        assert!(read, "/proc/self/maps is readable");
        found
    }

    #[test]
    fn pages_that_cannot_be_discarded_keep_their_protection() {
        let window = Window::reserve(1 << 20, 1 << 20, None, |_| false).unwrap();
        let first = window.take(4, 1).unwrap();
        fill(&window, first..first + 4);
        protect(&window, first + 1, PROT_READ);
        protect(&window, first + 2, PROT_NONE);
        assert!(window.discard(first..first + 4));
        let usual = PROT_READ | PROT_WRITE;
        assert_eq!(protections(&window, first..first + 4), [usual, PROT_READ, PROT_NONE, usual]);
        protect(&window, first + 2, PROT_READ);
        assert!((first..first + 4).all(|page| byte(&window, page) == 0));
    }

    #[test]
    fn addresses_without_memory_get_none_when_they_cannot_be_discarded() {
        let window = Window::reserve(1 << 20, 2 << 20, None, |_| false).unwrap();
        let first = window.take_addresses(200, PageUse::Reserved).unwrap();
        assert!(window.discard(first..first + 250), "the last 50 are free");
        window.give(first..first + 100);
        let mut resident = [0xFF_u8; 250];
        let address = window.address(first).cast();
        // SAFETY: the range is mapped; the kernel writes a byte for each of its pages.
        assert_eq!(unsafe { libc::mincore(address, 250 * PAGE, resident.as_mut_ptr()) }, 0);
        assert_eq!(resident, [0; 250]);
    }

    #[test]
    fn memory_that_became_addresses_has_lost_its_content() {
        let window = Window::reserve(1 << 20, 2 << 20, None, |_| false).unwrap();
        let first = window.take(4, 1).unwrap();
        fill(&window, first..first + 4);
        assert_eq!(window.claim(first..first + 4, PageUse::Reserved), AddressClaim::Made);
        assert!(window.commit(first..first + 4));
        assert!((first..first + 4).all(|page| byte(&window, page) == 0));
    }

    #[test]
    fn what_is_mapped_over_pages_is_not_written_when_they_cannot_be_discarded() {
        let window = Window::reserve(1 << 20, 1 << 20, None, |_| false).unwrap();
        let first = window.take(4, 1).unwrap();
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let over = window.address(first + 1).cast();
        // SAFETY: the page belongs to the window of this test, which alone uses it.
        assert_eq!(unsafe { sys::mmap(over, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) }, over);
        window.remove_pages(first + 1..first + 2);
        fill(&window, first..first + 4);
        assert!(window.discard(first..first + 4));
        let left = [0, 1, 2, 3].map(|page| byte(&window, first + page));
        assert_eq!(left, [0, 0xAA, 0, 0], "shared memory keeps its content");
    }

    #[test]
    fn guards_are_removed_before_zeros_are_written() {
        let window = Window::reserve(1 << 20, 1 << 20, None, |_| false).unwrap();
        let first = window.take(4, 1).unwrap();
        fill(&window, first..first + 4);
        if !sys::supports(sys::MADV_GUARD_INSTALL) {
            return;
        }
        // SAFETY: the page belongs to the window of this test, which alone uses it.
        unsafe { sys::madvise(window.address(first).cast(), PAGE, sys::MADV_GUARD_INSTALL) };
        window.guarded.store(true, Relaxed);
        assert!(!window.discard(first..first + 4), "which pages have guards is not recorded");
        window.give(first..first + 4);
        assert_eq!(window.take(4, 1), Some(first));
        assert!((first..first + 4).all(|page| byte(&window, page) == 0));
    }

    #[test]
    fn granules_know_their_arena() {
        let window = Window::reserve(1 << 20, 2 << 20, None, unannounced).unwrap();
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
        let window = Window::reserve(1 << 20, 2 << 20, None, unannounced).unwrap();
        let first = window.take(30, 1).unwrap();
        window.remove_pages(first + 10..first + 15);
        window.remove_pages(first + 12..first + 20);
        assert_eq!((window.covered(first..first + 15), window.covered(first + 20..first + 30)), (5, 0));
        window.give(first..first + 30);
        assert_eq!(window.take(10, 1), Some(first));
        assert_eq!(window.take(10, 1), Some(first + 20), "the pages between are gone");
        assert_eq!(window.take(1, 1), Some(first + 30));
    }

    #[test]
    fn addresses_become_memory_when_they_are_committed_and_no_more_than_there_is() {
        let window = Window::reserve(1 << 20, 2 << 20, None, unannounced).unwrap();
        let first = window.take_addresses(200, PageUse::Reserved).unwrap();
        assert_eq!(window.take_addresses(57, PageUse::Reserved), None, "memory needs addresses too");
        assert!(window.commit(first..first + 100) && window.commit(first..first + 100));
        let heap = window.take(156, 1).unwrap();
        fill(&window, heap..heap + 156);
        assert_eq!(window.take(1, 1), None, "all is committed");
        assert!(!window.commit(first..first + 101));
        assert_eq!(window.claim(first + 100..first + 110, PageUse::Committed), AddressClaim::NoRoom);
        assert_eq!(
            window.claim(first..first + 50, PageUse::Committed),
            AddressClaim::Made,
            "had been committed"
        );
        assert_eq!(
            window.claim(first..first + 50, PageUse::Reserved),
            AddressClaim::Made,
            "addresses only again"
        );
        assert_eq!(window.claim(first + 100..first + 150, PageUse::Committed), AddressClaim::Made);
        assert_eq!(window.take(1, 1), None);
        window.give(first..first + 200);
        let after = window.take(100, 1).unwrap();
        assert!((after..after + 100).all(|page| byte(&window, page) == 0));
        assert_eq!(
            (window.take(1, 1), window.claim(0..1, PageUse::Committed)),
            (None, AddressClaim::NotOurs)
        );
    }

    #[test]
    fn guards_go_with_the_pages_they_are_on() {
        let window = Window::reserve(1 << 20, 1 << 20, None, unannounced).unwrap();
        let first = window.take(8, 1).unwrap();
        fill(&window, first..first + 8);
        // SAFETY: the pages belong to the window of this test, which alone uses them.
        let install =
            || unsafe { sys::madvise(window.address(first).cast(), 4 * PAGE, sys::MADV_GUARD_INSTALL) };
        if !sys::supports(sys::MADV_GUARD_INSTALL) {
            return;
        }
        assert_eq!(window.guard(first..first + 4, install), 0);
        window.give(first..first + 8);
        let again = window.take(8, 1).unwrap();
        assert!((again..again + 8).all(|page| byte(&window, page) == 0));
        // Memory that is mapped over them has none either.
        assert_eq!((again, window.guard(first..first + 4, install)), (first, 0));
        assert_eq!(window.claim(first..first + 8, PageUse::Committed), AddressClaim::Made);
        assert!((first..first + 8).all(|page| byte(&window, page) == 0));
    }

    #[test]
    fn parts_are_cut_to_the_window() {
        let window = Window::reserve(1 << 20, 2 << 20, None, unannounced).unwrap();
        let (base, pages) = (window.base(), window.bytes() / PAGE);
        assert_eq!(window.part(base - 4096, 8192), 0..1);
        assert_eq!(window.part(base + 4096, 1), 1..2);
        assert_eq!(window.part(base, usize::MAX), 0..pages);
        assert!(window.part(base - 8192, 8192).is_empty());
        assert!(window.part(base + window.bytes(), 4096).is_empty());
    }
}
