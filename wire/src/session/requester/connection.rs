//! Opening, keeping alive, losing and re-opening a session.
//!
//! ```text
//!            connect                HelloAck                 StartAck
//!   Closed ----------> Hello (again,  ------> Start (again,  --------> open, no attempt
//!                      backing off)           backing off)               |
//!                        ^  ^                                            | silence for suspect_after,
//!                        |  +---------- session still open -------------- or the peer says Bye
//!                        +------- no session: silence for dead_after, everything unanswered fails
//! ```
//!
//! The open session and the attempt at the next one are kept apart: a Hello ends nothing. From the first
//! Start until its StartAck no request is sent, so that none of the old session can be executed after one
//! of the new. A Start that stays unanswered is given up and another Hello sent; until that has led to a
//! session the old one may go on, if the memory node still has it.

use alloc::boxed::Box;
use core::ops::RangeInclusive;
use core::time::Duration;

use super::super::Nonces;
use super::super::framer::{Framer, Received};
use super::{Completions, OpError, Requester, SessionEvent, Stream};
use crate::Transmit;
use crate::frame::{
    Aead, Axi, Command, Hello, HelloAck, HelloStatus, Integrity, MAX_FRAME_LIMIT, Message, PROTOCOL_VERSION,
    PROTOCOL_VERSION_OLDEST, Seal, Space,
};
use crate::session::infer;
use crate::time::Time;

/// An open session.
struct Session {
    framer: Framer,
    ack: HelloAck,
    /// Control frames sent and the highest received.
    sent: u64,
    heard: u64,
    /// The peer has said Bye, or frames are too long for the link: this session does not recover.
    leaving: bool,
}

/// The attempt at a new one.
#[allow(clippy::large_enum_variant, reason = "there is one per memory node")]
enum Attempt {
    /// None: closed, or the open session is fine.
    None,
    Hello {
        hello: Hello,
        at: Time,
        interval: Duration,
    },
    Start {
        session: Session,
        at: Time,
        interval: Duration,
        give_up: Time,
    },
    /// The peer was told Bye.
    Bye {
        at: Time,
        tries: u32,
    },
}

/// Byes sent before the session is closed without an answer.
const BYES: u32 = 3;

pub(super) struct Connection {
    session: Option<Session>,
    attempt: Attempt,
    /// Whether the application wants a session at all.
    wanted: bool,
    suspect: bool,
    /// The last incarnation seen.
    incarnation: Option<u64>,
    last_ping: Time,
    /// When the first Ping was sent since something was heard.
    ping_since: Option<Time>,
    nonces: Nonces,
    /// The last refusal reported, so that it is not reported again at each Hello.
    refused: Option<HelloStatus>,
    /// The versions spoken. A Hello asks for the newest, and for an older one when the memory node does not speak it.
    pub versions: RangeInclusive<u16>,
}

impl Connection {
    pub fn new(nonces: Nonces) -> Self {
        Connection {
            session: None,
            attempt: Attempt::None,
            wanted: false,
            suspect: false,
            incarnation: None,
            last_ping: Time::ZERO,
            ping_since: None,
            nonces,
            refused: None,
            versions: PROTOCOL_VERSION_OLDEST..=PROTOCOL_VERSION,
        }
    }

    /// The newest version that the sender of `ack` and this end speak.
    fn common_version(&self, ack: &HelloAck) -> Option<u16> {
        let newest = ack.version_max.min(*self.versions.end());
        (newest >= ack.version_min && self.versions.contains(&newest)).then_some(newest)
    }

    /// What requests are framed with; `None` while none may be sent.
    #[inline]
    pub fn framer(&self) -> Option<&Framer> {
        match (&self.session, &self.attempt) {
            (Some(session), Attempt::None | Attempt::Hello { .. }) => Some(&session.framer),
            _ => None,
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

    pub fn streams(&self) -> usize {
        self.session.as_ref().map_or(1, |s| usize::from(s.ack.streams))
    }

    /// Whether nothing has been heard for so long that a new session is being offered.
    #[inline]
    pub fn is_suspect(&self) -> bool {
        self.suspect
    }

    pub fn state_name(&self) -> &'static str {
        match (&self.session, self.suspect, self.wanted) {
            (Some(_), false, _) => "open",
            (Some(_), true, _) => "suspect",
            (None, _, true) => "connecting",
            (None, _, false) => "closed",
        }
    }
}

impl Requester {
    /// Calls the memory node; goes on calling until a session is open or [`close`](Self::close) is called.
    pub fn connect(&mut self, now: Time) {
        if !self.connection.wanted {
            self.connection.wanted = true;
            self.connection.refused = None;
            self.start_hello(now);
        }
    }

