//! Numbers and headers of the NBD protocol, from the NBD project's `doc/proto.md`: parsing and encoding, all
//! big-endian. [`super::conversation`] implements the protocol with them.

use bitflags::bitflags;

/// First magic of the server's greeting (`NBDMAGIC`).
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// Magic of an option, and second magic of the greeting (`IHAVEOPT`).
pub const OPTION: u64 = 0x4948_4156_454f_5054;
/// Magic of the reply to an option.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// Magic of a request.
pub const REQUEST: u32 = 0x2560_9513;
/// Magic of a simple reply.
pub const SIMPLE_REPLY: u32 = 0x6744_6698;
/// Magic of a chunk of a structured reply.
pub const CHUNK: u32 = 0x668e_33ef;
/// Flag of the only or last chunk of a structured reply.
const CHUNK_DONE: u16 = 1;
/// Type of a chunk without content, which only ends a structured reply.
pub const CHUNK_NONE: u16 = 0;
/// Type of a chunk with an offset and data.
pub const CHUNK_DATA: u16 = 1;
/// Type of a chunk with the number of a metadata context and extents, each a length and a status.
pub const CHUNK_STATUS: u16 = 5;
/// Type of a chunk with an error and a text.
pub const CHUNK_ERROR: u16 = 1 << 15 | 1;

/// Name of the metadata context for holes and zeros.
pub const ALLOCATION: &str = "base:allocation";
/// Query of a client that lists all metadata contexts of the protocol itself.
pub const BASE: &str = "base:";
/// Number by which this server's answers name the context [`ALLOCATION`].
pub const ALLOCATION_NUMBER: u32 = 1;
/// Status of an extent that is not known to be a hole or zeros: neither `NBD_STATE_HOLE` nor `NBD_STATE_ZERO`.
pub const STATUS_DATA: u32 = 0;

/// Length of an option's header in bytes.
pub const OPTION_HEADER: usize = 16;
/// Length of a request's header in bytes.
pub const REQUEST_HEADER: usize = 28;

bitflags! {
    /// Handshake flags of server and client.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Handshake: u32 {
        /// Unknown options get a reply and do not end the connection.
        const FIXED_NEWSTYLE = 1;
        /// The 124 zeros after the answer to `NBD_OPT_EXPORT_NAME` are left out.
        const NO_ZEROES = 2;
    }

    /// Transmission flags: abilities of an export.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TransmissionFlags: u16 {
        /// Set in every export's flags.
        const HAS_FLAGS = 1;
        /// Writes are refused.
        const READ_ONLY = 1 << 1;
        /// `NBD_CMD_FLUSH` is supported.
        const FLUSH = 1 << 2;
        /// `NBD_CMD_FLAG_FUA` is supported.
        const FUA = 1 << 3;
        const TRIM = 1 << 5;
        /// `NBD_CMD_WRITE_ZEROES` is supported.
        const WRITE_ZEROES = 1 << 6;
        /// `NBD_CMD_FLAG_DF` is supported: a read is answered in one chunk.
        const DF = 1 << 7;
        /// Several connections access the same data: a flush on one connection covers all.
        const MULTI_CONN = 1 << 8;
        /// `NBD_CMD_CACHE` is supported.
        const CACHE = 1 << 10;
        /// `NBD_CMD_FLAG_FAST_ZERO` is supported: a client learns whether zeros are faster than data.
        const FAST_ZERO = 1 << 11;
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ClientFlags: u16 {
        /// The server answers only when the data is as durable as after a flush.
        const FUA = 1;
        /// Store zeros, not a hole.
        const NO_HOLE = 1 << 1;
        /// Answer with a single chunk.
        const DF = 1 << 2;
        /// Answer with a single extent.
        const REQ_ONE = 1 << 3;
        /// Fail at once unless storing zeros is faster than a write.
        const FAST_ZERO = 1 << 4;
    }
}

/// Options that this server supports, by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionCode {
    /// Choose an export, without error replies.
    ExportName,
    /// End the negotiation.
    Abort,
    List,
    /// Describe an export.
    Info,
    /// Choose an export, and begin the requests.
    Go,
    /// Use structured replies from now on.
    StructuredReply,
    /// Name the metadata contexts of an export.
    ListMetaContext,
    /// Select metadata contexts for requests of a status.
    SetMetaContext,
    Other(u32),
}

