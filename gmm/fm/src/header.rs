//! The 12 bytes before each payload (CXL 3.1, figure 7-19: CCI message format), in two layouts.
//!
//! | offset | field |
//! |---|---|
//! | 0 | category: 0 request, 1 response |
//! | 1 | tag, echoed |
//! | 2 | reserved |
//! | 3 | opcode: low byte the command, high byte its set |
//! | 5 | payload length, bits 15:0 |
//! | 7 | payload length, bits 20:16, and whether an operation continues in the background |
//! | 8 | return code |
//! | 10 | vendor status |
//!
//! The CXL specification places the category in the low bits of byte 0 and the high bits of the length in the low bits
//! of byte 7. FM API tools that use TCP place both in the high bits of their byte ([`Dialect`]). A request of less than
//! 64 KiB is the same in both layouts.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bytes::{Reader, WrongLength};

/// Length of a header in bytes.
pub(crate) const HEADER_BYTES: usize = 12;
/// Offset of the tag in a header.
pub(crate) const TAG_AT: usize = 1;
/// The longest payload that a header can encode, in bytes.
pub const LENGTH_MAX: usize = (1 << 21) - 1;

/// Layout of a header: the position of two fields within their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// Layout of the FM API clients that use TCP: category in bits 7:4 of byte 0; length in bits 7:3 and background
    /// operation in bit 0 of byte 7; tunnelled messages start with their MCTP type.
    #[default]
    Tools,
    /// Layout of the CXL specification: category in bits 3:0 of byte 0; length in bits 4:0 and background operation in
    /// bit 7 of byte 7; tunnelled messages start with their header.
    Spec,
}

/// Kind of a message: request or response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// Encoded as 0.
    Request,
    /// Encoded as 1.
    Response,
    /// Any other encoding, which is undefined.
    Other(u8),
}

impl Category {
    fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Request,
            1 => Self::Response,
            other => Self::Other(other),
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Response => 1,
            Self::Other(other) => other & 0xF,
        }
    }
}

/// Result of a command (CXL 3.1, table 8-34): the values that are used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReturnCode {
    /// 0000h: the command was carried out.
    Success,
    /// 0001h: an operation continues in the background.
    BackgroundStarted,
    /// 0002h: a field has an invalid value.
    InvalidInput,
    /// 0003h: the component does not support the command.
    Unsupported,
    /// 0004h: the component failed.
    InternalError,
    /// 0005h: a later repetition may succeed.
    RetryRequired,
    /// 0006h: a background operation is under way.
    Busy,
    /// 0007h: the memory cannot be accessed.
    MediaDisabled,
    /// 0012h: aborted by a client.
    Aborted,
    /// 0016h: the payload is too short or too long.
    InvalidPayloadLength,
    /// Any other number, which only other components send.
    Other(u16),
}

impl ReturnCode {
    pub fn from_number(number: u16) -> Self {
        match number {
            0x00 => Self::Success,
            0x01 => Self::BackgroundStarted,
            0x02 => Self::InvalidInput,
            0x03 => Self::Unsupported,
            0x04 => Self::InternalError,
            0x05 => Self::RetryRequired,
            0x06 => Self::Busy,
            0x07 => Self::MediaDisabled,
            0x12 => Self::Aborted,
            0x16 => Self::InvalidPayloadLength,
            other => Self::Other(other),
        }
    }

    pub fn number(self) -> u16 {
        match self {
            Self::Success => 0x00,
            Self::BackgroundStarted => 0x01,
            Self::InvalidInput => 0x02,
            Self::Unsupported => 0x03,
            Self::InternalError => 0x04,
            Self::RetryRequired => 0x05,
            Self::Busy => 0x06,
            Self::MediaDisabled => 0x07,
            Self::Aborted => 0x12,
            Self::InvalidPayloadLength => 0x16,
            Self::Other(other) => other,
        }
    }

