//! Rate control: the rate of requests is limited to what memory nodes and the switches on the way can take.
//!
//! Each memory node has a [`Pacer`] of its own (the paper's controller and token bucket), so that a slow node does
//! not delay requests to other nodes. A pacer gets three signals:
//!
//! ```text
//!   802.1Qbb frame seen on the link    --+
//!   NIC counter of received PFC frames --+--> every memory node's pacer: the link was paused
//!   Congestion frame of a memory node  -----> that node's pacer
//! ```
//!
//! A Congestion frame belongs to a session and is authenticated like all of the session's frames. Any station on the
//! cable can cause the other two signals: the caller decides whether to use them at all, and their effect is bounded
//! ([`Controller::on_bare_pause`](cxloe_cc::Controller::on_bare_pause)).
//!
//! A request without tokens is refused with [`EngineError::Busy`], and the engine's deadline gives the time to retry.
//! The cost of a request is the larger of the sizes on the wire of its frame and of its response (R13); a frame of
//! many requests is charged when it is sent. Retransmissions are never held back, as other requests wait for them,
//! but they are charged too.

use alloc::vec::Vec;
use core::time::Duration;

use cxloe_cc::{Config, Pacer, PacerStatus};
use cxloe_wire::frame::WIRE_OVERHEAD;
use cxloe_wire::frame::{Gcm, HEADER_LEN, LINE_SIZE, PfcVector, Seal};
use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::time::Time;

use super::{Engine, EngineError, PeerSession};

/// Default of the largest burst after idle time, in bytes: 140 line reads, or some 10 bursts at an MTU of 1500. Any
/// switch queue holds this amount, and a sender that sleeps between polls can still keep its rate.
pub const BUCKET_DEFAULT: u64 = 16 << 10;

/// Reason of the deadline of a request that was refused for lack of tokens.
pub(super) const TOKENS: &str = "tokens of rate control";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    pub control: Config,
    /// Maximum number of bytes that may be sent at once after idle time.
    pub bucket: u64,
    /// PFC class (0 to 7) of this node's frames: pauses of other classes are ignored.
    pub class: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Link,
    Nic,
    MemoryNode,
}

/// Rate control of the requests to one memory node.
pub(super) struct PeerPacer {
    pacer: Pacer,
    /// Bytes of every frame on the wire beyond its payload.
    overhead: usize,
    /// Total of sent bytes charged so far.
    paid: u64,
    /// Total of retransmitted bytes of lines charged so far.
    repeated: u64,
}

fn since_start(now: Time) -> Duration {
    Duration::from_nanos(now.0)
}

impl PeerPacer {
    /// A pacer that charges bytes sent from now on; `wire_bytes` is the total sent before.
    pub fn new(pacing: &Pacing, sealed: bool, wire_bytes: u64, now: Time) -> PeerPacer {
        let trailer = if sealed { Gcm::TRAILER_LEN } else { Seal::PLAIN_LEN };
        PeerPacer {
            pacer: Pacer::new(pacing.control, pacing.bucket, since_start(now)),
            overhead: HEADER_LEN + trailer + WIRE_OVERHEAD,
            paid: wire_bytes,
            repeated: 0,
        }
    }

    /// Charges the bytes sent since the last call; `wire_bytes` is the total so far.
    #[inline]
    pub fn charge_sent(&mut self, wire_bytes: u64) {
        let bytes = wire_bytes - self.paid;
        self.paid = wire_bytes;
        self.pacer.charge(bytes);
    }

    /// Charges the lines retransmitted since the last call; `bytes` is the total of their bytes so far.
    #[inline]
    pub fn charge_repeated(&mut self, bytes: u64) {
        if bytes != self.repeated {
            let lines = bytes.saturating_sub(self.repeated) / LINE_SIZE as u64;
            self.repeated = bytes;
            // Charged as if each line had its own frame, so that after losses the rate is too low rather than
            // too high.
            self.pacer.charge(lines * (self.overhead + LINE_SIZE) as u64);
        }
    }
}

impl Engine {
    /// Sets rate control for present and future memory nodes; `None` turns it off.
    pub fn set_pacing(&mut self, pacing: Option<Pacing>, now: Time) {
        self.pacing = pacing;
        self.core.class = pacing.map(|p| p.class);
        for peer in &mut self.peers {
            let wire_bytes = peer.requester.wire_bytes();
            peer.pacer = pacing.map(|p| PeerPacer::new(&p, peer.sealed, wire_bytes, now));
        }
    }

    /// Handles an 802.1Qbb frame that was seen on the link.
    #[cold]
    pub fn on_pfc(&mut self, vector: &PfcVector, now: Time) {
        if self.pacing.is_some_and(|p| pauses(vector, p.class)) {
            self.pause_all(Signal::Link, now);
        }
    }

    /// Handles an increase of the NIC's count of PFC frames of this node's class.
    #[cold]
    pub fn on_nic_pause(&mut self, now: Time) {
        self.pause_all(Signal::Nic, now);
    }

    fn pause_all(&mut self, signal: Signal, now: Time) {
        for peer in 0..self.peers.len() {
            self.pause(peer, signal, now);
        }
    }

    #[cold]
    pub(super) fn pause(&mut self, peer: usize, signal: Signal, now: Time) {
        if let Some(pacer) = &mut self.peers[peer].pacer
            && match signal {
                Signal::MemoryNode => pacer.pacer.on_pause(since_start(now)),
                // Any station on the cable can have caused these signals, so their effect is bounded.
                Signal::Link | Signal::Nic => pacer.pacer.on_bare_pause(since_start(now)),
            }
        {
            let counters = &mut self.core.counters;
            match signal {
                Signal::Link => counters.pauses_link += 1,
                Signal::Nic => counters.pauses_nic += 1,
                Signal::MemoryNode => counters.pauses_mn += 1,
            }
        }
    }

    /// State of each memory node's pacer, in the order of [`sessions`](Self::sessions); `None` without rate control.
    pub fn paces(&mut self, now: Time) -> Vec<Option<PacerStatus>> {
        let pace =
            |peer: &mut PeerSession| peer.pacer.as_mut().map(|pacer| pacer.pacer.status(since_start(now)));
        self.peers.iter_mut().map(pace).collect()
    }

    /// Checks that rate control permits a request to `peer` now; if not, the deadline is set to the time of
    /// the retry.
    #[inline]
    pub(super) fn may_send(&mut self, peer: usize, now: Time) -> Result<(), EngineError> {
        match &mut self.peers[peer].pacer {
            None => Ok(()),
            Some(pacer) => match pacer.pacer.ready(since_start(now)) {
                Ok(()) => Ok(()),
                Err(again) => {
                    self.resume_at = self.resume_at.min(Time(again.as_nanos() as u64));
                    self.deadline.keep_earlier(Deadline::new(self.resume_at, TOKENS));
                    Err(EngineError::Busy)
                }
            },
        }
    }

    /// Charges a request that was sent to `peer`, and updates the deadline.
    #[inline]
    pub(super) fn sent(&mut self, peer: usize) {
        let peer = &mut self.peers[peer];
        if let Some(pacer) = &mut peer.pacer {
            pacer.charge_sent(peer.requester.wire_bytes());
        }
        self.deadline.keep_earlier(peer.requester.deadline());
    }
}

/// Whether the pause times of a PFC frame (`vector`) pause `class`; a time of 0 ends a pause.
pub(super) fn pauses(vector: &PfcVector, class: u8) -> bool {
    vector.pause(class).is_some_and(|quanta| quanta > 0)
}
