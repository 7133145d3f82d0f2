//! The base header at the start of every frame: 14 bytes of Ethernet, then 11 of the protocol.

use core::ops::Range;

use super::Mac;

/// Byte ranges of the base header's fields, counted from the destination MAC, for code that must read frames
/// that may be invalid. [`Header`] and [`FrameView`](super::FrameView) read and write whole headers.
pub mod field {
    use core::ops::Range;

    /// Destination MAC address, 6 bytes; the first on the wire.
    pub const DST: Range<usize> = 0..6;
    /// Source MAC address, 6 bytes; a CN's is its CN id.
    pub const SRC: Range<usize> = 6..12;
    /// EtherType, big-endian.
    pub const ETHERTYPE: Range<usize> = 12..14;
    /// Command code, from which the frame's length follows: the first byte after the Ethernet header.
    pub const COMMAND: usize = 14;
    /// Low 16 bits of the sequence number (R11); the other 48 are not in the frame.
    pub const SEQ: Range<usize> = 15..17;
    /// Stream: high byte of the AXI id.
    pub const STREAM: usize = 17;
    /// Tag of the requester: low byte of the AXI id.
    pub const TAG: usize = 18;
    /// CMem byte address, 48 bits.
    pub const ADDR: Range<usize> = 19..25;
}

/// Length in bytes of the base header: 14 of Ethernet and 11 of the protocol.
pub const HEADER_LEN: usize = 25;
/// The shortest Ethernet frame without its frame check sequence (IEEE 802.3), in bytes.
pub const MIN_FRAME: usize = 60;
/// Length in bytes of a line, the unit of access.
pub const LINE_SIZE: usize = 64;
/// Number of lines in a 4 KiB page. A burst never crosses a page boundary.
pub const PAGE_LINES: usize = 64;
/// EtherType used unless another is configured: local experimental 1 (IEEE 802).
pub const ETHERTYPE_DEFAULT: u16 = 0x88B5;

/// AXI id: the stream of a request and the requester's tag. A response repeats the id of its request.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Axi {
    /// Stream, the high byte of the id.
    pub stream: u8,
    /// Tag, the low byte of the id.
    pub tag: u8,
}

/// Base header of a frame, decoded but not checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// MAC address of the receiver.
    pub dst: Mac,
    /// MAC address of the sender; that of a CN is its CN id.
    pub src: Mac,
    /// EtherType as received ([`ETHERTYPE_DEFAULT`] unless configured).
    pub ethertype: u16,
    /// Command code as received; see [`Command::from_u8`](super::Command::from_u8).
    pub command: u8,
    /// Low 16 bits of the sequence number (R11).
    pub seq: u16,
    /// AXI id: stream and tag.
    pub axi: Axi,
    /// CMem byte address, 48 bits. In a request the low 6 bits must be zero; that is not checked here.
    pub addr: u64,
}

impl Header {
    /// Decodes the header at the beginning of `frame`, without any check of the values. Returns `None` if
    /// `frame` has fewer than [`HEADER_LEN`] bytes.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        frame.first_chunk().map(Self::from_bytes)
    }

    /// Decodes the header, without any check of the values.
    #[inline]
    pub fn from_bytes(h: &[u8; HEADER_LEN]) -> Self {
        Self {
            dst: Mac(bytes_at(h, field::DST)),
            src: Mac(bytes_at(h, field::SRC)),
            ethertype: u16::from_be_bytes(bytes_at(h, field::ETHERTYPE)),
            command: h[field::COMMAND],
            seq: u16::from_be_bytes(bytes_at(h, field::SEQ)),
            axi: Axi { stream: h[field::STREAM], tag: h[field::TAG] },
            addr: addr(h),
        }
    }

    /// Writes the header at the beginning of `frame`. Bits of `addr` above the 48th are dropped.
    ///
    /// # Panics
    /// If `frame` has fewer than [`HEADER_LEN`] bytes.
    // Always inlined, so that the compiler builds a header in registers.
    #[inline(always)]
    pub fn emit(&self, frame: &mut [u8]) {
        let h: &mut [u8; HEADER_LEN] =
            frame.first_chunk_mut().expect("a frame to be written holds at least its header");
        // The three stores are whole words because the checksum code reads whole words right after this: a
        // load that spans several smaller stores waits until all of them have reached the cache.
        let (dst, src, seq) = (self.dst.to_u64(), self.src.to_u64(), u64::from(self.seq));
        let (stream, tag) = (u64::from(self.axi.stream), u64::from(self.axi.tag));
        let to = dst << 16 | src >> 32;
        let from = src << 32 | u64::from(self.ethertype) << 16 | u64::from(self.command) << 8 | seq >> 8;
        let what = seq << 56 | stream << 48 | tag << 40 | (self.addr & 0xffff_ffff_ffff) >> 8;
        h[..8].copy_from_slice(&to.to_be_bytes());
        h[8..16].copy_from_slice(&from.to_be_bytes());
        h[16..24].copy_from_slice(&what.to_be_bytes());
        h[24] = self.addr as u8;
    }
}

#[inline(always)]
pub(super) fn bytes_at<const N: usize>(h: &[u8; HEADER_LEN], field: Range<usize>) -> [u8; N] {
    *h[field].first_chunk().expect("a field of N bytes")
}

#[inline(always)]
pub(super) fn addr(h: &[u8; HEADER_LEN]) -> u64 {
    let [a, b, c, d, e, f] = bytes_at(h, field::ADDR);
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rustfmt::skip]
    const BYTES: [u8; HEADER_LEN] = [
        0x02, 0, 0, 0, 0, 0x01,
        0x02, 0, 0, 0, 0, 0x02,
        0x88, 0xB5,
        0x01,
        0x12, 0x34,
        0x05, 0x06,
        0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x40,
    ];

    const HEADER: Header = Header {
        dst: Mac([2, 0, 0, 0, 0, 1]),
        src: Mac([2, 0, 0, 0, 0, 2]),
        ethertype: ETHERTYPE_DEFAULT,
        command: 1,
        seq: 0x1234,
        axi: Axi { stream: 5, tag: 6 },
        addr: 0x0a0b_0c0d_0e40,
    };

    #[test]
    fn literal_bytes() {
        assert_eq!(Header::parse(&BYTES), Some(HEADER));
        let mut out = [0xee; 30];
        HEADER.emit(&mut out);
        assert_eq!(out[..25], BYTES);
        assert_eq!(out[25..], [0xee; 5]);
    }

    #[test]
    fn short_of_a_header() {
        assert_eq!(Header::parse(&BYTES[..24]), None);
        assert_eq!(Header::parse(&[]), None);
    }
}