    /// Ends the session in order; what is unanswered fails with [`OpError::Closed`].
    pub fn close(&mut self, now: Time, out: &mut dyn Completions) {
        self.connection.wanted = false;
        self.fail_all(OpError::Closed, out);
        self.connection.attempt = match self.connection.session {
            Some(_) => Attempt::Bye { at: now, tries: 0 },
            None => Attempt::None,
        };
        self.deadline = Time::ZERO;
    }

    fn start_hello(&mut self, now: Time) {
        self.start_hello_as(*self.connection.versions.end(), now);
    }

    /// Asks for a session of this version.
    fn start_hello_as(&mut self, version: u16, now: Time) {
        let hello = Hello {
            version,
            features: 0,
            nonce: self.connection.nonces.next(),
            instance: self.config.instance,
            streams: self.config.streams,
            max_frame: self.config.max_frame.min(MAX_FRAME_LIMIT) as u16,
            integrity: if self.config.key.is_some() { Integrity::Aead } else { Integrity::Plain },
        };
        self.connection.attempt = Attempt::Hello { hello, at: now, interval: self.config.timing.hello_first };
        self.deadline = Time::ZERO;
    }

    /// Asks for another session, with what the configuration says now. The present one goes on until then, unless its
    /// frames have become too long.
    pub(super) fn agree_anew(&mut self, now: Time) {
        let too_long = self.connection.max_frame() > self.config.max_frame;
        match (&mut self.connection.session, &self.connection.attempt) {
            (None, Attempt::None) | (_, Attempt::Bye { .. }) => return,
            (Some(session), _) if too_long => {
                session.leaving = true;
                self.connection.suspect = true;
            }
            _ => {}
        }
        self.start_hello(now);
    }

    /// Takes a frame that is no answer to a request.
    #[cold]
    pub(super) fn handle_control(
        &mut self,
        command: Command,
        mut frame: Received<'_>,
        now: Time,
        tx: &mut dyn Transmit,
        out: &mut dyn Completions,
    ) {
        match command {
            Command::HelloAck => {
                let cn = Framer::at_cn(self.config.identity, Seal::OUTSIDE);
                if !cn.open(&mut frame, Space::Control, 0) {
                    self.shared.counters.dropped_trailer += 1;
                } else if let Ok(Message::HelloAck(ack)) = frame.message() {
                    self.hello_acked(ack, now);
                }
            }
            Command::StartAck => self.start_acked(frame, now, out),
            Command::Ping | Command::Pong | Command::Bye | Command::ByeAck | Command::Congestion => {
                if !self.open_control(&mut frame, now) {
                    return;
                }
                match command {
                    Command::Ping => self.send_control(tx, &Message::Pong),
                    Command::Bye => {
                        self.send_control(tx, &Message::ByeAck);
                        self.peer_left(now);
                    }
                    Command::ByeAck if matches!(self.connection.attempt, Attempt::Bye { .. }) => {
                        self.closed()
                    }
                    Command::Congestion => {
                        self.shared.counters.congestion += 1;
                        if let Ok(Message::Congestion(vector)) = frame.message() {
                            out.congested(&vector);
                        }
                    }
                    _ => {}
                }
                self.recovered();
            }
            _ => self.shared.counters.dropped_foreign += 1,
        }
    }

    fn peer_left(&mut self, now: Time) {
        let Some(session) = &mut self.connection.session else { return };
        if let Attempt::Bye { .. } = self.connection.attempt {
            return self.closed();
        }
        if !core::mem::replace(&mut session.leaving, true) {
            self.connection.suspect = true;
            self.event(SessionEvent::PeerLeft);
            if let Attempt::None = self.connection.attempt {
                self.start_hello(now);
            }
        }
    }

    /// The old session has answered after all: no need for a new one.
    #[cold]
    pub(super) fn recovered(&mut self) {
        if let (Some(session), Attempt::Hello { .. }) = (&self.connection.session, &self.connection.attempt)
            && self.connection.suspect
            && !session.leaving
        {
            self.connection.attempt = Attempt::None;
            self.connection.suspect = false;
        }
    }

    /// Opens a control frame of the session; its number must be above all seen before (R11).
    fn open_control(&mut self, frame: &mut Received<'_>, now: Time) -> bool {
        let Some(session) = &mut self.connection.session else {
            self.shared.counters.dropped_foreign += 1;
            return false;
        };
        let seq = infer(session.heard, frame.seq());
        if !session.framer.open(frame, Space::Control, seq) {
            self.shared.counters.dropped_trailer += 1;
            return false;
        }
        if seq <= session.heard {
            self.shared.counters.duplicates += 1;
            return false;
        }
        session.heard = seq;
        self.last_heard = now;
        true
    }

    fn send_control(&mut self, tx: &mut dyn Transmit, message: &Message<'_>) {
        if let Some(session) = &mut self.connection.session
            && session.framer.send_control(tx, session.sent + 1, message)
        {
            session.sent += 1;
        }
    }

