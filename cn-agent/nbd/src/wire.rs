//! The numbers and headers of the NBD protocol, as the NBD project's `doc/proto.md` has them: what is read out of bytes
//! and what is made into bytes, all big-endian. What follows from them is decided in [`super::conversation`].

use bitflags::bitflags;

/// What a server says first.
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// What an option begins with, and the second thing a server says.
pub const OPTION: u64 = 0x4948_4156_454f_5054;
/// What the answer to an option begins with.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// What a request begins with.
pub const REQUEST: u32 = 0x2560_9513;
/// What a simple reply begins with.
pub const SIMPLE_REPLY: u32 = 0x6744_6698;
/// What a chunk of a structured reply begins with.
pub const CHUNK: u32 = 0x668e_33ef;
/// The only chunk of a structured reply, or the last one.
const CHUNK_DONE: u16 = 1;
/// A chunk with nothing in it, which only ends a structured reply.
pub const CHUNK_NONE: u16 = 0;
/// A chunk with data, after its offset.
pub const CHUNK_DATA: u16 = 1;
/// A chunk with an error and a text.
pub const CHUNK_ERROR: u16 = 1 << 15 | 1;

/// Bytes of an option before its data.
pub const OPTION_HEADER: usize = 16;
/// Bytes of a request before its payload.
pub const REQUEST_HEADER: usize = 28;

bitflags! {
    /// What server and client tell each other before anything else.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Handshake: u32 {
        /// Options that are not known are answered, not hung up on.
        const FIXED_NEWSTYLE = 1;
        /// The 124 zeros after the answer to `NBD_OPT_EXPORT_NAME` are left out.
        const NO_ZEROES = 2;
    }

    /// What an export can do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Abilities: u16 {
        /// Always set.
        const HAS_FLAGS = 1;
        /// Writes are refused.
        const READ_ONLY = 1 << 1;
        /// `NBD_CMD_FLUSH` is known.
        const FLUSH = 1 << 2;
        /// `NBD_CMD_FLAG_FUA` is known.
        const FUA = 1 << 3;
        /// `NBD_CMD_TRIM` is known.
        const TRIM = 1 << 5;
        /// `NBD_CMD_WRITE_ZEROES` is known.
        const WRITE_ZEROES = 1 << 6;
        /// A read can be asked for in one piece.
        const DF = 1 << 7;
        /// Several connections see the same: a flush of one is a flush of all.
        const MULTI_CONN = 1 << 8;
    }

    /// Wishes of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Wishes: u16 {
        /// Answered once it is where a flush would bring it.
        const FUA = 1;
        /// Zeros are to be stored, not a hole.
        const NO_HOLE = 1 << 1;
        /// The data in one chunk.
        const DF = 1 << 2;
    }
}

/// Options this server knows, by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opt {
    /// Choose an export, the old way.
    ExportName,
    /// Leave.
    Abort,
    /// Which exports there are.
    List,
    /// What an export is like.
    Info,
    /// Choose an export.
    Go,
    /// Structured replies from now on.
    StructuredReply,
    /// Another.
    Other(u32),
}

impl From<u32> for Opt {
    fn from(number: u32) -> Opt {
        match number {
            1 => Opt::ExportName,
            2 => Opt::Abort,
            3 => Opt::List,
            6 => Opt::Info,
            7 => Opt::Go,
            8 => Opt::StructuredReply,
            other => Opt::Other(other),
        }
    }
}

/// Answers to options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OptReply {
    /// Done.
    Ack = 1,
    /// An export.
    Server = 2,
    /// Something about an export.
    Info = 3,
    /// The option is not known.
    Unsupported = 1 << 31 | 1,
    /// The server does not allow it.
    Policy = 1 << 31 | 2,
    /// The option makes no sense as it was sent.
    Invalid = 1 << 31 | 3,
    /// There is no such export.
    Unknown = 1 << 31 | 6,
    /// The export is not to be had now.
    Shutdown = 1 << 31 | 7,
}

/// What can be told about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Info {
    /// Size and abilities.
    Export = 0,
    /// Its name.
    Name = 1,
    /// A text for people.
    Description = 2,
    /// Smallest, preferred and largest size of a request.
    BlockSize = 3,
}

/// Why a request failed, as the protocol numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// `EPERM`: a write to what is read-only.
    NotPermitted = 1,
    /// `EIO`
    Io = 5,
    /// `EINVAL`: nonsense, or a read beyond the end.
    Invalid = 22,
    /// `ENOSPC`: a write beyond the end.
    NoSpace = 28,
    /// `EOVERFLOW`: longer than can be answered.
    Overflow = 75,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes.
    Read,
    /// To take bytes.
    Write,
    /// To leave.
    Disconnect,
    /// To bring all that was written to where it lasts.
    Flush,
    /// That bytes are of no use any more.
    Trim,
    /// To make bytes zero.
    WriteZeroes,
    /// Another.
    Other(u16),
}

impl From<u16> for Kind {
    fn from(number: u16) -> Kind {
        match number {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Disconnect,
            3 => Kind::Flush,
            4 => Kind::Trim,
            6 => Kind::WriteZeroes,
            other => Kind::Other(other),
        }
    }
}

