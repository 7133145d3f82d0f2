//! The program's heap in the window: `malloc` and its related functions.
//!
//! Small blocks come from arenas (dlmalloc, each over granules of its own). A large block consists of whole pages of
//! the window, which are given back as soon as it is freed. The smallest blocks have separate arenas: nodes of data
//! structures are touched more often than their data, and stay resident more easily when they lie together. A thread
//! tries its own arena first, and another one rather than wait: the holder of an arena may be waiting for a page. A
//! freed block returns to the arena in whose granule it lies.

#![expect(unsafe_code, reason = "a heap hands out raw memory")]

use std::ptr::null_mut;

use dlmalloc::{Allocator, Dlmalloc};

use crate::lock::{Lock, LockGuard};
use crate::sys::{PAGE, thread_hash};
use crate::window::{GRANULE_PAGES, Window};

/// Number of arenas for tiny blocks, and of arenas for other small blocks.
const ARENAS: usize = 8;
/// Blocks up to this size have arenas of their own: nodes, headers, short strings.
const TINY: usize = 128;
/// Blocks of at least this size are whole pages.
const LARGE: usize = 1 << 20;
/// Number of bytes that an arena takes at a time.
const SEGMENT: usize = 1 << 20;
/// Alignment of blocks from `malloc`, in bytes.
const ALIGN: usize = 16;

/// Source of an arena's memory: granules of the window.
struct Granules {
    window: &'static Window,
    arena: u8,
}

// SAFETY: the memory handed out is mapped, has no other user, and stays mapped until it is given back.
unsafe impl Allocator for Granules {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match self.window.take_granules(size, self.arena) {
            Some((address, bytes)) => (address, bytes, 0),
            None => (null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, ptr: *mut u8, oldsize: usize, newsize: usize) -> bool {
        self.window.give_granules(ptr as usize + newsize, oldsize - newsize);
        true
    }

