//! One session at a memory node: its streams, keys and counts.

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

/// Status of a session, as `mn-server sessions` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// MAC address of the CN, or of its shard.
    pub cn: String,
    /// Protection of the session's frames: `sealed`, `sealed (pre-shared)` or `insecure`.
    #[serde(default)]
    pub integrity: String,
    /// Number of streams granted to the session.
    pub streams: u8,
    /// Longest frame of the session, in bytes from the destination MAC to the end of the trailer.
    pub max_frame: usize,
    /// Number of requests that wait in reorder buffers for an earlier one.
    pub waiting: usize,
    /// Number of buffers in use; each has the data of an early write.
    pub buffered: usize,
    /// Nanoseconds since the last frame of the session.
    pub idle_ns: u64,
    /// Counters since the session started.
    pub counters: ResponderCounters,
}

pub(super) struct Session {
    /// Address that the session's frames come from: of the CN, or of its shard.
    pub cn: Mac,
    /// CN whose memory the session accesses, and the number of the CN's shard at the other end.
    pub owner: Mac,
    pub shard: u8,
    /// True if the CN had no memory here at the last check.
    pub guest: bool,
    pub instance: u64,
    /// Key that the CN proved; `None` in a session without keys.
    pub key: Option<PublicKey>,
    pub framer: Framer,
    pub max_frame: usize,
    /// True if frames of many requests were agreed on.
    pub multi: bool,
    /// True if burst reads of more lines than an answer carries were agreed on.
    pub long_bursts: bool,
    /// Maximum number of writes that one acknowledgement may cover.
    pub acks_max: u8,
    pub streams: Vec<ResponseStream>,
    pub buffers: Slab,
    pub counters: ResponderCounters,
    /// Number of the last control frame sent.
    pub sent: u64,
    /// Highest number of the control frames received; lower numbers are copies.
    pub heard: u64,
    pub last_heard: Time,
    pub phase: SessionPhase,
    /// Time of the first Ping of the last challenge, sent because another instance asked for a session; initially the
    /// start of the session.
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

/// Length in bytes of a buffer for an early write: as many whole lines as a frame of `max_frame` bytes can
/// have.
pub(super) fn early_buffer_len(max_frame: usize) -> usize {
    (max_frame.saturating_sub(HEADER_LEN) / LINE_SIZE).clamp(1, BURST_LINES_MAX) * LINE_SIZE
}
