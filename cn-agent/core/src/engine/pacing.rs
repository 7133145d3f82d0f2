//! Rate control: requests leave no faster than memory nodes and the switches before them have room for.
//!
//! Each memory node has a [`Pacer`] of its own (the paper's controller and token bucket), so that a slow node holds up
//! nobody else's requests. Three signals reach it:
//!
//! ```text
//!   802.1Qbb frame seen on the link    --+
//!   NIC counter of received PFC frames --+--> every memory node's pacer: it was the link that paused
//!   Congestion frame of a memory node  -----> that node's pacer
//! ```
//!
//! A Congestion frame belongs to a session, and is authenticated as all frames of it are. The other two anybody at the cable
//! can bring about: who hands them in decides whether they are heeded at all, and their effect is bounded
//! ([`Controller::on_bare_pause`](cxloe_cc::Controller::on_bare_pause)).
//!
//! A request without tokens is refused with [`EngineError::Busy`], and the engine's deadline says when to try
//! again. What it costs is the larger of its own frame and its response's (R13), as it is on the wire; a frame of many
//! requests costs what it is when it leaves. Repeated requests are never held back, as others wait for them, but they cost the same.

use alloc::vec::Vec;
use core::time::Duration;

use cxloe_cc::{Config, Pacer, PacerStatus};
use cxloe_wire::frame::WIRE_OVERHEAD;
use cxloe_wire::frame::{Gcm, HEADER_LEN, LINE_SIZE, PfcVector, Seal};
use cxloe_wire::time::Time;

use super::{Engine, EngineError, Peer};

/// Bytes that may leave at once after a rest, unless told otherwise: 140 line reads, some 10 bursts of an MTU of
/// 1500. Few enough for any queue, enough that a sender who sleeps between looks keeps its rate.
pub const BUCKET_DEFAULT: u64 = 16 << 10;

/// How requests are paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// The controller's times and rates.
    pub control: Config,
    /// Bytes that may leave at once after a rest.
    pub bucket: u64,
    /// The PFC class (0 to 7) our frames belong to: what other classes are told is not for us.
    pub class: u8,
}

/// Who said that we are to slow down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Link,
    Nic,
    MemoryNode,
}

/// One memory node's pacer.
pub(super) struct PeerPacer {
    pacer: Pacer,
    /// What every frame takes beyond its payload.
    overhead: usize,
    /// Bytes of the wire already paid for.
    paid: u64,
    /// Bytes of repeated lines already paid for.
    repeated: u64,
}

fn since_start(now: Time) -> Duration {
    Duration::from_nanos(now.0)
}

impl PeerPacer {
    /// Pays for what leaves from now on, `wire_bytes` having left before.
    pub fn new(pacing: &Pacing, sealed: bool, wire_bytes: u64, now: Time) -> PeerPacer {
        let trailer = if sealed { Gcm::TRAILER_LEN } else { Seal::PLAIN_LEN };
        PeerPacer {
            pacer: Pacer::new(pacing.control, pacing.bucket, since_start(now)),
            overhead: HEADER_LEN + trailer + WIRE_OVERHEAD,
            paid: wire_bytes,
            repeated: 0,
        }
    }

    /// Pays for what has left, of which `wire_bytes` are known in all.
    #[inline]
    pub fn charge_sent(&mut self, wire_bytes: u64) {
        let bytes = wire_bytes - self.paid;
        self.paid = wire_bytes;
        self.pacer.charge(bytes);
    }

    /// Pays for what was repeated, of which `bytes` of lines are known in all.
    #[inline]
    pub fn charge_repeated(&mut self, bytes: u64) {
        if bytes != self.repeated {
            let lines = bytes.saturating_sub(self.repeated) / LINE_SIZE as u64;
            self.repeated = bytes;
            // As if each line had a frame of its own: it errs on the slow side, after losses.
            self.pacer.charge(lines * (self.overhead + LINE_SIZE) as u64);
        }
    }
}

impl Engine {
    /// Paces requests from now on, to the memory nodes known and to those to come; `None`: not at all.
    pub fn set_pacing(&mut self, pacing: Option<Pacing>, now: Time) {
        self.pacing = pacing;
        self.core.class = pacing.map(|p| p.class);
        for peer in &mut self.peers {
            let wire_bytes = peer.requester.wire_bytes();
            peer.pacer = pacing.map(|p| PeerPacer::new(&p, peer.sealed, wire_bytes, now));
        }
    }

    /// An 802.1Qbb frame was seen on the link.
    #[cold]
    pub fn on_pfc(&mut self, vector: &PfcVector, now: Time) {
        if self.pacing.is_some_and(|p| pauses(vector, p.class)) {
            self.pause_all(Signal::Link, now);
        }
    }

    /// The NIC has counted PFC frames of our class since the last time.
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
                // Anybody at the cable can have sent it.
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

    /// The pacer of each memory node in figures, in the order of [`sessions`](Self::sessions); `None` without rate
    /// control.
    pub fn paces(&mut self, now: Time) -> Vec<Option<PacerStatus>> {
        let pace = |peer: &mut Peer| peer.pacer.as_mut().map(|pacer| pacer.pacer.status(since_start(now)));
        self.peers.iter_mut().map(pace).collect()
    }

    /// Whether `peer` may be sent a request.
    #[inline]
    pub(super) fn may_send(&mut self, peer: usize, now: Time) -> Result<(), EngineError> {
        match &mut self.peers[peer].pacer {
            None => Ok(()),
            Some(pacer) => match pacer.pacer.ready(since_start(now)) {
                Ok(()) => Ok(()),
                Err(again) => {
                    self.resume_at = self.resume_at.min(Time(again.as_nanos() as u64));
                    self.deadline = self.deadline.min(self.resume_at);
                    Err(EngineError::Busy)
                }
            },
        }
    }

    /// A request was made of `peer`.
    #[inline]
    pub(super) fn sent(&mut self, peer: usize) {
        let peer = &mut self.peers[peer];
        if let Some(pacer) = &mut peer.pacer {
            pacer.charge_sent(peer.requester.wire_bytes());
        }
        self.deadline = self.deadline.min(peer.requester.deadline());
    }
}

/// Whether a vector tells `class` to pause; with a time of 0 it ends a pause.
pub(super) fn pauses(vector: &PfcVector, class: u8) -> bool {
    vector.pause(class).is_some_and(|quanta| quanta > 0)
}
