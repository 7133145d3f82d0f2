//! Sessions between nodes' keys: checks of a Hello before Diffie-Hellman, and use of the result.
//!
//! ```text
//!   Hello --> mac1? --> answered already? --> a key for the address? --> many under way: mac2? -->
//!   HandshakeJob
//!                                                                            |  outside the worker
//!   HelloAck <-- offer <-- free to have a session? <-- newer than any before? <-- whose key?
//! ```
//!
//! Nothing is stored for a sender that does not have this node's public key, and no offer is made to a sender
//! that cannot prove the key registered for its address.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::allowance::Allowance;
use super::flood::{FloodWatch, HelloSieve};
use super::phase::PhaseEvent;
use super::{Responder, ResponderEvent};
use crate::Transmit;
use crate::frame::keyed::{
    ACK_FRAME_LEN, ACK_SIGNED_LEN, ANSWER_AT, ANSWER_LEN, CALL_AT, CALL_LEN, COOKIE_FRAME_LEN,
    HELLO_FRAME_LEN, MAC1_AT, MAC2_AT,
};
use crate::frame::{
    Hello, HelloAck, HelloStatus, Integrity, Mac, Message, PROTOCOL_VERSION_KEYED, PublicKey, Seal,
};
use crate::session::Memory;
use crate::session::entropy::Nonces;
use crate::session::framer::Framer;
use crate::session::noise::{
    Cookies, HandshakeDone, HandshakeJob, HelloMac, JobOutcome, NodeKey, Respond, Secret, TimeStamp, Work,
    ack_mac, equal, prologue,
};
use crate::time::Time;

/// Number of handshakes in progress at which a Hello needs a cookie: in all, and for one address.
const COOKIE_FROM: usize = 64;
const COOKIE_FROM_OF_ONE: usize = 4;
/// Maximum number of handshakes under way: in all, for one address, and for all addresses without a key
/// together, which are refused anyway.
const HANDSHAKES_MAX: usize = 256;
const HANDSHAKES_OF_ONE_MAX: usize = 8;
const HANDSHAKES_OF_STRANGERS_MAX: usize = 16;
/// Handshakes that may begin without a cookie: number at once, and interval after which one more may begin. Each
/// handshake takes 0.2 ms of CPU time.
const FREE_AT_ONCE: u32 = COOKIE_FROM as u32;
const FREE_INTERVAL: Duration = Duration::from_millis(20);
/// Handshakes that may begin without a cookie for addresses without a key: number at once, and interval after which one
/// more may begin.
const FREE_OF_STRANGERS_AT_ONCE: u32 = HANDSHAKES_OF_STRANGERS_MAX as u32;
const FREE_OF_STRANGERS_INTERVAL: Duration = Duration::from_millis(20);
/// Hellos from addresses without a key that may be processed: number at once, and interval after which one more is
/// processed.
const LOOKS_AT_STRANGERS_AT_ONCE: u32 = 256;
const LOOKS_AT_STRANGERS_INTERVAL: Duration = Duration::from_micros(500);
/// Cookies that may be sent: number at once, and interval after which one more is sent. Each cookie costs a received
/// frame, and a frame sent to an address that may be forged. In a flood a CN retries often enough to get a cookie.
const COOKIES_AT_ONCE: u32 = 64;
const COOKIE_INTERVAL: Duration = Duration::from_micros(400);
/// Time after which a handshake under way counts as lost.
const HANDSHAKE_AGE_MAX: Duration = Duration::from_secs(5);
/// Time for which the newest Hello of an address is remembered. A replayed Hello leads only to an offer that
/// its sender cannot start, so forgetting costs at most a handshake. Remembering for ever would lock out a CN
/// whose clock was set back.
const STAMP_AGE_MAX: Duration = Duration::from_secs(600);

/// Handshake result needed for the answer to a Hello and for repetitions of that answer.
#[derive(Clone)]
pub(super) struct AckHandshake {
    pub message: [u8; ANSWER_LEN],
    pub secret: Secret,
}

/// Handshake whose computation has begun.
struct UnderWay {
    id: u64,
    cn: Mac,
    hello: Hello,
    since: Time,
    /// True if the address had no key when the Hello came.
    stranger: bool,
}

