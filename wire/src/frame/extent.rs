//! The length of a frame's data.
//!
//! A frame on the wire may be longer than its content: Ethernet pads short ones, and the trailer stands between data
//! and padding. So the command (and for bursts a count or a mask) gives the end of the data. All functions here take
//! any bytes at all and never panic.

use super::header::field;
use super::{Command, FrameError, HEADER_LEN, Mac};

/// Bytes from the destination MAC to the end of the data, where the trailer begins; never more than
/// `frame.len()`.
///
/// The length is defined for malformed frames too, so that the trailer can be found and R9 applied: an unknown request
/// ([`Command::is_unknown_request`]) has no payload, a burst read request one byte whatever the count in it, a burst
/// read response as many lines as its count even if that is 0 or above 64, a burst write with an empty mask the mask
/// and no data; a frame of many lines has as many as its count, even if that is 0 or above 64.
///
/// # Errors
/// [`FrameError::Truncated`] and [`FrameError::Undelimited`]: the length is unknown; drop the frame.
#[inline]
pub fn body_len(frame: &[u8]) -> Result<usize, FrameError> {
    delimit(frame).map(|(_, len)| len)
}

/// Decodes the command (`None` for an unknown request) and finds [`body_len`]. Always inlined, so that the result stays
/// in registers: a result written to memory by parts and read as a whole waits for all earlier stores (no store
/// forwarding).
#[inline(always)]
pub(super) fn delimit(frame: &[u8]) -> Result<(Option<Command>, usize), FrameError> {
    let have = frame.len();
    let truncated = |need| FrameError::Truncated { have, need };
    let Some((header, payload)) = frame.split_first_chunk::<HEADER_LEN>() else {
        return Err(truncated(HEADER_LEN));
    };
    let code = header[field::COMMAND];
    let command = Command::from_u8(code);
    let payload_len = match command {
        Some(command) => command.payload_len(payload)?,
        None if Command::is_unknown_request(code) => 0,
        None => return Err(FrameError::Undelimited { code }),
    };
    if payload.len() < payload_len {
        return Err(truncated(HEADER_LEN + payload_len));
    }
    Ok((command, HEADER_LEN + payload_len))
}

/// Number of bytes that a sealed session leaves readable: the base header and, where there are several lines, the count
/// or mask that [`body_len`] needs. They are authenticated; the rest is encrypted too.
#[inline]
pub const fn clear_len(code: u8) -> usize {
    clear_len_of(Command::from_u8(code))
}

/// [`clear_len`] for a decoded command.
#[inline]
pub(super) const fn clear_len_of(command: Option<Command>) -> usize {
    HEADER_LEN
        + match command {
            Some(command) => command.payload().clear_len(),
            None => 0,
        }
}

/// Destination MAC of `frame`, before it is delimited; `None` if the frame is too short.
#[inline]
pub fn destination(frame: &[u8]) -> Option<Mac> {
    Some(Mac(*frame.get(field::DST)?.first_chunk()?))
}

/// Source MAC of `frame`, before it is delimited; `None` if the frame is too short.
#[inline]
pub fn source(frame: &[u8]) -> Option<Mac> {
    Some(Mac(*frame.get(field::SRC)?.first_chunk()?))
}
