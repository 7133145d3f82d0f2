//! A CN's session, and its status.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::ResponderCounters;
use super::phase::SessionPhase;
use super::stream::ResponseStream;
use crate::frame::{BURST_LINES_MAX, HEADER_LEN, LINE_SIZE, Mac, PublicKey};
use crate::session::framer::Framer;
use crate::session::noise::integrity_name;
use crate::session::slab::Slab;
use crate::time::Time;

/// Status of a session as `mn-server sessions` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// MAC address of the CN.
    pub cn: String,
    /// Protection of the session's frames: `sealed`, `sealed (pre-shared)` or `insecure`.
    #[serde(default)]
    pub integrity: String,
    /// Number of streams of the session.
    pub streams: u8,
    /// Largest frame of the session, in bytes.
    pub max_frame: usize,
    /// Number of requests that wait in reorder buffers.
    pub waiting: usize,
    /// Number of buffers in use, each with the data of an early write.
    pub buffered: usize,
    /// Nanoseconds since the session's last frame.
    pub idle_ns: u64,
    /// Counts of the session.
    pub counters: ResponderCounters,
}

pub(super) struct Session {
    /// MAC address at the other end.
    pub cn: Mac,
    /// CN whose memory the session reaches, and its shard that has the session.
    pub owner: Mac,
    pub shard: u8,
    /// Set if the CN had no memory here at the last check.
    pub guest: bool,
    pub instance: u64,
    /// Key that the CN has shown; `None` in a session without keys.
    pub key: Option<PublicKey>,
    pub framer: Framer,
    pub max_frame: usize,
    /// Set if frames of many requests were agreed on.
    pub multi: bool,
    /// Set if burst reads of more lines than an answer carries were agreed on.
    pub long_bursts: bool,
    /// Most writes that one acknowledgement may cover.
    pub acks_max: u8,
    pub streams: Vec<ResponseStream>,
    pub buffers: Slab,
    pub counters: ResponderCounters,
    /// Number of the last control frame sent.
    pub sent: u64,
    /// Highest number of the control frames received.
    pub heard: u64,
    pub last_heard: Time,
    pub phase: SessionPhase,
    /// Time of the last Ping that a Hello of another instance caused.
    pub challenged_at: Time,
}

impl Session {
    pub fn status(&self, now: Time) -> SessionStatus {
        SessionStatus {
            cn: self.cn.to_string(),
            integrity: integrity_name(self.framer.seal.is_sealed(), self.key.is_some()).to_owned(),
            streams: self.streams.len() as u8,
            max_frame: self.max_frame,
            waiting: self.streams.iter().map(ResponseStream::waiting).sum(),
            buffered: self.buffers.used(),
            idle_ns: (now - self.last_heard).as_nanos() as u64,
            counters: self.counters,
        }
    }
}

/// Bytes of a buffer for an early write in a session with frames of at most `max_frame` bytes.
pub(super) fn early_buffer_len(max_frame: usize) -> usize {
    (max_frame.saturating_sub(HEADER_LEN) / LINE_SIZE).clamp(1, BURST_LINES_MAX) * LINE_SIZE
}
