//! The two frames that agree on a session. Both have a fixed layout with room to grow: reserved bytes are sent
//! as zero and ignored on receipt, and the fields that tell versions apart keep their places in every version.

use super::{Mac, SHARDS_MAX};

/// The integrity trailer a session uses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Integrity {
    /// 0: CRC-32C, 4 bytes.
    Plain,
    /// 1: AES-128-GCM-SIV with keys from a pre-shared key, a 16-byte tag.
    Aead,
    /// 2: AES-128-GCM with keys from a handshake between keys of nodes, a 16-byte tag and a counter of 6 bytes.
    Gcm,
    /// Any other code.
    Unknown(u8),
}

/// How the memory node answers a Hello.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum HelloStatus {
    /// 0: the session may be started.
    Ok,
    /// 1: no version in common; the answer says which the memory node speaks.
    VersionMismatch,
    /// 2: another agent with the same MAC address is alive.
    InstanceConflict,
    /// 3: this CN may not use this memory node.
    NotAllowed,
    /// 4: the memory node serves as many sessions as it can.
    NoResources,
    /// 5: the integrity asked for is not what the memory node is configured to use.
    Integrity,
    /// 6: the memory node is about to stop and takes no new session.
    Draining,
    /// 7: the Hello's address is not that of the shard that it names.
    Shard,
    /// 8: the memory node knows a key of this CN, and takes nobody for it who does not show it.
    KeyNeeded,
    /// 9: the memory node has many handshakes to do: ask again with the cookie behind this answer.
    Cookie,
    /// 10: the key that this CN shows belongs to it no more.
    KeyWithdrawn,
    /// Any other code.
    Unknown(u8),
}

/// A CN asks for a session. It ends nothing by itself: an earlier session goes on until Start.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Protocol version the CN wants to speak.
    pub version: u16,
    /// Optional features the CN can use, one bit each ([`FEATURES`](super::FEATURES)).
    pub features: u32,
    /// Random, new in every attempt.
    pub nonce: u64,
    /// Random, drawn when the agent starts: tells two agents with one MAC address apart.
    pub instance: u64,
    /// Streams wanted, at least 1.
    pub streams: u8,
    /// The largest frame the CN's link carries, in bytes from the destination MAC to the end of the trailer.
    pub max_frame: u16,
    /// The trailer wanted.
    pub integrity: Integrity,
    /// Which of the CN's shards the session is for; 0 is the CN itself. Those above need
    /// [`FEATURE_SHARDS`](super::FEATURE_SHARDS).
    pub shard: u8,
    /// Of a shard above 0, the CN: whose memory the session reaches. Else all zeros.
    pub owner: Mac,
}

/// The memory node's answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct HelloAck {
    /// The nonce of the Hello answered.
    pub hello_nonce: u64,
    /// The oldest protocol version the memory node speaks.
    pub version_min: u16,
    /// The newest.
    pub version_max: u16,
    /// The features both sides will use: of those that the CN can use, those that the memory node can.
    pub features: u32,
    /// The new session's id: random, never 0 when the status is Ok.
    pub session: u64,
    /// Random, new in every answer.
    pub nonce: u64,
    /// How many reads of a stream may be unanswered, and as many writes (R1).
    pub window: u16,
    /// Streams granted.
    pub streams: u8,
    /// The largest frame of the session, in bytes from the destination MAC to the end of the trailer.
    pub max_frame: u16,
    /// The pool's incarnation: another value means its memory has lost its content.
    pub incarnation: u64,
    /// The trailer the session will use.
    pub integrity: Integrity,
    /// Whether the session may be started.
    pub status: HelloStatus,
}

/// Reads consecutive fields.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// The next `N` bytes. Both layouts are fixed and shorter than their payload, so they are always there.
    #[inline]
    fn next<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("a fixed layout holds its fields");
        self.0 = rest;
        *field
    }

    fn u8(&mut self) -> u8 {
        u8::from_be_bytes(self.next())
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.next())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.next())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.next())
    }
}

/// Writes consecutive fields.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put<const N: usize>(&mut self, field: [u8; N]) -> &mut Self {
        let (out, rest) =
            core::mem::take(&mut self.0).split_first_chunk_mut().expect("a fixed layout holds its fields");
        *out = field;
        self.0 = rest;
        self
    }
}