    fn hello_acked(&mut self, ack: HelloAck, now: Time) {
        let Attempt::Hello { hello, .. } = &self.connection.attempt else { return };
        if ack.hello_nonce != hello.nonce {
            self.shared.counters.dropped_foreign += 1;
            return;
        }
        let hello = *hello;
        let common = self.connection.common_version(&ack);
        match ack.status {
            HelloStatus::Ok => {}
            // Only once: a fallback that is refused too is a refusal.
            HelloStatus::VersionMismatch if hello.version == *self.connection.versions.end() => {
                match common.filter(|version| *version != hello.version) {
                    Some(version) => return self.start_hello_as(version, now),
                    None => return self.refused(ack.status, &ack, now),
                }
            }
            status => return self.refused(status, &ack, now),
        }
        if common != Some(hello.version) {
            // An answer to a fallback from who speaks newer versions after all: upgraded meanwhile, or the refusal was
            // forged. The session would be older than it need be.
            return self.start_hello(now);
        }
        if ack.integrity != hello.integrity {
            return self.refused(HelloStatus::Integrity, &ack, now);
        }
        let sane = ack.session != 0
            && ack.window > 0
            && (1..=hello.streams).contains(&ack.streams)
            && ack.max_frame <= hello.max_frame;
        if !sane {
            self.shared.counters.dropped_unmatched += 1;
            return;
        }
        let seal = match &self.config.key {
            None => Seal::Plain { session: ack.session },
            Some(key) => {
                let id = self.config.identity;
                match Aead::derive(key, id.own, id.peer, &hello, &ack) {
                    Ok(aead) => Seal::Aead(Box::new(aead)),
                    // The key is too short to be one.
                    Err(_) => return self.refused(HelloStatus::Integrity, &ack, now),
                }
            }
        };
        let framer = Framer::at_cn(self.config.identity, seal);
        self.connection.attempt = Attempt::Start {
            session: Session { framer, ack, sent: 0, heard: 0, leaving: false },
            at: now,
            interval: self.config.timing.hello_first,
            give_up: now + self.config.timing.suspect_after,
        };
        self.deadline = Time::ZERO;
    }

    /// Tells of a refusal, once.
    fn tell_refused(&mut self, status: HelloStatus, ack: &HelloAck) {
        if self.connection.refused != Some(status) {
            self.connection.refused = Some(status);
            let (version_min, version_max) = (ack.version_min, ack.version_max);
            self.event(SessionEvent::Refused { status, version_min, version_max });
        }
    }

    /// Is refused, and asks again at leisure: versions are upgraded, other instances end.
    fn refused(&mut self, status: HelloStatus, ack: &HelloAck, now: Time) {
        self.tell_refused(status, ack);
        if let Attempt::Hello { at, interval, hello } = &mut self.connection.attempt {
            if status == HelloStatus::VersionMismatch {
                // Begins again with the newest: the memory node may be another one by then.
                hello.version = *self.connection.versions.end();
                hello.nonce = self.connection.nonces.next();
            }
            *interval = self.config.timing.hello_max;
            *at = now + *interval;
            self.deadline = Time::ZERO;
        }
    }

    fn start_acked(&mut self, mut frame: Received<'_>, now: Time, out: &mut dyn Completions) {
        let Attempt::Start { session, .. } = &mut self.connection.attempt else {
            self.shared.counters.dropped_foreign += 1;
            return;
        };
        let seq = infer(0, frame.seq());
        if !session.framer.open(&mut frame, Space::Control, seq) {
            self.shared.counters.dropped_trailer += 1;
            return;
        }
        session.heard = seq;
        let incarnation = session.ack.incarnation;
        if let Attempt::Start { session, .. } =
            core::mem::replace(&mut self.connection.attempt, Attempt::None)
        {
            self.connection.session = Some(session);
        }
        self.connection.suspect = false;
        self.connection.refused = None;
        self.connection.ping_since = None;
        self.shared.counters.sessions += 1;
        self.last_heard = now;
        let before = self.connection.incarnation.replace(incarnation);
        if let Some(before) = before.filter(|b| *b != incarnation) {
            self.fail_all(OpError::DataLost, out);
            self.event(SessionEvent::DataLost { before, now: incarnation });
        }
        self.adopt_session(now, out);
        let resumed = self.unanswered() > 0;
        self.event(SessionEvent::Opened { incarnation, resumed });
        self.deadline = Time::ZERO;
    }

    fn closed(&mut self) {
        self.connection.session = None;
        self.connection.attempt = Attempt::None;
        self.connection.suspect = false;
        self.event(SessionEvent::Closed);
    }

