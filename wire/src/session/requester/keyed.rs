//! How a session between keys is agreed on: the Hello waits until its message 1 has been computed, the HelloAck until its
//! message 2 has been. The session there is goes on meanwhile.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::time::Duration;

use super::phase::{Event, Phase};
use super::timers::Timer;
use super::{Requester, Stream};
use crate::Transmit;
use crate::frame::keyed::{
    ACK_FRAME_LEN, ANSWER_AT, CALL_AT, CALL_LEN, COOKIE_LEN, COOKIE_SEALED_LEN, HELLO_FRAME_LEN, MAC_LEN,
    MAC1_AT, MAC2_AT,
};
use crate::frame::{
    HelloAck, HelloStatus, Integrity, Message, PROTOCOL_VERSION, PROTOCOL_VERSION_KEYED,
    PROTOCOL_VERSION_OLDEST, Seal,
};
use crate::session::entropy::Nonces;
use crate::session::framer::Framer;
use crate::session::noise::{
    Call, Concluded, HandshakeDone, HandshakeJob, HelloMac, KeyPair, Outcome, TimeStamp, Work,
    integrity_name, mac_of_cookie, open_cookie, prologue,
};
use crate::time::Time;

/// A Hello is not repeated for longer than this: the memory node keeps an offer for 5 s, and takes no Hello twice.
const HELLO_AGE_MAX: Duration = Duration::from_secs(4);
/// How often a Hello is said again while cookies come for Hellos of others in this node's name, since then few of ours are
/// heard; and for how long after one has come.
const CROWDED_INTERVAL: Duration = Duration::from_micros(250);
const CROWDED_FOR: Duration = Duration::from_millis(10);
/// A cookie is not used for longer.
const COOKIE_AGE_MAX: Duration = Duration::from_secs(110);
/// Answers to the present Hello that wait to be looked at; anybody can send one, and the genuine one is among them.
const ANSWERS_MAX: usize = 16;
/// Frames after which a session gets new keys.
const FRAMES_MAX: u64 = 1 << 32;
/// TAI64 counts from here to the Unix epoch, ten leap seconds included.
const TAI64_EPOCH: u64 = (1 << 62) + 10;
const NANOS: u64 = 1_000_000_000;

/// The versions spoken with keys, and without.
pub(super) fn versions(keys: bool) -> RangeInclusive<u16> {
    if keys {
        PROTOCOL_VERSION_KEYED..=PROTOCOL_VERSION_KEYED
    } else {
        PROTOCOL_VERSION_OLDEST..=PROTOCOL_VERSION
    }
}

/// The attempt at a session between keys.
pub(super) struct Keyed {
    pair: KeyPair,
    mac: HelloMac,
    jobs: VecDeque<HandshakeJob>,
    ids: u64,
    /// The job that makes message 1 of the present Hello, until it is done.
    calling: Option<u64>,
    /// What the present Hello is made of.
    call: Option<(Call, Time)>,
    message: Option<[u8; CALL_LEN]>,
    /// The mac1 sent last, under which a cookie comes.
    mac1: [u8; MAC_LEN],
    cookie: Option<([u8; COOKIE_LEN], Time)>,
    /// Hellos are said again soon until then.
    crowded_until: Time,
    /// The job that looks at an answer, and that answer.
    concluding: Option<(u64, Answer)>,
    /// Others, whose turn is to come.
    answers: Vec<Answer>,
    stamped_ns: u64,
}

/// An answer to the present Hello, which may be anybody's.
#[derive(Clone, Copy)]
struct Answer {
    ack: HelloAck,
    frame: [u8; ACK_FRAME_LEN],
}

impl Keyed {
    pub fn new(pair: KeyPair) -> Self {
        Keyed {
            mac: HelloMac::new(&pair.peer),
            pair,
            jobs: VecDeque::with_capacity(4),
            ids: 0,
            calling: None,
            call: None,
            message: None,
            mac1: [0; MAC_LEN],
            cookie: None,
            crowded_until: Time::ZERO,
            concluding: None,
            answers: Vec::with_capacity(ANSWERS_MAX),
            stamped_ns: 0,
        }
    }

    fn job(&mut self, work: Work) -> u64 {
        self.ids += 1;
        self.jobs.push_back(HandshakeJob { id: self.ids, own: Arc::clone(&self.pair.own), work });
        self.ids
    }

