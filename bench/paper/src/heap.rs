//! Heap memory of this process, as its allocator counts it. The size of a data structure is the difference
//! between two counts.

/// Returns the number of bytes now allocated; `None` with C libraries other than glibc, whose allocators do
/// not report it.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "mallinfo2 is a function of the C library")]
pub fn used() -> Option<u64> {
    // SAFETY: the call takes no arguments, returns a plain structure, and locks what it reads.
    let info = unsafe { libc::mallinfo2() };
    // `uordblks` counts the small blocks of all arenas; `hblkhd` counts the large blocks, each of which has a mapping
    // of its own.
    Some((info.uordblks + info.hblkhd) as u64)
}

/// Returns `None`, because this C library's allocator does not report the bytes allocated.
#[cfg(not(target_env = "gnu"))]
pub fn used() -> Option<u64> {
    None
}

/// Returns the result of `make`, and the growth of the heap in bytes while `make` ran.
pub fn grown<T>(make: impl FnOnce() -> T) -> (T, Option<i64>) {
    let before = used();
    let made = make();
    (made, used().zip(before).map(|(after, before)| after as i64 - before as i64))
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn large_and_small_blocks_are_counted() {
        let (kept, bytes) = grown(|| (vec![0_u8; 8 << 20], vec![vec![1_u8; 1000]; 1000]));
        let bytes = bytes.unwrap();
        // Other tests of this program allocate at the same time, so only a lower bound is certain.
        assert!(bytes >= 8 << 20, "{bytes}");
        assert_eq!(kept.1.len(), 1000);
    }
}
