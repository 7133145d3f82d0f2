//! Table of opcodes: one row for each command of the protocol. The type [`Command`], the classes, the lengths
//! of the frames and the tables of the Wireshark dissector all come from this table.
//!
//! ```text
//!   code  name          class     payload        after the base header
//!                                 none           nothing
//!                                 bytes(N)       N bytes
//!                                 line           one line of 64 bytes
//!                                 count          a count of lines, 1 byte
//!                                 lines          a count n, then n lines
//!                                 mask_lines     a mask of 8 bytes, then a line for each bit that is set
//!                                 addresses      a count n, then n - 1 addresses
//!                                 address_lines  a count n, n - 1 addresses, n lines
//! ```

use super::multi::{read_req_len, write_req_len};
use super::{FrameError, HEADER_LEN, Hello, HelloAck, LINE_SIZE, PfcVector};

/// Class of a command: determines which counter the frame's sequence number comes from, and how it is
/// answered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CommandClass {
    /// A request of a stream: it takes a sequence number and gets one response (R1).
    Request,
    /// Many requests in one frame, one for each line, with consecutive sequence numbers.
    Requests,
    /// A response; it repeats the number of its request.
    Response,
    /// Responses to many requests in one frame, one for each line.
    Responses,
    /// A response about a request that arrived early, while an earlier request is missing. The answer to the
    /// request itself follows later (R4).
    Sack,
    /// Agreement on a session; sent outside any session.
    Handshake,
    /// A frame about a session as a whole. Each direction has its own counter.
    Control,
    /// A measurement, never part of a session.
    Echo,
}

/// Form of the payload, between base header and trailer; the [module](self) lists them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PayloadForm {
    /// A fixed number of bytes, 0 for most control frames.
    Bytes(usize),
    /// Number of lines, 1 byte.
    Count,
    /// Number of lines, then the lines.
    Lines,
    /// Mask of lines, then the lines.
    MaskLines,
    /// Number of lines, then their addresses.
    Addresses,
    /// Number of lines, their addresses, then the lines.
    AddressLines,
}

impl PayloadForm {
    /// Number of payload bytes that a sealed session authenticates but leaves readable: the count or mask,
    /// without which a receiver cannot find the end of the frame.
    #[inline]
    pub const fn clear_len(self) -> usize {
        match self {
            Self::Bytes(_) => 0,
            Self::MaskLines => 8,
            Self::Count | Self::Lines | Self::Addresses | Self::AddressLines => 1,
        }
    }
}

/// Translates a word of the table to a [`PayloadForm`].
macro_rules! payload {
    (none) => {
        PayloadForm::Bytes(0)
    };
    (bytes($len:expr)) => {
        PayloadForm::Bytes($len)
    };
    (line) => {
        PayloadForm::Bytes(LINE_SIZE)
    };
    (count) => {
        PayloadForm::Count
    };
    (lines) => {
        PayloadForm::Lines
    };
    (mask_lines) => {
        PayloadForm::MaskLines
    };
    (addresses) => {
        PayloadForm::Addresses
    };
    (address_lines) => {
        PayloadForm::AddressLines
    };
}

