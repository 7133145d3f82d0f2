//! Output of a requester: results of requests, and events of the session.

use crate::frame::{FaultStatus, HelloStatus, PfcVector};
#[cfg(doc)]
use crate::session::Timing;

/// Reason why a request failed. A write that failed may still take effect until the next session starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The memory node refused it.
    #[error("the memory node refused the request: {0}")]
    Fault(FaultStatus),
    /// The memory node has not answered for the session's limit.
    #[error(
        "the memory node has not answered within the session's limit, or one of the two nodes was revoked; check that mn-server \
         runs and the link is up, and what `cn-agent sessions` says"
    )]
    SessionDead,
    /// The memory node has come back without the memory's content.
    #[error(
        "the memory node has lost its content (it was restarted without a kept pool): the region's data is gone; `gmm \
         reset-region NAME` gives the region back, with zeros there"
    )]
    DataLost,
    /// The session was opened anew with limits the request does not fit: smaller frames, or another number
    /// of streams.
    #[error(
        "the new session has other limits (largest frame, streams) than the request was made for; try again"
    )]
    FrameTooLarge,
    /// The session was closed by this end.
    #[error("the session was closed")]
    Closed,
}

/// Reason why a request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// No session is open: not yet, or not any more.
    #[error("no session with the memory node is open")]
    NotConnected,
    /// The window or the transmit ring is full: poll and try again.
    #[error("the window or the transmit ring is full")]
    Busy,
    /// More lines than a frame of this session carries, none at all, or data of another length.
    #[error("the burst does not fit a frame of this session")]
    BadBurst,
}

/// Receiver of the results of requests, called in the order of each stream. `token` is that of the request.
pub trait Completions {
    /// A read is done; `data` holds its lines and is valid during the call only.
    fn read(&mut self, token: u64, data: &[u8]);
    /// A write is done.
    fn written(&mut self, token: u64);
    /// The request failed. For a write, `data` is the data to write; for a read it is empty.
    fn failed(&mut self, token: u64, error: OpError, data: &[u8]);
    /// The memory node's receive queue is above its threshold, or below it again (all quanta 0).
    fn congested(&mut self, vector: &PfcVector) {
        let _ = vector;
    }
}

/// Event of a session, to be polled after every input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session has opened.
    Opened {
        /// Incarnation of the memory node's pool: another value means that the content was lost.
        incarnation: u64,
        /// Set if requests of an earlier session continue in this one.
        resumed: bool,
    },
    /// The memory node came back with another incarnation: its content is lost.
    DataLost {
        /// Incarnation in the earlier session.
        before: u64,
        /// Incarnation in the new session.
        now: u64,
    },
    /// Nothing was received for [`Timing::suspect_after`]; a Hello for a new session is sent.
    Suspect,
    /// Nothing was received for [`Timing::dead_after`]; all unanswered requests have failed.
    Dead,
    /// The memory node has announced that it stops.
    PeerLeft,
    /// The memory node refuses the session.
    Refused {
        /// Reason of the refusal. [`HelloStatus::Integrity`] also means that the Start of a sealed session went
        /// unanswered: most likely the two ends have different keys.
        status: HelloStatus,
        /// Oldest protocol version of the memory node.
        version_min: u16,
        /// Newest protocol version of the memory node.
        version_max: u16,
    },
    /// The session was closed by this end.
    Closed,
    /// The session has ended for good: the memory node's key [was withdrawn](super::Requester::bar).
    Barred,
    /// The session has shorter frames than both links carry, because the path loses longer ones.
    PathNarrow {
        /// Length of the frames that are lost, in bytes from the destination MAC to the end of the trailer.
        lost: usize,
        /// Longest frame of the session.
        used: usize,
    },
    /// The path carries the frames that it lost before; a session with these is agreed on.
    PathWide,
}
