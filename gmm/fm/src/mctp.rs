//! MCTP packets as fabric-manager clients send them over TCP (DMTF DSP0236, baseline transmission unit): a stream of
//! packets of 68 bytes each, four of header and 64 of content, without anything between them.
//!
//! ```text
//!   bytes as they arrive --> Reassembler --> messages        message --> Packetizer --> packets, to be sent at once
//! ```
//!
//! Both ends use both. No I/O here: bytes in, messages out.
//!
//! The first packet of a message (SOM) starts with the message type, so it carries 63 bytes of the message; each
//! following one carries 64, and the last (EOM) is padded. Sequence numbers run on modulo 4; inside a message a gap is
//! an error, between messages it is not, so that a client that starts each message at 0 is understood as well. Some clients
//! send one packet too few when a message is a multiple of 64 bytes: what has arrived by its EOM is the message.

/// Bytes of a packet.
pub const PACKET_BYTES: usize = 68;
/// Bytes of a packet's header.
pub const HEADER_BYTES: usize = 4;
/// Bytes of a packet's content.
pub const CONTENT_BYTES: usize = PACKET_BYTES - HEADER_BYTES;

const VERSION: u8 = 1;
const SOM: u8 = 1 << 7;
const EOM: u8 = 1 << 6;
const SEQUENCE_SHIFT: u8 = 4;
const SEQUENCE_MASK: u8 = 3;
const TAG_OWNER: u8 = 1 << 3;
const TAG_MASK: u8 = 7;

/// MCTP control messages.
pub const TYPE_CONTROL: u8 = 0x00;
/// CXL fabric manager API over MCTP (DMTF DSP0234).
pub const TYPE_FM_API: u8 = 0x07;
/// CXL type 3 component command interface over MCTP (DMTF DSP0281).
pub const TYPE_CCI: u8 = 0x08;

/// Who sends to whom, and which exchange it belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Endpoint it is for. Clients use 0 for everyone; it is not checked.
    pub destination: u8,
    /// Endpoint it is from.
    pub source: u8,
    /// Whether the sender chose the tag: true in requests.
    pub tag_owner: bool,
    /// Tag of the exchange, 0 to 7.
    pub tag: u8,
}

impl Envelope {
    /// A request under a tag.
    pub fn request(tag: u8) -> Self {
        Self { destination: 0, source: 0, tag_owner: true, tag: tag & TAG_MASK }
    }

    /// That of the response to what came in this one.
    pub fn back(self) -> Self {
        Self { destination: self.source, source: self.destination, tag_owner: false, tag: self.tag }
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who and which.
    pub envelope: Envelope,
    /// Message type: [`TYPE_FM_API`] and the others. Bit 7 (integrity check) belongs to it and is nowhere used.
    pub kind: u8,
    /// What follows the type. A received message ends with its last packet's padding.
    pub body: Vec<u8>,
}

/// Why packets make no message. The rest of the message they belong to is passed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Not MCTP.
    #[error("a packet has the version byte {0:#04x}, MCTP's is 0x01: is the other end an FM API endpoint?")]
    Version(u8),
    /// A packet is missing, or one of another message came between.
    #[error("packet {got} of a message came where {expected} was due: the message is dropped, send it again")]
    Sequence {
        /// Sequence number that was due, 0 to 3.
        expected: u8,
        /// That of the packet.
        got: u8,
    },
    /// A packet in the middle of a message that has no beginning.
    #[error("a packet continues a message that was never begun: it is dropped, send the message again")]
    NoStart,
    /// A message is longer than this end takes.
    #[error("a message is longer than {limit} bytes: it is dropped, send shorter ones")]
    TooLong {
        /// Most bytes of a message here.
        limit: usize,
        /// Its beginning.
        start: Box<Message>,
    },
}

/// What packets have come to.
#[derive(Debug, Default)]
enum Progress {
    /// Between messages.
    #[default]
    Idle,
    /// In a message; the sequence number that is due.
    Message(Message, u8),
    /// In a message that is of no use any more.
    Skipping,
}

/// Puts messages together.
#[derive(Debug)]
pub struct Reassembler {
    packet: [u8; PACKET_BYTES],
    filled: usize,
    progress: Progress,
    limit: usize,
}

impl Reassembler {
    /// Takes messages of up to `limit` bytes (without the type).
    pub fn new(limit: usize) -> Self {
        Self { packet: [0; PACKET_BYTES], filled: 0, progress: Progress::Idle, limit }
    }

    /// Takes bytes off the front of `bytes` until a message is complete or something is wrong. `None`: all of them are
    /// taken and more are needed.
    pub fn receive(&mut self, bytes: &mut &[u8]) -> Option<Result<Message, PacketError>> {
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

    /// Whether a message or a packet is under way.
    pub fn is_amid(&self) -> bool {
        self.filled > 0 || matches!(self.progress, Progress::Message(..))
    }

    fn packet(&mut self, packet: &[u8; PACKET_BYTES]) -> Result<Option<Message>, PacketError> {
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
            // Whatever was under way ends unfinished.
            (_, true) => {
                let (tag_owner, tag) = (flags & TAG_OWNER != 0, flags & TAG_MASK);
                let envelope = Envelope { destination: *destination, source: *source, tag_owner, tag };
                Message { envelope, kind: content[0], body: content[1..].to_vec() }
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
        // The padding of the last packet is not counted.
        if message.body.len() >= self.limit + CONTENT_BYTES {
            self.progress = if eom { Progress::Idle } else { Progress::Skipping };
            let body = message.body[..CONTENT_BYTES].to_vec();
            return Err(PacketError::TooLong {
                limit: self.limit,
                start: Box::new(Message { body, ..message }),
            });
        }
        if eom {
            return Ok(Some(message));
        }
        self.progress = Progress::Message(message, next);
        Ok(None)
    }
}

/// Takes messages apart.
#[derive(Debug, Default)]
pub struct Packetizer {
    sequence: u8,
}

impl Packetizer {
    /// The packets of a message, to be sent with one write: clients read packet by packet.
    pub fn packets(&mut self, message: &Message) -> Vec<u8> {
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
