//! Which pages of a range have been written to, found by `PAGEMAP_SCAN` (Linux 6.7).
//!
//! ```text
//!   protected page -- first write --> written page -- Pagemap::scan(.., PROTECT) --> listed, and protected again
//! ```
//!
//! It goes with userfaultfd's asynchronous write protection: pages are registered for
//! [`WRITE_PROTECT`](super::Modes::WRITE_PROTECT) with
//! [`WRITE_PROTECT_ASYNC`](super::Features::WRITE_PROTECT_ASYNC) agreed on, and the first write to a protected page
//! marks it instead of stopping the writer. A page that has not been protected since it came in counts as written:
//! so does one never touched, unless PRESENT is asked for as well. Writes through another mapping of the same file,
//! and by `pwrite(2)`, leave no mark.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;

use bitflags::bitflags;
use libc::{_IOWR, Ioctl};
use nix::errno::Errno;

use super::{UffdError, abi};

bitflags! {
    /// What is said of a page (`PAGE_IS_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Categories: u64 {
        /// It is in a range registered for asynchronous write protection.
        const PROTECTABLE = 1 << 0;
        /// It has been written to since it was protected.
        const WRITTEN = 1 << 1;
        /// It belongs to a file.
        const FILE = 1 << 2;
        /// It is in memory.
        const PRESENT = 1 << 3;
        /// It is in swap.
        const SWAPPED = 1 << 4;
        /// It is the shared page of zeros.
        const ZEROS = 1 << 5;
        /// It is part of a huge page.
        const HUGE = 1 << 6;

        /// Others, newer than this program.
        const _ = !0;
    }

    /// What a scan does besides looking (`PM_SCAN_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Action: u64 {
        /// Write-protects the pages listed, in the same step.
        const PROTECT = 1 << 0;
        /// Fails on ranges without asynchronous write protection.
        const CHECK = 1 << 1;
    }
}

/// Neighbouring pages of the same categories.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// First address.
    pub start: u64,
    /// First address behind them.
    pub end: u64,
    /// What was asked for of them ([`Categories`] by bits).
    categories: u64,
}

impl Found {
    /// What was asked for of these pages.
    pub fn categories(&self) -> Categories {
        Categories::from_bits_retain(self.categories)
    }
}

/// `struct pm_scan_arg`.
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
    /// A scan of an empty range.
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

/// The page table of a process, to look at.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

impl Pagemap {
    /// That of this process.
    pub fn own() -> std::io::Result<Pagemap> {
        Ok(Pagemap { file: File::open("/proc/self/pagemap")? })
    }

    /// That of another process, which takes the right to trace it.
    pub fn of(pid: u32) -> std::io::Result<Pagemap> {
        Ok(Pagemap { file: File::open(format!("/proc/{pid}/pagemap"))? })
    }

    /// Lists the pages of `range` that are `all` of these categories, with what they are of `all`. Returns how many
    /// entries of `found` were filled, and how far it came: less than `range.end` if there was no more room.
    ///
    /// # Errors
    /// `NotMapped` if the range is not whole pages or the kernel has no scan; EPERM with [`Action::CHECK`] where there
    /// is no asynchronous write protection. A process that has ended is scanned to the end, and has nothing.
    pub fn scan(
        &self,
        range: Range<u64>,
        all: Categories,
        action: Action,
        found: &mut [Found],
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
        // pages changes no byte, and only where a registrant asked for it.
        match unsafe { abi::ioctl(self.file.as_fd(), SCAN, &mut argument) } {
            Ok(count) => Ok((count as usize, argument.walk_end)),
            Err(Errno::ENOTTY) => Err(UffdError::NotMapped),
            Err(errno) => Err(UffdError::new("PAGEMAP_SCAN", errno)),
        }
    }
}

/// Whether this kernel can scan.
pub fn is_supported() -> bool {
    let Ok(pagemap) = Pagemap::own() else { return false };
    let mut none = Argument::nothing();
    // SAFETY: an empty range has no pages to list; a kernel that lacks the request says so.
    let asked = unsafe { abi::ioctl(pagemap.file.as_fd(), SCAN, &mut none) };
    asked != Err(Errno::ENOTTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_number_is_the_kernels() {
        assert_eq!(SCAN, 0xC060_6610);
        assert_eq!(size_of::<Found>(), 24);
    }
}
