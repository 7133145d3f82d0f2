//! The stacks on which the handler runs. They are mapped before the handler is first called, with a guard
//! below each, and a thread takes one without a lock.
//!
//! ```text
//!   | guard | stack ......... word | guard | stack ......... word | ...    one STRIDE each
//!                             ^ FIRST
//! ```
//!
//! The word on top of a stack is set while a thread uses the stack. A second word, after that of the first
//! stack, is set in the process that first used the pool. A forked child finds zeros (MADV_WIPEONFORK).
//! Stacks that were never used take no memory.

#![expect(unsafe_code, reason = "the handler's stacks are mapped memory")]

use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Number of stacks, and so of threads in the handler at once: as many as can wait at one inline mapping.
pub const STACKS: usize = 128;
/// Size of a stack in bytes. The deepest use measured is below 8 KiB, in an optimised build.
pub const STACK_BYTES: usize = 64 << 10;
/// Distance from one stack to the next, as the exponent of a power of two: a stack, and a guard as large as the largest
/// page of supported kernels.
pub(super) const STRIDE_BITS: u32 = 17;
const STRIDE: usize = 1 << STRIDE_BITS;
/// Room for the words on top of a stack: a cache line, against false sharing.
const WORD_ROOM: usize = 64;

const _: () = assert!(STACKS.is_power_of_two() && STACK_BYTES * 2 == STRIDE);

/// Address of the first stack's word, below which the stack begins; 0 before the stacks are mapped.
pub(super) static FIRST: AtomicUsize = AtomicUsize::new(0);

/// Maps the stacks, unless they are mapped already.
pub(super) fn make() -> io::Result<()> {
    if FIRST.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let bytes = STACKS * STRIDE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: maps new memory at an address that the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let made = protect(start as usize);
    if made.is_err() {
        // SAFETY: the memory was mapped just now and has no other user.
        unsafe { libc::munmap(start, bytes) };
        return made;
    }
    FIRST.store(start as usize + STRIDE - WORD_ROOM, Ordering::Release);
    Ok(())
}

/// The word that is not 0 in the process that uses the pool, and 0 in a forked child; `None` before the stacks are
/// mapped.
fn mark() -> Option<&'static AtomicU32> {
    let first = FIRST.load(Ordering::Acquire);
    // SAFETY: the word lies behind that of the first stack, where nothing else is; the memory stays mapped.
    (first != 0).then(|| unsafe { AtomicU32::from_ptr((first + WORD_ROOM / 2) as *mut u32) })
}

/// Whether this process is a forked child of the process that last called [`adopt`].
pub fn is_child() -> bool {
    mark().is_some_and(|mark| mark.load(Ordering::Relaxed) == 0)
}

/// Marks the stacks as those of this process; a forked child does not inherit the mark.
pub fn adopt() {
    if let Some(mark) = mark() {
        mark.store(1, Ordering::Release);
    }
}

/// Makes the stacks in the memory at `start` accessible, and has the kernel clear them in a forked child.
fn protect(start: usize) -> io::Result<()> {
    for stack in 0..STACKS {
        let bottom = (start + stack * STRIDE + (STRIDE - STACK_BYTES)) as *mut libc::c_void;
        // SAFETY: a part of the memory that was mapped just now; it has no other user.
        if unsafe { libc::mprotect(bottom, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: the advice only changes the content of the memory in a forked child.
    match unsafe { libc::madvise(start as *mut libc::c_void, STACKS * STRIDE, libc::MADV_WIPEONFORK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Deepest use of the stacks since the start of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackUse {
    /// Number of stacks that have been used.
    pub stacks: usize,
    /// Largest number of bytes used of one stack.
    pub deepest: usize,
}

/// Measures the use of each stack by its lowest byte that is not 0. Reads all stacks, so it is for tests.
pub fn used() -> StackUse {
    let first = FIRST.load(Ordering::Acquire);
    if first == 0 {
        return StackUse::default();
    }
    let depths = (0..STACKS).map(|stack| {
        let (top, bottom) = (first + stack * STRIDE, first + stack * STRIDE + WORD_ROOM - STACK_BYTES);
        // SAFETY: reads a word of a stack, which stays mapped; a thread may write it at the same time, and either value
        // will do.
        let is_used = |word: &usize| unsafe { (*word as *const u64).read_volatile() } != 0;
        (bottom..top).step_by(size_of::<u64>()).find(is_used).map_or(0, |word| top - word)
    });
    depths.filter(|depth| *depth > 0).fold(StackUse::default(), |used, depth| StackUse {
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
    /// Tests that the stacks in use at a fork are free in the child, which has no thread that could give them back.
    #[test]
    fn a_child_finds_all_stacks_free() {
        make().unwrap();
        let first = FIRST.load(Ordering::Acquire);
        // SAFETY: the words are those of this pool, which no thread uses.
        let words = |stack: usize| unsafe { AtomicU32::from_ptr((first + stack * STRIDE) as *mut u32) };
        (0..STACKS).for_each(|stack| words(stack).store(1, Ordering::SeqCst));
        adopt();
        assert!(!is_child());
        // SAFETY: the child reads memory and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let alone = usize::from(!is_child());
            let taken = alone + (0..STACKS).filter(|stack| words(*stack).load(Ordering::SeqCst) != 0).count();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(taken.min(100) as i32) };
        }
        (0..STACKS).for_each(|stack| words(stack).store(0, Ordering::SeqCst));
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    }
}
