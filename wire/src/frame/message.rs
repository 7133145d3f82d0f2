//! Decoded content of a frame after the base header: one variant for each command. Line data is borrowed from
//! the received frame, not copied.

use super::extent::delimit;
use super::multi::{check_multi, read_req_len, write_req_len};
use super::{
    ADDRESS_LEN, Axi, BURST_LINES_MAX, Command, FaultStatus, FrameError, HEADER_LEN, Header, Hello, HelloAck,
    LINE_SIZE, PfcVector, burst_fits_page,
};

/// Content of a frame. Line data stays in the frame's memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Read the line at the header's address.
    ReadReq,
    /// Write the line at the header's address.
    WriteReq {
        /// New content of the line.
        data: &'a [u8; LINE_SIZE],
    },
    /// Read consecutive lines, the first at the header's address, all in one 4 KiB page.
    BurstReadReq {
        /// Number of lines, 1 to 64.
        lines: u8,
    },
    /// Write lines of one 4 KiB page.
    BurstWriteReq {
        /// Bit n set (value 2^n): the line n lines after the header's address is written. Never 0.
        mask: u64,
        /// The lines, in order of their addresses, 64 bytes for each bit set.
        data: &'a [u8],
    },
    /// Read lines at any addresses, the first at the header's address: one request for each line, with
    /// consecutive numbers.
    MultiReadReq {
        /// Addresses of lines 2 to n, 1 to 63 of them ([`address_of`](super::address_of)).
        others: &'a [[u8; ADDRESS_LEN]],
    },
    /// Write lines at any addresses, the first at the header's address: one request for each line, with
    /// consecutive numbers.
    MultiWriteReq {
        /// Addresses of lines 2 to n, 1 to 63 of them ([`address_of`](super::address_of)).
        others: &'a [[u8; ADDRESS_LEN]],
        /// Content of the lines in the order of the addresses, one line more than `others`.
        data: &'a [[u8; LINE_SIZE]],
    },
    /// Request for a session, with the parameters that the CN proposes.
    Hello(Hello),
    /// Request for a Pong, to find out whether the peer is alive.
    Ping,
    /// End of the session; expects a ByeAck.
    Bye,
    /// Start of the session that a HelloAck offered.
    Start,
    /// Request for EchoReply frames, for measurements.
    Echo {
        /// Length in bytes of each reply, from the destination MAC to its end; at least 60.
        reply_len: u16,
        /// Number of replies requested.
        reply_count: u16,
    },
    /// Response to a ReadReq.
    ReadResp {
        /// Content of the line at the header's address.
        data: &'a [u8; LINE_SIZE],
    },
    /// The write, single or burst, was executed.
    WriteResp,
    /// The request with the header's number has arrived, but some request before it has not (R4).
    SackNak {
        /// Number up to which every request has arrived (low 16 bits).
        last_in_order: u16,
    },
    /// SackNak and the acknowledgement of one write in one frame (R4).
    SackNakAck {
        /// Number up to which every request has arrived (low 16 bits).
        last_in_order: u16,
        /// Sequence number of the acknowledged write (low 16 bits).
        acked_seq: u16,
        /// AXI id of the acknowledged write.
        acked_axi: Axi,
    },
    /// Notice that the memory node's receive queue is too long: the named classes are to slow down.
    Congestion(PfcVector),
    /// Response to a BurstReadReq.
    BurstReadResp {
        /// Number of lines, 1 to 64.
        lines: u8,
        /// Content of the lines in order of their addresses, 64 bytes each.
        data: &'a [u8],
    },
    /// Response to reads of consecutive numbers; the header has the first number.
    MultiReadResp {
        /// Content of the lines in the order of the numbers, 2 to 64 lines.
        data: &'a [[u8; LINE_SIZE]],
    },
    /// Response to writes of consecutive numbers; the header has the first number.
    MultiWriteResp {
        /// Number of writes executed, 2 to 64.
        lines: u8,
    },
    /// Refusal of a request, which was not carried out.
    Fault {
        /// Reason of the refusal.
        status: FaultStatus,
    },
    /// Answer to a Hello: an offered session or the reason of a refusal.
    HelloAck(HelloAck),
    /// Answer to a Ping, as long as the Ping.
    Pong,
    /// Answer to a Bye: the session is removed.
    ByeAck,
    /// Answer to a Start: only after it may the CN send requests.
    StartAck,
    /// One of the frames that an Echo asked for, for measurements.
    EchoReply {
        /// Index of the reply among those requested, counted from 0.
        index: u16,
    },
}

