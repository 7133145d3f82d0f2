//! Counts of a responder, of one session and in sum.

use serde::{Deserialize, Serialize};

/// Counts of a responder: of one session, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponderCounters {
    /// Requests executed (R2).
    pub executed: u64,
    /// Requests answered with a Fault.
    pub faults: u64,
    /// Frames of many requests that were executed and answered as a whole.
    #[serde(default)]
    pub multi_frames: u64,
    /// Requests in the frames of many.
    #[serde(default)]
    pub multi_requests: u64,
    /// Requests that had been answered before or were already waiting.
    pub duplicates: u64,
    /// Requests that came before an earlier one and waited.
    pub early: u64,
    /// SackNak frames sent.
    pub sacks: u64,
    /// SackNakAck frames sent.
    pub sack_acks: u64,
    /// Congestion frames sent.
    pub congestion: u64,
    /// Sessions started.
    pub sessions: u64,
    /// Frames dropped because they were too short, or their length was not that of their command.
    pub dropped_length: u64,
    /// Frames dropped because their integrity trailer was wrong (damaged, replayed, of another session).
    pub dropped_trailer: u64,
    /// Frames dropped because their number was outside the window.
    pub dropped_window: u64,
    /// Frames dropped because there was no room for the answer, or to keep them.
    pub dropped_full: u64,
    /// Frames dropped because their sender has no session, or they were not for this node.
    pub dropped_foreign: u64,
    /// Hellos dropped because mac1 was invalid, or mac2 was made without a valid cookie.
    #[serde(default)]
    pub dropped_mac: u64,
    /// Hellos dropped because they were not genuine, or older than an accepted one.
    #[serde(default)]
    pub dropped_handshake: u64,
    /// HelloAcks sent with a cookie.
    #[serde(default)]
    pub cookies: u64,
}

impl ResponderCounters {
    /// Sums of the counts of `self` and `o`.
    pub fn plus(&self, o: &ResponderCounters) -> ResponderCounters {
        ResponderCounters {
            executed: self.executed + o.executed,
            faults: self.faults + o.faults,
            multi_frames: self.multi_frames + o.multi_frames,
            multi_requests: self.multi_requests + o.multi_requests,
            duplicates: self.duplicates + o.duplicates,
            early: self.early + o.early,
            sacks: self.sacks + o.sacks,
            sack_acks: self.sack_acks + o.sack_acks,
            congestion: self.congestion + o.congestion,
            sessions: self.sessions + o.sessions,
            dropped_length: self.dropped_length + o.dropped_length,
            dropped_trailer: self.dropped_trailer + o.dropped_trailer,
            dropped_window: self.dropped_window + o.dropped_window,
            dropped_full: self.dropped_full + o.dropped_full,
            dropped_foreign: self.dropped_foreign + o.dropped_foreign,
            dropped_mac: self.dropped_mac + o.dropped_mac,
            dropped_handshake: self.dropped_handshake + o.dropped_handshake,
            cookies: self.cookies + o.cookies,
        }
    }
}
