//! Packets of MCTP (Management Component Transport Protocol) over TCP, as fabric-manager clients send them
//! (DMTF DSP0236, baseline transmission unit): a stream of packets of 68 bytes each, four of header and 64 of
//! content, without separators.
//!
//! ```text
//!   bytes as they arrive --> Reassembler --> messages        message --> Packetizer --> packets, to be sent at once
//! ```
//!
//! Both ends of a connection use both types. The module does no I/O: bytes go in, messages come out.
//!
//! The first packet of a message (SOM, start of message) starts with the message type, so it carries 63 bytes
//! of the message; each following packet carries 64, and the last (EOM, end of message) is padded. Sequence
//! numbers count modulo 4. A gap within a message is an error. Between messages a gap is allowed, so that a
//! client that starts each message at 0 works as well. Some clients send one packet too few if a message is a
//! multiple of 64 bytes: the message then consists of the bytes that arrive up to its EOM.

pub(crate) const PACKET_BYTES: usize = 68;
pub(crate) const HEADER_BYTES: usize = 4;
pub(crate) const CONTENT_BYTES: usize = PACKET_BYTES - HEADER_BYTES;

const VERSION: u8 = 1;
const SOM: u8 = 1 << 7;
const EOM: u8 = 1 << 6;
const SEQUENCE_SHIFT: u8 = 4;
const SEQUENCE_MASK: u8 = 3;
const TAG_OWNER: u8 = 1 << 3;
const TAG_MASK: u8 = 7;

/// Message type of MCTP control messages.
pub(crate) const TYPE_CONTROL: u8 = 0x00;
/// Message type of the CXL fabric manager API over MCTP (DMTF DSP0234).
pub const TYPE_FM_API: u8 = 0x07;
/// Message type of the CXL type 3 component command interface over MCTP (DMTF DSP0281).
pub const TYPE_CCI: u8 = 0x08;

/// Addresses of a message (sender and receiver), and the tag of the exchange that the message belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Id of the receiving endpoint. Clients use 0 for every endpoint, so it is not checked.
    pub destination: u8,
    /// Id of the sending endpoint.
    pub source: u8,
    /// True if the sender chose the tag, as in requests.
    pub tag_owner: bool,
    /// Tag of the exchange, 0 to 7.
    pub tag: u8,
}

impl Envelope {
    /// Returns the envelope of a request: the sender owns the tag.
    pub fn request(tag: u8) -> Self {
        Self { destination: 0, source: 0, tag_owner: true, tag: tag & TAG_MASK }
    }

    /// Returns the envelope of the response to a message with this envelope.
    pub fn back(self) -> Self {
        Self { destination: self.source, source: self.destination, tag_owner: false, tag: self.tag }
    }
}

/// One MCTP message, of one or more packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MctpMessage {
    pub envelope: Envelope,
    /// Message type, such as [`TYPE_FM_API`]. Bit 7 (integrity check) is part of the type and is not used.
    pub kind: u8,
    /// Content after the type. A received body includes the padding of its last packet.
    pub body: Vec<u8>,
}

/// Defect of received packets. The rest of the damaged message is skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The header version is not MCTP's.
    #[error("a packet has the version byte {0:#04x}, MCTP's is 0x01: is the other end an FM API endpoint?")]
    Version(u8),
    /// A packet is missing, or a packet of another message is in between.
    #[error("packet {got} of a message came where {expected} was due: the message is dropped, send it again")]
    Sequence {
        /// Sequence number that the packet should have, 0 to 3.
        expected: u8,
        /// Sequence number that the packet has.
        got: u8,
    },
    /// The first packet of the message is missing.
    #[error("a packet continues a message that was never begun: it is dropped, send the message again")]
    NoStart,
    #[error("a message is longer than {limit} bytes: it is dropped, send shorter ones")]
    TooLong {
        /// Maximum length of a message, in bytes.
        limit: usize,
        /// The part of the message that was received before the limit.
        start: Box<MctpMessage>,
    },
}

#[derive(Debug, Default)]
enum Progress {
    /// No message is being received.
    #[default]
    Idle,
    /// A message is being received; the number is the sequence number of its next packet.
    Message(MctpMessage, u8),
    /// The rest of a damaged message is being skipped.
    Skipping,
}

/// Assembles messages from the packets of one connection.
#[derive(Debug)]
pub struct Reassembler {
    packet: [u8; PACKET_BYTES],
    filled: usize,
    progress: Progress,
    limit: usize,
}