impl Hello {
    /// Bytes of the payload.
    pub const LEN: usize = 40;

    /// Reads the payload of a Hello.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut r = Reader(bytes);
        Self {
            version: r.u16(),
            integrity: r.u8().into(),
            streams: r.u8(),
            features: r.u32(),
            nonce: r.u64(),
            instance: r.u64(),
            max_frame: r.u16(),
            shard: r.u8(),
            owner: Mac(r.next()),
        }
    }

    /// The CN whose memory the session reaches, given the address that the Hello came from; `None` if that is not the
    /// address of the shard it names.
    pub fn cn(&self, from: Mac) -> Option<Mac> {
        match self.shard {
            0 => Some(from),
            shard => (shard < SHARDS_MAX && self.owner.is_unicast() && self.owner.shard(shard) == from)
                .then_some(self.owner),
        }
    }

    /// The payload of the Hello.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        Writer(&mut bytes)
            .put(self.version.to_be_bytes())
            .put([self.integrity.into(), self.streams])
            .put(self.features.to_be_bytes())
            .put(self.nonce.to_be_bytes())
            .put(self.instance.to_be_bytes())
            .put(self.max_frame.to_be_bytes())
            .put([self.shard])
            .put(self.owner.0);
        bytes
    }
}

impl HelloAck {
    /// Bytes of the payload.
    pub const LEN: usize = 64;

    /// Reads the payload of a HelloAck.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut r = Reader(bytes);
        Self {
            version_min: r.u16(),
            version_max: r.u16(),
            status: r.u8().into(),
            integrity: r.u8().into(),
            window: r.u16(),
            hello_nonce: r.u64(),
            session: r.u64(),
            nonce: r.u64(),
            incarnation: r.u64(),
            features: r.u32(),
            max_frame: r.u16(),
            streams: r.u8(),
        }
    }

    /// The payload of the HelloAck.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        Writer(&mut bytes)
            .put(self.version_min.to_be_bytes())
            .put(self.version_max.to_be_bytes())
            .put([self.status.into(), self.integrity.into()])
            .put(self.window.to_be_bytes())
            .put(self.hello_nonce.to_be_bytes())
            .put(self.session.to_be_bytes())
            .put(self.nonce.to_be_bytes())
            .put(self.incarnation.to_be_bytes())
            .put(self.features.to_be_bytes())
            .put(self.max_frame.to_be_bytes())
            .put([self.streams]);
        bytes
    }
}

impl From<u8> for Integrity {
    fn from(code: u8) -> Self {
        match code {
            0 => Self::Plain,
            1 => Self::Aead,
            2 => Self::Gcm,
            other => Self::Unknown(other),
        }
    }
}

impl From<Integrity> for u8 {
    fn from(integrity: Integrity) -> Self {
        match integrity {
            Integrity::Plain => 0,
            Integrity::Aead => 1,
            Integrity::Gcm => 2,
            Integrity::Unknown(other) => other,
        }
    }
}

impl From<u8> for HelloStatus {
    fn from(code: u8) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::VersionMismatch,
            2 => Self::InstanceConflict,
            3 => Self::NotAllowed,
            4 => Self::NoResources,
            5 => Self::Integrity,
            6 => Self::Draining,
            7 => Self::Shard,
            8 => Self::KeyNeeded,
            9 => Self::Cookie,
            10 => Self::KeyWithdrawn,
            other => Self::Unknown(other),
        }
    }
}

impl From<HelloStatus> for u8 {
    fn from(status: HelloStatus) -> Self {
        match status {
            HelloStatus::Ok => 0,
            HelloStatus::VersionMismatch => 1,
            HelloStatus::InstanceConflict => 2,
            HelloStatus::NotAllowed => 3,
            HelloStatus::NoResources => 4,
            HelloStatus::Integrity => 5,
            HelloStatus::Draining => 6,
            HelloStatus::Shard => 7,
            HelloStatus::KeyNeeded => 8,
            HelloStatus::Cookie => 9,
            HelloStatus::KeyWithdrawn => 10,
            HelloStatus::Unknown(other) => other,
        }
    }
}
