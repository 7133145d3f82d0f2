//! Control frames from the memory node, translated to events of the connection.

use super::connection::Session;
use super::phase::{Action, ConnectionEvent, ConnectionPhase};
use super::timers::Timer;
use super::{Completions, OpError, Requester, SessionEvent};
use crate::Transmit;
use crate::frame::{Aead, Command, FEATURE_SHARDS, Gcm, HelloAck, HelloStatus, Message, Seal, Space};
use crate::session::framer::{Framer, Received};
use crate::session::infer;
use crate::session::noise::Secret;
use crate::time::Time;

impl Requester {
    /// Handles a frame that is not an answer to a request.
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
                    if self.keyed.is_some() {
                        self.keyed_ack(ack, frame.bytes(), now);
                    } else {
                        self.hello_acked(ack, None, now);
                    }
                }
            }
            Command::StartAck => self.start_acked(frame, now, out),
            Command::Ping | Command::Pong | Command::Bye | Command::ByeAck | Command::Congestion => {
                if !self.open_control(&mut frame, now) {
                    return;
                }
                match command {
                    Command::Ping => self.connection.send(tx, &Message::Pong),
                    Command::Pong if self.path.pong(frame.bytes().len()) => {
                        self.event(SessionEvent::PathWide);
                        self.step(ConnectionEvent::LimitsChanged, now);
                    }
                    Command::Bye => {
                        self.connection.send(tx, &Message::ByeAck);
                        self.step(ConnectionEvent::PeerLeft, now);
                    }
                    Command::ByeAck => {
                        self.step(ConnectionEvent::ByeAcked, now);
                    }
                    Command::Congestion => {
                        self.shared.counters.congestion += 1;
                        if let Ok(Message::Congestion(vector)) = frame.message() {
                            out.congested(&vector);
                        }
                    }
                    _ => {}
                }
                self.step(ConnectionEvent::Heard, now);
            }
            _ => self.shared.counters.dropped_foreign += 1,
        }
    }

    /// Verifies a control frame of the session. Its sequence number must be higher than in all earlier control frames,
    /// so that copies have no effect (R11).
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

    /// Handles the answer to the current Hello. With keys, `secret` comes from the handshake, and `ack` is
    /// already verified.
    pub(super) fn hello_acked(&mut self, ack: HelloAck, secret: Option<&Secret>, now: Time) {
        let Some(hello) = self.connection.hello.filter(|_| self.connection.phase().awaits_offer()) else {
            return;
        };
        // The frame answers an earlier Hello, or a Hello of another station.
        if ack.hello_nonce != hello.nonce {
            self.shared.counters.dropped_foreign += 1;
            return;
        }
        let newest = *self.connection.versions.end();
        let common = self.connection.common_version(&ack);
        match ack.status {
            HelloStatus::Ok => {}
            // Only one fallback: if the older version is refused too, the refusal is reported.
            HelloStatus::VersionMismatch if hello.version == newest => {
                match common.filter(|version| *version != hello.version) {
                    Some(version) => return self.ask_for(version, now),
                    None => return self.refused(ack.status, &ack, now),
                }
            }
            status => return self.refused(status, &ack, now),
        }
        if common != Some(hello.version) {
            // The memory node accepted the older version but supports a newer one: it was upgraded in between, or the
            // first refusal was forged. The newest version is requested again.
            return self.ask_for(newest, now);
        }
        if ack.integrity != hello.integrity {
            return self.refused(HelloStatus::Integrity, &ack, now);
        }
        if hello.shard > 0 && ack.features & FEATURE_SHARDS == 0 {
            // The memory node does not support shards, so it treated this shard's address as that of a separate CN
            // without memory.
            return self.refused(HelloStatus::Shard, &ack, now);
        }
        // A memory node never grants more than the Hello requested, so an answer that does is dropped.
        let sane = ack.session != 0
            && ack.window > 0
            && (1..=hello.streams).contains(&ack.streams)
            && ack.max_frame <= hello.max_frame
            && ack.features & !hello.features == 0;
        if !sane {
            self.shared.counters.dropped_unmatched += 1;
            return;
        }
        let secret = secret.map(|secret| secret.as_slice());
        let keyed = secret.is_some();
        let id = self.config.identity;
        let seal = match (secret, self.config.key.as_deref()) {
            (None, None) => Seal::Plain { session: ack.session },
            (Some(secret), _) => Seal::Gcm(Gcm::derive(secret, id.own, id.peer, &hello, &ack)),
            (None, Some(key)) => {
                match Aead::derive(key, id.own, id.peer, &hello, &ack) {
                    Ok(aead) => Seal::Aead(aead),
                    // The pre-shared key is shorter than the minimum.
                    Err(_) => return self.refused(HelloStatus::Integrity, &ack, now),
                }
            }
        };
        let framer = Framer::at_cn(self.config.identity, seal);
        self.connection.offered = Some(Session { framer, keyed, ack, sent: 0, heard: 0 });
        self.step(ConnectionEvent::Offered, now);
    }

    /// Sends another Hello at once, for `version` instead of the version of the last Hello.
    fn ask_for(&mut self, version: u16, now: Time) {
        self.connection.fallback = version;
        self.step(ConnectionEvent::OtherVersion, now);
    }

    /// Reports a refusal, unless the last one reported was the same.
    pub(super) fn tell_refused(&mut self, status: HelloStatus, ack: &HelloAck) {
        if self.expected_until.is_some() {
            // This refusal is not reported: the memory node may receive the mappings from the manager a moment later
            // than this CN.
            if status == HelloStatus::NotAllowed {
                return;
            }
            self.expected_until = None;
        }
        if self.connection.refused != Some(status) {
            self.connection.refused = Some(status);
            let (version_min, version_max) = (ack.version_min, ack.version_max);
            self.event(SessionEvent::Refused { status, version_min, version_max });
        }
    }

    /// Reports a refusal, and sends the next Hello after the long interval, because the reason may cease to exist.
    fn refused(&mut self, status: HelloStatus, ack: &HelloAck, now: Time) {
        self.tell_refused(status, ack);
        if status == HelloStatus::VersionMismatch
            && let Some(hello) = &mut self.connection.hello
        {
            // The next Hello asks for the newest version again, because another memory node may answer it.
            hello.version = *self.connection.versions.end();
            hello.nonce = self.connection.nonces.next();
        }
        if status == HelloStatus::KeyWithdrawn && self.keyed.is_some() {
            // With keys, refusals are authenticated, so this one may end the session.
            self.expelled = true;
            self.timers.arm(Timer::Retry, now);
            return;
        }
        self.step(ConnectionEvent::Refused, now);
    }

    fn start_acked(&mut self, mut frame: Received<'_>, now: Time, out: &mut dyn Completions) {
        let Some(offered) = &mut self.connection.offered else {
            self.shared.counters.dropped_foreign += 1;
            return;
        };
        // A StartAck is the first control frame of its session, so its number is close to 0.
        let seq = infer(0, frame.seq());
        if !offered.framer.open(&mut frame, Space::Control, seq) {
            self.shared.counters.dropped_trailer += 1;
            return;
        }
        offered.heard = seq;
        if self.step(ConnectionEvent::Started, now) == Action::Adopt {
            self.adopted(now, out);
        }
    }

    /// Completes the change to another session: unanswered requests move to it.
    fn adopted(&mut self, now: Time, out: &mut dyn Completions) {
        debug_assert_eq!(self.connection.phase(), ConnectionPhase::Open);
        let Some(incarnation) = self.connection.incarnation() else { return };
        self.connection.refused = None;
        self.expected_until = None;
        self.connection.ping_since = None;
        self.shared.counters.sessions += 1;
        self.last_heard = now;
        self.rekey_later(now);
        let before = self.connection.incarnation.replace(incarnation);
        if let Some(before) = before.filter(|b| *b != incarnation) {
            self.fail_all(OpError::DataLost, out);
            self.event(SessionEvent::DataLost { before, now: incarnation });
        }
        self.adopt_session(now, out);
        let resumed = self.unanswered() > 0;
        self.event(SessionEvent::Opened { incarnation, resumed });
        if self.path.started()
            && let Some(lost) = self.path.lost()
        {
            self.event(SessionEvent::PathNarrow { lost, used: self.connection.max_frame() });
        }
        self.timers.set(Timer::Widen, self.path.probe_at(now));
    }
}
