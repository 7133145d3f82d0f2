//! How much memory this process holds, as its allocator counts it: what a data structure costs is the difference.

/// Bytes handed out by the allocator at this moment, or `None` where it does not say (other C libraries than glibc).
#[cfg(target_env = "gnu")]
pub fn used() -> Option<u64> {
    // SAFETY: the call takes nothing, returns a plain structure, and locks what it looks at.
    let info = unsafe { libc::mallinfo2() };
    // Small blocks of all arenas, and large ones that have a mapping of their own.
    Some((info.uordblks + info.hblkhd) as u64)
}

/// Bytes handed out by the allocator at this moment, or `None` where it does not say (other C libraries than glibc).
#[cfg(not(target_env = "gnu"))]
pub fn used() -> Option<u64> {
    None
}

/// What `make` makes, and by how many bytes this process holds more since.
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
        // Other tests of this program come and go meanwhile.
        assert!(bytes >= 8 << 20, "{bytes}");
        assert_eq!(kept.1.len(), 1000);
    }
}
