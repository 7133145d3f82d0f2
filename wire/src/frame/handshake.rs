//! Hello and HelloAck, the two frames that agree on a session. Both have a fixed layout with room to grow:
//! reserved bytes are sent as zero and ignored on receipt, and the version fields keep their places in every
//! version.

use super::{Mac, SHARDS_MAX};

/// Kind of integrity trailer on a session's frames.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Integrity {
    /// 0: CRC-32C, 4 bytes.
    Plain,
    /// 1: AES-128-GCM-SIV with keys from a pre-shared key, a 16-byte tag.
    Aead,
    /// 2: AES-128-GCM with keys from a handshake between nodes' keys, a 16-byte tag and a counter of 6 bytes.
    Gcm,
    /// A code that this version does not define.
    Unknown(u8),
}

/// Memory node's answer to a Hello: acceptance, or the reason of the refusal.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum HelloStatus {
    /// 0: the session may be started.
    Ok,
    /// 1: no version in common; the answer holds the memory node's versions.
    VersionMismatch,
    /// 2: another agent with the same MAC address is running.
    InstanceConflict,
    /// 3: this CN may not use this memory node.
    NotAllowed,
    /// 4: the memory node already serves its maximum number of sessions.
    NoResources,
    /// 5: the memory node is configured for another integrity than the one requested.
    Integrity,
    /// 6: the memory node is about to stop and accepts no new sessions.
    Draining,
    /// 7: the Hello's source address is not the address of the shard named in the Hello.
    Shard,
    /// 8: the memory node has a key for this CN, so it refuses a Hello that does not prove that key.
    KeyNeeded,
    /// 9: the memory node has many handshakes in progress, so the CN must repeat the Hello with the cookie from this
    /// answer.
    Cookie,
    /// 10: the CN's key was withdrawn.
    KeyWithdrawn,
    /// A code that this version does not define.
    Unknown(u8),
}

/// A CN's request for a session. An earlier session remains in use until the Start of the new one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Protocol version for the session: the newest that the CN supports, or an older one after a refusal.
    pub version: u16,
    /// Optional features that the CN supports, one bit each ([`FEATURES`](super::FEATURES)).
    pub features: u32,
    /// Random number, new in every attempt; the answer repeats it.
    pub nonce: u64,
    /// Random number drawn when the agent starts. It distinguishes two agents with the same MAC address.
    pub instance: u64,
    /// Number of streams requested, at least 1.
    pub streams: u8,
    /// Longest frame that the CN's link carries, in bytes from the destination MAC to the end of the trailer.
    pub max_frame: u16,
    /// Kind of integrity trailer that the CN requests.
    pub integrity: Integrity,
    /// Shard that asks for the session: a part of the CN with its own address and session. Shard 0 is the CN itself.
    /// Shards above 0 require [`FEATURE_SHARDS`](super::FEATURE_SHARDS).
    pub shard: u8,
    /// CN whose memory a shard above 0 is to access; all zeros for shard 0.
    pub owner: Mac,
}

/// Memory node's answer to a Hello: an offered session, or a refusal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct HelloAck {
    /// Nonce of the Hello that this frame answers.
    pub hello_nonce: u64,
    /// Oldest protocol version that the memory node supports.
    pub version_min: u16,
    /// Newest protocol version that the memory node supports.
    pub version_max: u16,
    /// Features of the session: those that CN and memory node both support.
    pub features: u32,
    /// Id of the new session: random, and never 0 when the status is Ok.
    pub session: u64,
    /// Random number, new in every answer.
    pub nonce: u64,
    /// Maximum number of unanswered reads in each stream, and of unanswered writes (R1).
    pub window: u16,
    /// Number of streams granted, at most the number requested.
    pub streams: u8,
    /// Longest frame of the session, in bytes from the destination MAC to the end of the trailer.
    pub max_frame: u16,
    /// Incarnation of the pool: a changed value means that the pool has lost its content.
    pub incarnation: u64,
    /// Kind of integrity trailer of the session.
    pub integrity: Integrity,
    /// Ok if the session may be started, otherwise the reason of the refusal.
    pub status: HelloStatus,
}

/// Reads a payload field by field.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// Takes the next `N` bytes. Cannot fail: both payloads have a fixed length that holds all fields.
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

/// Writes a payload field by field.
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
    /// Length in bytes of the payload, with reserved bytes at its end.
    pub const LEN: usize = 40;

    /// Decodes the payload of a Hello, without any check of the values.
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

    /// Returns the CN whose memory the session is to access, for a Hello from address `from`. `None` if
    /// `from` is not the address of the shard named in the Hello.
    pub fn cn(&self, from: Mac) -> Option<Mac> {
        match self.shard {
            0 => Some(from),
            // Checked against the source address, because the sender can write any owner into the Hello.
            shard => (shard < SHARDS_MAX && self.owner.is_unicast() && self.owner.shard(shard) == from)
                .then_some(self.owner),
        }
    }

    /// Encodes the payload of the Hello; reserved bytes are 0.
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
    /// Length in bytes of the payload, with reserved bytes at its end.
    pub const LEN: usize = 64;

    /// Decodes the payload of a HelloAck, without any check of the values.
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

    /// Encodes the payload of the HelloAck; reserved bytes are 0.
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
