//! Data of a connection: its phase, the present session, the offered session, and the last Hello.

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

/// A session agreed on with the memory node.
pub(super) struct Session {
    pub framer: Framer,
    /// Set if the session's keys come from a handshake between nodes' keys.
    pub keyed: bool,
    pub ack: HelloAck,
    /// Number of the last control frame sent.
    pub sent: u64,
    /// Highest number of the control frames received.
    pub heard: u64,
}

impl Session {
    /// Sends a control frame; drops it if the transmit ring is full.
    pub fn send(&mut self, tx: &mut dyn Transmit, message: &Message<'_>) {
        self.send_padded(tx, message, 0);
    }

    /// Sends a control frame of at least `len` bytes; drops it if the transmit ring is full.
    pub fn send_padded(&mut self, tx: &mut dyn Transmit, message: &Message<'_>, len: usize) {
        if self.framer.send_control(tx, self.sent + 1, message, len) {
            self.sent += 1;
        }
    }
}

pub(super) struct Connection {
    phase: ConnectionPhase,
    /// Present session; `Some` exactly in phases that [have one](ConnectionPhase::has_session).
    pub session: Option<Session>,
    /// Session offered by the memory node; `Some` exactly in phases that wait for a StartAck.
    pub offered: Option<Session>,
    /// Last Hello prepared.
    pub hello: Option<Hello>,
    /// Time at which that Hello was prepared.
    pub hello_at: Time,
    /// Present interval between two Hellos or Starts.
    pub interval: Duration,
    /// Number of Byes sent since the session was closed.
    pub byes: u32,
    /// Version to request if the memory node does not support the newest.
    pub fallback: u16,
    /// Incarnation of the memory node's pool in the last session.
    pub incarnation: Option<u64>,
    pub last_ping: Time,
    /// Time of the first Ping since the last frame received.
    pub ping_since: Option<Time>,
    pub nonces: Nonces,
    /// Last refusal reported, kept so that the next equal refusal is not reported again.
    pub refused: Option<HelloStatus>,
    /// Versions supported. A Hello requests the newest, or an older one if the memory node does not support the newest.
    pub versions: RangeInclusive<u16>,
    /// Features that the next Hello requests.
    pub features: u32,
    /// Shard and CN of the session; 0 and the null address for a CN with one session.
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

    /// Enters `phase`, and drops the sessions that this phase does not have.
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

    /// Newest version that both the sender of `ack` and this end support.
    pub fn common_version(&self, ack: &HelloAck) -> Option<u16> {
        let newest = ack.version_max.min(*self.versions.end());
        (newest >= ack.version_min && self.versions.contains(&newest)).then_some(newest)
    }

    /// Framer for requests; `None` while no request may be sent.
    #[inline]
    pub fn framer(&self) -> Option<&Framer> {
        match &self.session {
            Some(session) if self.phase.takes_requests() => Some(&session.framer),
            _ => None,
        }
    }

    /// Framer for answers, also of an old session in which no request is sent any more.
    #[inline]
    pub fn answer_framer(&self) -> Option<&Framer> {
        match &self.session {
            Some(session) if self.phase.takes_answers() => Some(&session.framer),
            _ => None,
        }
    }

    /// Offered session if there is one, else the present session.
    pub fn latest(&self) -> Option<&Session> {
        self.session.as_ref().or(self.offered.as_ref())
    }

    /// Sends a control frame of the present session, if there is one.
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

    /// Whether the session is suspect, so that an answer makes a new session unnecessary.
    #[inline]
    pub fn is_suspect(&self) -> bool {
        self.phase == ConnectionPhase::Reopening(OldSession::Suspect)
    }
}
