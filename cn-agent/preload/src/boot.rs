//! Memory for allocations made before the process has chosen its allocator: those of the dynamic linker, and of `dlsym`
//! while it looks up the C library's own functions. The memory comes from a small arena in this library's own data;
//! blocks of the arena are never freed.

#![expect(unsafe_code, reason = "allocations are cut from a static arena")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

const BYTES: usize = 512 << 10;
const ALIGN: usize = 16;

#[repr(C, align(4096))]
struct Arena(UnsafeCell<[u8; BYTES]>);

// SAFETY: each byte is handed out once; the arena itself accesses only the size in front of each block, before it hands
// the block out.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(UnsafeCell::new([0; BYTES]));
static TAKEN: AtomicUsize = AtomicUsize::new(0);

fn start() -> usize {
    ARENA.0.get() as usize
}

#[inline]
pub fn holds(pointer: *const u8) -> bool {
    (pointer as usize).wrapping_sub(start()) < BYTES
}

/// Takes a block of zeroed memory; null when the arena is exhausted.
pub fn take(bytes: usize, align: usize) -> *mut u8 {
    let align = align.max(ALIGN);
    let taken = TAKEN.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |taken| {
        let place = place(taken, align)?;
        place.checked_add(bytes).filter(|end| *end <= BYTES)
    });
    let Ok(place) = taken.map(|taken| place(taken, align).unwrap_or(BYTES)) else {
        return std::ptr::null_mut();
    };
    let pointer = (start() + place) as *mut u8;
    // SAFETY: the word before the block belongs to it: `place` left room for it.
    unsafe { pointer.cast::<usize>().sub(1).write(bytes) };
    pointer
}

/// Offset of the next block: aligned, with room in front for the block's size.
fn place(taken: usize, align: usize) -> Option<usize> {
    let first = start().checked_add(taken)?.checked_add(size_of::<usize>())?;
    Some(first.checked_next_multiple_of(align)? - start())
}

/// Size in bytes of a block of this arena.
///
/// # Safety
/// The block came from [`take`].
pub unsafe fn size(pointer: *const u8) -> usize {
    // SAFETY: `take` wrote the size in front of the block.
    unsafe { pointer.cast::<usize>().sub(1).read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_out_zeroed_places_that_know_their_size() {
        let first = take(100, 1);
        let second = take(0, 64);
        let third = take(4096, 4096);
        for (pointer, bytes, align) in [(first, 100, 16), (second, 0, 64), (third, 4096, 4096)] {
            assert!(holds(pointer) && (pointer as usize).is_multiple_of(align));
            // SAFETY: `take` returned the blocks, each with this many bytes.
            unsafe {
                assert_eq!(size(pointer), bytes);
                assert!((0..bytes).all(|at| pointer.add(at).read() == 0));
                pointer.write_bytes(0xAA, bytes);
                assert_eq!(size(pointer), bytes);
            }
        }
        assert!(take(BYTES, 16).is_null());
        assert!(take(usize::MAX, 16).is_null());
        assert!(!holds(std::ptr::null()));
    }
}
