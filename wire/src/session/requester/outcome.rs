//! Output of a requester: results of requests, and events of the session.

use crate::frame::{FaultStatus, HelloStatus, PfcVector};
#[cfg(doc)]
use crate::session::Timing;

/// Reason why a request failed. A write that failed may still be executed until the next session starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The memory node refused the request.
    #[error("the memory node refused the request: {0}")]
    Fault(FaultStatus),
    /// The memory node did not answer within the session's time limit.
    #[error(
        "the memory node has not answered within the session's limit, or one of the two nodes was revoked; check that mn-server \
         runs and the link is up, and what `cn-agent sessions` says"
    )]
    SessionDead,
    /// The memory node came back without the content of the memory.
    #[error(
        "the memory node has lost its content (it was restarted without a kept pool): the region's data is gone; `gmm \
         reset-region NAME` gives the region back, with zeros there"
    )]
    DataLost,
    /// A new session has limits that the request does not fit: shorter frames, or another number of streams.
    #[error(
        "the new session has other limits (largest frame, streams) than the request was made for; try again"
    )]
    FrameTooLarge,
    /// The session was closed by this end before the answer came.
    #[error("the session was closed")]
    Closed,
}

/// Reason why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// No session is open: not yet, or no longer.
    #[error("no session with the memory node is open")]
    NotConnected,
    /// The window or the transmit ring is full: poll, then try again.
    #[error("the window or the transmit ring is full")]
    Busy,
    /// The burst has more lines than a frame of this session carries, or none, or data of another length.
    #[error("the burst does not fit a frame of this session")]
    BadBurst,
}

/// Takes the results of requests, in the order of each stream. `token` is the caller's number of the request.
pub trait Completions {
    /// Reports a completed read. `data` has the lines, and is valid only during the call.
    fn read(&mut self, token: u64, data: &[u8]);
    /// Reports a write that the memory node has executed.
    fn written(&mut self, token: u64);
    /// Reports a failed request. `data` is the data of a write; it is empty for a read.
    fn failed(&mut self, token: u64, error: OpError, data: &[u8]);
    /// Reports that the memory node's receive queue is above its threshold, or, with all quanta 0, no longer
    /// above it.
    fn congested(&mut self, vector: &PfcVector) {
        let _ = vector;
    }
}

/// Event of a session; the caller polls for events after every input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session has opened, and requests are sent.
    Opened {
        /// Incarnation of the memory node's pool: another value means that the content was lost.
        incarnation: u64,
        /// True if requests of an earlier session continue in this one.
        resumed: bool,
    },
    /// The memory node came back with another incarnation, so its content is lost.
    DataLost {
        /// Incarnation that the pool had in the earlier session.
        before: u64,
        /// Incarnation that the pool has in the new session.
        now: u64,
    },
    /// No frame came for [`Timing::suspect_after`] while an answer was due; the requester asks for a new
    /// session.
    Suspect,
    /// No answer came for [`Timing::dead_after`]; all unanswered requests have failed.
    Dead,
    /// The memory node sent a Bye: it is about to stop, or its link carries only shorter frames.
    PeerLeft,
    /// The memory node refused a session.
    Refused {
        /// Reason of the refusal. [`HelloStatus::Integrity`] is also reported if the Start of a sealed
        /// session stayed unanswered, since then the two ends most likely have different keys.
        status: HelloStatus,
        /// Oldest protocol version that the memory node supports.
        version_min: u16,
        /// Newest protocol version that the memory node supports.
        version_max: u16,
    },
    /// This end closed the session, and the memory node has confirmed that or is silent.
    Closed,
    /// The session has ended for good, because the memory node's key [was withdrawn](super::Requester::bar).
    Barred,
    /// The session has shorter frames than both links carry, because the path between them loses longer ones.
    PathNarrow {
        /// Length of the frames that are lost, in bytes from the destination MAC to the end of the trailer.
        lost: usize,
        /// Length of the session's longest frame, in bytes from the destination MAC to the end of the
        /// trailer.
        used: usize,
    },
    /// The path now carries the frames that it lost before; the requester agrees on a session with such
    /// frames.
    PathWide,
}
