//! What a connection consists of: its phase, the session, the one offered, and the attempt at it.

use core::ops::RangeInclusive;
use core::time::Duration;

use super::phase::{Phase, Standing};
use crate::Transmit;
use crate::frame::{
    FEATURES, Hello, HelloAck, HelloStatus, Mac, Message, PROTOCOL_VERSION, PROTOCOL_VERSION_OLDEST,
};
use crate::session::entropy::Nonces;
use crate::session::framer::Framer;
use crate::time::Time;

/// A session, agreed with the memory node.
pub(super) struct Session {
    pub framer: Framer,
    /// Whether it is between keys.
    pub keyed: bool,
    pub ack: HelloAck,
    /// Control frames sent and the highest received.
    pub sent: u64,
    pub heard: u64,
}

impl Session {
    /// Sends a control frame, if there is room.
    pub fn send(&mut self, tx: &mut dyn Transmit, message: &Message<'_>) {
        if self.framer.send_control(tx, self.sent + 1, message) {
            self.sent += 1;
        }
    }
}

pub(super) struct Connection {
    phase: Phase,
    /// There if and only if the phase has one.
    pub session: Option<Session>,
    /// There if and only if the phase awaits an answer to Start.
    pub offered: Option<Session>,
    /// The last Hello.
    pub hello: Option<Hello>,
    /// Until Hello or Start is sent again.
    pub interval: Duration,
    /// Byes sent.
    pub byes: u32,
    /// The version to ask for, when the memory node does not speak the newest.
    pub fallback: u16,
    /// The last incarnation seen.
    pub incarnation: Option<u64>,
    pub last_ping: Time,
    /// When the first Ping was sent since something was heard.
    pub ping_since: Option<Time>,
    pub nonces: Nonces,
    /// The last refusal reported, so that it is not reported again at each Hello.
    pub refused: Option<HelloStatus>,
    /// The versions spoken. A Hello asks for the newest, and for an older one when the memory node does not speak it.
    pub versions: RangeInclusive<u16>,
    /// The features a Hello asks for.
    pub features: u32,
    /// Which shard of which CN it is for; 0 and no address for a CN with one session.
    pub shard: u8,
    pub owner: Mac,
}

impl Connection {
    pub fn new(nonces: Nonces) -> Self {
        Connection {
            phase: Phase::Closed,
            session: None,
            offered: None,
            hello: None,
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
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Goes to `phase`, which keeps of the sessions those it has.
    pub fn enter(&mut self, phase: Phase) {
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

    /// The newest version that the sender of `ack` and this end speak.
    pub fn common_version(&self, ack: &HelloAck) -> Option<u16> {
        let newest = ack.version_max.min(*self.versions.end());
        (newest >= ack.version_min && self.versions.contains(&newest)).then_some(newest)
    }

    /// What requests are framed with; `None` while none may be sent.
    #[inline]
    pub fn framer(&self) -> Option<&Framer> {
        match &self.session {
            Some(session) if self.phase.takes_requests() => Some(&session.framer),
            _ => None,
        }
    }

    /// The session there is, or the one offered.
    pub fn latest(&self) -> Option<&Session> {
        self.session.as_ref().or(self.offered.as_ref())
    }

    /// Sends a control frame of the session, if there is one.
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

    /// Whether the next answer shows that no new session is needed.
    #[inline]
    pub fn is_suspect(&self) -> bool {
        self.phase == Phase::Reopening(Standing::Suspect)
    }
}