    /// Does what time demands: sends again, pings, calls, gives up. Sends through `tx`; flush afterwards.
    pub fn poll(&mut self, now: Time, tx: &mut dyn Transmit, out: &mut dyn Completions) {
        if let Some(framer) = self.connection.framer() {
            for stream in &mut self.streams[..self.granted] {
                stream.poll(now, framer, &mut self.shared, tx);
            }
        }
        self.watch(now, tx, out);
        self.call(now, tx);
        self.deadline = self.next_deadline(now);
    }

    /// Since when something is owed: an answer in order to a stream's oldest request, or to a Ping. Other
    /// frames do not count, lest a request that never gets through wait for ever beside others that do.
    fn owed_since(&self) -> Option<Time> {
        let ping = self.connection.ping_since.filter(|at| *at > self.last_heard);
        self.streams.iter().filter_map(Stream::waiting_since).chain(ping).min()
    }

    /// Notices silence (R8).
    fn watch(&mut self, now: Time, tx: &mut dyn Transmit, out: &mut dyn Completions) {
        let timing = self.config.timing;
        if self.connection.session.is_none() {
            return;
        }
        let idle_since = self.last_heard.max(self.connection.last_ping);
        if matches!(self.connection.attempt, Attempt::None) && now - idle_since >= timing.ping_every {
            self.connection.last_ping = now;
            if self.connection.ping_since.is_none_or(|at| at <= self.last_heard) {
                self.connection.ping_since = Some(now);
            }
            self.send_control(tx, &Message::Ping);
        }
        let Some(owed_since) = self.owed_since() else { return };
        let calling = !matches!(self.connection.attempt, Attempt::None);
        if now - owed_since >= timing.dead_after {
            self.connection.session = None;
            self.connection.suspect = false;
            self.fail_all(OpError::SessionDead, out);
            self.event(SessionEvent::Dead);
            if self.connection.wanted && !calling {
                self.start_hello(now);
            }
        } else if now - owed_since.max(self.last_heard) >= timing.suspect_after && !calling {
            self.connection.suspect = true;
            self.event(SessionEvent::Suspect);
            self.start_hello(now);
        }
    }

    /// Sends Hello, Start or Bye when it is time to.
    fn call(&mut self, now: Time, tx: &mut dyn Transmit) {
        let timing = self.config.timing;
        let mut given_up = None;
        match &mut self.connection.attempt {
            Attempt::None => {}
            Attempt::Hello { hello, at, interval } => {
                if now >= *at {
                    let framer = Framer::at_cn(self.config.identity, Seal::OUTSIDE);
                    let axi = Axi { stream: 0, tag: 0 };
                    framer.send(tx, Space::Control, 0, axi, 0, &Message::Hello(*hello));
                    *at = now + *interval;
                    *interval = (*interval * 2).min(timing.hello_max);
                }
            }
            Attempt::Start { session, at, interval, give_up } => {
                if now >= *give_up {
                    given_up = Some(session.ack);
                } else if now >= *at {
                    if session.framer.send_control(tx, session.sent + 1, &Message::Start) {
                        session.sent += 1;
                    }
                    *at = now + *interval;
                    *interval = (*interval * 2).min(timing.hello_max);
                }
            }
            Attempt::Bye { at, tries } => {
                if now >= *at && *tries == BYES {
                    self.closed();
                } else if now >= *at {
                    *tries += 1;
                    *at = now + timing.hello_first;
                    self.send_control(tx, &Message::Bye);
                }
            }
        }
        if let Some(ack) = given_up {
            // The memory node has forgotten the offer or restarted since, or it cannot open our frames.
            self.start_hello(now);
            if self.config.key.is_some() {
                self.tell_refused(HelloStatus::Integrity, &ack);
            }
        }
    }

    fn next_deadline(&self, now: Time) -> Time {
        let timing = self.config.timing;
        let mut deadline = Time(u64::MAX);
        let mut at_latest = |at: Time| deadline = deadline.min(at);
        if self.is_open() {
            self.streams.iter().filter_map(Stream::deadline).for_each(&mut at_latest);
        }
        match &self.connection.attempt {
            Attempt::None => {}
            Attempt::Hello { at, .. } | Attempt::Bye { at, .. } => at_latest(*at),
            Attempt::Start { at, give_up, .. } => at_latest((*at).min(*give_up)),
        }
        if self.connection.session.is_some() {
            let owed_since = self.owed_since();
            owed_since.into_iter().for_each(|since| at_latest(since + timing.dead_after));
            if let Attempt::None = self.connection.attempt {
                at_latest(self.last_heard.max(self.connection.last_ping) + timing.ping_every);
                let silent_since = owed_since.map(|since| since.max(self.last_heard));
                silent_since.into_iter().for_each(|since| at_latest(since + timing.suspect_after));
            }
        }
        // A deadline that has passed already would be polled for ever; look again soon instead.
        deadline.max(now + Duration::from_micros(1))
    }
}