/// A request without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Wishes, as many of them as are known.
    pub wishes: Wishes,
    /// Whether there are wishes that are not known.
    pub strange: bool,
    /// What for.
    pub kind: Kind,
    /// By which the client knows the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl RequestHeader {
    /// Reads one, if it begins as requests do.
    pub fn parse(bytes: &[u8; REQUEST_HEADER]) -> Option<RequestHeader> {
        let (magic, wishes) = (u32_at(bytes, 0), u16_at(bytes, 4));
        (magic == REQUEST).then(|| RequestHeader {
            wishes: Wishes::from_bits_truncate(wishes),
            strange: Wishes::from_bits(wishes).is_none(),
            kind: u16_at(bytes, 6).into(),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u32_at(bytes, 24),
        })
    }
}

/// An option without its data: its number and how much data follows, if it begins as options do.
pub fn parse_option(bytes: &[u8; OPTION_HEADER]) -> Option<(u32, u32)> {
    (u64_at(bytes, 0) == OPTION).then(|| (u32_at(bytes, 8), u32_at(bytes, 12)))
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`: the name of an export, and what is asked about it.
pub fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*length).try_into().ok()?)?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let (asked, odd) = rest.as_chunks::<2>();
    let whole = odd.is_empty() && asked.len() == usize::from(u16::from_be_bytes(*count));
    whole.then(|| (name, asked.iter().map(|number| u16::from_be_bytes(*number)).collect()))
}

/// Adds an answer to the option of this number.
pub fn put_option_reply(out: &mut Vec<u8>, option: u32, reply: OptReply, data: &[&[u8]]) {
    out.extend(OPTION_REPLY.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend((reply as u32).to_be_bytes());
    out.extend((data.iter().map(|part| part.len()).sum::<usize>() as u32).to_be_bytes());
    data.iter().for_each(|part| out.extend_from_slice(part));
}

/// Adds a simple reply; the data of a read follows it.
pub fn put_simple(out: &mut Vec<u8>, cookie: u64, error: Option<Errno>) {
    out.extend(SIMPLE_REPLY.to_be_bytes());
    out.extend(error.map_or(0, |error| error as u32).to_be_bytes());
    out.extend(cookie.to_be_bytes());
}

/// Adds a chunk of a structured reply, the last one or another.
pub fn put_chunk(out: &mut Vec<u8>, cookie: u64, last: bool, kind: u16, parts: &[&[u8]]) {
    put_chunk_header(out, cookie, last, kind, parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Adds a chunk of a structured reply but for its `length` bytes, which follow.
pub fn put_chunk_header(out: &mut Vec<u8>, cookie: u64, last: bool, kind: u16, length: usize) {
    out.extend(CHUNK.to_be_bytes());
    out.extend(if last { CHUNK_DONE } else { 0 }.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend((length as u32).to_be_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read() {
        let mut bytes = [0; REQUEST_HEADER];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[4..8].copy_from_slice(&[0, 1, 0, 6]);
        bytes[8..16].copy_from_slice(b"\x01cookie\x02");
        bytes[16..24].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0x10, 0]);
        bytes[24..].copy_from_slice(&[0, 0, 2, 0]);
        let header = RequestHeader::parse(&bytes).unwrap();
        assert_eq!(
            header,
            RequestHeader {
                wishes: Wishes::FUA,
                strange: false,
                kind: Kind::WriteZeroes,
                cookie: u64::from_be_bytes(*b"\x01cookie\x02"),
                offset: 0x1_0000_1000,
                length: 512,
            }
        );
        bytes[4] = 0x80;
        assert!(RequestHeader::parse(&bytes).unwrap().strange);
        bytes[0] = 0;
        assert_eq!(RequestHeader::parse(&bytes), None);
    }

    #[test]
    fn the_data_of_go_has_to_add_up() {
        let data = b"\0\0\0\x03abc\0\x02\0\x01\0\x03";
        assert_eq!(parse_info(data), Some((&b"abc"[..], vec![1, 3])));
        assert_eq!(parse_info(b"\0\0\0\0\0\0"), Some((&b""[..], vec![])));
        for bad in [
            &b""[..],
            b"\xff\xff\xff\xffabc\0\0",
            b"\0\0\0\x03abc",
            b"\0\0\0\0\0\x02\0\x01",
            b"\0\0\0\0\0\0\0",
        ] {
            assert_eq!(parse_info(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn replies_look_as_the_protocol_has_them() {
        let mut out = Vec::new();
        put_option_reply(&mut out, 7, OptReply::Unknown, &[b"no", b"pe"]);
        assert_eq!(out, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x06\0\0\0\x04nope");
        out.clear();
        put_simple(&mut out, 5, Some(Errno::NoSpace));
        assert_eq!(out, b"\x67\x44\x66\x98\0\0\0\x1c\0\0\0\0\0\0\0\x05");
        out.clear();
        put_chunk(&mut out, 5, true, CHUNK_DATA, &[&64_u64.to_be_bytes(), b"x"]);
        assert_eq!(out, b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x05\0\0\0\x09\0\0\0\0\0\0\0\x40x");
    }
}
