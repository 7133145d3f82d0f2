//! The command byte: the way a frame travels, and the counter that its sequence number comes from. The codes are in the
//! [table of opcodes](super::opcode).

use super::opcode::{Command, CommandClass};

/// Direction in which a frame travels.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the compute node to the memory node.
    ToMn = 0,
    /// From the memory node to the compute node.
    ToCn = 1,
}

/// Space of a frame's sequence number in its session. Each direction of each space is counted by itself (responses bear
/// the number of their request).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Requests and responses of one stream (R1).
    Stream(u8),
    /// Start, Ping, Bye, their answers and Congestion: a counter per direction and session.
    Control,
}

impl Direction {
    /// Direction of a frame with this command code, known or not.
    #[inline]
    pub(crate) const fn of_code(code: u8) -> Self {
        if code & 0x80 == 0 { Self::ToMn } else { Self::ToCn }
    }
}

impl Command {
    /// Whether a memory node, not a CN, sends frames of this command.
    #[inline]
    pub const fn is_response(self) -> bool {
        self as u8 & 0x80 != 0
    }

    /// Whether the command is a request of a stream: it takes a sequence number and gets exactly one response (R1). A
    /// [request of many lines](Self::is_multi_request) counts as one request for each line.
    #[inline]
    pub const fn is_request(self) -> bool {
        matches!(self.class(), CommandClass::Request | CommandClass::Requests)
    }

    /// Whether the command stands for as many requests as the frame has lines, of consecutive numbers.
    #[inline]
    pub const fn is_multi_request(self) -> bool {
        matches!(self.class(), CommandClass::Requests)
    }

    /// Direction of frames of this command.
    #[inline]
    pub const fn direction(self) -> Direction {
        Direction::of_code(self as u8)
    }

    /// Space of the frame's sequence number where the AXI id names `stream`; `None` for the four commands outside any
    /// session (Hello, HelloAck, Echo, EchoReply).
    #[inline]
    pub const fn space(self, stream: u8) -> Option<Space> {
        match self.class() {
            CommandClass::Handshake | CommandClass::Echo => None,
            CommandClass::Control => Some(Space::Control),
            CommandClass::Request
            | CommandClass::Requests
            | CommandClass::Response
            | CommandClass::Responses
            | CommandClass::Sack => Some(Space::Stream(stream)),
        }
    }

    /// Whether an unknown code counts as a request without payload: 0x00 to 0x0F and 0x20 to 0x6F. Such a request
    /// consumes its sequence number and is answered with a Fault (R9). Frames of all other unknown codes have no known
    /// length and are dropped.
    #[inline]
    pub const fn is_unknown_request(code: u8) -> bool {
        matches!(code, 0x00..=0x0F | 0x20..=0x6F) && Self::from_u8(code).is_none()
    }
}

/// Direction and space of a frame, encoded as in the pseudo-header and the nonce.
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
