//! Counters of a requester, and its state for operators.

use alloc::string::String;

use serde::{Deserialize, Serialize};

/// Counts of a requester since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequesterCounters {
    /// Requests sent for the first time, alone or in frames of many.
    pub requests: u64,
    /// Frames sent with many requests each.
    #[serde(default)]
    pub multi_frames: u64,
    /// Requests in the frames of many.
    #[serde(default)]
    pub multi_requests: u64,
    /// Requests that the memory node answered, and that are complete.
    pub answered: u64,
    /// Requests sent again.
    pub retransmitted: u64,
    /// Bytes of lines carried or requested by retransmitted requests.
    pub retransmitted_bytes: u64,
    /// SackNak and SackNakAck frames received.
    pub sacks: u64,
    /// Probes: requests sent again in a silence, because their answer shows which other requests were lost (R8).
    pub probes: u64,
    /// Time-outs of requests (R8).
    pub timeouts: u64,
    /// Answers that waited for the answers to earlier requests.
    pub early: u64,
    /// Answers to requests that were answered before.
    pub duplicates: u64,
    /// Requests that the memory node answered with a Fault.
    pub faults: u64,
    /// Congestion frames received.
    pub congestion: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Frames dropped because they were too short, or their length was not that of their command.
    pub dropped_length: u64,
    /// Frames dropped because their integrity trailer was wrong (damaged, replayed, of another session).
    pub dropped_trailer: u64,
    /// Frames dropped because their number was outside the window.
    pub dropped_window: u64,
    /// Frames dropped because the answer did not fit the request.
    pub dropped_unmatched: u64,
    /// Frames dropped because no buffer was free for an early answer.
    pub dropped_full: u64,
    /// Frames dropped because they were not for this node, or of no known session.
    pub dropped_foreign: u64,
}

/// A session as `cn-agent sessions` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RequesterStatus {
    /// MAC address of the memory node.
    pub peer: String,
    /// `open`, `connecting`, `suspect` or `closed`.
    pub state: String,
    /// Number of streams of the session.
    pub streams: u8,
    /// Most reads in flight on a stream, and most writes.
    pub window: usize,
    /// Largest frame of the session, in bytes.
    pub max_frame: usize,
    /// Length of the frames that both links carry and the path loses; none if it carries all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_loses: Option<usize>,
    /// Set if both ends agreed on frames of many lines.
    #[serde(default)]
    pub multi: bool,
    /// Protection of the frames: `sealed`, `sealed (pre-shared)` or `insecure`.
    pub integrity: String,
    /// Requests in flight on all streams.
    pub unanswered: usize,
    /// Buffers in use: data of writes in flight, and of early answers.
    pub buffered: usize,
    /// Smoothed round-trip time in nanoseconds; 0 before the first sample.
    pub rtt_ns: u64,
    /// Variation of the round-trip time in nanoseconds.
    pub rtt_variation_ns: u64,
    /// Longest present time-out of the streams, in nanoseconds.
    pub timeout_ns: u64,
    /// Counts since the requester was created.
    pub counters: RequesterCounters,
}
