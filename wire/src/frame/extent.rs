//! Finding a frame's extent.
//!
//! A frame on the wire may be longer than its content: Ethernet pads short ones, and the trailer stands
//! between data and padding. So the command (and for bursts a count or a mask) says where the data ends. All
//! functions here take any bytes at all and never panic.

use super::header::field;
use super::multi::{read_req_len, write_req_len};
use super::{Command, FrameError, HEADER_LEN, Hello, HelloAck, LINE_SIZE, Mac, PfcVector};

/// Bytes from the destination MAC to the end of the data, where the trailer begins; never more than
/// `frame.len()`.
///
/// For frames that make no sense the length is defined all the same, so that the trailer can be found and R9
/// applied: an unknown request ([`Command::is_unknown_request`]) has no payload, a burst read request one
/// byte whatever the count in it, a burst read response as many lines as its count says even if that is 0 or
/// above 64, a burst write with an empty mask the mask and no data; a frame that names many lines is as long as its
/// count says, even if that is 0 or above 64.
///
/// # Errors
/// [`FrameError::Truncated`] and [`FrameError::Undelimited`]: there is no telling; drop the frame.
#[inline]
pub fn body_len(frame: &[u8]) -> Result<usize, FrameError> {
    delimit(frame).map(|(_, len)| len)
}

/// The command, decoded, and [`body_len`]. `None` for an unknown request. Always inlined, so that what it returns is in
/// registers: written to memory by its parts and read back as a whole, it would have to wait until all that was stored
/// before has reached the cache.
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
        Some(
            Command::ReadReq
            | Command::WriteResp
            | Command::Ping
            | Command::Pong
            | Command::Start
            | Command::StartAck
            | Command::Bye
            | Command::ByeAck,
        ) => 0,
        Some(Command::WriteReq | Command::ReadResp) => LINE_SIZE,
        Some(Command::BurstReadReq | Command::Fault | Command::MultiWriteResp) => 1,
        Some(Command::BurstReadResp | Command::MultiReadResp) => {
            let lines = *payload.first().ok_or(truncated(HEADER_LEN + 1))?;
            1 + usize::from(lines) * LINE_SIZE
        }
        Some(Command::BurstWriteReq) => {
            let mask = payload.first_chunk().ok_or(truncated(HEADER_LEN + 8))?;
            8 + u64::from_be_bytes(*mask).count_ones() as usize * LINE_SIZE
        }
        Some(Command::MultiReadReq) => {
            read_req_len(usize::from(*payload.first().ok_or(truncated(HEADER_LEN + 1))?))
        }
        Some(Command::MultiWriteReq) => {
            write_req_len(usize::from(*payload.first().ok_or(truncated(HEADER_LEN + 1))?))
        }
        Some(Command::SackNak | Command::EchoReply) => 2,
        Some(Command::SackNakAck) => 6,
        Some(Command::Echo) => 4,
        Some(Command::Congestion) => PfcVector::LEN,
        Some(Command::Hello) => Hello::LEN,
        Some(Command::HelloAck) => HelloAck::LEN,
        None if Command::is_unknown_request(code) => 0,
        None => return Err(FrameError::Undelimited { code }),
    };
    if payload.len() < payload_len {
        return Err(truncated(HEADER_LEN + payload_len));
    }
    Ok((command, HEADER_LEN + payload_len))
}

/// How many bytes a sealed session leaves readable: the base header and, where there are several lines, the count or
/// mask that [`body_len`] needs. They are authenticated, the rest is encrypted too.
#[inline]
pub const fn clear_len(code: u8) -> usize {
    clear_len_of(Command::from_u8(code))
}

/// [`clear_len`] of a command that is decoded already.
#[inline]
pub(super) const fn clear_len_of(command: Option<Command>) -> usize {
    match command {
        Some(
            Command::BurstReadReq
            | Command::BurstReadResp
            | Command::MultiReadReq
            | Command::MultiWriteReq
            | Command::MultiReadResp
            | Command::MultiWriteResp,
        ) => HEADER_LEN + 1,
        Some(Command::BurstWriteReq) => HEADER_LEN + 8,
        _ => HEADER_LEN,
    }
}

/// Whom `frame` is for, likewise.
#[inline]
pub fn destination(frame: &[u8]) -> Option<Mac> {
    Some(Mac(*frame.get(field::DST)?.first_chunk()?))
}

/// Who sent `frame`, for who has to choose before it is delimited; `None` if it ends before the source MAC does.
#[inline]
pub fn source(frame: &[u8]) -> Option<Mac> {
    Some(Mac(*frame.get(field::SRC)?.first_chunk()?))
}
