//! Arithmetic on ranges of addresses and of bytes of the region, in bytes and in pages.

use std::ops::Range;

use cxloe_member::wire::{PAGE_BYTES, Pages};

/// A mapped part of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Address of the first byte in the monitor.
    pub address: u64,
    /// Length in bytes, a multiple of the page size.
    pub bytes: u64,
    /// Offset of the first byte in the region.
    pub offset: u64,
}

impl Span {
    /// Byte range of the region that is mapped at `addresses`, if any.
    pub fn part(&self, addresses: &Range<u64>) -> Option<Range<u64>> {
        let start = addresses.start.max(self.address);
        let end = addresses.end.min(self.address + self.bytes);
        (start < end).then(|| start - self.address + self.offset..end - self.address + self.offset)
    }

    /// Whether the whole mapping lies in `addresses`.
    pub fn is_within(&self, addresses: &Range<u64>) -> bool {
        addresses.start <= self.address && self.address + self.bytes <= addresses.end
    }
}

/// The pages that lie wholly in these bytes of the region: those that a hole discards.
pub fn whole_pages(bytes: &Range<u64>) -> Option<Pages> {
    let first = bytes.start.div_ceil(PAGE_BYTES);
    let count = (bytes.end / PAGE_BYTES).checked_sub(first)?;
    let (first, count) = (u32::try_from(first).ok()?, u32::try_from(count).ok()?);
    (count > 0).then_some(Pages { first, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_span_are_found_by_address() {
        let span = Span { address: 0x10000, bytes: 0x4000, offset: 0x8000 };
        assert_eq!(span.part(&(0x11000..0x12000)), Some(0x9000..0xA000));
        assert_eq!(span.part(&(0..u64::MAX)), Some(0x8000..0xC000));
        assert_eq!(span.part(&(0x13fff..0x20000)), Some(0xBFFF..0xC000));
        assert_eq!(span.part(&(0x14000..0x20000)), None);
        assert_eq!(span.part(&(0..0x10000)), None);
        assert!(span.is_within(&(0x10000..0x14000)) && !span.is_within(&(0x10001..0x14000)));
    }

    #[test]
    fn only_whole_pages_are_given_up() {
        assert_eq!(whole_pages(&(0..4096)), Some(Pages { first: 0, count: 1 }));
        assert_eq!(whole_pages(&(1..8192)), Some(Pages { first: 1, count: 1 }));
        assert_eq!(whole_pages(&(4096..12287)), Some(Pages { first: 1, count: 1 }));
        assert_eq!(whole_pages(&(1..4097)), None);
        assert_eq!(whole_pages(&(4097..4098)), None);
        assert_eq!(whole_pages(&(u64::MAX - 4096..u64::MAX)), None);
    }
}
