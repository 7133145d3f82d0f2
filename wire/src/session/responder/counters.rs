//! Counters of a responder: a set for each session, and one for frames outside sessions.

use serde::{Deserialize, Serialize};

crate::counters! {
    /// Counters of one session, or their sums over all sessions.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct ResponderCounters {
        /// Requests executed (R2).
        pub executed: u64,
        /// Requests refused with a Fault.
        pub faults: u64,
        /// Frames of many requests that were executed as a whole and answered in one frame.
        #[serde(default)]
        pub multi_frames: u64,
        /// Requests that came in frames of many requests.
        #[serde(default)]
        pub multi_requests: u64,
        /// Copies of requests that were already answered, or that already waited for an earlier request.
        pub duplicates: u64,
        /// Requests that arrived before a request with a lower number, and so had to wait.
        pub early: u64,
        /// SackNak frames sent: requests that came early (R4).
        pub sacks: u64,
        /// SackNakAck frames sent: requests that came early while an acknowledgement was due (R4).
        pub sack_acks: u64,
        /// Congestion frames sent because the receive queue was too long.
        pub congestion: u64,
        /// Sessions started, replacements included.
        pub sessions: u64,
        /// Frames dropped because they were shorter than their command requires, or of an unknown command.
        pub dropped_length: u64,
        /// Frames dropped because their integrity trailer was wrong: damaged, replayed, or of another session.
        pub dropped_trailer: u64,
        /// Frames dropped because their number was outside the window.
        pub dropped_window: u64,
        /// Frames dropped for lack of space (for the answer, or to keep the request until its turn), and Hellos dropped
        /// because a limit was reached.
        pub dropped_full: u64,
        /// Frames dropped because their sender has no session, or they were not for this node.
        pub dropped_foreign: u64,
        /// Hellos dropped because mac1 was wrong.
        #[serde(default)]
        pub dropped_mac: u64,
        /// Hellos dropped because they were not genuine, or not newer than an accepted one.
        #[serde(default)]
        pub dropped_handshake: u64,
        /// Cookies sent, each in a HelloAck.
        #[serde(default)]
        pub cookies: u64,
    }
}