    fn free(&self, ptr: *mut u8, size: usize) -> bool {
        self.window.give_granules(ptr as usize, size);
        true
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

/// The heap of a process. Must not be moved once it is used, because arenas point to themselves.
pub struct Heap {
    window: &'static Window,
    /// Arenas for tiny blocks, followed by those for other small blocks.
    arenas: [Lock<Dlmalloc<Granules>>; 2 * ARENAS],
}

/// Kind and place of a block.
enum Block {
    /// A block in the arena with this index.
    Small(usize),
    /// A block of this many whole pages.
    Large(usize),
}

impl Heap {
    pub fn new(window: &'static Window) -> Heap {
        let arena = |index: usize| {
            let mut arena = Dlmalloc::new_with_allocator(Granules { window, arena: index as u8 + 1 });
            arena.set_granularity(SEGMENT);
            Lock::new(arena)
        };
        Heap { window, arenas: std::array::from_fn(arena) }
    }

    /// As `memalign`, for a power of two `align`. Null when there is no room.
    pub fn allocate(&self, bytes: usize, align: usize) -> *mut u8 {
        if bytes.saturating_add(align) >= LARGE {
            return self.allocate_large(bytes, align);
        }
        let mut arena = self.arena(bytes);
        // SAFETY: any size is valid, and `align` is a power of two.
        unsafe { arena.c_memalign(align, bytes) }
    }

    /// As `calloc` for `bytes` bytes. Null when there is no room.
    pub fn allocate_zeroed(&self, bytes: usize) -> *mut u8 {
        let block = self.allocate(bytes, ALIGN);
        // Large blocks are newly taken pages of the window, which contain zeros.
        if !block.is_null() && bytes.saturating_add(ALIGN) < LARGE {
            // SAFETY: the block has this many bytes.
            unsafe { block.write_bytes(0, bytes) };
        }
        block
    }

    /// Frees a block. Does nothing for an address at which no block begins.
    ///
    /// # Safety
    /// `block` is a block of this heap, and is not used any more.
    pub unsafe fn free(&self, block: *mut u8) {
        match self.block(block) {
            // SAFETY: `block` is live, as the caller ensures, and belongs to this arena, since it lies in the arena's
            // granule.
            Some(Block::Small(arena)) => unsafe { self.arenas[arena].lock().c_free(block) },
            Some(Block::Large(pages)) => {
                let first = self.window.page(block as usize);
                self.window.set_block(first, 0);
                self.window.give(first..first + pages);
            }
            None => {}
        }
    }

    /// As `realloc` to more than 0 bytes. Null when there is no room; then the block is unchanged.
    ///
    /// # Safety
    /// `block` is a block of this heap, and is not used any more under its old address.
    pub unsafe fn reallocate(&self, block: *mut u8, bytes: usize) -> *mut u8 {
        match self.block(block) {
            Some(Block::Small(arena)) if bytes.saturating_add(ALIGN) < LARGE => {
                // SAFETY: `block` is live, as the caller ensures, and belongs to this arena, since it lies in the
                // arena's granule.
                return unsafe { self.arenas[arena].lock().c_realloc(block, bytes) };
            }
            Some(Block::Large(pages)) if bytes.saturating_add(ALIGN) >= LARGE => {
                if self.resize(self.window.page(block as usize), pages, bytes.div_ceil(PAGE)) {
                    return block;
                }
            }
            Some(_) => {}
            None => return null_mut(),
        }
        let moved = self.allocate(bytes, ALIGN);
        if !moved.is_null() {
            // SAFETY: the old block has at least the bytes copied, the new one has the requested bytes, and they do not
            // overlap.
            unsafe {
                moved.copy_from_nonoverlapping(block, self.usable(block).min(bytes));
                self.free(block);
            }
        }
        moved
    }

    /// As `malloc_usable_size`.
    ///
    /// # Safety
    /// `block` is a block of this heap.
    pub unsafe fn usable(&self, block: *mut u8) -> usize {
        match self.block(block) {
            // SAFETY: the word in front of a block of dlmalloc is the size of its chunk, which includes that word, with
            // flags in the three lowest bits.
            Some(Block::Small(_)) => unsafe {
                (block.cast::<usize>().sub(1).read() & !7) - size_of::<usize>()
            },
            Some(Block::Large(pages)) => pages * PAGE,
            None => 0,
        }
    }

    /// Takes all locks of the heap and of the window, before a fork.
    pub fn lock_before_fork(&self) {
        self.arenas.iter().for_each(Lock::lock_before_fork);
        self.window.lock_before_fork();
    }

    /// Releases the locks after a fork, in the parent.
    pub fn unlock_after_fork(&self) {
        self.window.unlock_after_fork();
        self.arenas.iter().for_each(Lock::unlock_after_fork);
    }

    /// Resets the locks after a fork, in the child.
    pub fn reset(&self) {
        self.window.reset();
        self.arenas.iter().for_each(Lock::reset);
    }

    #[inline]
    fn arena(&self, bytes: usize) -> LockGuard<'_, Dlmalloc<Granules>> {
        let (tiny, others) = self.arenas.split_at(ARENAS);
        let arenas = if bytes <= TINY { tiny } else { others };
        let own = thread_hash() % ARENAS;
        let mut all = arenas[own..].iter().chain(&arenas[..own]);
        all.find_map(Lock::try_lock).unwrap_or_else(|| arenas[own].lock())
    }

    /// Kind of a block; `None` if it is not a block of this heap (a caller's error).
    #[inline]
    fn block(&self, block: *mut u8) -> Option<Block> {
        match self.window.owner(block as usize) {
            0 => Some(self.window.block(block as usize)).filter(|pages| *pages > 0).map(Block::Large),
            owner => Some(Block::Small(usize::from(owner) - 1)),
        }
    }

    fn allocate_large(&self, bytes: usize, align: usize) -> *mut u8 {
        // A block smaller than `LARGE` also gets whole pages if its alignment is large.
        let pages = bytes.div_ceil(PAGE).max(1);
        // A granule has one owner, so large blocks take whole granules and leave no part to an arena.
        let align = (align / PAGE).max(1);
        let granules = pages.next_multiple_of(GRANULE_PAGES);
        match self.window.take(granules, align.max(GRANULE_PAGES)) {
            Some(first) => {
                self.window.set_block(first, granules);
                self.window.address(first)
            }
            None => null_mut(),
        }
    }

    /// Shrinks a large block, or enlarges it in place. Returns whether that succeeded.
    fn resize(&self, first: usize, pages: usize, wanted: usize) -> bool {
        let wanted = wanted.next_multiple_of(GRANULE_PAGES);
        if wanted < pages {
            self.window.set_block(first, wanted);
            self.window.give(first + wanted..first + pages);
        } else if wanted > pages {
            if !self.window.take_at(first + pages..first + wanted) {
                return false;
            }
            self.window.set_block(first, wanted);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    fn heap(bytes: usize) -> &'static Heap {
        fn unannounced(_: Range<usize>) -> bool {
            true
        }
        let window = Box::leak(Box::new(Window::reserve(bytes, bytes, None, unannounced).unwrap()));
        Box::leak(Box::new(Heap::new(window)))
    }

    fn is_marked(block: *mut u8, bytes: usize, seed: u8) -> bool {
        // SAFETY: the block is live and has this many bytes.
        let content = unsafe { std::slice::from_raw_parts(block, bytes) };
        content.iter().enumerate().all(|(at, byte)| *byte == seed ^ at as u8)
    }

    fn mark(block: *mut u8, bytes: usize, seed: u8) {
        // SAFETY: the block is live and has this many bytes.
        let content = unsafe { std::slice::from_raw_parts_mut(block, bytes) };
        content.iter_mut().enumerate().for_each(|(at, byte)| *byte = seed ^ at as u8);
    }

    #[derive(Clone, Debug)]
    enum HeapStep {
        Allocate { bytes: usize, align: u32 },
        Zeroed { bytes: usize },
        Reallocate { which: usize, bytes: usize },
        Free { which: usize },
    }

    fn sizes() -> impl Strategy<Value = usize> {
        prop_oneof![0_usize..200, 0_usize..100_000, LARGE - 100..LARGE + 100, LARGE..2 * LARGE]
    }

    fn steps() -> impl Strategy<Value = HeapStep> {
        prop_oneof![
            2 => (sizes(), 0_u32..20).prop_map(|(bytes, align)| HeapStep::Allocate { bytes, align }),
            1 => sizes().prop_map(|bytes| HeapStep::Zeroed { bytes }),
            2 => (any::<usize>(), sizes()).prop_map(|(which, bytes)| HeapStep::Reallocate { which, bytes: bytes.max(1) }),
            2 => any::<usize>().prop_map(|which| HeapStep::Free { which }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Tests that blocks keep their content whatever is done to other blocks, and have the requested size and
        /// alignment.
        #[test]
        fn blocks_keep_their_bytes(steps in prop::collection::vec(steps(), 0..80)) {
            let heap = heap(64 << 20);
            let mut live: Vec<(*mut u8, usize, u8)> = Vec::new();
            for (at, step) in steps.into_iter().enumerate() {
                let seed = at as u8;
                match step {
                    HeapStep::Allocate { bytes, align } => {
                        let block = heap.allocate(bytes, 1 << align);
                        if block.is_null() { continue }
                        prop_assert!((block as usize).is_multiple_of(1 << align));
                        mark(block, bytes, seed);
                        live.push((block, bytes, seed));
                    }
                    HeapStep::Zeroed { bytes } => {
                        let block = heap.allocate_zeroed(bytes);
                        if block.is_null() { continue }
                        // SAFETY: the block is live and has this many bytes.
                        let content = unsafe { std::slice::from_raw_parts(block, bytes) };
                        prop_assert!(content.iter().all(|byte| *byte == 0));
                        mark(block, bytes, seed);
                        live.push((block, bytes, seed));
                    }
                    HeapStep::Reallocate { which, bytes } if !live.is_empty() => {
                        let which = which % live.len();
                        let (block, before, old) = live[which];
                        // SAFETY: the block is live, and not used under its old address any more.
                        let moved = unsafe { heap.reallocate(block, bytes) };
                        if moved.is_null() { continue }
                        prop_assert!(is_marked(moved, before.min(bytes), old));
                        mark(moved, bytes, seed);
                        live[which] = (moved, bytes, seed);
                    }
                    HeapStep::Free { which } if !live.is_empty() => {
                        let (block, bytes, seed) = live.swap_remove(which % live.len());
                        prop_assert!(is_marked(block, bytes, seed));
                        // SAFETY: the block is live, and not used any more.
                        unsafe { heap.free(block) };
                    }
                    _ => {}
                }
                for (block, bytes, _) in &live {
                    // SAFETY: the block is live.
                    let usable = unsafe { heap.usable(*block) };
                    prop_assert!(usable >= *bytes);
                }
            }
            for (block, bytes, seed) in live {
                prop_assert!(is_marked(block, bytes, seed));
            }
        }
    }

    #[test]
    fn usable_bytes_are_usable() {
        let heap = heap(16 << 20);
        let blocks: Vec<(*mut u8, usize)> = (0..2000)
            .map(|bytes| {
                let block = heap.allocate(bytes, ALIGN);
                // SAFETY: the block is live.
                let usable = unsafe { heap.usable(block) };
                mark(block, usable, bytes as u8);
                (block, usable)
            })
            .collect();
        assert!(
            blocks.iter().enumerate().all(|(seed, (block, usable))| is_marked(*block, *usable, seed as u8))
        );
    }

    #[test]
    fn no_room_is_null_and_freed_room_is_room_again() {
        let heap = heap(4 << 20);
        assert!(heap.allocate(8 << 20, 16).is_null());
        assert!(heap.allocate(usize::MAX, 16).is_null());
        assert!(heap.allocate(usize::MAX - 100, 4096).is_null());
        for _ in 0..10 {
            let mut blocks = Vec::new();
            while let Some(block) = Some(heap.allocate(64 << 10, 16)).filter(|block| !block.is_null()) {
                blocks.push(block);
            }
            assert!(blocks.len() > 40, "{} blocks", blocks.len());
            // SAFETY: the blocks are live, and not used any more.
            blocks.into_iter().for_each(|block| unsafe { heap.free(block) });
            let large = heap.allocate(2 << 20, 16);
            assert!(!large.is_null(), "what arenas have free goes back");
            // SAFETY: the block is live, and not used any more.
            unsafe { heap.free(large) };
        }
    }

    #[test]
    fn threads_allocate_at_once_and_free_for_each_other() {
        let heap = heap(64 << 20);
        let (sender, receiver) = std::sync::mpsc::channel::<HashMap<usize, (usize, u8)>>();
        std::thread::scope(|scope| {
            for seed in 0..4_u8 {
                let sender = sender.clone();
                scope.spawn(move || {
                    for round in 0..50_u8 {
                        let blocks = (0..100).map(|at| {
                            let bytes = 1 + at * 37;
                            let block = heap.allocate(bytes, 16);
                            mark(block, bytes, seed ^ round);
                            (block as usize, (bytes, seed ^ round))
                        });
                        sender.send(blocks.collect()).unwrap();
                    }
                });
            }
            drop(sender);
            for blocks in receiver {
                for (block, (bytes, seed)) in blocks {
                    let block = block as *mut u8;
                    assert!(is_marked(block, bytes, seed));
                    // SAFETY: the block is live, and not used any more.
                    unsafe { heap.free(block) };
                }
            }
        });
    }
}