/// Time stamp of the newest Hello of an address that led to an offer.
struct Newest {
    /// Key of the sender. A sender with another key may have another clock, so only stamps of one key are
    /// compared.
    key: PublicKey,
    stamp: TimeStamp,
    at: Time,
}

pub(super) struct Keyed {
    own: Arc<NodeKey>,
    mac: HelloMac,
    cookies: Cookies,
    jobs: VecDeque<HandshakeJob>,
    under_way: Vec<UnderWay>,
    ids: u64,
    /// Allowance for handshakes that begin without a cookie.
    free: Allowance,
    free_of_strangers: Allowance,
    cookies_left: Allowance,
    looks_at_strangers: Allowance,
    flood: FloodWatch,
    /// Newest Hello that led to an offer, by address. Only CNs with a key have an entry, so the map is
    /// bounded.
    newest: BTreeMap<Mac, Newest>,
}

impl Keyed {
    pub fn new(own: Arc<NodeKey>, nonces: &mut Nonces) -> Self {
        let public = own.public();
        Keyed {
            mac: HelloMac::new(&public),
            cookies: Cookies::new(&public, nonces),
            own,
            jobs: VecDeque::new(),
            under_way: Vec::new(),
            ids: 0,
            free: Allowance::new(FREE_AT_ONCE, FREE_INTERVAL),
            free_of_strangers: Allowance::new(FREE_OF_STRANGERS_AT_ONCE, FREE_OF_STRANGERS_INTERVAL),
            cookies_left: Allowance::new(COOKIES_AT_ONCE, COOKIE_INTERVAL),
            looks_at_strangers: Allowance::new(LOOKS_AT_STRANGERS_AT_ONCE, LOOKS_AT_STRANGERS_INTERVAL),
            flood: FloodWatch::new(),
            newest: BTreeMap::new(),
        }
    }

    /// Whether a computation waits to be handed out.
    pub fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }
}

impl Responder {
    /// Whether a Hello requests a session between keys, and this node has a key.
    pub(super) fn is_for_keys(&self, hello: &Hello) -> bool {
        self.keyed.is_some() && hello.version == PROTOCOL_VERSION_KEYED
    }

    /// Returns the next Diffie-Hellman computation that the caller is to run. The number under way is
    /// limited.
    #[inline]
    pub fn poll_handshake(&mut self) -> Option<HandshakeJob> {
        self.keyed.as_mut()?.jobs.pop_front()
    }

    /// Returns the sieve, which selects the Hellos that the link is to pass, if it has changed since the last call.
    /// `Some(None)` means that all Hellos pass.
    #[inline]
    pub fn hello_sieve(&mut self) -> Option<Option<HelloSieve>> {
        self.keyed.as_mut()?.flood.changed()
    }

    /// Resets the shares of Hellos. Call it when the link passes all Hellos again whatever its sieve was, for example
    /// after it has opened a new socket.
    pub fn forget_sieve(&mut self) {
        if let Some(keyed) = &mut self.keyed {
            keyed.flood.forget();
        }
    }

    /// Sets the addresses of CNs with a key, so that a flood of other Hellos does not crowd out theirs.
    pub fn know(&mut self, addresses: impl Iterator<Item = Mac>) {
        if let Some(keyed) = &mut self.keyed {
            keyed.flood.set_known(addresses);
        }
    }

    /// Whether computations of handshakes are under way, so that the worker must not sleep for long.
    #[inline]
    pub fn has_handshakes(&self) -> bool {
        self.keyed.as_ref().is_some_and(|keyed| !keyed.under_way.is_empty())
    }

