//! Arithmetic on sizes: length of a frame on the wire, and number of lines that fit into a frame.

use super::{HEADER_LEN, LINE_SIZE, MIN_FRAME, PAGE_LINES};

/// Maximum number of lines in a burst: those of one page.
pub const BURST_LINES_MAX: usize = PAGE_LINES;
/// Length in bytes of the longest trailer, which sessions between nodes' keys have.
pub(super) const TRAILER_MAX: usize = 22;
/// Maximum length in bytes of a session's frames, whatever the link carries: a burst write of a whole page
/// with the longest trailer.
pub const MAX_FRAME_LIMIT: usize = HEADER_LEN + 8 + BURST_LINES_MAX * LINE_SIZE + TRAILER_MAX;

/// Bytes on the wire in addition to a frame's own: preamble (8), frame check sequence (4) and shortest gap
/// (12), IEEE 802.3.
pub const WIRE_OVERHEAD: usize = 24;

/// Number of bytes to send for a frame whose data ends at `body_len`: data and trailer, padded to
/// [`MIN_FRAME`].
#[inline]
pub const fn frame_len(body_len: usize, trailer_len: usize) -> usize {
    let len = body_len + trailer_len;
    if len < MIN_FRAME { MIN_FRAME } else { len }
}

/// Maximum number of lines in a burst read whose response fits a frame of `max_frame` bytes (from the destination MAC
/// to the end of the trailer; MTU + 14); 0 if not even one line fits.
#[inline]
pub const fn burst_read_lines_max(max_frame: usize, trailer_len: usize) -> usize {
    lines_max(max_frame, HEADER_LEN + 1 + trailer_len)
}

/// Maximum number of lines in a burst write of at most `max_frame` bytes; 0 if not even one line fits.
#[inline]
pub const fn burst_write_lines_max(max_frame: usize, trailer_len: usize) -> usize {
    lines_max(max_frame, HEADER_LEN + 8 + trailer_len)
}

/// Splits a burst read of `lines` lines from byte address `addr` into bursts whose answers fit one frame each. Yields
/// the address of the first line and the number of lines of each burst. All bursts but the last have `most` lines, the
/// number that an answer carries. Yields nothing if `most` is 0.
#[inline]
pub fn long_burst_parts(addr: u64, lines: u8, most: usize) -> impl Iterator<Item = (u64, u8)> {
    let step = most.clamp(1, BURST_LINES_MAX) as u8;
    let end = if most == 0 { 0 } else { lines };
    let part = move |first: u8| (addr + u64::from(first) * LINE_SIZE as u64, step.min(lines - first));
    (0..end).step_by(step.into()).map(part)
}

const fn lines_max(max_frame: usize, overhead: usize) -> usize {
    let lines = max_frame.saturating_sub(overhead) / LINE_SIZE;
    if lines > BURST_LINES_MAX { BURST_LINES_MAX } else { lines }
}

/// Whether the line at `last_line_index` lines after byte address `addr` lies in the same 4 KiB page as
/// `addr`.
#[inline]
pub const fn burst_fits_page(addr: u64, last_line_index: usize) -> bool {
    let first = (addr / LINE_SIZE as u64) as usize % PAGE_LINES;
    last_line_index < PAGE_LINES - first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_frames_are_padded() {
        assert_eq!(frame_len(25, 4), 60);
        assert_eq!(frame_len(56, 4), 60);
        assert_eq!(frame_len(57, 4), 61);
        assert_eq!(frame_len(89, 4), 93);
    }

    #[test]
    fn lines_per_burst() {
        let mtu = |bytes: usize| bytes + 14;
        assert_eq!(burst_read_lines_max(mtu(1500), 4), 23);
        assert_eq!(burst_write_lines_max(mtu(1500), 4), 23);
        assert_eq!(burst_read_lines_max(mtu(1500), 16), 23);
        assert_eq!(burst_write_lines_max(mtu(1500), 16), 22);
        assert_eq!(burst_read_lines_max(mtu(1500), 22), 22);
        assert_eq!(burst_write_lines_max(mtu(1500), 22), 22);
        for trailer in [4, 16, TRAILER_MAX] {
            assert_eq!(burst_read_lines_max(mtu(9000), trailer), 64);
            assert_eq!(burst_write_lines_max(mtu(9000), trailer), 64);
            assert_eq!(burst_read_lines_max(0, trailer), 0);
            assert_eq!(burst_write_lines_max(96, trailer), 0);
        }
    }

    #[test]
    fn a_page_fits_the_longest_frame_of_a_session_with_every_trailer() {
        for trailer in [4, 16, TRAILER_MAX] {
            assert_eq!(burst_read_lines_max(MAX_FRAME_LIMIT, trailer), BURST_LINES_MAX, "{trailer}");
            assert_eq!(burst_write_lines_max(MAX_FRAME_LIMIT, trailer), BURST_LINES_MAX, "{trailer}");
        }
        assert_eq!(burst_write_lines_max(MAX_FRAME_LIMIT - 1, TRAILER_MAX), BURST_LINES_MAX - 1);
    }

    #[test]
    fn parts_of_long_bursts() {
        let parts = |addr, lines, most| long_burst_parts(addr, lines, most).collect::<std::vec::Vec<_>>();
        assert_eq!(parts(0x1000, 64, 23), [(0x1000, 23), (0x15c0, 23), (0x1b80, 18)]);
        assert_eq!(parts(0x1000, 64, 64), [(0x1000, 64)]);
        assert_eq!(parts(0x1040, 46, 23), [(0x1040, 23), (0x1600, 23)]);
        assert_eq!(parts(0x1040, 24, 23), [(0x1040, 23), (0x1600, 1)]);
        assert_eq!(parts(0x1040, 5, 23), [(0x1040, 5)]);
        assert_eq!(parts(0, 64, 1).len(), 64);
        assert_eq!(parts(0, 64, usize::MAX), [(0, 64)]);
        assert_eq!((parts(0, 0, 23), parts(0, 64, 0)), (vec![], vec![]));
    }

    #[test]
    fn pages() {
        assert!(burst_fits_page(0x1000, 63));
        assert!(!burst_fits_page(0x1000, 64));
        assert!(burst_fits_page(0x1fc0, 0));
        assert!(!burst_fits_page(0x1fc0, 1));
        assert!(burst_fits_page(0xffff_ffff_f000, 63));
        assert!(!burst_fits_page(0x1000, usize::MAX));
    }
}
