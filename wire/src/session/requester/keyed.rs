//! Agreement on a session between keys: a Hello is sent once its message 1 is computed, and a HelloAck is used once its
//! message 2 is checked. Until then the present session goes on.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::time::Duration;

use super::phase::{ConnectionEvent, ConnectionPhase};
use super::timers::Timer;
use super::{RequestStream, Requester};
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
    Call, Concluded, HandshakeDone, HandshakeJob, HelloMac, JobOutcome, KeyPair, TimeStamp, Work,
    integrity_name, mac_of_cookie, open_cookie, prologue,
};
use crate::time::Time;

/// Longest time for which a Hello is repeated: the memory node keeps an offer for 5 s, and accepts no Hello twice.
const HELLO_AGE_MAX: Duration = Duration::from_secs(4);
/// Interval of Hellos while cookies arrive that answer forged Hellos in this node's name: then few of the node's own
/// Hellos get through.
const OVERLOAD_INTERVAL: Duration = Duration::from_micros(250);
/// Time for which one such cookie causes the short interval.
const CROWDED_FOR: Duration = Duration::from_millis(10);
/// Longest time for which a cookie is used.
const COOKIE_AGE_MAX: Duration = Duration::from_secs(110);
/// Most answers to the present Hello that wait for their check; any station can send one, and the genuine one is among
/// them.
const ANSWERS_MAX: usize = 16;
/// Number of frames after which a session is replaced, to get new keys.
const FRAMES_MAX: u64 = 1 << 32;
/// TAI64 label of the Unix epoch, with the ten leap seconds of that time.
const TAI64_EPOCH: u64 = (1 << 62) + 10;
const NANOS: u64 = 1_000_000_000;

/// Range of versions supported: with keys, or without.
pub(super) fn versions(keys: bool) -> RangeInclusive<u16> {
    if keys {
        PROTOCOL_VERSION_KEYED..=PROTOCOL_VERSION_KEYED
    } else {
        PROTOCOL_VERSION_OLDEST..=PROTOCOL_VERSION
    }
}

/// State of the agreement on a session between keys.
pub(super) struct Keyed {
    pair: KeyPair,
    mac: HelloMac,
    jobs: VecDeque<HandshakeJob>,
    ids: u64,
    /// Number of the job that computes message 1 of the present Hello.
    calling: Option<u64>,
    /// Message 1 of the present Hello with its secrets, and the time it was made.
    call: Option<(Call, Time)>,
    message: Option<[u8; CALL_LEN]>,
    /// mac1 of the last Hello sent, needed to decrypt a cookie.
    mac1: [u8; MAC_LEN],
    cookie: Option<([u8; COOKIE_LEN], Time)>,
    /// Time until which Hellos are repeated at [`OVERLOAD_INTERVAL`].
    overloaded_until: Time,
    /// Number of the job that checks an answer, and that answer.
    concluding: Option<(u64, HelloAnswer)>,
    /// Further answers that wait for their check.
    answers: Vec<HelloAnswer>,
    stamped_ns: u64,
}

/// An answer to the present Hello, from any station.
#[derive(Clone, Copy)]
struct HelloAnswer {
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
            overloaded_until: Time::ZERO,
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

    /// Keeps an answer until it is checked. If too many wait, the answer replaces a random one: forged answers sent
    /// before the genuine one get no more than their share of the places.
    fn keep(&mut self, answer: HelloAnswer, nonces: &mut Nonces) {
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

    /// Starts the check of one of the waiting answers, chosen at random, if no check runs.
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

    /// Time stamp of `now`, later than every earlier stamp.
    fn stamp(&mut self, now: Time) -> TimeStamp {
        self.stamped_ns = self.pair.epoch_ns.saturating_add(now.0).max(self.stamped_ns + 1);
        let mut stamp = TimeStamp::default();
        stamp[..8].copy_from_slice(&(TAI64_EPOCH + self.stamped_ns / NANOS).to_be_bytes());
        stamp[8..].copy_from_slice(&((self.stamped_ns % NANOS) as u32).to_be_bytes());
        stamp
    }
}

impl Requester {
    /// Sets the keys of both ends, or none. A session with another protection goes on until the next one has started.
    pub fn set_keys(&mut self, keys: Option<KeyPair>, now: Time) {
        if self.config.keys == keys {
            return;
        }
        self.connection.versions = versions(keys.is_some());
        self.connection.refused = None;
        self.keyed = keys.clone().map(Keyed::new);
        self.config.keys = keys;
        self.timers.stop(Timer::Rekey);
        self.step(ConnectionEvent::LimitsChanged, now);
    }

