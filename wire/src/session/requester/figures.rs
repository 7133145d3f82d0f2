//! Data of a requester for operators: its counters, and the status of its session.

use alloc::string::String;

use serde::{Deserialize, Serialize};

/// Counters of a requester since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequesterCounters {
    /// Requests sent for the first time, alone or in frames of many requests.
    pub requests: u64,
    /// Frames sent with many requests each.
    #[serde(default)]
    pub multi_frames: u64,
    /// Requests sent in such frames.
    #[serde(default)]
    pub multi_requests: u64,
    /// Requests completed by an answer of the memory node, a Fault included.
    pub answered: u64,
    /// Requests sent again, for whatever reason.
    pub retransmitted: u64,
    /// Bytes of line data that retransmitted requests carried or asked for.
    pub retransmitted_bytes: u64,
    /// SackNak and SackNakAck frames received: each shows that an earlier request was lost or late.
    pub sacks: u64,
    /// Requests sent again after a silence, because their answer shows which other requests were lost (R8).
    pub probes: u64,
    /// Expired time-outs of streams; should be rare, as they are the last resort (R8).
    pub timeouts: u64,
    /// Answers that had to wait for the answers to earlier requests.
    pub early: u64,
    /// Answers to requests that were already answered, and control frames with an old number.
    pub duplicates: u64,
    /// Requests that the memory node answered with a Fault.
    pub faults: u64,
    /// Congestion frames received, each a signal to slow down.
    pub congestion: u64,
    /// Sessions opened, replacements included.
    pub sessions: u64,
    /// Frames dropped because they were shorter than their command requires, of an unknown command, or
    /// malformed.
    pub dropped_length: u64,
    /// Frames dropped because their integrity trailer was wrong: damaged, replayed, or of another session.
    pub dropped_trailer: u64,
    /// Answers dropped because no request with their number was sent.
    pub dropped_window: u64,
    /// Frames dropped because the answer did not fit the request.
    pub dropped_unmatched: u64,
    /// Early answers dropped because no buffer was free; their requests are sent again.
    pub dropped_full: u64,
    /// Frames dropped because they were not for this node, or of no known session.
    pub dropped_foreign: u64,
}

/// Status of a session, as `cn-agent sessions` shows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RequesterStatus {
    /// MAC address of the memory node.
    pub peer: String,
    /// State of the session: `open`, `connecting`, `suspect` or `closed`.
    pub state: String,
    /// Number of streams granted to the session.
    pub streams: u8,
    /// Maximum number of unanswered reads of a stream, and of unanswered writes.
    pub window: usize,
    /// Longest frame of the session, in bytes from the destination MAC to the end of the trailer.
    pub max_frame: usize,
    /// Length in bytes of frames that both links carry but the path between them loses; absent if the path carries all
    /// frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_loses: Option<usize>,
    /// True if both ends agreed on frames of many lines.
    #[serde(default)]
    pub multi: bool,
    /// Protection of the frames: `sealed`, `sealed (pre-shared)` or `insecure`.
    pub integrity: String,
    /// Number of unanswered requests of all streams.
    pub unanswered: usize,
    /// Number of buffers in use: data of unanswered writes, and of early answers.
    pub buffered: usize,
    /// Smoothed round-trip time in nanoseconds; 0 before the first sample.
    pub rtt_ns: u64,
    /// Variation of the round-trip time in nanoseconds.
    pub rtt_variation_ns: u64,
    /// Longest current time-out of all streams, in nanoseconds.
    pub timeout_ns: u64,
    /// Counters since the requester was created.
    pub counters: RequesterCounters,
}
