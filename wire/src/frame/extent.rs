//! Length of a frame's data.
//!
//! A received frame may be longer than its data: the trailer follows the data, and Ethernet pads short
//! frames. So the end of the data follows from the command, and for bursts from a count or a mask. All
//! functions here accept any bytes and never panic.

use super::header::field;
use super::{Command, FrameError, HEADER_LEN, Mac};

/// Returns the number of bytes from the destination MAC to the end of the data, where the trailer begins;
/// never more than `frame.len()`.
///
/// The length is defined for malformed frames too, so that the trailer can be verified and R9 applied:
///
/// - an unknown request ([`Command::is_unknown_request`]) has no payload;
/// - a burst read request has one byte of payload, whatever its count;
/// - a burst read response or a frame of many lines has as many lines as its count, even 0 or more than 64;
/// - a burst write with an empty mask has the mask and no data.
///
/// # Errors
/// [`FrameError::Truncated`] and [`FrameError::Undelimited`]: the length is unknown; drop the frame.
#[inline]
pub fn body_len(frame: &[u8]) -> Result<usize, FrameError> {
    delimit(frame).map(|(_, len)| len)
}

/// Decodes the command (`None` for an unknown request) and computes [`body_len`]. Always inlined, so that the result
/// stays in registers. If the result were written to memory in parts and then read as a whole, the read would wait for
/// all earlier stores (no store forwarding).
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

/// Number of bytes that a sealed session authenticates but leaves readable: the base header and, in a frame of several
/// lines, the count or mask, without which a receiver cannot find the end of the frame. All other bytes are
/// authenticated and encrypted.
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

/// Destination MAC of a frame that is not delimited yet; `None` if the frame is too short.
#[inline]
pub fn destination(frame: &[u8]) -> Option<Mac> {
    Some(Mac(*frame.get(field::DST)?.first_chunk()?))
}

/// Source MAC of a frame that is not delimited yet; `None` if the frame is too short.
#[inline]
pub fn source(frame: &[u8]) -> Option<Mac> {
    Some(Mac(*frame.get(field::SRC)?.first_chunk()?))
}
