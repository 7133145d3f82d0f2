//! Frames of many lines: each line is a request by itself, at any address, and the requests have consecutive
//! numbers. They share a frame because a frame costs far more than a line does.
//!
//! ```text
//!   MultiReadReq    header (first address) | n | n - 1 addresses
//!   MultiWriteReq   header (first address) | n | n - 1 addresses | n lines
//!   MultiReadResp   header (first number)  | n | n lines
//!   MultiWriteResp  header (first number)  | n
//! ```
//!
//! Both ends must have agreed on these frames ([`FEATURE_MULTI`](super::FEATURE_MULTI)). A single line
//! travels in a plain frame, so `n` is at least 2.

use super::{BURST_LINES_MAX, FrameError, HEADER_LEN, LINE_SIZE};

/// Length in bytes of an address in a payload: CMem addresses have 48 bits.
pub const ADDRESS_LEN: usize = 6;
/// Minimum number of lines in a frame of many lines; a single line travels in a plain frame.
pub const MULTI_LINES_MIN: usize = 2;
/// Maximum number of lines in a frame of many lines: as many as a page has.
pub const MULTI_LINES_MAX: usize = BURST_LINES_MAX;

/// Encodes a CMem byte address for a payload. Bits above the 48th are dropped.
#[inline]
pub const fn address_bytes(addr: u64) -> [u8; ADDRESS_LEN] {
    let [_, _, a, b, c, d, e, f] = addr.to_be_bytes();
    [a, b, c, d, e, f]
}

/// Decodes a CMem byte address from a payload.
#[inline]
pub const fn address_of(bytes: &[u8; ADDRESS_LEN]) -> u64 {
    let [a, b, c, d, e, f] = *bytes;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Maximum number of lines in a frame of many reads, such that the answer fits one frame of `max_frame` bytes
/// (destination MAC to the end of the trailer; MTU + 14). 0 if fewer than two lines fit.
#[inline]
pub const fn multi_read_lines_max(max_frame: usize, trailer_len: usize) -> usize {
    lines_max(max_frame.saturating_sub(HEADER_LEN + trailer_len).saturating_sub(1) / LINE_SIZE)
}

/// Maximum number of lines in a frame of many writes of at most `max_frame` bytes; 0 if fewer than two lines
/// fit.
#[inline]
pub const fn multi_write_lines_max(max_frame: usize, trailer_len: usize) -> usize {
    let room = max_frame.saturating_sub(HEADER_LEN + trailer_len).saturating_sub(1);
    lines_max((room + ADDRESS_LEN) / (LINE_SIZE + ADDRESS_LEN))
}

const fn lines_max(lines: usize) -> usize {
    if lines > MULTI_LINES_MAX {
        MULTI_LINES_MAX
    } else if lines < MULTI_LINES_MIN {
        0
    } else {
        lines
    }
}

/// Number of payload bytes of a request to read `lines` lines; defined for any `lines`, as malformed frames
/// need a length too.
#[inline]
pub(super) const fn read_req_len(lines: usize) -> usize {
    1 + lines.saturating_sub(1) * ADDRESS_LEN
}

/// Number of payload bytes of a request to write `lines` lines; defined for any `lines`, as malformed frames
/// need a length too.
#[inline]
pub(super) const fn write_req_len(lines: usize) -> usize {
    read_req_len(lines) + lines * LINE_SIZE
}

/// Checks the number of lines in a frame of many lines: 2 to 64.
#[inline]
pub(super) const fn check_multi(lines: u8) -> Result<usize, FrameError> {
    let count = lines as usize;
    if count < MULTI_LINES_MIN || count > MULTI_LINES_MAX {
        return Err(FrameError::MultiCount { lines });
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_per_frame() {
        let mtu = |bytes: usize| bytes + 14;
        assert_eq!((multi_read_lines_max(mtu(1500), 4), multi_read_lines_max(mtu(1500), 16)), (23, 23));
        assert_eq!((multi_write_lines_max(mtu(1500), 4), multi_write_lines_max(mtu(1500), 16)), (21, 21));
        for trailer in [4, 16] {
            assert_eq!(multi_read_lines_max(mtu(9000), trailer), 64);
            assert_eq!(multi_write_lines_max(mtu(9000), trailer), 64);
            assert_eq!(multi_read_lines_max(26 + trailer + 127, trailer), 0);
            assert_eq!(multi_read_lines_max(26 + trailer + 128, trailer), 2);
            assert_eq!(multi_write_lines_max(26 + trailer + 133, trailer), 0);
            assert_eq!(multi_write_lines_max(26 + trailer + 134, trailer), 2);
            assert_eq!((multi_read_lines_max(0, trailer), multi_write_lines_max(0, trailer)), (0, 0));
        }
    }

    #[test]
    fn addresses_have_48_bits() {
        assert_eq!(address_bytes(0xffff_0a0b_0c0d_0e40), [0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x40]);
        assert_eq!(address_of(&[0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x40]), 0x0a0b_0c0d_0e40);
    }
}
