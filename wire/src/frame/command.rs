//! The command byte: what a frame is, which way it travels and whose sequence numbers it bears.

/// What a frame asks for or answers. Bit 7 is set in everything a memory node sends.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Command {
    /// Read one line.
    ReadReq = 0x01,
    /// Write one line.
    WriteReq = 0x02,
    /// Read consecutive lines of one page.
    BurstReadReq = 0x03,
    /// Write some lines of one page.
    BurstWriteReq = 0x04,
    /// Read lines of any addresses: a request for each. Only where both ends have agreed on it.
    MultiReadReq = 0x05,
    /// Write lines of any addresses: a request for each. Only where both ends have agreed on it.
    MultiWriteReq = 0x06,
    /// Opens a session; outside any session itself.
    Hello = 0x10,
    /// Asks whether the other end of an idle session is there.
    Ping = 0x11,
    /// Ends the session.
    Bye = 0x12,
    /// The session just agreed takes the place of the one before.
    Start = 0x13,
    /// A measurement: asks for frames of a given length. Never part of a session; a node answers it only
    /// when it was started for measuring.
    Echo = 0x70,
    /// The line that was read.
    ReadResp = 0x81,
    /// The write, of one line or a burst, was executed.
    WriteResp = 0x82,
    /// A request arrived ahead of others that are missing.
    SackNak = 0x83,
    /// [`SackNak`](Command::SackNak) and the acknowledgement of a write in one.
    SackNakAck = 0x84,
    /// A switch or NIC near the memory node paused a class: the content of the 802.1Qbb frame.
    Congestion = 0x85,
    /// The lines that were read.
    BurstReadResp = 0x86,
    /// The request was not carried out, and why.
    Fault = 0x87,
    /// The lines that requests of consecutive numbers have read.
    MultiReadResp = 0x88,
    /// The writes of consecutive numbers were executed.
    MultiWriteResp = 0x89,
    /// Answer to [`Hello`](Command::Hello); outside any session itself.
    HelloAck = 0x90,
    /// Answer to [`Ping`](Command::Ping).
    Pong = 0x91,
    /// Answer to [`Bye`](Command::Bye).
    ByeAck = 0x92,
    /// Answer to [`Start`](Command::Start): no worker holds anything of an earlier session.
    StartAck = 0x93,
    /// A measurement: one of the frames an [`Echo`](Command::Echo) asked for.
    EchoReply = 0xF0,
}

/// Which way a frame travels.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the compute node to the memory node.
    ToMn = 0,
    /// From the memory node to the compute node.
    ToCn = 1,
}

/// Whose sequence numbers a frame of a session bears. Each direction of each space is counted by itself
/// (responses bear the number of their request).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Requests and responses of one stream (R1).
    Stream(u8),
    /// Start, Ping, Bye, their answers and Congestion: a counter per direction and session.
    Control,
}

impl Direction {
    /// Which way a frame with this command code travels, known or not.
    #[inline]
    pub const fn of_code(code: u8) -> Self {
        if code & 0x80 == 0 { Self::ToMn } else { Self::ToCn }
    }
}

impl Command {
    /// Every command of the protocol, in order of the codes.
    pub const ALL: [Self; 25] = [
        Self::ReadReq,
        Self::WriteReq,
        Self::BurstReadReq,
        Self::BurstWriteReq,
        Self::MultiReadReq,
        Self::MultiWriteReq,
        Self::Hello,
        Self::Ping,
        Self::Bye,
        Self::Start,
        Self::Echo,
        Self::ReadResp,
        Self::WriteResp,
        Self::SackNak,
        Self::SackNakAck,
        Self::Congestion,
        Self::BurstReadResp,
        Self::Fault,
        Self::MultiReadResp,
        Self::MultiWriteResp,
        Self::HelloAck,
        Self::Pong,
        Self::ByeAck,
        Self::StartAck,
        Self::EchoReply,
    ];

    /// The command with this code, if the protocol has one.
    #[inline]
    pub const fn from_u8(code: u8) -> Option<Self> {
        Some(match code {
            0x01 => Self::ReadReq,
            0x02 => Self::WriteReq,
            0x03 => Self::BurstReadReq,
            0x04 => Self::BurstWriteReq,
            0x05 => Self::MultiReadReq,
            0x06 => Self::MultiWriteReq,
            0x10 => Self::Hello,
            0x11 => Self::Ping,
            0x12 => Self::Bye,
            0x13 => Self::Start,
            0x70 => Self::Echo,
            0x81 => Self::ReadResp,
            0x82 => Self::WriteResp,
            0x83 => Self::SackNak,
            0x84 => Self::SackNakAck,
            0x85 => Self::Congestion,
            0x86 => Self::BurstReadResp,
            0x87 => Self::Fault,
            0x88 => Self::MultiReadResp,
            0x89 => Self::MultiWriteResp,
            0x90 => Self::HelloAck,
            0x91 => Self::Pong,
            0x92 => Self::ByeAck,
            0x93 => Self::StartAck,
            0xF0 => Self::EchoReply,
            _ => return None,
        })
    }