    /// Next Diffie-Hellman computation for the caller to run; at most two are under way. A session between keys needs
    /// their results.
    #[inline]
    pub fn poll_handshake(&mut self) -> Option<HandshakeJob> {
        self.keyed.as_mut()?.jobs.pop_front()
    }

    /// Applies the result of a job; an outdated result changes nothing.
    pub fn handshake_done(&mut self, done: HandshakeDone, now: Time) {
        let Some(keyed) = &mut self.keyed else { return };
        let expects = self.connection.phase().awaits_offer();
        if keyed.calling == Some(done.id) {
            keyed.calling = None;
            if let Ok(JobOutcome::Called(message)) = done.outcome {
                keyed.message = Some(message);
                if expects {
                    self.timers.arm(Timer::Retry, now);
                }
            }
        } else if let Some((_, answer)) = keyed.concluding.take_if(|(id, _)| *id == done.id) {
            match done.outcome {
                Ok(JobOutcome::Concluded(Concluded { secret })) => {
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

    /// Starts the computation of message 1 for the Hello just prepared.
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

    /// Sends the present Hello if its message 1 is computed; prepares another Hello if it is too old to be accepted.
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

    /// Time to repeat the last Hello while forged Hellos in this node's name are sent; `None`: at the usual interval.
    pub(super) fn overload_retry(&self, now: Time) -> Option<Time> {
        let overloaded = self.keyed.as_ref().is_some_and(|keyed| now < keyed.overloaded_until);
        overloaded.then(|| now + OVERLOAD_INTERVAL)
    }

    /// Keeps an answer to the present Hello, which any station may have sent, until its check shows that it is genuine.
    pub(super) fn keyed_ack(&mut self, ack: HelloAck, frame: &[u8], now: Time) {
        let Some(hello) = self.connection.hello.filter(|_| self.connection.phase().awaits_offer()) else {
            return;
        };
        let Some(keyed) = &mut self.keyed else { return };
        if keyed.call.is_none() || ack.hello_nonce != hello.nonce {
            self.shared.counters.dropped_foreign += 1;
            if ack.status == HelloStatus::Cookie && keyed.message.is_some() {
                keyed.overloaded_until = now + CROWDED_FOR;
                self.timers.arm_by(Timer::Retry, now + OVERLOAD_INTERVAL);
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
            keyed.keep(HelloAnswer { ack, frame: *whole }, nonces);
            keyed.conclude(nonces);
        } else if ack.status != HelloStatus::Ok {
            // From an end without a key, or forged: the refusal is reported and has no other effect. There is no
            // fallback to sessions without keys.
            self.tell_refused(ack.status, &ack);
        } else {
            self.shared.counters.dropped_unmatched += 1;
        }
    }

    /// Arms the timer for new keys of the session just started.
    pub(super) fn rekey_later(&mut self, now: Time) {
        let keyed = self.connection.session.as_ref().is_some_and(|session| session.keyed);
        let every = self.config.timing.rekey_every;
        self.timers.set(Timer::Rekey, keyed.then(|| now + every));
    }

    /// Whether the session between keys has sent so many frames that it needs new keys.
    pub(super) fn has_sent_enough(&self) -> bool {
        let keyed = self.connection.phase() == ConnectionPhase::Open
            && self.connection.session.as_ref().is_some_and(|session| session.keyed);
        keyed && self.streams.iter().map(RequestStream::sent).sum::<u64>() >= FRAMES_MAX
    }

    /// Integrity trailer that the next session is to have.
    pub(super) fn integrity_wanted(&self) -> Integrity {
        match (&self.keyed, self.is_to_be_sealed()) {
            (Some(_), _) => Integrity::Gcm,
            (None, true) => Integrity::Aead,
            (None, false) => Integrity::Plain,
        }
    }

    /// Whether the frames of the next session are to be sealed.
    pub(super) fn is_to_be_sealed(&self) -> bool {
        self.config.key.is_some() || self.config.keys.is_some()
    }

    /// Protection of the session's frames, or, without a session, of the next one's: `sealed`, `sealed (pre-shared)` or
    /// `insecure`.
    pub fn integrity(&self) -> &'static str {
        let (sealed, keyed) = match self.connection.latest() {
            Some(session) => (session.framer.seal.is_sealed(), session.keyed),
            None => (self.is_to_be_sealed(), self.keyed.is_some()),
        };
        integrity_name(sealed, keyed)
    }
}
