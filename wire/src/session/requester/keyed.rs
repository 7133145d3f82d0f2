//! Agreement on a session between nodes' keys. A Hello is sent after its Noise message 1 has been computed, and a
//! HelloAck is used after its Noise message 2 has been verified. Meanwhile the current session remains in use.

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

/// Maximum age of a Hello that is repeated: the memory node keeps its offer for 5 s, and then refuses the same Hello as
/// a replay.
const HELLO_AGE_MAX: Duration = Duration::from_secs(4);
/// Interval of Hellos while cookies arrive for Hellos that others forged in this node's name. In such a
/// flood, few of the node's own Hellos are processed.
const OVERLOAD_INTERVAL: Duration = Duration::from_micros(250);
/// Time for which one cookie for a forged Hello keeps [`OVERLOAD_INTERVAL`] in effect.
const CROWDED_FOR: Duration = Duration::from_millis(10);
/// Maximum age of a cookie that is used; memory nodes accept one for at least 120 s.
const COOKIE_AGE_MAX: Duration = Duration::from_secs(110);
/// Maximum number of answers to the current Hello that wait for verification. Any station can send such an answer, so
/// the genuine one may be among many forged ones.
const ANSWERS_MAX: usize = 16;
/// Number of frames after which a session is replaced by one with new keys.
const FRAMES_MAX: u64 = 1 << 32;
/// TAI64 label of the Unix epoch: 2^62, and the ten leap seconds before 1970.
const TAI64_EPOCH: u64 = (1 << 62) + 10;
const NANOS: u64 = 1_000_000_000;

/// Versions that a Hello may ask for, with or without keys.
pub(super) fn versions(keys: bool) -> RangeInclusive<u16> {
    if keys {
        PROTOCOL_VERSION_KEYED..=PROTOCOL_VERSION_KEYED
    } else {
        PROTOCOL_VERSION_OLDEST..=PROTOCOL_VERSION
    }
}

pub(super) struct Keyed {
    pair: KeyPair,
    mac: HelloMac,
    jobs: VecDeque<HandshakeJob>,
    ids: u64,
    /// Id of the job that computes message 1 of the current Hello.
    calling: Option<u64>,
    /// Input of message 1 of the current Hello, with its secrets, and the time it was made.
    call: Option<(Call, Time)>,
    message: Option<[u8; CALL_LEN]>,
    /// mac1 of the last Hello sent, needed to decrypt a cookie.
    mac1: [u8; MAC_LEN],
    cookie: Option<([u8; COOKIE_LEN], Time)>,
    /// Time until which Hellos are repeated every [`OVERLOAD_INTERVAL`].
    overloaded_until: Time,
    /// Id of the job that verifies an answer, and that answer.
    concluding: Option<(u64, HelloAnswer)>,
    /// Further answers that wait for verification.
    answers: Vec<HelloAnswer>,
    stamped_ns: u64,
}

/// Answer to the current Hello; any station may have sent it.
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

    /// Whether a computation waits to be handed out.
    pub fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    fn job(&mut self, work: Work) -> u64 {
        self.ids += 1;
        self.jobs.push_back(HandshakeJob { id: self.ids, own: Arc::clone(&self.pair.own), work });
        self.ids
    }

    /// Keeps an answer until it can be verified. If the list is full, the new answer replaces a random one, so that
    /// forged answers that came earlier do not keep the genuine answer out.
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

    /// Starts the verification of a waiting answer, chosen at random, unless a verification is already in progress.
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

    /// Returns a time stamp for `now` that is later than every earlier stamp, because the memory node refuses a stamp
    /// that is not.
    fn stamp(&mut self, now: Time) -> TimeStamp {
        // The stamp is later than the last one, even if the clock stood still or was set back.
        self.stamped_ns = self.pair.epoch_ns.saturating_add(now.0).max(self.stamped_ns + 1);
        let mut stamp = TimeStamp::default();
        stamp[..8].copy_from_slice(&(TAI64_EPOCH + self.stamped_ns / NANOS).to_be_bytes());
        stamp[8..].copy_from_slice(&((self.stamped_ns % NANOS) as u32).to_be_bytes());
        stamp
    }
}

impl Requester {
    /// Sets the keys of both ends, or none. A session with another protection remains in use until the next
    /// one has started.
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

