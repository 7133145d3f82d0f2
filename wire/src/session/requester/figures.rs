//! A requester in figures: counters, and the state that operators look at.

use alloc::string::String;

use serde::{Deserialize, Serialize};

/// What a requester has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequesterCounters {
    /// Requests made: sent for the first time, alone or with others.
    pub requests: u64,
    /// Frames that were sent as many requests.
    #[serde(default)]
    pub multi_frames: u64,
    /// Requests in them.
    #[serde(default)]
    pub multi_requests: u64,
    /// Requests completed by an answer.
    pub answered: u64,
    /// Requests sent again.
    pub retransmitted: u64,
    /// Bytes of lines that those carried or asked for.
    pub retransmitted_bytes: u64,
    /// Selective acknowledgements received.
    pub sacks: u64,
    /// Silences in which a request was sent again to learn what became of the others.
    pub probes: u64,
    /// Time-outs.
    pub timeouts: u64,
    /// Answers that came early and waited.
    pub early: u64,
    /// Answers received more than once.
    pub duplicates: u64,
    /// Requests the memory node refused.
    pub faults: u64,
    /// Congestion frames received.
    pub congestion: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Frames dropped: too short, or of a length their command does not have.
    pub dropped_length: u64,
    /// Frames dropped: integrity trailer wrong (damaged, replayed, of another session).
    pub dropped_trailer: u64,
    /// Frames dropped: number outside the window.
    pub dropped_window: u64,
    /// Frames dropped: the answer does not fit the request.
    pub dropped_unmatched: u64,
    /// Frames dropped: no buffer for an early answer.
    pub dropped_full: u64,
    /// Frames dropped: not for us, or no session to check them against.
    pub dropped_foreign: u64,
}

/// A session as `cn-agent sessions` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RequesterStatus {
    /// The memory node's address.
    pub peer: String,
    /// `open`, `connecting`, `suspect` or `closed`.
    pub state: String,
    /// Streams of the session.
    pub streams: u8,
    /// Reads, and as many writes, a stream may have in flight.
    pub window: usize,
    /// The largest frame, in bytes.
    pub max_frame: usize,
    /// Whether frames of many lines were agreed on.
    #[serde(default)]
    pub multi: bool,
    /// `plain` or `sealed`.
    pub integrity: String,
    /// Requests in flight.
    pub unanswered: usize,
    /// Buffers in use: data of writes in flight, and of answers that came early.
    pub buffered: usize,
    /// Smoothed round-trip time in nanoseconds; 0 before the first sample.
    pub rtt_ns: u64,
    /// Its variation in nanoseconds.
    pub rtt_variation_ns: u64,
    /// The present time-out in nanoseconds.
    pub timeout_ns: u64,
    /// The counters.
    pub counters: RequesterCounters,
}
