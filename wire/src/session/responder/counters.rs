//! What a responder has counted, of one session and in sum.

use serde::{Deserialize, Serialize};

/// What a responder has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponderCounters {
    /// Requests executed.
    pub executed: u64,
    /// Requests answered with a Fault.
    pub faults: u64,
    /// Frames that were many requests, executed and answered as one.
    #[serde(default)]
    pub multi_frames: u64,
    /// Requests in them.
    #[serde(default)]
    pub multi_requests: u64,
    /// Requests that had been answered before, or waited already.
    pub duplicates: u64,
    /// Requests that came early and waited.
    pub early: u64,
    /// SackNak frames sent.
    pub sacks: u64,
    /// SackNakAck frames sent.
    pub sack_acks: u64,
    /// Congestion frames sent.
    pub congestion: u64,
    /// Sessions started.
    pub sessions: u64,
    /// Frames dropped: too short, or of a length their command does not have.
    pub dropped_length: u64,
    /// Frames dropped: integrity trailer wrong (damaged, replayed, of another session).
    pub dropped_trailer: u64,
    /// Frames dropped: number outside the window.
    pub dropped_window: u64,
    /// Frames dropped: no room for the answer, or to keep them.
    pub dropped_full: u64,
    /// Frames dropped: from nobody with a session, or not for us.
    pub dropped_foreign: u64,
    /// Hellos dropped: from who does not know this node's key, or made no use of its cookie.
    #[serde(default)]
    pub dropped_mac: u64,
    /// Hellos dropped: not genuine, or older than one that was taken.
    #[serde(default)]
    pub dropped_handshake: u64,
    /// Cookies asked for.
    #[serde(default)]
    pub cookies: u64,
}

impl ResponderCounters {
    /// The sum of two.
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
