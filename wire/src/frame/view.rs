//! Finding a frame's extent, and a checked view over it: what the sessions read.
//!
//! A frame on the wire may be longer than its content: Ethernet pads short ones, and the trailer stands
//! between data and padding. So the command (and for bursts a count or a mask) says where the data ends. All
//! functions here take any bytes at all and never panic.

use super::header::{self, bytes_at, field};
use super::{Axi, Command, Direction, FrameError, HEADER_LEN, Header, LINE_SIZE, Mac, Message, PfcVector};
use super::{Hello, HelloAck, Seal, Space};

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
    delimit(frame).map(|(_, len)| len)
}

/// The command, decoded, and [`body_len`]. `None` for an unknown request.
#[inline]
fn delimit(frame: &[u8]) -> Result<(Option<Command>, usize), FrameError> {
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
    Ok((command, HEADER_LEN + payload_len))
}

/// How many bytes a sealed session leaves readable: the base header and, for bursts, the count or mask that
/// [`body_len`] needs. They are authenticated, the rest is encrypted too.
#[inline]
pub const fn clear_len(code: u8) -> usize {
    clear_len_of(Command::from_u8(code))
}

const fn clear_len_of(command: Option<Command>) -> usize {
    match command {
        Some(Command::BurstReadReq | Command::BurstReadResp) => HEADER_LEN + 1,
        Some(Command::BurstWriteReq) => HEADER_LEN + 8,
        _ => HEADER_LEN,
    }
}

/// Who sent `frame`, for who has to choose before it is delimited; `None` if it ends before the source MAC does.
#[inline]
pub fn source(frame: &[u8]) -> Option<Mac> {
    Some(Mac(*frame.get(field::SRC)?.first_chunk()?))
}

/// A frame whose length fits what its command says. It is delimited, and its command decoded, once, when the view is
/// made; accessors cannot panic. Nothing else about the content is checked before [`message`](FrameView::message).
///
/// `T` is the frame's bytes: `&[u8]` to read them, `&mut [u8]` to [`open`](FrameView::open) them as well.
#[derive(Copy, Clone, Debug)]
pub struct FrameView<T> {
    bytes: T,
    /// Where the data ends and the trailer begins: at least [`HEADER_LEN`], at most the length of `bytes`.
    body_len: usize,
    /// `None` for an unknown request.
    command: Option<Command>,
}

impl<T: AsRef<[u8]>> FrameView<T> {
    /// Delimits `frame`, which may carry a trailer and padding, as [`body_len`] does.
    ///
    /// # Errors
    /// As [`body_len`].
    #[inline]
    pub fn new_checked(frame: T) -> Result<Self, FrameError> {
        let (command, body_len) = delimit(frame.as_ref())?;
        Ok(Self { bytes: frame, body_len, command })
    }

    #[inline]
    fn header_bytes(&self) -> &[u8; HEADER_LEN] {
        self.bytes.as_ref().first_chunk().expect("checked when the view was made")
    }

    /// Destination MAC address.
    #[inline]
    pub fn dst(&self) -> Mac {
        Mac(bytes_at(self.header_bytes(), field::DST))
    }

    /// Source MAC address.
    #[inline]
    pub fn src(&self) -> Mac {
        Mac(bytes_at(self.header_bytes(), field::SRC))
    }

    /// EtherType.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        u16::from_be_bytes(bytes_at(self.header_bytes(), field::ETHERTYPE))
    }

    /// Command code as received.
    #[inline]
    pub fn code(&self) -> u8 {
        self.header_bytes()[field::COMMAND]
    }

    /// The command; `None` for an unknown request.
    #[inline]
    pub fn command(&self) -> Option<Command> {
        self.command
    }

    /// Which way the frame travels.
    #[inline]
    pub fn direction(&self) -> Direction {
        Direction::of_code(self.code())
    }

    /// Whose sequence numbers the frame bears; `None` outside any session.
    #[inline]
    pub fn space(&self) -> Option<Space> {
        let stream = self.stream();
        self.command.map_or(Some(Space::Stream(stream)), |command| command.space(stream))
    }

    /// The low 16 bits of the sequence number.
    #[inline]
    pub fn seq(&self) -> u16 {
        u16::from_be_bytes(bytes_at(self.header_bytes(), field::SEQ))
    }

    /// The stream: the high byte of the AXI id.
    #[inline]
    pub fn stream(&self) -> u8 {
        self.header_bytes()[field::STREAM]
    }

    /// The AXI id.
    #[inline]
    pub fn axi(&self) -> Axi {
        Axi { stream: self.stream(), tag: self.header_bytes()[field::TAG] }
    }

    /// CMem byte address.
    #[inline]
    pub fn addr(&self) -> u64 {
        header::addr(self.header_bytes())
    }

    /// The whole base header.
    #[inline]
    pub fn header(&self) -> Header {
        Header::from_bytes(self.header_bytes())
    }

    /// Everything between the base header and the trailer.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[HEADER_LEN..self.body_len]
    }

    /// Bytes from the destination MAC to the end of the data.
    #[inline]
    pub fn body_len(&self) -> usize {
        self.body_len
    }

    /// What the frame says. Of a session, [open](FrameView::open) it first.
    ///
    /// # Errors
    /// What R9 calls malformed, as [`Message::parse`].
    #[inline(always)]
    pub fn message(&self) -> Result<Message<'_>, FrameError> {
        let Some(command) = self.command else {
            return Err(FrameError::UnknownRequest { code: self.code() });
        };
        Message::of(command, self.addr(), self.payload())
    }
}

impl<T: AsMut<[u8]>> FrameView<T> {
    /// Whether the frame carries the trailer it should ([`Seal::open`]); a sealed session decrypts the payload in
    /// place. If not, the payload is worth nothing: drop the frame.
    #[inline]
    #[must_use]
    pub fn open(&mut self, seal: &Seal, direction: Direction, space: Space, seq: u64) -> bool {
        let clear = clear_len_of(self.command);
        seal.open_delimited(direction, space, self.bytes.as_mut(), self.body_len, clear, seq)
    }
}
