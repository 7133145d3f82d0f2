//! Data of a connection: its phase, the current session, the offered session, and the last Hello.

use core::ops::RangeInclusive;
use core::time::Duration;

use super::phase::{ConnectionPhase, OldSession};
use crate::Transmit;
use crate::frame::{
    FEATURES, Hello, HelloAck, HelloStatus, Mac, Message, PROTOCOL_VERSION, PROTOCOL_VERSION_OLDEST,
};
use crate::session::entropy::Nonces;
use crate::session::framer::Framer;
use crate::time::Time;

/// Session that the memory node offered or that has started.
pub(super) struct Session {
    pub framer: Framer,
    /// True if the session's keys come from a handshake between nodes' keys.
    pub keyed: bool,
    pub ack: HelloAck,
    /// Number of the last control frame sent.
    pub sent: u64,
    /// Highest number of the control frames received; lower numbers are copies.
    pub heard: u64,
}

impl Session {
    /// Sends a control frame; drops it if the transmit ring is full.
    pub fn send(&mut self, tx: &mut dyn Transmit, message: &Message<'_>) {
        self.send_padded(tx, message, 0);
    }

    /// [`send`](Self::send) for a frame padded to at least `len` bytes.
    pub fn send_padded(&mut self, tx: &mut dyn Transmit, message: &Message<'_>, len: usize) {
        // Only a frame that was sent uses up a number.
        if self.framer.send_control(tx, self.sent + 1, message, len) {
            self.sent += 1;
        }
    }
}

pub(super) struct Connection {
    phase: ConnectionPhase,
    /// Current session; `Some` exactly in phases that [have one](ConnectionPhase::has_session).
    pub session: Option<Session>,
    /// Session offered by the memory node; `Some` exactly in phases that wait for a StartAck.
    pub offered: Option<Session>,
    /// Last Hello prepared.
    pub hello: Option<Hello>,
    /// Time at which `hello` was prepared.
    pub hello_at: Time,
    /// Current interval between two Hellos or Starts.
    pub interval: Duration,
    pub byes: u32,
    /// Version to ask for if the memory node does not support the newest.
    pub fallback: u16,
    /// Incarnation of the memory node's pool in the last session.
    pub incarnation: Option<u64>,
    pub last_ping: Time,
    /// Time of the first Ping since the last frame received.
    pub ping_since: Option<Time>,
    pub nonces: Nonces,
    /// Last refusal reported, so that a repeated one is not reported again.
    pub refused: Option<HelloStatus>,
    /// Versions supported. A Hello asks for the newest, or for an older one if the memory node does not support the
    /// newest.
    pub versions: RangeInclusive<u16>,
    /// Features that the next Hello asks for.
    pub features: u32,
    /// Number of this end's shard, and the CN that the shard belongs to; 0 and the null address for a CN with one
    /// session.
    pub shard: u8,
    pub owner: Mac,
}

impl Connection {
    pub fn new(nonces: Nonces) -> Self {
        Connection {
            phase: ConnectionPhase::Closed,
            session: None,
            offered: None,
            hello: None,
            hello_at: Time::ZERO,
            interval: Duration::ZERO,
            byes: 0,
            fallback: PROTOCOL_VERSION,
            incarnation: None,
            last_ping: Time::ZERO,
            ping_since: None,
            nonces,
            refused: None,
            versions: PROTOCOL_VERSION_OLDEST..=PROTOCOL_VERSION,
            features: FEATURES,
            shard: 0,
            owner: Mac::default(),
        }
    }

    #[inline]
    pub fn phase(&self) -> ConnectionPhase {
        self.phase
    }

    /// Enters `phase`, and drops the current session or the offered one if `phase` has none.
    pub fn enter(&mut self, phase: ConnectionPhase) {
        self.phase = phase;
        if !phase.has_session() {
            self.session = None;
        }
        if !phase.awaits_start() {
            self.offered = None;
        }
        debug_assert_eq!(phase.has_session(), self.session.is_some(), "{phase:?}");
        debug_assert_eq!(phase.awaits_start(), self.offered.is_some(), "{phase:?}");
    }

    /// Newest version that both the sender of `ack` and this end support, or `None`.
    pub fn common_version(&self, ack: &HelloAck) -> Option<u16> {
        let newest = ack.version_max.min(*self.versions.end());
        (newest >= ack.version_min && self.versions.contains(&newest)).then_some(newest)
    }

    /// Returns the framer for requests, or `None` while no request may be sent.
    #[inline]
    pub fn framer(&self) -> Option<&Framer> {
        match &self.session {
            Some(session) if self.phase.takes_requests() => Some(&session.framer),
            _ => None,
        }
    }

    /// Returns the framer for answers. While one session replaces another, the old one takes answers but no more
    /// requests.
    #[inline]
    pub fn answer_framer(&self) -> Option<&Framer> {
        match &self.session {
            Some(session) if self.phase.takes_answers() => Some(&session.framer),
            _ => None,
        }
    }

    /// Returns the current session, or else the offered one.
    pub fn latest(&self) -> Option<&Session> {
        self.session.as_ref().or(self.offered.as_ref())
    }

    /// Sends a control frame in the current session, if there is one.
    pub fn send(&mut self, tx: &mut dyn Transmit, message: &Message<'_>) {
        if let Some(session) = &mut self.session {
            session.send(tx, message);
        }
    }

    pub fn incarnation(&self) -> Option<u64> {
        self.session.as_ref().map(|s| s.ack.incarnation)
    }

    pub fn window(&self) -> usize {
        self.session.as_ref().map_or(0, |s| usize::from(s.ack.window))
    }

    pub fn max_frame(&self) -> usize {
        self.session.as_ref().map_or(0, |s| usize::from(s.ack.max_frame))
    }

    pub fn has(&self, features: u32) -> bool {
        self.session.as_ref().is_some_and(|s| s.ack.features & features != 0)
    }

    pub fn streams(&self) -> usize {
        self.session.as_ref().map_or(1, |s| usize::from(s.ack.streams))
    }

    /// Whether the session is suspect. Any answer then makes it sound again, and no new session is needed.
    #[inline]
    pub fn is_suspect(&self) -> bool {
        self.phase == ConnectionPhase::Reopening(OldSession::Suspect)
    }
}
