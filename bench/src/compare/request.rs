//! The request that clients and servers of our own exchange over plain sockets: sixteen bytes, little-endian.
//!
//! ```text
//!   0      1         4       8        16
//!   | kind | number  | bytes | offset |  then the data of a write
//! ```
//!
//! Over TCP answers come in order: the data of a read, or [`DONE`]. Over UDP an answer is one datagram that begins with
//! the first four bytes of its request.

/// Bytes of a request without data.
pub const HEADER: usize = 16;
/// The answer to a write over TCP.
pub const DONE: [u8; 4] = *b"done";

/// A request to read or write memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Whether data follow.
    pub is_write: bool,
    /// Told back by the answer; below 2^24.
    pub number: u32,
    /// Bytes to read, or that follow.
    pub bytes: usize,
    /// Where.
    pub at: usize,
}

impl Request {
    /// The bytes on the wire.
    pub fn encoded(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..4].copy_from_slice(&(self.number << 8 | u32::from(self.is_write)).to_le_bytes());
        out[4..8].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        out[8..].copy_from_slice(&(self.at as u64).to_le_bytes());
        out
    }

    /// A request from the wire, for memory of `memory` bytes; `None` when it is none, or reaches outside.
    pub fn decoded(bytes: &[u8], memory: usize) -> Option<Request> {
        let first = u32::from_le_bytes(*bytes.first_chunk()?);
        let length = u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?) as usize;
        let at = usize::try_from(u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?)).ok()?;
        let is_inside = at.checked_add(length).is_some_and(|end| end <= memory);
        let kind = first & 0xFF;
        (is_inside && kind < 2).then_some(Request {
            is_write: kind == 1,
            number: first >> 8,
            bytes: length,
            at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let request = Request { is_write: true, number: 0x00AB_CDEF, bytes: 64, at: 4032 };
        assert_eq!(Request::decoded(&request.encoded(), 4096), Some(request));
        assert_eq!(Request::decoded(&request.encoded(), 4095), None, "it reaches outside");
        assert_eq!(Request::decoded(&request.encoded()[..15], 4096), None);
        let mut bytes = request.encoded();
        bytes[0] = 9;
        assert_eq!(Request::decoded(&bytes, 4096), None);
    }
}