    /// Keeps an answer until it is looked at. Where too many wait, it takes the place of any of them: whoever sends forged
    /// ones before the genuine one has no more of the places than their share.
    fn keep(&mut self, answer: Answer, nonces: &mut Nonces) {
        let known = self.concluding.iter().map(|(_, answer)| answer).chain(&self.answers);
        if known.into_iter().any(|known| known.frame == answer.frame) {
            return;
        }
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push(answer);
        } else {
            self.answers[nonces.next() as usize % ANSWERS_MAX] = answer;
        }
    }

    /// Has the next answer looked at, any of those that wait, if none is.
    fn conclude(&mut self, nonces: &mut Nonces) {
        let Some((call, _)) = self.call.as_ref().filter(|_| self.concluding.is_none()) else { return };
        if self.answers.is_empty() {
            return;
        }
        let answer = self.answers.swap_remove(nonces.next() as usize % self.answers.len());
        let work = Work::Conclude(call.clone(), answer.frame);
        let id = self.job(work);
        self.concluding = Some((id, answer));
    }

    /// The time, later than any before.
    fn stamp(&mut self, now: Time) -> TimeStamp {
        self.stamped_ns = self.pair.epoch_ns.saturating_add(now.0).max(self.stamped_ns + 1);
        let mut stamp = TimeStamp::default();
        stamp[..8].copy_from_slice(&(TAI64_EPOCH + self.stamped_ns / NANOS).to_be_bytes());
        stamp[8..].copy_from_slice(&((self.stamped_ns % NANOS) as u32).to_be_bytes());
        stamp
    }
}

impl Requester {
    /// Speaks with the keys of both ends from now on, or without. A session that is agreed on otherwise goes on until
    /// another has been agreed on.
    pub fn set_keys(&mut self, keys: Option<KeyPair>, now: Time) {
        if self.config.keys == keys {
            return;
        }
        self.connection.versions = versions(keys.is_some());
        self.connection.refused = None;
        self.keyed = keys.clone().map(Keyed::new);
        self.config.keys = keys;
        self.timers.stop(Timer::Rekey);
        self.step(Event::LimitsChanged, now);
    }

    /// Diffie-Hellman that is to be done beside this machine. At most two are under way; without them there is no session
    /// between keys.
    #[inline]
    pub fn poll_handshake(&mut self) -> Option<HandshakeJob> {
        self.keyed.as_mut()?.jobs.pop_front()
    }

    /// Takes what has come of a job. What is no longer of use changes nothing.
    pub fn handshake_done(&mut self, done: HandshakeDone, now: Time) {
        let Some(keyed) = &mut self.keyed else { return };
        let expects = self.connection.phase().awaits_offer();
        if keyed.calling == Some(done.id) {
            keyed.calling = None;
            if let Ok(Outcome::Called(message)) = done.outcome {
                keyed.message = Some(message);
                if expects {
                    self.timers.arm(Timer::Retry, now);
                }
            }
        } else if let Some((_, answer)) = keyed.concluding.take_if(|(id, _)| *id == done.id) {
            match done.outcome {
                Ok(Outcome::Concluded(Concluded { secret })) => {
                    keyed.answers.clear();
                    self.hello_acked(answer.ack, Some(&secret), now);
                }
                _ => {
                    self.shared.counters.dropped_trailer += 1;
                    keyed.conclude(&mut self.connection.nonces);
                }
            }
        }
    }

    /// Has message 1 made for the Hello just prepared.
    pub(super) fn prepare_keyed(&mut self, now: Time) {
        let id = self.config.identity;
        let (Some(keyed), Some(hello)) = (&mut self.keyed, &self.connection.hello) else { return };
        let call = Call {
            peer: keyed.pair.peer,
            ephemeral: self.connection.nonces.bytes().into(),
            prologue: prologue(id.own, id.peer, hello),
            stamp: keyed.stamp(now),
        };
        keyed.jobs.clear();
        keyed.answers.clear();
        (keyed.message, keyed.concluding) = (None, None);
        keyed.calling = Some(keyed.job(Work::Call(call.clone())));
        keyed.call = Some((call, now));
    }

    /// Sends the present Hello if its message 1 is there; makes another one if it is too old to be taken.
    pub(super) fn send_keyed_hello(&mut self, now: Time, tx: &mut dyn Transmit) {
        let Some(keyed) = &mut self.keyed else { return };
        if keyed.call.as_ref().is_some_and(|(_, at)| now - *at >= HELLO_AGE_MAX) && keyed.calling.is_none() {
            let interval = self.connection.interval;
            self.call_newest(now);
            self.connection.interval = interval;
            return;
        }
        let (Some(message), Some(hello)) = (&keyed.message, self.connection.hello) else { return };
        let cookie = keyed.cookie.filter(|(_, at)| now - *at < COOKIE_AGE_MAX);
        let outside = Framer::at_cn(self.config.identity, Seal::OUTSIDE);
        let (mac, mac1) = (&keyed.mac, &mut keyed.mac1);
        outside.send_keyed(tx, &Message::Hello(hello), HELLO_FRAME_LEN, |frame| {
            frame[CALL_AT..MAC1_AT].copy_from_slice(message);
            *mac1 = mac.of(&frame[..MAC1_AT]);
            frame[MAC1_AT..MAC2_AT].copy_from_slice(mac1);
            if let Some((cookie, _)) = cookie {
                let mac2 = mac_of_cookie(&cookie, &frame[..MAC2_AT]);
                frame[MAC2_AT..].copy_from_slice(&mac2);
            }
        });
    }

