//! Heap memory of this process as its allocator counts it: the size of a data structure is the difference of two
//! counts.

/// Bytes now allocated; `None` if the allocator does not report them (C libraries other than glibc).
#[cfg(target_env = "gnu")]
pub fn used() -> Option<u64> {
    // SAFETY: the call takes no arguments, returns a plain structure, and locks what it reads.
    let info = unsafe { libc::mallinfo2() };
    // Small blocks of all arenas, and large blocks, each of which has a mapping of its own.
    Some((info.uordblks + info.hblkhd) as u64)
}

/// Bytes now allocated; `None` if the allocator does not report them (C libraries other than glibc).
#[cfg(not(target_env = "gnu"))]
pub fn used() -> Option<u64> {
    None
}

/// Result of `make`, and the growth of the heap in bytes while `make` ran.
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
        // Other tests of this program allocate at the same time.
        assert!(bytes >= 8 << 20, "{bytes}");
        assert_eq!(kept.1.len(), 1000);
    }
}