impl From<u32> for OptionCode {
    fn from(number: u32) -> OptionCode {
        match number {
            1 => OptionCode::ExportName,
            2 => OptionCode::Abort,
            3 => OptionCode::List,
            6 => OptionCode::Info,
            7 => OptionCode::Go,
            8 => OptionCode::StructuredReply,
            9 => OptionCode::ListMetaContext,
            10 => OptionCode::SetMetaContext,
            other => OptionCode::Other(other),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OptReply {
    Ack = 1,
    /// Name of an export, in reply to a list request.
    Server = 2,
    Info = 3,
    /// Number and name of a metadata context.
    MetaContext = 4,
    Unsupported = 1 << 31 | 1,
    /// The server's policy forbids the option.
    Policy = 1 << 31 | 2,
    /// The option is malformed.
    Invalid = 1 << 31 | 3,
    /// There is no such export.
    Unknown = 1 << 31 | 6,
    /// The export is not available at present.
    Shutdown = 1 << 31 | 7,
}

/// Kinds of information about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Info {
    /// Size of the export and transmission flags.
    Export = 0,
    Name = 1,
    /// Human-readable description of the export.
    Description = 2,
    /// Smallest, preferred and largest size of a request.
    BlockSize = 3,
}

/// Error numbers of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// `EPERM`: a write to a read-only export.
    NotPermitted = 1,
    Io = 5,
    /// `EINVAL`: the request is malformed, or is a read beyond the end.
    Invalid = 22,
    /// `ENOSPC`: a write beyond the end.
    NoSpace = 28,
    /// `EOVERFLOW`: the read is longer than an answer can be.
    Overflow = 75,
    /// `ENOTSUP`: zeros are not faster than a write.
    NotSupported = 95,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Read,
    Write,
    /// End the connection.
    Disconnect,
    /// Make all completed writes durable.
    Flush,
    /// Discard a range.
    Trim,
    /// Prepare for reads of a range.
    Cache,
    WriteZeroes,
    /// Tell where an export has holes and zeros.
    BlockStatus,
    Other(u16),
}

impl From<u16> for RequestKind {
    fn from(number: u16) -> RequestKind {
        match number {
            0 => RequestKind::Read,
            1 => RequestKind::Write,
            2 => RequestKind::Disconnect,
            3 => RequestKind::Flush,
            4 => RequestKind::Trim,
            5 => RequestKind::Cache,
            6 => RequestKind::WriteZeroes,
            7 => RequestKind::BlockStatus,
            other => RequestKind::Other(other),
        }
    }
}

/// A request without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Known flags of the request.
    pub wishes: ClientFlags,
    /// Whether the request has unknown flags.
    pub strange: bool,
    pub kind: RequestKind,
    /// Number by which the client recognises the reply.
    pub cookie: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

impl RequestHeader {
    /// Parses a header; `None` without the magic.
    pub fn parse(bytes: &[u8; REQUEST_HEADER]) -> Option<RequestHeader> {
        let (magic, wishes) = (u32_at(bytes, 0), u16_at(bytes, 4));
        (magic == REQUEST).then(|| RequestHeader {
            wishes: ClientFlags::from_bits_truncate(wishes),
            strange: ClientFlags::from_bits(wishes).is_none(),
            kind: u16_at(bytes, 6).into(),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u32_at(bytes, 24),
        })
    }
}

/// Parses an option's header: its number and the length of its data; `None` without the magic.
pub fn parse_option(bytes: &[u8; OPTION_HEADER]) -> Option<(u32, u32)> {
    (u64_at(bytes, 0) == OPTION).then(|| (u32_at(bytes, 8), u32_at(bytes, 12)))
}

/// Parses the data of `NBD_OPT_INFO` and `NBD_OPT_GO`: the name of an export, and the kinds of information requested.
pub fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (name, rest) = split_string(data)?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let (asked, odd) = rest.as_chunks::<2>();
    let whole = odd.is_empty() && asked.len() == usize::from(u16::from_be_bytes(*count));
    whole.then(|| (name, asked.iter().map(|number| u16::from_be_bytes(*number)).collect()))
}

/// Parses the data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`: the name of an export, and the
/// queries.
pub fn parse_contexts(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = split_string(data)?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let mut queries = Vec::new();
    while !rest.is_empty() {
        let (query, behind) = split_string(rest)?;
        queries.push(query);
        rest = behind;
    }
    (queries.len() as u64 == u64::from(u32::from_be_bytes(*count))).then_some((name, queries))
}

/// Splits off a string, which follows its length.
fn split_string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*length).try_into().ok()?)
}

pub fn put_option_reply(out: &mut Vec<u8>, option: u32, reply: OptReply, data: &[&[u8]]) {
    out.extend(OPTION_REPLY.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend((reply as u32).to_be_bytes());
    out.extend((data.iter().map(|part| part.len()).sum::<usize>() as u32).to_be_bytes());
    data.iter().for_each(|part| out.extend_from_slice(part));
}

/// Appends a simple reply; the data of a read follows it.
pub fn put_simple(out: &mut Vec<u8>, cookie: u64, error: Option<Errno>) {
    out.extend(SIMPLE_REPLY.to_be_bytes());
    out.extend(error.map_or(0, |error| error as u32).to_be_bytes());
    out.extend(cookie.to_be_bytes());
}

/// Appends a chunk of a structured reply.
pub fn put_chunk(out: &mut Vec<u8>, cookie: u64, last: bool, kind: u16, parts: &[&[u8]]) {
    put_chunk_header(out, cookie, last, kind, parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Appends the header of a chunk whose `length` bytes follow.
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
                wishes: ClientFlags::FUA,
                strange: false,
                kind: RequestKind::WriteZeroes,
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
    fn the_queries_of_contexts_have_to_add_up() {
        let data = b"\0\0\0\x01a\0\0\0\x02\0\0\0\x05base:\0\0\0\0";
        assert_eq!(parse_contexts(data), Some((&b"a"[..], vec![&b"base:"[..], b""])));
        assert_eq!(parse_contexts(b"\0\0\0\0\0\0\0\0"), Some((&b""[..], vec![])));
        for bad in [
            &b""[..],
            b"\0\0\0\0",
            b"\xff\xff\xff\xffa\0\0\0\0",
            b"\0\0\0\0\0\0\0\x01",
            b"\0\0\0\0\0\0\0\0\0",
            b"\0\0\0\0\0\0\0\0\0\0\0\0",
            b"\0\0\0\0\0\0\0\x01\0\0\0\x03no",
            b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0",
        ] {
            assert_eq!(parse_contexts(bad), None, "{bad:?}");
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