    /// When the Hello that was just sent is said again, if others call in this node's name; `None`: as ever.
    pub(super) fn crowded_retry(&self, now: Time) -> Option<Time> {
        let crowded = self.keyed.as_ref().is_some_and(|keyed| now < keyed.crowded_until);
        crowded.then(|| now + CROWDED_INTERVAL)
    }

    /// Takes an answer to the present Hello, which may be anybody's: what it says counts once it is known to be genuine.
    pub(super) fn keyed_ack(&mut self, ack: HelloAck, frame: &[u8], now: Time) {
        let Some(hello) = self.connection.hello.filter(|_| self.connection.phase().awaits_offer()) else {
            return;
        };
        let Some(keyed) = &mut self.keyed else { return };
        if keyed.call.is_none() || ack.hello_nonce != hello.nonce {
            self.shared.counters.dropped_foreign += 1;
            if ack.status == HelloStatus::Cookie && keyed.message.is_some() {
                keyed.crowded_until = now + CROWDED_FOR;
                self.timers.arm_by(Timer::Retry, now + CROWDED_INTERVAL);
            }
            return;
        }
        if ack.status == HelloStatus::Cookie {
            let sealed =
                frame.get(ANSWER_AT..ANSWER_AT + COOKIE_SEALED_LEN).and_then(|sealed| sealed.try_into().ok());
            let cookie = sealed.and_then(|sealed| open_cookie(&keyed.pair.peer, sealed, &keyed.mac1));
            match cookie {
                Some(cookie) if keyed.cookie.is_none_or(|(known, _)| known != cookie) => {
                    keyed.cookie = Some((cookie, now));
                    self.timers.arm(Timer::Retry, now);
                }
                Some(_) => {}
                None => self.shared.counters.dropped_trailer += 1,
            }
        } else if let Some(whole) = frame.first_chunk::<ACK_FRAME_LEN>() {
            let nonces = &mut self.connection.nonces;
            keyed.keep(Answer { ack, frame: *whole }, nonces);
            keyed.conclude(nonces);
        } else if ack.status != HelloStatus::Ok {
            // From an end without a key, or from anybody: said, and nothing else. It is never spoken to without keys.
            self.tell_refused(ack.status, &ack);
        } else {
            self.shared.counters.dropped_unmatched += 1;
        }
    }

    /// The session just begun gets new keys when it is time.
    pub(super) fn rekey_later(&mut self, now: Time) {
        let keyed = self.connection.session.as_ref().is_some_and(|session| session.keyed);
        let every = self.config.timing.rekey_every;
        self.timers.set(Timer::Rekey, keyed.then(|| now + every));
    }

    /// Whether so many frames were sent in a session between keys that it has to have others.
    pub(super) fn has_sent_enough(&self) -> bool {
        let keyed = self.connection.phase() == Phase::Open
            && self.connection.session.as_ref().is_some_and(|session| session.keyed);
        keyed && self.streams.iter().map(Stream::sent).sum::<u64>() >= FRAMES_MAX
    }

    /// The integrity that the next session is to have.
    pub(super) fn integrity_wanted(&self) -> Integrity {
        match (&self.keyed, self.is_to_be_sealed()) {
            (Some(_), _) => Integrity::Gcm,
            (None, true) => Integrity::Aead,
            (None, false) => Integrity::Plain,
        }
    }

    /// Whether sessions to come are to be sealed.
    pub(super) fn is_to_be_sealed(&self) -> bool {
        self.config.key.is_some() || self.config.keys.is_some()
    }

    /// How the frames of the session are protected, or of the next one if there is none: `sealed`,
    /// `sealed (pre-shared)` or `insecure`.
    pub fn integrity(&self) -> &'static str {
        let (sealed, keyed) = match self.connection.latest() {
            Some(session) => (session.framer.seal.is_sealed(), session.keyed),
            None => (self.is_to_be_sealed(), self.keyed.is_some()),
        };
        integrity_name(sealed, keyed)
    }
}
