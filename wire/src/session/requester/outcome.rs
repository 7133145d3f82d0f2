//! What a requester tells: what became of requests, and what happens to the session.

use crate::frame::{FaultStatus, HelloStatus, PfcVector};
#[cfg(doc)]
use crate::session::Timing;

/// Why a request was not carried out. A write that failed may still take effect until the next session
/// starts.
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

/// Why a request was not even taken.
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

/// Takes what has become of requests, in the order in which each stream completes. `token` is what the
/// request was made with.
pub trait Completions {
    /// A read is done; `data` holds its lines and is valid during the call only.
    fn read(&mut self, token: u64, data: &[u8]);
    /// A write is done.
    fn written(&mut self, token: u64);
    /// The request failed. For a write, `data` is what it was to write; for a read it is empty.
    fn failed(&mut self, token: u64, error: OpError, data: &[u8]);
    /// The memory node's receive queue has passed its threshold, or has emptied again (all quanta 0).
    fn congested(&mut self, vector: &PfcVector) {
        let _ = vector;
    }
}

/// What happens to a session, to be polled after every input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session is open.
    Opened {
        /// The memory's incarnation: changes when its content was lost.
        incarnation: u64,
        /// Whether requests of an earlier session go on in this one.
        resumed: bool,
    },
    /// The memory node came back with another incarnation: what was in it is gone.
    DataLost {
        /// The incarnation before.
        before: u64,
        /// The one now.
        now: u64,
    },
    /// Nothing was heard for [`Timing::suspect_after`]; a new session is being offered.
    Suspect,
    /// Nothing was heard for [`Timing::dead_after`]; everything unanswered has failed.
    Dead,
    /// The memory node says it is going away.
    PeerLeft,
    /// The memory node does not take us.
    Refused {
        /// Why. [`HelloStatus::Integrity`] also when a sealed session was agreed but its Start went
        /// unanswered: most likely the two ends have different keys.
        status: HelloStatus,
        /// Oldest protocol version it speaks.
        version_min: u16,
        /// Newest protocol version it speaks.
        version_max: u16,
    },
    /// The session was closed as we asked.
    Closed,
    /// The session was ended, and no other is asked for: the memory node's key [was taken back](super::Requester::bar).
    Barred,
}
