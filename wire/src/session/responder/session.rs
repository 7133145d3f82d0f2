//! A CN's session, and how it looks in figures.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::ResponderCounters;
use super::phase::Phase;
use super::stream::Stream;
use crate::frame::{BURST_LINES_MAX, HEADER_LEN, LINE_SIZE, Mac, PublicKey};
use crate::session::framer::Framer;
use crate::session::noise::integrity_name;
use crate::session::slab::Slab;
use crate::time::Time;

/// A session as `mn-server sessions` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The compute node.
    pub cn: String,
    /// How its frames are protected: `sealed`, `sealed (pre-shared)` or `insecure`.
    #[serde(default)]
    pub integrity: String,
    /// Streams of the session.
    pub streams: u8,
    /// The largest frame, in bytes.
    pub max_frame: usize,
    /// Requests waiting in reorder buffers.
    pub waiting: usize,
    /// Buffers in use: data of writes among them.
    pub buffered: usize,
    /// Nanoseconds since its last frame.
    pub idle_ns: u64,
    /// What it has done.
    pub counters: ResponderCounters,
}

pub(super) struct Session {
    /// The address at the other end.
    pub cn: Mac,
    /// Whose memory it reaches, and by which of that CN's shards.
    pub owner: Mac,
    pub shard: u8,
    /// Whether the CN had no memory here when this was last looked at.
    pub guest: bool,
    pub instance: u64,
    /// The key that the CN has shown.
    pub key: Option<PublicKey>,
    pub framer: Framer,
    pub max_frame: usize,
    /// Whether frames that are many requests were agreed on.
    pub multi: bool,
    /// Whether burst reads of more lines than an answer carries were agreed on.
    pub long_bursts: bool,
    /// Writes that one acknowledgement may stand for.
    pub acks_max: u8,
    pub streams: Vec<Stream>,
    pub buffers: Slab,
    pub counters: ResponderCounters,
    /// Control frames sent and the highest received.
    pub sent: u64,
    pub heard: u64,
    pub last_heard: Time,
    pub phase: Phase,
    /// When it was last asked for a sign of life because of another instance's Hello.
    pub challenged_at: Time,
}

impl Session {
    /// It in figures.
    pub fn status(&self, now: Time) -> SessionStatus {
        SessionStatus {
            cn: self.cn.to_string(),
            integrity: integrity_name(self.framer.seal.is_sealed(), self.key.is_some()).to_owned(),
            streams: self.streams.len() as u8,
            max_frame: self.max_frame,
            waiting: self.streams.iter().map(Stream::waiting).sum(),
            buffered: self.buffers.used(),
            idle_ns: (now - self.last_heard).as_nanos() as u64,
            counters: self.counters,
        }
    }
}

/// Size of a buffer for an early write in a session with frames of `max_frame` bytes.
pub(super) fn early_buffer_len(max_frame: usize) -> usize {
    (max_frame.saturating_sub(HEADER_LEN) / LINE_SIZE).clamp(1, BURST_LINES_MAX) * LINE_SIZE
}