    /// Whether a memory node sends it.
    #[inline]
    pub const fn is_response(self) -> bool {
        self as u8 & 0x80 != 0
    }

    /// Whether it is a request of a stream: it takes a sequence number and gets exactly one response (R1). One that
    /// [names many lines](Self::is_multi_request) is a request for each.
    #[inline]
    pub const fn is_request(self) -> bool {
        matches!(self, Self::ReadReq | Self::WriteReq | Self::BurstReadReq | Self::BurstWriteReq)
            || self.is_multi_request()
    }

    /// Whether it stands for as many requests as it names lines, of consecutive numbers.
    #[inline]
    pub const fn is_multi_request(self) -> bool {
        matches!(self, Self::MultiReadReq | Self::MultiWriteReq)
    }

    /// Which way it travels.
    #[inline]
    pub const fn direction(self) -> Direction {
        Direction::of_code(self as u8)
    }

    /// Whose sequence numbers it bears when its AXI id names `stream`; `None` for the four commands that are
    /// outside any session (Hello, HelloAck, Echo, EchoReply).
    #[inline]
    pub const fn space(self, stream: u8) -> Option<Space> {
        match self {
            Self::Hello | Self::HelloAck | Self::Echo | Self::EchoReply => None,
            Self::Start
            | Self::StartAck
            | Self::Ping
            | Self::Pong
            | Self::Bye
            | Self::ByeAck
            | Self::Congestion => Some(Space::Control),
            _ => Some(Space::Stream(stream)),
        }
    }

    /// Whether a code that [`Command::from_u8`] does not know is treated as a request of its stream without
    /// payload, so that it consumes its sequence number and is answered with a Fault (R9): 0x00 to 0x0F and
    /// 0x20 to 0x6F. All other unknown codes cannot be delimited and are dropped.
    #[inline]
    pub const fn is_unknown_request(code: u8) -> bool {
        matches!(code, 0x00..=0x0F | 0x20..=0x6F) && Self::from_u8(code).is_none()
    }
}

/// Which way a frame travels and what its number counts, as pseudo-header and nonce have it.
#[inline]
pub(super) const fn place(direction: Direction, space: Space) -> [u8; 4] {
    match space {
        Space::Stream(stream) => [direction as u8, 0, stream, 0],
        Space::Control => [direction as u8, 1, 0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_protocol_and_no_others() {
        for code in 0..=u8::MAX {
            let listed = Command::ALL.iter().find(|c| **c as u8 == code).copied();
            assert_eq!(Command::from_u8(code), listed, "{code:#04x}");
        }
    }

    #[test]
    fn spaces_and_directions() {
        use Command::*;
        for command in Command::ALL {
            let outside = matches!(command, Hello | HelloAck | Echo | EchoReply);
            assert_eq!(command.space(7).is_none(), outside);
            if command.is_request() {
                assert_eq!(command.space(7), Some(Space::Stream(7)));
                assert_eq!(command.direction(), Direction::ToMn);
            }
        }
        let answers =
            [ReadResp, WriteResp, SackNak, SackNakAck, BurstReadResp, Fault, MultiReadResp, MultiWriteResp];
        for command in answers {
            assert_eq!(command.space(7), Some(Space::Stream(7)));
            assert_eq!(command.direction(), Direction::ToCn);
        }
        for command in [Start, StartAck, Ping, Pong, Bye, ByeAck, Congestion] {
            assert_eq!(command.space(7), Some(Space::Control));
        }
        assert_eq!(Congestion.direction(), Direction::ToCn);
    }

    #[test]
    fn unknown_requests() {
        for code in [0x00, 0x07, 0x0F, 0x20, 0x6F] {
            assert!(Command::is_unknown_request(code));
        }
        for code in [0x01, 0x10, 0x14, 0x1F, 0x70, 0x71, 0x7F, 0x80, 0x8A, 0xFF] {
            assert!(!Command::is_unknown_request(code));
        }
    }
}
