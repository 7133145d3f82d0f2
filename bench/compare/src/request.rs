//! Requests of the project's own clients and servers over plain sockets: sixteen bytes, little-endian.
//!
//! ```text
//!   0      1         4       8        16
//!   | kind | number  | bytes | offset |  then the data of a write
//! ```
//!
//! Over TCP, answers come in order: the data of a read, or [`DONE`]. Over UDP, an answer is one datagram that begins
//! with the first four bytes of its request.

/// Bytes of a request without data.
pub const HEADER: usize = 16;
/// Answer to a write over TCP.
pub const DONE: [u8; 4] = *b"done";

/// Request to read or write memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRequest {
    /// True for a write, whose data follow.
    pub is_write: bool,
    /// Number of the request, which the answer repeats; below 2^24.
    pub number: u32,
    pub bytes: usize,
    /// Offset of the first byte in the memory.
    pub at: usize,
}

impl MemoryRequest {
    /// Header as sent: sixteen bytes, little-endian.
    pub fn encoded(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..4].copy_from_slice(&(self.number << 8 | u32::from(self.is_write)).to_le_bytes());
        out[4..8].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        out[8..].copy_from_slice(&(self.at as u64).to_le_bytes());
        out
    }

    /// Request from a received header, for memory of `memory` bytes; `None` if it is malformed or out of bounds.
    pub fn decoded(bytes: &[u8], memory: usize) -> Option<MemoryRequest> {
        let first = u32::from_le_bytes(*bytes.first_chunk()?);
        let length = u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?) as usize;
        let at = usize::try_from(u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?)).ok()?;
        let is_inside = at.checked_add(length).is_some_and(|end| end <= memory);
        let kind = first & 0xFF;
        (is_inside && kind < 2).then_some(MemoryRequest {
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
        let request = MemoryRequest { is_write: true, number: 0x00AB_CDEF, bytes: 64, at: 4032 };
        assert_eq!(MemoryRequest::decoded(&request.encoded(), 4096), Some(request));
        assert_eq!(MemoryRequest::decoded(&request.encoded(), 4095), None, "it reaches outside");
        assert_eq!(MemoryRequest::decoded(&request.encoded()[..15], 4096), None);
        let mut bytes = request.encoded();
        bytes[0] = 9;
        assert_eq!(MemoryRequest::decoded(&bytes, 4096), None);
    }
}
