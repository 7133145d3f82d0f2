//! The stacks that the handler runs on: mapped before it is ever called, a guard below each, found and taken without a
//! lock.
//!
//! ```text
//!   | guard | stack ......... word | guard | stack ......... word | ...    one STRIDE each
//!                             ^ FIRST
//! ```
//!
//! The word on top of a stack says whether a thread is on it; the one behind the first stack's, whether this process is the
//! one that began to use them. A child finds zeros. Pages of stacks that nobody was on take no memory.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Threads that can be in the handler at once: as many as can wait at the counter of a mapping.
pub const STACKS: usize = 128;
/// Bytes of a stack. The deepest use measured is below 8 KiB, optimised; a guard as large follows below.
pub const STACK_BYTES: usize = 64 << 10;
/// From a stack to the next, as a power of two. Guards are as large as the largest page of the kernels we run on.
pub(super) const STRIDE_BITS: u32 = 17;
const STRIDE: usize = 1 << STRIDE_BITS;
/// What is kept for the word: a cache line, so that neighbours do not disturb each other.
const WORD_ROOM: usize = 64;

const _: () = assert!(STACKS.is_power_of_two() && STACK_BYTES * 2 == STRIDE);

/// The address of the first stack's word; the stack begins just below. 0 until there are stacks.
pub(super) static FIRST: AtomicUsize = AtomicUsize::new(0);

/// Maps the stacks, the first time.
pub(super) fn make() -> io::Result<()> {
    if FIRST.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let bytes = STACKS * STRIDE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: asks for new memory, wherever there is room.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let made = protect(start as usize);
    if made.is_err() {
        // SAFETY: nobody knows of this memory.
        unsafe { libc::munmap(start, bytes) };
        return made;
    }
    FIRST.store(start as usize + STRIDE - WORD_ROOM, Ordering::Release);
    Ok(())
}

/// The word that says whose stacks these are, once there are some.
fn mark() -> Option<&'static AtomicU32> {
    let first = FIRST.load(Ordering::Acquire);
    // SAFETY: behind the word of the first stack, where nothing else is; the memory stays mapped.
    (first != 0).then(|| unsafe { AtomicU32::from_ptr((first + WORD_ROOM / 2) as *mut u32) })
}

/// Whether this process is a child of the one that last said that the stacks are its own.
pub fn is_child() -> bool {
    mark().is_some_and(|mark| mark.load(Ordering::Relaxed) == 0)
}

/// Says that the stacks are this process's own.
pub fn adopt() {
    if let Some(mark) = mark() {
        mark.store(1, Ordering::Release);
    }
}

/// Makes stacks of the memory at `start`, and has children find all of them free.
fn protect(start: usize) -> io::Result<()> {
    for stack in 0..STACKS {
        let bottom = (start + stack * STRIDE + (STRIDE - STACK_BYTES)) as *mut libc::c_void;
        // SAFETY: a part of the memory that was mapped a moment ago, which nobody uses.
        if unsafe { libc::mprotect(bottom, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: changes what a fork does with that memory.
    match unsafe { libc::madvise(start as *mut libc::c_void, STACKS * STRIDE, libc::MADV_WIPEONFORK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How far the stacks were used, in the life of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Stacks that a thread was on.
    pub stacks: usize,
    /// Bytes that were used at most on one of them.
    pub deepest: usize,
}

/// How far the stacks were used: what lies below was never written. Looks at all of them, and is for tests.
pub fn used() -> Used {
    let first = FIRST.load(Ordering::Acquire);
    if first == 0 {
        return Used::default();
    }
    let depths = (0..STACKS).map(|stack| {
        let (top, bottom) = (first + stack * STRIDE, first + stack * STRIDE + WORD_ROOM - STACK_BYTES);
        // SAFETY: a word of a stack, which stays mapped; threads on it may write meanwhile, and any word will do.
        let is_used = |word: &usize| unsafe { (*word as *const u64).read_volatile() } != 0;
        (bottom..top).step_by(size_of::<u64>()).find(is_used).map_or(0, |word| top - word)
    });
    depths.filter(|depth| *depth > 0).fold(Used::default(), |used, depth| Used {
        stacks: used.stacks + 1,
        deepest: used.deepest.max(depth),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_have_guards_and_begin_below_their_words() {
        make().unwrap();
        make().unwrap();
        let first = FIRST.load(Ordering::Acquire);
        assert_eq!(first % 64, 0);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let rights = |address: usize| {
            maps.lines().find_map(|line| {
                let (range, rest) = line.split_once(' ')?;
                let (start, end) = range.split_once('-')?;
                let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
                (start..end).contains(&address).then(|| rest[..4].to_owned())
            })
        };
        for stack in 0..STACKS {
            let word = first + stack * STRIDE;
            let bottom = word + WORD_ROOM - STACK_BYTES;
            assert_eq!(rights(word).as_deref(), Some("rw-p"), "{stack}");
            assert_eq!(rights(bottom).as_deref(), Some("rw-p"), "{stack}");
            assert_eq!(rights(bottom - 1).as_deref(), Some("---p"), "{stack}");
        }
    }
    /// A child has no thread that would ever give a stack back.
    #[test]
    fn a_child_finds_all_stacks_free() {
        make().unwrap();
        let first = FIRST.load(Ordering::Acquire);
        // SAFETY: the words are this pool's, in which no thread is.
        let words = |stack: usize| unsafe { AtomicU32::from_ptr((first + stack * STRIDE) as *mut u32) };
        (0..STACKS).for_each(|stack| words(stack).store(1, Ordering::SeqCst));
        adopt();
        assert!(!is_child());
        // SAFETY: the child reads memory and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let alone = usize::from(!is_child());
            let taken = alone + (0..STACKS).filter(|stack| words(*stack).load(Ordering::SeqCst) != 0).count();
            // SAFETY: ends the child, without what the parent would do at its end.
            unsafe { libc::_exit(taken.min(100) as i32) };
        }
        (0..STACKS).for_each(|stack| words(stack).store(0, Ordering::SeqCst));
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    }
}