    /// Makes the cheap checks of a Hello, and begins the handshake if they pass. `frame` includes the parts
    /// after the CRC-32C.
    pub(super) fn keyed_hello<M: Memory>(
        &mut self,
        cn: Mac,
        hello: &Hello,
        frame: &[u8],
        now: Time,
        memory: &mut M,
        tx: &mut dyn Transmit,
    ) {
        let identity = self.identity(cn);
        let Some(keyed) = &mut self.keyed else { return };
        let Some(frame) = frame.first_chunk::<HELLO_FRAME_LEN>() else {
            self.counters.dropped_length += 1;
            return;
        };
        let stranger = memory.key(hello.cn(cn).unwrap_or(cn).to_u64()).is_none();
        if stranger {
            keyed.flood.note(cn, now);
            if !keyed.looks_at_strangers.take(now) {
                self.counters.dropped_full += 1;
                return;
            }
        }
        let mac1 = &frame[MAC1_AT..MAC2_AT];
        if !equal(&keyed.mac.of(&frame[..MAC1_AT]), mac1) {
            self.counters.dropped_mac += 1;
            return;
        }
        if !stranger {
            // Counted only after mac1: otherwise a sender without this node's public key could cause Hellos
            // of others to be dropped.
            keyed.flood.note(cn, now);
        }
        let outside = Framer::at_mn(identity, Seal::OUTSIDE);
        if let Some((ack, answer)) = self.offers.repeat_keyed(cn, hello) {
            send_ack(&outside, ack, answer, tx);
            return;
        }
        let (mut of_one, mut of_strangers) = (0, 0);
        for other in &keyed.under_way {
            if other.cn == cn {
                // This Hello is already being answered.
                if other.hello == *hello {
                    return;
                }
                of_one += 1;
            }
            of_strangers += usize::from(other.stranger);
        }
        let may_begin = match stranger {
            true => of_strangers < HANDSHAKES_OF_STRANGERS_MAX && keyed.free_of_strangers.take(now),
            false => true,
        };
        if !may_begin {
            self.counters.dropped_full += 1;
            return;
        }
        let overloaded = keyed.under_way.len() >= COOKIE_FROM || of_one >= COOKIE_FROM_OF_ONE;
        if overloaded || (!stranger && !keyed.free.take(now)) {
            let nonces = &mut self.nonces;
            if !keyed.cookies.accept(cn, &frame[..MAC2_AT], &frame[MAC2_AT..], now, nonces) {
                if !keyed.cookies_left.take(now) {
                    self.counters.dropped_full += 1;
                    return;
                }
                let sealed = keyed.cookies.give(cn, mac1, now, nonces);
                let ack = Message::HelloAck(cookie_ack(hello));
                outside.send_keyed(tx, &ack, COOKIE_FRAME_LEN, |frame| {
                    frame[ANSWER_AT..].copy_from_slice(&sealed)
                });
                self.counters.cookies += 1;
                return;
            }
        }
        if keyed.under_way.len() >= HANDSHAKES_MAX || of_one >= HANDSHAKES_OF_ONE_MAX {
            self.counters.dropped_full += 1;
            return;
        }
        let mut message = [0; CALL_LEN];
        message.copy_from_slice(&frame[CALL_AT..MAC1_AT]);
        keyed.ids += 1;
        let respond = Respond {
            ephemeral: self.nonces.bytes().into(),
            prologue: prologue(cn, self.config.own, hello),
            message,
        };
        let work = Work::Respond(respond);
        keyed.jobs.push_back(HandshakeJob { id: keyed.ids, own: Arc::clone(&keyed.own), work });
        keyed.under_way.push(UnderWay { id: keyed.ids, cn, hello: *hello, since: now, stranger });
    }

    /// Takes the result of a handshake, and answers the Hello if it was genuine.
    pub fn handshake_done<M: Memory>(
        &mut self,
        done: HandshakeDone,
        now: Time,
        memory: &mut M,
        tx: &mut dyn Transmit,
    ) {
        let Some(keyed) = &mut self.keyed else { return };
        let Some(at) = keyed.under_way.iter().position(|under_way| under_way.id == done.id) else { return };
        let UnderWay { cn, hello, .. } = keyed.under_way.swap_remove(at);
        let Ok(JobOutcome::Responded { key, stamp, message, secret }) = done.outcome else {
            self.counters.dropped_handshake += 1;
            return;
        };
        // The Hello was replayed: its time stamp is not newer than that of a Hello already accepted.
        if keyed.newest.get(&cn).is_some_and(|newest| newest.key == key && stamp <= newest.stamp) {
            self.counters.dropped_handshake += 1;
            return;
        }
        let answer = AckHandshake { message, secret };
        let Some(ack) = self.hello(cn, &hello, Some((key, &answer)), now, memory, tx) else { return };
        if let (HelloStatus::Ok, Some(keyed)) = (ack.status, &mut self.keyed) {
            keyed.newest.insert(cn, Newest { key, stamp, at: now });
        }
        send_ack(&Framer::at_mn(self.identity(cn), Seal::OUTSIDE), ack, &answer, tx);
    }

