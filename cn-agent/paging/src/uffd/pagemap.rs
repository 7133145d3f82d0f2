//! Entries of `/proc/PID/pagemap`, one word for each page, and what this kernel shows in them.

#![expect(unsafe_code, reason = "the probe registers a page of its own with a userfaultfd")]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use cxloe_cn_core::pager::{PAGE_BYTES, PageRecords};
use memmap2::{MmapOptions, MmapRaw};

use super::{Features, Modes, Uffd};

/// Bits of an entry for a page in memory (63) or in swap (62). A guard page has one of them set, too.
pub(crate) const SOMETHING: u64 = 0b11 << 62;
/// Bit of an entry for a guard page of the program: touching that raises SIGSEGV.
const GUARD: u64 = 1 << 58;
/// Bit of an entry for a page that is write-protected by userfaultfd (Linux 5.13).
const PROTECTED: u64 = 1 << 57;

/// Whether an entry belongs to a page in memory or in swap, and not to a guard page.
#[inline]
pub(crate) fn is_something(entry: u64) -> bool {
    entry & SOMETHING != 0 && entry & GUARD == 0
}

/// Summary of 64 entries as bit masks: which pages are present, and which are write-protected.
#[inline]
pub(crate) fn records(entries: &[u64; u64::BITS as usize]) -> PageRecords {
    let mask = |is: fn(u64) -> bool| {
        let bits = entries.iter().enumerate().map(|(bit, entry)| u64::from(is(*entry)) << bit);
        bits.fold(0, |all, bit| all | bit)
    };
    PageRecords { present: mask(is_something), protected: mask(|entry| entry & PROTECTED != 0) }
}

/// Reads entries from an open page table, from `address` on.
///
/// # Errors
/// The kernel's error; [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the memory is gone.
#[inline]
pub(crate) fn read<const N: usize>(table: &File, address: u64) -> io::Result<[u64; N]> {
    let mut bytes = [[0; 8]; N];
    let read = table.read_at(bytes.as_flattened_mut(), address / PAGE_BYTES as u64 * 8)?;
    // A short read is no error: the address space ends within these entries, and the entries that were not read stay 0.
    if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes.map(u64::from_le_bytes)) }
}

/// Tests with a page of this process whether this kernel shows write protection in the entries.
pub fn shows_protection() -> bool {
    try_protection().unwrap_or(false)
}

fn try_protection() -> Option<bool> {
    let page = MmapRaw::from(MmapOptions::new().len(PAGE_BYTES).populate().map_anon().ok()?);
    let uffd = Uffd::create_user_only().or_else(|_| Uffd::create()).ok()?;
    uffd.handshake(Features::WRITE_PROTECT).ok()?;
    let start = page.as_ptr() as u64;
    let range = start..start + PAGE_BYTES as u64;
    // SAFETY: the page was mapped a moment ago, and nothing accesses it.
    unsafe { uffd.register(range.clone(), Modes::WRITE_PROTECT) }.ok()?;
    uffd.protect(range).ok()?;
    let [entry] = read(&File::open("/proc/self/pagemap").ok()?, start).ok()?;
    Some(entry & PROTECTED != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_told_apart() {
        let (present, swapped) = (1 << 63, 1 << 62);
        let mut entries = [0; 64];
        entries[..5].copy_from_slice(&[
            present,
            present | PROTECTED,
            swapped | PROTECTED,
            GUARD | swapped,
            0,
        ]);
        assert_eq!(records(&entries), PageRecords { present: 0b00111, protected: 0b00110 });
    }
}
