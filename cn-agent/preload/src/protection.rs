//! Protection of mapped pages as the kernel has it, from `/proc/self/maps`: the window keeps no record of what the
//! program permits itself on its pages.
//!
//! ```text
//!   bytes of the file --> MapsParser --> mapping --> cut to the addresses that are asked for
//! ```

use std::ffi::c_int;
use std::ops::Range;

use libc::{PROT_EXEC, PROT_READ, PROT_WRITE};

use crate::sys;

/// Mapped addresses that have one protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectedPart {
    pub addresses: Range<usize>,
    pub protection: c_int,
}

/// Calls `act` with each mapped part of `addresses`, in ascending order, until it returns `false`. `act` may change the
/// protection of its part if it restores it. Returns `false` if `act` did, or if the table cannot be read: a process
/// may have no `/proc`.
pub fn each(addresses: Range<usize>, mut act: impl FnMut(ProtectedPart) -> bool) -> bool {
    let (mut parser, mut done) = (MapsParser::default(), true);
    let read = sys::read_chunks(c"/proc/self/maps", |text| {
        for mapping in text.iter().filter_map(|byte| parser.take(*byte)) {
            let mapped = mapping.addresses;
            if mapped.start >= addresses.end {
                return false;
            }
            let part = mapped.start.max(addresses.start)..mapped.end.min(addresses.end);
            if !part.is_empty() && !act(ProtectedPart { addresses: part, protection: mapping.protection }) {
                done = false;
                return false;
            }
        }
        true
    });
    read && done
}

/// Reads lines such as `7f2a00000000-7f2a00021000 rw-p 00000000 00:00 0 [heap]`.
#[derive(Debug, Default)]
struct MapsParser {
    field: MapsField,
    start: usize,
    end: usize,
    protection: c_int,
}

#[derive(Clone, Copy, Debug, Default)]
enum MapsField {
    #[default]
    Start,
    End,
    Protection,
    /// Fields that are skipped.
    Others,
}

impl MapsParser {
    /// Takes the next byte of the file; returns a mapping with the byte behind its protection.
    fn take(&mut self, byte: u8) -> Option<ProtectedPart> {
        match (self.field, byte) {
            (_, b'\n') => *self = MapsParser::default(),
            (MapsField::Start, b'-') => self.field = MapsField::End,
            (MapsField::Start, digit) => self.start = with_digit(self.start, digit),
            (MapsField::End, b' ') => self.field = MapsField::Protection,
            (MapsField::End, digit) => self.end = with_digit(self.end, digit),
            (MapsField::Protection, b'r') => self.protection |= PROT_READ,
            (MapsField::Protection, b'w') => self.protection |= PROT_WRITE,
            (MapsField::Protection, b'x') => self.protection |= PROT_EXEC,
            (MapsField::Protection, b' ') => {
                self.field = MapsField::Others;
                return Some(ProtectedPart { addresses: self.start..self.end, protection: self.protection });
            }
            (MapsField::Protection | MapsField::Others, _) => {}
        }
        None
    }
}

/// `number` with another hexadecimal digit at its end.
fn with_digit(number: usize, digit: u8) -> usize {
    let digit = char::from(digit).to_digit(16).unwrap_or(0);
    (number << 4) | digit as usize
}

#[cfg(test)]
mod tests {
    use libc::PROT_NONE;

    use super::*;

    #[test]
    fn lines_are_read_whatever_follows_the_protection() {
        let text = b"00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/a-b c\n\
            7f2a00000000-7f2a00021000 rw-p 00000000 00:00 0 \n\
            7f2a00021000-7f2a04000000 ---p 00000000 00:00 0 \n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
        let mut parser = MapsParser::default();
        let found: Vec<_> = text.iter().filter_map(|byte| parser.take(*byte)).collect();
        let part = |addresses: Range<usize>, protection| ProtectedPart { addresses, protection };
        assert_eq!(
            found,
            [
                part(0x0040_0000..0x0045_2000, PROT_READ | PROT_EXEC),
                part(0x7f2a_0000_0000..0x7f2a_0002_1000, PROT_READ | PROT_WRITE),
                part(0x7f2a_0002_1000..0x7f2a_0400_0000, PROT_NONE),
                part(0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000, PROT_EXEC),
            ]
        );
    }
}