    /// Returns the reason to refuse a session for `owner` to the sender at `cn`; `None` if the session is
    /// permitted. `shown` is the key that the sender has proved, if any.
    pub(super) fn key_refusal<M: Memory>(
        &mut self,
        cn: Mac,
        owner: Mac,
        shown: Option<PublicKey>,
        memory: &mut M,
    ) -> Option<HelloStatus> {
        self.keyed.as_ref()?;
        let known = memory.key(owner.to_u64());
        if shown == known {
            return None;
        }
        self.event(ResponderEvent::KeyRefused { cn, shown });
        Some(match shown {
            Some(_) if memory.is_key_withdrawn(owner.to_u64()) => HelloStatus::KeyWithdrawn,
            Some(_) => HelloStatus::NotAllowed,
            None => HelloStatus::KeyNeeded,
        })
    }

    /// Ends the sessions of CNs whose key now differs from the one they proved, and of CNs that proved no key
    /// but now have one. Such a CN gets a Bye, and the reason in the answer to its next Hello.
    #[cold]
    pub fn end_revoked<M: Memory>(&mut self, memory: &mut M, tx: &mut dyn Transmit) {
        if self.keyed.is_none() {
            return;
        }
        for index in 0..self.sessions.len() {
            let Some(session) = &self.sessions[index] else { continue };
            let (cn, owner, key) = (session.cn, session.owner, session.key);
            if memory.key(owner.to_u64()) != key {
                self.finish_batch(tx);
                // The Bye is sent twice, because no session remains here to repeat it, and a CN that misses the Bye
                // only notices after its silence limit.
                self.step(index, PhaseEvent::Dismiss, tx);
                self.step(index, PhaseEvent::Dismiss, tx);
                self.end(index);
                self.event(ResponderEvent::Revoked(cn));
            }
        }
    }

    /// Removes lost handshakes, and old time stamps.
    pub(super) fn expire_handshakes(&mut self, now: Time) {
        if let Some(keyed) = &mut self.keyed {
            keyed.flood.tick(now);
            keyed.under_way.retain(|under_way| now - under_way.since < HANDSHAKE_AGE_MAX);
            // A job that no caller has taken is removed together with its handshake.
            let Keyed { jobs, under_way, .. } = keyed;
            jobs.retain(|job| under_way.iter().any(|under_way| under_way.id == job.id));
            keyed.newest.retain(|_, newest| now - newest.at < STAMP_AGE_MAX);
        }
    }
}

fn send_ack(outside: &Framer, ack: HelloAck, answer: &AckHandshake, tx: &mut dyn Transmit) {
    outside.send_keyed(tx, &Message::HelloAck(ack), ACK_FRAME_LEN, |frame| {
        frame[ANSWER_AT..ACK_SIGNED_LEN].copy_from_slice(&answer.message);
        let mac = ack_mac(&answer.secret, &frame[..ACK_SIGNED_LEN]);
        frame[ACK_SIGNED_LEN..].copy_from_slice(&mac);
    });
}

/// Makes the HelloAck that asks for a repeated Hello with a cookie.
fn cookie_ack(hello: &Hello) -> HelloAck {
    HelloAck {
        hello_nonce: hello.nonce,
        version_min: PROTOCOL_VERSION_KEYED,
        version_max: PROTOCOL_VERSION_KEYED,
        features: 0,
        session: 0,
        nonce: 0,
        window: 0,
        streams: 0,
        max_frame: 0,
        incarnation: 0,
        integrity: Integrity::Gcm,
        status: HelloStatus::Cookie,
    }
}
