//! Properties of a command code: the direction of the frame, and the counter that its sequence number comes
//! from. The codes are in the [table of opcodes](super::opcode).

use super::opcode::{Command, CommandClass};

/// Direction of a frame; the trailer covers it, so that a frame cannot be sent back to its sender.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the CN to the MN; encoded as 0 in the pseudo-header.
    ToMn = 0,
    /// From the MN to the CN; encoded as 1 in the pseudo-header.
    ToCn = 1,
}

/// Counter of a frame's sequence number within its session. Each space counts each direction separately; a
/// response repeats the number of its request.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Requests and responses of one stream (R1).
    Stream(u8),
    /// Start, Ping, Bye, their answers, and Congestion: one counter for each direction of the session.
    Control,
}

impl Direction {
    /// Returns the direction of a frame with this command code, known or not.
    #[inline]
    pub(crate) const fn of_code(code: u8) -> Self {
        if code & 0x80 == 0 { Self::ToMn } else { Self::ToCn }
    }
}

impl Command {
    /// Whether the command is a request of a stream: it takes a sequence number and gets exactly one response
    /// (R1). A [frame of many requests](Self::is_multi_request) takes a number for each line.
    #[inline]
    pub const fn is_request(self) -> bool {
        matches!(self.class(), CommandClass::Request | CommandClass::Requests)
    }

    /// Whether a frame of this command counts as one request for each of its lines, with consecutive sequence numbers.
    #[inline]
    pub const fn is_multi_request(self) -> bool {
        matches!(self.class(), CommandClass::Requests)
    }

    /// Returns the direction of frames of this command, from bit 7 of the code.
    #[inline]
    pub const fn direction(self) -> Direction {
        Direction::of_code(self as u8)
    }

    /// Returns the space of the frame's sequence number, if the AXI id names `stream`. `None` for the four
    /// commands outside any session (Hello, HelloAck, Echo, EchoReply).
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

    /// Whether an unknown code counts as a request without payload: 0x00 to 0x0F and 0x20 to 0x6F. Such a
    /// request uses up its sequence number and is answered with a Fault (R9). The length of all other unknown
    /// frames cannot be known, so they are dropped.
    #[inline]
    pub const fn is_unknown_request(code: u8) -> bool {
        matches!(code, 0x00..=0x0F | 0x20..=0x6F) && Self::from_u8(code).is_none()
    }
}

/// Encodes direction and space for the pseudo-header of the checksum and for the nonce.
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