impl Reassembler {
    /// Creates a reassembler for messages of at most `limit` bytes, not counting the type.
    pub fn new(limit: usize) -> Self {
        Self { packet: [0; PACKET_BYTES], filled: 0, progress: Progress::Idle, limit }
    }

    /// Consumes `bytes` until a message is complete or an error is found. `None`: all bytes are consumed and more are
    /// needed.
    pub fn receive(&mut self, bytes: &mut &[u8]) -> Option<Result<MctpMessage, PacketError>> {
        while !bytes.is_empty() {
            let count = bytes.len().min(PACKET_BYTES - self.filled);
            let (taken, rest) = bytes.split_at(count);
            self.packet[self.filled..self.filled + count].copy_from_slice(taken);
            *bytes = rest;
            self.filled += count;
            if self.filled == PACKET_BYTES {
                self.filled = 0;
                let packet = self.packet;
                if let Some(result) = self.packet(&packet).transpose() {
                    return Some(result);
                }
            }
        }
        None
    }

    /// Returns true if a message or a packet has arrived only in part.
    pub fn is_incomplete(&self) -> bool {
        self.filled > 0 || matches!(self.progress, Progress::Message(..))
    }

    fn packet(&mut self, packet: &[u8; PACKET_BYTES]) -> Result<Option<MctpMessage>, PacketError> {
        let [version, destination, source, flags, content @ ..] = packet;
        let (som, eom) = (flags & SOM != 0, flags & EOM != 0);
        let sequence = flags >> SEQUENCE_SHIFT & SEQUENCE_MASK;
        let next = (sequence + 1) & SEQUENCE_MASK;
        let progress = std::mem::take(&mut self.progress);
        // The high half of the first byte is reserved.
        if version & 0xF != VERSION {
            self.progress = Progress::Skipping;
            return Err(PacketError::Version(*version));
        }
        let message = match (progress, som) {
            // A new message begins: the unfinished one, if any, is dropped.
            (_, true) => {
                let (tag_owner, tag) = (flags & TAG_OWNER != 0, flags & TAG_MASK);
                let envelope = Envelope { destination: *destination, source: *source, tag_owner, tag };
                MctpMessage { envelope, kind: content[0], body: content[1..].to_vec() }
            }
            (Progress::Message(mut message, expected), false) if expected == sequence => {
                message.body.extend_from_slice(content);
                message
            }
            (progress, false) => {
                self.progress = if eom { Progress::Idle } else { Progress::Skipping };
                return match progress {
                    Progress::Message(_, expected) => Err(PacketError::Sequence { expected, got: sequence }),
                    Progress::Idle => Err(PacketError::NoStart),
                    Progress::Skipping => Ok(None),
                };
            }
        };
        // The limit does not include the padding of the last packet.
        if message.body.len() >= self.limit + CONTENT_BYTES {
            self.progress = if eom { Progress::Idle } else { Progress::Skipping };
            let body = message.body[..CONTENT_BYTES].to_vec();
            return Err(PacketError::TooLong {
                limit: self.limit,
                start: Box::new(MctpMessage { body, ..message }),
            });
        }
        if eom {
            return Ok(Some(message));
        }
        self.progress = Progress::Message(message, next);
        Ok(None)
    }
}

/// Splits messages into the packets of one connection.
#[derive(Debug, Default)]
pub struct Packetizer {
    sequence: u8,
}

impl Packetizer {
    /// Returns the packets of a message. They must be sent with one write, because clients expect a whole
    /// packet per read.
    pub fn packets(&mut self, message: &MctpMessage) -> Vec<u8> {
        let Envelope { destination, source, tag_owner, tag } = message.envelope;
        let flags = tag & TAG_MASK | if tag_owner { TAG_OWNER } else { 0 };
        let count = (message.body.len() + 1).div_ceil(CONTENT_BYTES);
        let mut bytes = Vec::with_capacity(count * PACKET_BYTES);
        let first = message.body.len().min(CONTENT_BYTES - 1);
        let (first, rest) = message.body.split_at(first);
        for (index, chunk) in std::iter::once(first).chain(rest.chunks(CONTENT_BYTES)).enumerate() {
            let (som, eom) = (index == 0, index + 1 == count);
            let place =
                self.sequence << SEQUENCE_SHIFT | if som { SOM } else { 0 } | if eom { EOM } else { 0 };
            self.sequence = (self.sequence + 1) & SEQUENCE_MASK;
            bytes.extend_from_slice(&[VERSION, destination, source, flags | place]);
            if som {
                bytes.push(message.kind);
            }
            bytes.extend_from_slice(chunk);
            bytes.resize((index + 1) * PACKET_BYTES, 0);
        }
        bytes
    }
}