/// Computes the length in bytes of a payload of this form from its first bytes. One macro arm for each form,
/// so that the compiler finds a frame's length by one jump from its command.
macro_rules! payload_len {
    ($have:ident, lines) => {
        1 + first_byte($have)? * LINE_SIZE
    };
    ($have:ident, mask_lines) => {{
        let mask = $have.first_chunk().ok_or(truncated($have, 8))?;
        8 + u64::from_be_bytes(*mask).count_ones() as usize * LINE_SIZE
    }};
    ($have:ident, addresses) => {
        read_req_len(first_byte($have)?)
    };
    ($have:ident, address_lines) => {
        write_req_len(first_byte($have)?)
    };
    ($have:ident, none) => {
        0
    };
    ($have:ident, bytes($len:expr)) => {
        $len
    };
    ($have:ident, line) => {
        LINE_SIZE
    };
    ($have:ident, count) => {
        1
    };
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $code:literal $name:ident $class:ident $payload:ident $(($len:expr))?;)+) => {
        /// Command code of a frame, a request or an answer. Bit 7 is set in codes that only a memory node
        /// sends, and in Pong and ByeAck.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Command {
            $($(#[$doc])* $name = $code,)+
        }

        impl Command {
            /// Every command of the protocol, in ascending order of the codes.
            pub const ALL: [Self; [$(Self::$name),+].len()] = [$(Self::$name),+];

            /// Returns the command with this code, or `None` if the protocol has none.
            #[inline]
            pub const fn from_u8(code: u8) -> Option<Self> {
                Some(match code {
                    $($code => Self::$name,)+
                    _ => return None,
                })
            }

            /// Returns the name of the command as `PROTOCOL.md` spells it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }

            /// Returns the class, from the [table](self).
            #[inline]
            pub const fn class(self) -> CommandClass {
                match self {
                    $(Self::$name => CommandClass::$class,)+
                }
            }

            /// Returns the form of the payload, between base header and trailer.
            #[inline]
            pub const fn payload(self) -> PayloadForm {
                match self {
                    $(Self::$name => payload!($payload $(($len))?),)+
                }
            }

            /// Returns the length in bytes of the payload, computed from `have`, the bytes of the payload that have
            /// been received. They may be incomplete.
            ///
            /// # Errors
            /// [`FrameError::Truncated`] if `have` ends before the count or mask.
            #[inline(always)]
            pub(super) fn payload_len(self, have: &[u8]) -> Result<usize, FrameError> {
                Ok(match self {
                    $(Self::$name => payload_len!(have, $payload $(($len))?),)+
                })
            }
        }
    };
}

opcodes! {
    /// Reads the line at the header's address.
    0x01 ReadReq        Request    none;
    /// Writes the line at the header's address.
    0x02 WriteReq       Request    line;
    /// Reads consecutive lines of one page.
    0x03 BurstReadReq   Request    count;
    /// Writes some lines of one page.
    0x04 BurstWriteReq  Request    mask_lines;
    /// Reads lines at any addresses, as one request for each line. Requires
    /// [`FEATURE_MULTI`](super::FEATURE_MULTI).
    0x05 MultiReadReq   Requests   addresses;
    /// Writes lines at any addresses, as one request for each line. Requires
    /// [`FEATURE_MULTI`](super::FEATURE_MULTI).
    0x06 MultiWriteReq  Requests   address_lines;
    /// Asks for a session; sent outside any session.
    0x10 Hello          Handshake  bytes(Hello::LEN);
    /// Asks for a Pong in an idle session, to find out whether the peer is alive.
    0x11 Ping           Control    none;
    /// Ends the session; repeated until a ByeAck comes.
    0x12 Bye            Control    none;
    /// Starts the session that Hello and HelloAck agreed on; it replaces the earlier one.
    0x13 Start          Control    none;
    /// Asks for frames of a given length, for measurements. Never part of a session. A node answers only if
    /// it was started for measuring.
    0x70 Echo           Echo       bytes(4);
    /// Answers a ReadReq with the line.
    0x81 ReadResp       Response   line;
    /// Acknowledges a WriteReq or BurstWriteReq that was executed.
    0x82 WriteResp      Response   none;
    /// Selective acknowledgement: this request has arrived, but earlier ones are missing.
    0x83 SackNak        Sack       bytes(2);
    /// [`SackNak`](Command::SackNak) and the acknowledgement of a write in one frame.
    0x84 SackNakAck     Sack       bytes(6);
    /// Tells a CN that the memory node's receive queue is too long; has the content of an 802.1Qbb frame.
    0x85 Congestion     Control    bytes(PfcVector::LEN);
    /// Answers a BurstReadReq with the lines.
    0x86 BurstReadResp  Response   lines;
    /// Refuses a request, with the reason.
    0x87 Fault          Response   bytes(1);
    /// Answers reads of consecutive sequence numbers with the lines.
    0x88 MultiReadResp  Responses  lines;
    /// Acknowledges writes of consecutive sequence numbers that were executed.
    0x89 MultiWriteResp Responses  count;
    /// Answers a [`Hello`](Command::Hello); sent outside any session.
    0x90 HelloAck       Handshake  bytes(HelloAck::LEN);
    /// Answers a Ping with a frame of the same length, which also tests the path.
    0x91 Pong           Control    none;
    /// Answers a Bye; the sender has removed the session.
    0x92 ByeAck         Control    none;
    /// Answers a [`Start`](Command::Start): no worker holds requests of an earlier session any more.
    0x93 StartAck       Control    none;
    /// One of the frames that an [`Echo`](Command::Echo) asked for.
    0xF0 EchoReply      Echo       bytes(2);
}