    /// Returns true if the command was carried out or is under way.
    pub fn is_success(self) -> bool {
        matches!(self, Self::Success | Self::BackgroundStarted)
    }
}

impl fmt::Display for ReturnCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::BackgroundStarted => "background operation started",
            Self::InvalidInput => "invalid input",
            Self::Unsupported => "unsupported",
            Self::InternalError => "internal error",
            Self::RetryRequired => "retry required",
            Self::Busy => "busy",
            Self::MediaDisabled => "media disabled",
            Self::Aborted => "aborted",
            Self::InvalidPayloadLength => "invalid payload length",
            Self::Other(other) => return write!(f, "return code {other:#06x}"),
        })
    }
}

impl From<WrongLength> for ReturnCode {
    fn from(_: WrongLength) -> Self {
        Self::InvalidPayloadLength
    }
}

/// Fields of a header, independent of the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub category: Category,
    /// Number that the requester chooses and the responder repeats.
    pub tag: u8,
    /// Opcode: low byte the command, high byte its set.
    pub opcode: u16,
    /// Length of the payload in bytes, at most [`LENGTH_MAX`].
    pub length: usize,
    /// In responses: true if an operation continues in the background.
    pub background: bool,
    /// In responses: the result of the command.
    pub code: ReturnCode,
    /// In responses: vendor status; 0 here.
    pub vendor: u16,
}

impl Header {
    /// Returns the header of a request with `length` bytes of payload.
    pub fn request(tag: u8, opcode: u16, length: usize) -> Self {
        let (category, code) = (Category::Request, ReturnCode::Success);
        Self { category, tag, opcode, length, background: false, code, vendor: 0 }
    }

    /// Returns the header of a response, with tag and opcode of the request that has this header.
    pub fn response(&self, code: ReturnCode, length: usize) -> Self {
        let background = code == ReturnCode::BackgroundStarted;
        Self { category: Category::Response, length, background, code, vendor: 0, ..*self }
    }

    /// Reads the 12 bytes of a header.
    ///
    /// # Errors
    /// [`WrongLength`] if fewer than 12 bytes are left.
    pub fn read(reader: &mut Reader<'_>, dialect: Dialect) -> Result<Self, WrongLength> {
        let [category, tag, _, opcode_low, opcode_high, low, high, top, c0, c1, v0, v1] = reader.array()?;
        let (category, top_bits, background) = match dialect {
            Dialect::Tools => (category >> 4, top >> 3, top & 1 != 0),
            Dialect::Spec => (category & 0xF, top & 0x1F, top & 0x80 != 0),
        };
        Ok(Self {
            category: Category::from_number(category),
            tag,
            opcode: u16::from_le_bytes([opcode_low, opcode_high]),
            length: usize::from(low) | usize::from(high) << 8 | usize::from(top_bits) << 16,
            background,
            code: ReturnCode::from_number(u16::from_le_bytes([c0, c1])),
            vendor: u16::from_le_bytes([v0, v1]),
        })
    }

    pub fn to_bytes(&self, dialect: Dialect) -> [u8; HEADER_BYTES] {
        let [o0, o1] = self.opcode.to_le_bytes();
        let [c0, c1] = self.code.number().to_le_bytes();
        let [v0, v1] = self.vendor.to_le_bytes();
        let [low, high, top, ..] = self.length.min(LENGTH_MAX).to_le_bytes();
        let (category, top) = match dialect {
            Dialect::Tools => (self.category.number() << 4, top << 3 | u8::from(self.background)),
            Dialect::Spec => (self.category.number(), top | u8::from(self.background) << 7),
        };
        [category, self.tag, 0, o0, o1, low, high, top, c0, c1, v0, v1]
    }

    /// Returns the header and `payload` as one message.
    pub fn with(&self, payload: &[u8], dialect: Dialect) -> Vec<u8> {
        [&self.to_bytes(dialect), payload].concat()
    }
}
