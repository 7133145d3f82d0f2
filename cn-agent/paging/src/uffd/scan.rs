//! Scanning a range for pages that have been written to, by `PAGEMAP_SCAN` (Linux 6.7).
//!
//! ```text
//!   protected page -- first write --> written page -- Pagemap::scan(.., PROTECT) --> listed, and protected again
//! ```
//!
//! Scans complement userfaultfd's asynchronous write protection: pages are registered for
//! [`WRITE_PROTECT`](super::Modes::WRITE_PROTECT) with [`WRITE_PROTECT_ASYNC`](super::Features::WRITE_PROTECT_ASYNC)
//! negotiated, and the first write to a protected page marks it instead of stopping the writer. A page that was never
//! protected since it was installed counts as written. So does a page never touched, unless PRESENT is requested as
//! well. Writes through another mapping of the same file, and by `pwrite(2)`, leave no mark.

#![expect(unsafe_code, reason = "PAGEMAP_SCAN takes raw pointers")]

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;

use bitflags::bitflags;
use libc::{_IOWR, Ioctl};
use nix::errno::Errno;

use super::{UffdError, abi};

bitflags! {
    /// Categories of a page (`PAGE_IS_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Categories: u64 {
        /// The page is in a range registered for asynchronous write protection.
        const PROTECTABLE = 1 << 0;
        /// The page has been written to since it was protected.
        const WRITTEN = 1 << 1;
        /// The page belongs to a file.
        const FILE = 1 << 2;
        /// The page is in memory.
        const PRESENT = 1 << 3;
        const SWAPPED = 1 << 4;
        /// The page is the kernel's shared page of zeros.
        const ZEROS = 1 << 5;
        const HUGE = 1 << 6;

        /// Categories newer than this program.
        const _ = !0;
    }

    /// Actions of a scan in addition to listing (`PM_SCAN_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Action: u64 {
        /// Write-protect the listed pages in the same step.
        const PROTECT = 1 << 0;
        /// Fail if the range contains pages without asynchronous write protection.
        const CHECK = 1 << 1;
    }
}

/// Run of adjacent pages in the same categories: one entry of the list that a scan returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRun {
    pub start: u64,
    /// Address behind the last page.
    pub end: u64,
    /// Categories of the pages, among those requested, as bits of [`Categories`].
    categories: u64,
}

impl PageRun {
    #[cfg(test)]
    pub(crate) fn categories(&self) -> Categories {
        Categories::from_bits_retain(self.categories)
    }
}

/// `struct pm_scan_arg`, the argument of `PAGEMAP_SCAN`.
#[repr(C)]
#[derive(Debug)]
struct Argument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    found: u64,
    found_len: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

impl Argument {
    /// Argument for a scan of an empty range.
    const fn nothing() -> Argument {
        Argument {
            size: size_of::<Argument>() as u64,
            flags: 0,
            start: 0,
            end: 0,
            walk_end: 0,
            found: 0,
            found_len: 0,
            max_pages: 0,
            inverted: 0,
            all_of: 0,
            any_of: 0,
            returned: 0,
        }
    }
}

const SCAN: Ioctl = _IOWR::<Argument>(b'f' as u32, 16);

/// The page table of a process, for scans.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

impl Pagemap {
    pub fn own() -> std::io::Result<Pagemap> {
        Ok(Pagemap { file: File::open("/proc/self/pagemap")? })
    }

    /// The page table of another process; requires the right to trace that process.
    pub fn of(pid: u32) -> std::io::Result<Pagemap> {
        Ok(Pagemap { file: File::open(format!("/proc/{pid}/pagemap"))? })
    }

    /// Lists the pages of `range` that are in all categories of `all`. Returns the number of entries of `found` that
    /// were filled, and the address reached: less than `range.end` if `found` was full.
    ///
    /// # Errors
    /// `NotMapped` if the range is not whole pages or the kernel has no scan; EPERM with [`Action::CHECK`]
    /// without asynchronous write protection. If the process has ended, the scan reaches the end of the range
    /// without a page.
    pub fn scan(
        &self,
        range: Range<u64>,
        all: Categories,
        action: Action,
        found: &mut [PageRun],
    ) -> Result<(usize, u64), UffdError> {
        let mut argument = Argument {
            flags: action.bits(),
            start: range.start,
            end: range.end,
            found: found.as_mut_ptr() as u64,
            found_len: found.len() as u64,
            all_of: all.bits(),
            returned: all.bits(),
            ..Argument::nothing()
        };
        // SAFETY: the kernel fills at most `found_len` entries of the live slice that the argument names; protecting
        // pages changes no byte, and happens only where a registrant asked for it.
        match unsafe { abi::ioctl(self.file.as_fd(), SCAN, &mut argument) } {
            Ok(count) => Ok((count as usize, argument.walk_end)),
            Err(Errno::ENOTTY) => Err(UffdError::NotMapped),
            Err(errno) => Err(UffdError::new("PAGEMAP_SCAN", errno)),
        }
    }
}

pub(crate) fn is_supported() -> bool {
    let Ok(pagemap) = Pagemap::own() else { return false };
    let mut none = Argument::nothing();
    // SAFETY: an empty range has no pages to list; a kernel without the request returns an error.
    let asked = unsafe { abi::ioctl(pagemap.file.as_fd(), SCAN, &mut none) };
    asked != Err(Errno::ENOTTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_number_is_the_kernels() {
        assert_eq!(SCAN, 0xC060_6610);
        assert_eq!(size_of::<PageRun>(), 24);
    }
}