#[inline(always)]
fn first_byte(have: &[u8]) -> Result<usize, FrameError> {
    have.first().map(|byte| usize::from(*byte)).ok_or(truncated(have, 1))
}

fn truncated(have: &[u8], need: usize) -> FrameError {
    FrameError::Truncated { have: HEADER_LEN + have.len(), need: HEADER_LEN + need }
}

#[cfg(test)]
mod tests {
    use core::fmt::Write;

    use super::*;

    const DISSECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/wireshark/cxloe.lua");
    const BEGIN: &str = "-- The table of opcodes begins: `OPCODES=write cargo test -p cxloe-wire dissector` writes it anew.\n";
    const END: &str = "-- The table of opcodes ends.\n";

    /// Returns the table of opcodes as Lua source for the dissector.
    fn lua() -> String {
        let mut rows = String::from("local COMMANDS = {\n");
        for command in Command::ALL {
            let (code, name) = (command as u8, command.name());
            let (class, many) = match command.class() {
                CommandClass::Request => ("request", false),
                CommandClass::Requests => ("request", true),
                CommandClass::Response => ("response", false),
                CommandClass::Responses => ("response", true),
                CommandClass::Sack => ("sack", false),
                CommandClass::Handshake => ("handshake", false),
                CommandClass::Control => ("control", false),
                CommandClass::Echo => ("echo", false),
            };
            let payload = match command.payload() {
                PayloadForm::Bytes(len) => len.to_string(),
                PayloadForm::Count => "1".to_owned(),
                PayloadForm::Lines => "\"lines\"".to_owned(),
                PayloadForm::MaskLines => "\"mask_lines\"".to_owned(),
                PayloadForm::Addresses => "\"addresses\"".to_owned(),
                PayloadForm::AddressLines => "\"address_lines\"".to_owned(),
            };
            let clear = command.payload().clear_len();
            write!(
                rows,
                "    [0x{code:02X}] = {{ \"{name}\", \"{class}\", payload = {payload}, clear = {clear}"
            )
            .unwrap();
            // The code of a control frame and the code of its answer differ only in bit 7.
            let other = Command::from_u8(code ^ 0x80).filter(|other| other.class() == CommandClass::Control);
            if let Some(other) = other.filter(|_| command.class() == CommandClass::Control) {
                let role = if code & 0x80 != 0 { "question" } else { "answer" };
                write!(rows, ", {role} = 0x{:02X}", other as u8).unwrap();
            }
            rows.push_str(if many { ", many = true },\n" } else { " },\n" });
        }
        rows.push_str("}\n");
        rows
    }

    #[test]
    fn the_dissector_has_the_table_of_opcodes() {
        let script = std::fs::read_to_string(DISSECTOR).unwrap();
        let (before, rest) = script.split_once(BEGIN).expect("the dissector's mark before its table");
        let (table, after) = rest.split_once(END).expect("the dissector's mark behind its table");
        if std::env::var("OPCODES").is_ok_and(|value| value == "write") {
            std::fs::write(DISSECTOR, format!("{before}{BEGIN}{}{END}{after}", lua())).unwrap();
            return;
        }
        assert_eq!(table, lua(), "write it anew: OPCODES=write cargo test -p cxloe-wire dissector");
    }

    #[test]
    fn codes_rise_and_are_found() {
        assert!(Command::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        for code in 0..=u8::MAX {
            let listed = Command::ALL.iter().find(|c| **c as u8 == code).copied();
            assert_eq!(Command::from_u8(code), listed, "{code:#04x}");
        }
    }
}
