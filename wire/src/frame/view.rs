//! Finding a frame's extent, and a checked view over it.
//!
//! A frame on the wire may be longer than its content: Ethernet pads short ones, and the trailer stands
//! between data and padding. So the command (and for bursts a count or a mask) says where the data ends. All
//! functions here take any bytes at all and never panic.

use super::header::COMMAND;
use super::{Axi, Command, Direction, FrameError, HEADER_LEN, Header, LINE_SIZE, Mac, PfcVector, Space};
use super::{Hello, HelloAck};

/// Bytes from the destination MAC to the end of the data, where the trailer begins; never more than
/// `frame.len()`.
///
/// For frames that make no sense the length is defined all the same, so that the trailer can be found and R9
/// applied: an unknown request ([`Command::is_unknown_request`]) has no payload, a burst read request one
/// byte whatever the count in it, a burst read response as many lines as its count says even if that is 0 or
/// above 64, a burst write with an empty mask the mask and no data.
///
/// # Errors
/// [`FrameError::Truncated`] and [`FrameError::Undelimited`]: there is no telling; drop the frame.
#[inline]
pub fn body_len(frame: &[u8]) -> Result<usize, FrameError> {
    let have = frame.len();
    let truncated = |need| FrameError::Truncated { have, need };
    let Some((header, payload)) = frame.split_first_chunk::<HEADER_LEN>() else {
        return Err(truncated(HEADER_LEN));
    };
    let code = header[COMMAND];
    let payload_len = match Command::from_u8(code) {
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
        Some(Command::BurstReadReq | Command::Fault) => 1,
        Some(Command::BurstReadResp) => {
            let lines = *payload.first().ok_or(truncated(HEADER_LEN + 1))?;
            1 + usize::from(lines) * LINE_SIZE
        }
        Some(Command::BurstWriteReq) => {
            let mask = payload.first_chunk().ok_or(truncated(HEADER_LEN + 8))?;
            8 + u64::from_be_bytes(*mask).count_ones() as usize * LINE_SIZE
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
    Ok(HEADER_LEN + payload_len)
}

/// How many bytes a sealed session leaves readable: the base header and, for bursts, the count or mask that
/// [`body_len`] needs. They are authenticated, the rest is encrypted too.
#[inline]
pub const fn clear_len(code: u8) -> usize {
    match Command::from_u8(code) {
        Some(Command::BurstReadReq | Command::BurstReadResp) => HEADER_LEN + 1,
        Some(Command::BurstWriteReq) => HEADER_LEN + 8,
        _ => HEADER_LEN,
    }
}

/// A frame whose length fits what its command says. Accessors cannot panic; nothing else about the content is
/// checked (that is for [`Message::parse`](super::Message::parse)).
#[derive(Copy, Clone, Debug)]
pub struct FrameView<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> FrameView<'a> {
    /// Checks `frame`, which may carry a trailer and padding, with [`body_len`].
    ///
    /// # Errors
    /// As [`body_len`].
    #[inline]
    pub fn new_checked(frame: &'a [u8]) -> Result<Self, FrameError> {
        let body = &frame[..body_len(frame)?];
        let (header, payload) =
            body.split_first_chunk().ok_or(FrameError::Truncated { have: frame.len(), need: HEADER_LEN })?;
        Ok(Self { header, payload })
    }

    /// Destination MAC address.
    #[inline]
    pub fn dst(&self) -> Mac {
        self.header().dst
    }

    /// Source MAC address.
    #[inline]
    pub fn src(&self) -> Mac {
        self.header().src
    }

    /// EtherType.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        self.header().ethertype
    }

    /// Command code as received.
    #[inline]
    pub fn code(&self) -> u8 {
        self.header[COMMAND]
    }

    /// The command; `None` for an unknown request.
    #[inline]
    pub fn command(&self) -> Option<Command> {
        Command::from_u8(self.code())
    }

    /// Which way the frame travels.
    #[inline]
    pub fn direction(&self) -> Direction {
        Direction::of_code(self.code())
    }

    /// Whose sequence numbers the frame bears; `None` outside any session.
    #[inline]
    pub fn space(&self) -> Option<Space> {
        let stream = self.axi().stream;
        self.command().map_or(Some(Space::Stream(stream)), |command| command.space(stream))
    }

    /// The low 16 bits of the sequence number.
    #[inline]
    pub fn seq(&self) -> u16 {
        self.header().seq
    }

    /// The AXI id.
    #[inline]
    pub fn axi(&self) -> Axi {
        self.header().axi
    }

    /// CMem byte address.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.header().addr
    }

    /// The whole base header.
    #[inline]
    pub fn header(&self) -> Header {
        Header::from_bytes(self.header)
    }

    /// Everything between the base header and the trailer.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Bytes from the destination MAC to the end of the data.
    #[inline]
    pub fn body_len(&self) -> usize {
        HEADER_LEN + self.payload.len()
    }
}