impl<'a> Message<'a> {
    /// Decodes a frame; a trailer and padding are ignored. Verify the trailer first.
    ///
    /// Checks R9: a request's address is a multiple of 64. A burst has 1 to 64 lines, at least one bit in its mask, and
    /// stays inside one 4 KiB page. A frame of many lines has 2 to 64 lines. The addresses of a frame of many lines are
    /// not checked, because each of them belongs to a request by itself; nor are the addresses in responses and control
    /// frames.
    ///
    /// # Errors
    /// See [`FrameError`]. Where [`FrameError::is_malformed`] holds, [`Header::parse`] still returns the header, which
    /// the answer needs.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<(Header, Self), FrameError> {
        let (command, end) = delimit(frame)?;
        let (bytes, payload) = frame[..end]
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(FrameError::Truncated { have: end, need: HEADER_LEN })?;
        let header = Header::from_bytes(bytes);
        let command = command.ok_or(FrameError::UnknownRequest { code: header.command })?;
        Ok((header, Self::of(command, header.addr, payload)?))
    }

    /// Decodes the `payload` of a frame with this command and address. Inlined where sessions read a frame
    /// and use the result at once, so that nothing is copied.
    #[inline(always)]
    pub(super) fn of(command: Command, addr: u64, payload: &'a [u8]) -> Result<Self, FrameError> {
        // The addresses of a frame of many requests are checked later, each with its own request.
        if command.is_request() && !command.is_multi_request() && !addr.is_multiple_of(LINE_SIZE as u64) {
            return Err(FrameError::Unaligned { addr });
        }
        Ok(match command {
            Command::ReadReq => Self::ReadReq,
            Command::WriteReq => Self::WriteReq { data: chunk(payload, 0)? },
            Command::BurstReadReq => {
                // Indexing cannot fail, because `delimit` has checked the length.
                let lines = payload[0];
                check_burst(addr, lines)?;
                Self::BurstReadReq { lines }
            }
            Command::BurstWriteReq => {
                let mask = u64::from_be_bytes(*chunk(payload, 0)?);
                if mask == 0 {
                    return Err(FrameError::EmptyMask);
                }
                // The burst extends to the highest bit set in the mask; the lines of lower bits may be left out.
                check_burst(addr, 64 - mask.leading_zeros() as u8)?;
                Self::BurstWriteReq { mask, data: &payload[8..] }
            }
            Command::MultiReadReq => {
                check_multi(payload[0])?;
                Self::MultiReadReq { others: payload[1..].as_chunks().0 }
            }
            Command::MultiWriteReq => {
                let lines = check_multi(payload[0])?;
                let (others, data) = payload[1..].split_at((lines - 1) * ADDRESS_LEN);
                Self::MultiWriteReq { others: others.as_chunks().0, data: data.as_chunks().0 }
            }
            Command::MultiReadResp => {
                check_multi(payload[0])?;
                Self::MultiReadResp { data: payload[1..].as_chunks().0 }
            }
            Command::MultiWriteResp => {
                check_multi(payload[0])?;
                Self::MultiWriteResp { lines: payload[0] }
            }
            Command::ReadResp => Self::ReadResp { data: chunk(payload, 0)? },
            Command::WriteResp => Self::WriteResp,
            Command::BurstReadResp => {
                let lines = payload[0];
                check_count(lines)?;
                Self::BurstReadResp { lines, data: &payload[1..] }
            }
            Command::Fault => Self::Fault { status: payload[0].into() },
            Command::SackNak => Self::SackNak { last_in_order: u16_at(payload, 0)? },
            Command::SackNakAck => Self::SackNakAck {
                last_in_order: u16_at(payload, 0)?,
                acked_seq: u16_at(payload, 2)?,
                acked_axi: Axi { stream: payload[4], tag: payload[5] },
            },
            Command::Hello => Self::Hello(Hello::parse(chunk(payload, 0)?)),
            Command::HelloAck => Self::HelloAck(HelloAck::parse(chunk(payload, 0)?)),
            Command::Ping => Self::Ping,
            Command::Pong => Self::Pong,
            Command::Bye => Self::Bye,
            Command::ByeAck => Self::ByeAck,
            Command::Start => Self::Start,
            Command::StartAck => Self::StartAck,
            Command::Congestion => Self::Congestion(PfcVector::parse(chunk(payload, 0)?)),
            Command::Echo => Self::Echo { reply_len: u16_at(payload, 0)?, reply_count: u16_at(payload, 2)? },
            Command::EchoReply => Self::EchoReply { index: u16_at(payload, 0)? },
        })
    }

    /// Command code that [`emit`](Self::emit) writes into the header.
    #[inline]
    pub const fn command(&self) -> Command {
        match self {
            Self::ReadReq => Command::ReadReq,
            Self::WriteReq { .. } => Command::WriteReq,
            Self::BurstReadReq { .. } => Command::BurstReadReq,
            Self::BurstWriteReq { .. } => Command::BurstWriteReq,
            Self::MultiReadReq { .. } => Command::MultiReadReq,
            Self::MultiWriteReq { .. } => Command::MultiWriteReq,
            Self::MultiReadResp { .. } => Command::MultiReadResp,
            Self::MultiWriteResp { .. } => Command::MultiWriteResp,
            Self::Hello(_) => Command::Hello,
            Self::Ping => Command::Ping,
            Self::Bye => Command::Bye,
            Self::Start => Command::Start,
            Self::Echo { .. } => Command::Echo,
            Self::ReadResp { .. } => Command::ReadResp,
            Self::WriteResp => Command::WriteResp,
            Self::SackNak { .. } => Command::SackNak,
            Self::SackNakAck { .. } => Command::SackNakAck,
            Self::Congestion(_) => Command::Congestion,
            Self::BurstReadResp { .. } => Command::BurstReadResp,
            Self::Fault { .. } => Command::Fault,
            Self::HelloAck(_) => Command::HelloAck,
            Self::Pong => Command::Pong,
            Self::ByeAck => Command::ByeAck,
            Self::StartAck => Command::StartAck,
            Self::EchoReply { .. } => Command::EchoReply,
        }
    }

    /// Number of bytes between the base header and the trailer.
    #[inline]
    pub(crate) const fn payload_len(&self) -> usize {
        match self {
            Self::ReadReq
            | Self::WriteResp
            | Self::Ping
            | Self::Pong
            | Self::Start
            | Self::StartAck
            | Self::Bye
            | Self::ByeAck => 0,
            Self::WriteReq { .. } | Self::ReadResp { .. } => LINE_SIZE,
            Self::BurstReadReq { .. } | Self::Fault { .. } | Self::MultiWriteResp { .. } => 1,
            Self::BurstReadResp { data, .. } => 1 + data.len(),
            Self::BurstWriteReq { data, .. } => 8 + data.len(),
            Self::MultiReadReq { others } => read_req_len(others.len() + 1),
            Self::MultiWriteReq { data, .. } => write_req_len(data.len()),
            Self::MultiReadResp { data } => 1 + data.len() * LINE_SIZE,
            Self::SackNak { .. } | Self::EchoReply { .. } => 2,
            Self::SackNakAck { .. } => 6,
            Self::Echo { .. } => 4,
            Self::Congestion(_) => PfcVector::LEN,
            Self::Hello(_) => Hello::LEN,
            Self::HelloAck(_) => HelloAck::LEN,
        }
    }

    /// Number of bytes from the destination MAC to the end of the data.
    #[inline]
    pub const fn body_len(&self) -> usize {
        HEADER_LEN + self.payload_len()
    }

    /// Writes the frame at the beginning of `frame`, exactly [`Message::body_len`] bytes. The command comes from the
    /// message; `header.command` is ignored.
    ///
    /// # Panics
    /// If `frame` is shorter than [`Message::body_len`], or if the number of lines in the data differs from the number
    /// of addresses.
    #[inline(always)]
    pub fn emit(&self, header: &Header, frame: &mut [u8]) {
        Header { command: self.command() as u8, ..*header }.emit(frame);
        let out = &mut frame[HEADER_LEN..HEADER_LEN + self.payload_len()];
        match *self {
            Self::ReadReq
            | Self::WriteResp
            | Self::Ping
            | Self::Pong
            | Self::Start
            | Self::StartAck
            | Self::Bye
            | Self::ByeAck => {}
            Self::WriteReq { data } | Self::ReadResp { data } => out.copy_from_slice(data),
            Self::BurstReadReq { lines } => out[0] = lines,
            Self::BurstReadResp { lines, data } => {
                assert_eq!(data.len(), usize::from(lines) * LINE_SIZE, "a burst response holds its lines");
                out[0] = lines;
                out[1..].copy_from_slice(data);
            }
            Self::BurstWriteReq { mask, data } => {
                assert_eq!(
                    data.len(),
                    mask.count_ones() as usize * LINE_SIZE,
                    "a burst write holds its lines"
                );
                out[..8].copy_from_slice(&mask.to_be_bytes());
                out[8..].copy_from_slice(data);
            }
            Self::MultiReadReq { others } => {
                out[0] = others.len() as u8 + 1;
                out[1..].copy_from_slice(others.as_flattened());
            }
            Self::MultiWriteReq { others, data } => {
                assert_eq!(data.len(), others.len() + 1, "a line for each address");
                out[0] = data.len() as u8;
                let (addresses, lines) = out[1..].split_at_mut(others.len() * ADDRESS_LEN);
                addresses.copy_from_slice(others.as_flattened());
                lines.copy_from_slice(data.as_flattened());
            }
            Self::MultiReadResp { data } => {
                out[0] = data.len() as u8;
                out[1..].copy_from_slice(data.as_flattened());
            }
            Self::MultiWriteResp { lines } => out[0] = lines,
            Self::Fault { status } => out[0] = status.into(),
            Self::SackNak { last_in_order } => out.copy_from_slice(&last_in_order.to_be_bytes()),
            Self::SackNakAck { last_in_order, acked_seq, acked_axi } => {
                out[..2].copy_from_slice(&last_in_order.to_be_bytes());
                out[2..4].copy_from_slice(&acked_seq.to_be_bytes());
                out[4..].copy_from_slice(&[acked_axi.stream, acked_axi.tag]);
            }
            Self::Echo { reply_len, reply_count } => {
                out[..2].copy_from_slice(&reply_len.to_be_bytes());
                out[2..].copy_from_slice(&reply_count.to_be_bytes());
            }
            Self::EchoReply { index } => out.copy_from_slice(&index.to_be_bytes()),
            Self::Congestion(vector) => out.copy_from_slice(&vector.to_bytes()),
            Self::Hello(hello) => out.copy_from_slice(&hello.to_bytes()),
            Self::HelloAck(ack) => out.copy_from_slice(&ack.to_bytes()),
        }
    }
}

/// Returns the `N` bytes of the payload from `at`. The error never occurs after [`delimit`], which checked
/// the length.
#[inline]
fn chunk<const N: usize>(payload: &[u8], at: usize) -> Result<&[u8; N], FrameError> {
    let truncated = FrameError::Truncated { have: HEADER_LEN + payload.len(), need: HEADER_LEN + at + N };
    payload.get(at..).and_then(|rest| rest.first_chunk()).ok_or(truncated)
}

#[inline]
fn u16_at(payload: &[u8], at: usize) -> Result<u16, FrameError> {
    chunk(payload, at).map(|bytes| u16::from_be_bytes(*bytes))
}

#[inline]
fn check_count(lines: u8) -> Result<(), FrameError> {
    if lines == 0 || usize::from(lines) > BURST_LINES_MAX {
        return Err(FrameError::LineCount { lines });
    }
    Ok(())
}

#[inline]
fn check_burst(addr: u64, lines: u8) -> Result<(), FrameError> {
    check_count(lines)?;
    if !burst_fits_page(addr, usize::from(lines) - 1) {
        return Err(FrameError::LeavesPage { addr, lines });
    }
    Ok(())
}
