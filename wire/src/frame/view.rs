//! A received frame as the sessions use it: delimited and decoded once, with its fields by name.

#[cfg(doc)]
use super::body_len;
use super::extent::{clear_len_of, delimit};
use super::header::{self, bytes_at, field};
use super::{Axi, Command, Direction, FrameError, HEADER_LEN, Header, Mac, Message, Seal, Space};

/// A frame that is at least as long as its command requires. The constructor finds the end of the data and
/// decodes the command, once; the accessors cannot panic. Before [`message`](FrameView::message) nothing else
/// of the content is checked.
///
/// `T` is the frame's bytes: `&[u8]` to read them, `&mut [u8]` to [`open`](FrameView::open) the frame as
/// well.
#[derive(Copy, Clone, Debug)]
pub struct FrameView<T> {
    bytes: T,
    /// Offset of the end of the data, where the trailer begins: at least [`HEADER_LEN`], at most the length
    /// of `bytes`.
    body_len: usize,
    /// `None` for an unknown request.
    command: Option<Command>,
}

impl<T: AsRef<[u8]>> FrameView<T> {
    /// Finds the end of the data of `frame`, which may have a trailer and padding, as [`body_len`] does.
    ///
    /// # Errors
    /// The errors of [`body_len`].
    // Always inlined, like `delimit`, so that a view stays in registers.
    #[inline(always)]
    pub fn new_checked(frame: T) -> Result<Self, FrameError> {
        let (command, body_len) = delimit(frame.as_ref())?;
        Ok(Self { bytes: frame, body_len, command })
    }

    #[inline(always)]
    fn header_bytes(&self) -> &[u8; HEADER_LEN] {
        self.bytes.as_ref().first_chunk().expect("checked when the view was made")
    }

    /// All bytes received, with trailer and padding.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// Destination MAC address, as received.
    #[inline]
    pub fn dst(&self) -> Mac {
        Mac(bytes_at(self.header_bytes(), field::DST))
    }

    /// Source MAC address; that of a CN is its CN id.
    #[inline]
    pub fn src(&self) -> Mac {
        Mac(bytes_at(self.header_bytes(), field::SRC))
    }

    /// EtherType as received, whatever its value.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        u16::from_be_bytes(bytes_at(self.header_bytes(), field::ETHERTYPE))
    }

    /// Command code as received, known or not.
    #[inline]
    pub fn code(&self) -> u8 {
        self.header_bytes()[field::COMMAND]
    }

    /// Decoded command; `None` for an unknown request.
    #[inline]
    pub fn command(&self) -> Option<Command> {
        self.command
    }

    /// Direction of the frame, by bit 7 of its command code.
    #[inline]
    pub fn direction(&self) -> Direction {
        Direction::of_code(self.code())
    }

    /// Space of the frame's sequence number; `None` for a frame outside any session.
    #[inline]
    pub fn space(&self) -> Option<Space> {
        let stream = self.stream();
        self.command.map_or(Some(Space::Stream(stream)), |command| command.space(stream))
    }

    /// Low 16 bits of the sequence number (R11).
    #[inline]
    pub fn seq(&self) -> u16 {
        u16::from_be_bytes(bytes_at(self.header_bytes(), field::SEQ))
    }

    /// Stream: high byte of the AXI id.
    #[inline]
    pub fn stream(&self) -> u8 {
        self.header_bytes()[field::STREAM]
    }

    /// AXI id of the request, which a response repeats.
    #[inline]
    pub fn axi(&self) -> Axi {
        Axi { stream: self.stream(), tag: self.header_bytes()[field::TAG] }
    }

    /// CMem byte address, 48 bits.
    #[inline(always)]
    pub fn addr(&self) -> u64 {
        header::addr(self.header_bytes())
    }

    /// Base header with all fields decoded.
    #[inline]
    pub fn header(&self) -> Header {
        Header::from_bytes(self.header_bytes())
    }

    /// Bytes between the base header and the trailer.
    #[inline(always)]
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[HEADER_LEN..self.body_len]
    }

    /// Number of bytes from the destination MAC to the end of the data.
    #[inline]
    pub fn body_len(&self) -> usize {
        self.body_len
    }

    /// Decodes the content of the frame. [`open`](FrameView::open) a frame of a session first.
    ///
    /// # Errors
    /// Violations of R9, as for [`Message::parse`].
    #[inline(always)]
    pub fn message(&self) -> Result<Message<'_>, FrameError> {
        let Some(command) = self.command else {
            return Err(FrameError::UnknownRequest { code: self.code() });
        };
        Message::of(command, self.addr(), self.payload())
    }
}

impl<T: AsMut<[u8]>> FrameView<T> {
    /// Verifies the trailer as [`Seal::open`] does; a sealed session decrypts the payload in place. If this
    /// returns `false`, the payload is undefined: drop the frame.
    #[inline(always)]
    #[must_use]
    pub fn open(&mut self, seal: &Seal, direction: Direction, space: Space, seq: u64) -> bool {
        let clear = clear_len_of(self.command);
        seal.open_delimited(direction, space, self.bytes.as_mut(), self.body_len, clear, seq)
    }
}