    /// Returns the next Diffie-Hellman computation that the caller is to run; at most two are under way. A
    /// session between nodes' keys needs their results.
    #[inline]
    pub fn poll_handshake(&mut self) -> Option<HandshakeJob> {
        self.keyed.as_mut()?.jobs.pop_front()
    }

    /// Takes the result of a job. The result of an outdated job has no effect.
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
                // This answer was forged; the genuine one may be among those that still wait for verification.
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
        // Jobs and answers of the previous Hello are of no use any more.
        keyed.jobs.clear();
        keyed.answers.clear();
        (keyed.message, keyed.concluding) = (None, None);
        keyed.calling = Some(keyed.job(Work::Call(call.clone())));
        keyed.call = Some((call, now));
    }

    /// Sends the current Hello if its message 1 has been computed. Prepares a new Hello if the current one is too old
    /// for the memory node to accept.
    pub(super) fn send_keyed_hello(&mut self, now: Time, tx: &mut dyn Transmit) {
        let Some(keyed) = &mut self.keyed else { return };
        if keyed.call.as_ref().is_some_and(|(_, at)| now - *at >= HELLO_AGE_MAX) && keyed.calling.is_none() {
            // The interval grows with each attempt, and a new Hello must not reset it.
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

    /// Returns the time at which to repeat the last Hello while others forge Hellos in this node's name, or
    /// `None` for the usual interval.
    pub(super) fn overload_retry(&self, now: Time) -> Option<Time> {
        let overloaded = self.keyed.as_ref().is_some_and(|keyed| now < keyed.overloaded_until);
        overloaded.then(|| now + OVERLOAD_INTERVAL)
    }

    /// Takes an answer to the current Hello. Any station may have sent it, so it has no effect before it has been
    /// verified.
    pub(super) fn keyed_ack(&mut self, ack: HelloAck, frame: &[u8], now: Time) {
        let Some(hello) = self.connection.hello.filter(|_| self.connection.phase().awaits_offer()) else {
            return;
        };
        let Some(keyed) = &mut self.keyed else { return };
        if keyed.call.is_none() || ack.hello_nonce != hello.nonce {
            self.shared.counters.dropped_foreign += 1;
            // The answer is a cookie for a Hello that this node did not send, so another station forges Hellos in this
            // node's name.
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
            // The refusal comes from a node without a key, or is forged. It is reported but has no other effect: there
            // is no fallback to sessions without keys.
            self.tell_refused(ack.status, &ack);
        } else {
            self.shared.counters.dropped_unmatched += 1;
        }
    }

    /// Arms the timer for the replacement of the keys of the session just started.
    pub(super) fn rekey_later(&mut self, now: Time) {
        let keyed = self.connection.session.as_ref().is_some_and(|session| session.keyed);
        let every = self.config.timing.rekey_every;
        self.timers.set(Timer::Rekey, keyed.then(|| now + every));
    }

    /// Whether the session between nodes' keys has sent so many requests that it needs new keys.
    pub(super) fn has_sent_enough(&self) -> bool {
        let keyed = self.connection.phase() == ConnectionPhase::Open
            && self.connection.session.as_ref().is_some_and(|session| session.keyed);
        keyed && self.streams.iter().map(RequestStream::sent).sum::<u64>() >= FRAMES_MAX
    }

    /// Returns the integrity trailer that the next session is to have.
    pub(super) fn integrity_wanted(&self) -> Integrity {
        match (&self.keyed, self.is_to_be_sealed()) {
            (Some(_), _) => Integrity::Gcm,
            (None, true) => Integrity::Aead,
            (None, false) => Integrity::Plain,
        }
    }

    pub(super) fn is_to_be_sealed(&self) -> bool {
        self.config.key.is_some() || self.config.keys.is_some()
    }

    /// Returns the protection of the session's frames, or of the next session's if there is none: `sealed`,
    /// `sealed (pre-shared)` or `insecure`.
    pub fn integrity(&self) -> &'static str {
        let (sealed, keyed) = match self.connection.latest() {
            Some(session) => (session.framer.seal.is_sealed(), session.keyed),
            None => (self.is_to_be_sealed(), self.keyed.is_some()),
        };
        integrity_name(sealed, keyed)
    }
}
