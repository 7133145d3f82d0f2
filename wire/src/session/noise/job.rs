//! What is computed beside the worker: a few multiplications on the curve, which take longer than a thousand frames.

use alloc::sync::Arc;
use core::fmt;

use hkdf::Hkdf;
use sha2::Sha256;
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::key::NodeKey;
use super::mac;
use super::resolver::Primitives;
use crate::frame::keyed::{ACK_MAC_LEN, ACK_SIGNED_LEN, ANSWER_LEN, CALL_LEN, STAMP_LEN};
use crate::frame::{Hello, Mac, PublicKey};

/// The pattern and the primitives.
const NOISE: &str = "Noise_IK_25519_AESGCM_SHA256";
/// What no other use of Noise begins with.
const PROLOGUE: &[u8; 7] = b"cxloe 2";
const PROLOGUE_LEN: usize = PROLOGUE.len() + 6 + 6 + Hello::LEN;
/// The key of the mac behind a HelloAck.
const ACK_CONTEXT: &[u8] = b"cxloe 2 hello ack";

/// When a Hello was made, as TAI64N writes it: a later one is greater.
pub(crate) type TimeStamp = [u8; STAMP_LEN];

/// What the handshake begins with. An array: a Hello may be made where nothing may be allocated.
pub(crate) type Prologue = [u8; PROLOGUE_LEN];

/// What both ends know after the handshake, and nobody else: both chaining keys and the handshake hash.
pub(crate) type Secret = Zeroizing<[u8; 96]>;

/// What both ends have to agree on before anything else, or the handshake fails.
pub(crate) fn prologue(cn: Mac, mn: Mac, hello: &Hello) -> Prologue {
    let mut prologue = [0; PROLOGUE_LEN];
    let (label, rest) = prologue.split_at_mut(PROLOGUE.len());
    label.copy_from_slice(PROLOGUE);
    rest[..6].copy_from_slice(&cn.0);
    rest[6..12].copy_from_slice(&mn.0);
    rest[12..].copy_from_slice(&hello.to_bytes());
    prologue
}

/// The mac of a HelloAck, over all before it.
pub(crate) fn ack_mac(secret: &Secret, frame: &[u8]) -> [u8; ACK_MAC_LEN] {
    let mut key = Zeroizing::new([0; 32]);
    let hkdf = Hkdf::<Sha256>::new(None, secret.as_slice());
    hkdf.expand(ACK_CONTEXT, key.as_mut_slice()).expect("HKDF-SHA256 gives up to 8160 bytes");
    mac::keyed(key.as_slice(), &[frame])
}

/// A handshake cannot be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// It is not addressed to this key, was changed on the way, or is forged.
    #[error("the handshake does not open under this node's key and the other's")]
    Refused,
}

/// A call by a compute node: message 1.
#[derive(Clone)]
pub(crate) struct Call {
    pub peer: PublicKey,
    pub ephemeral: Zeroizing<[u8; 32]>,
    pub prologue: Prologue,
    pub stamp: TimeStamp,
}

/// The answer to a message 1.
pub(crate) struct Respond {
    pub ephemeral: Zeroizing<[u8; 32]>,
    pub prologue: Prologue,
    pub message: [u8; CALL_LEN],
}

/// Which of the three.
pub(crate) enum Work {
    /// At the compute node: make message 1.
    Call(Call),
    /// At the compute node: take message 2, which stands in the HelloAck, and see whether all of that is genuine.
    Conclude(Call, [u8; ACK_SIGNED_LEN + ACK_MAC_LEN]),
    /// At the memory node: take message 1 and make message 2.
    Respond(Respond),
}

/// What has come of it.
pub(crate) enum Outcome {
    Called([u8; CALL_LEN]),
    Concluded(Concluded),
    Responded {
        /// Who calls.
        key: PublicKey,
        stamp: TimeStamp,
        message: [u8; ANSWER_LEN],
        secret: Secret,
    },
}

/// A handshake that is complete at the compute node.
pub(crate) struct Concluded {
    pub secret: Secret,
}

/// Diffie-Hellman to be done beside the worker. Owns all it needs.
pub struct HandshakeJob {
    pub(crate) id: u64,
    pub(crate) own: Arc<NodeKey>,
    pub(crate) work: Work,
}

/// What a [`HandshakeJob`] has led to; for the state machine that handed it out.
pub struct HandshakeDone {
    pub(crate) id: u64,
    pub(crate) outcome: Result<Outcome, HandshakeError>,
}

impl fmt::Debug for HandshakeJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandshakeJob").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for HandshakeDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = self.outcome.as_ref().map(|_| ());
        f.debug_struct("HandshakeDone").field("id", &self.id).field("outcome", &outcome).finish()
    }
}

impl HandshakeJob {
    /// Computes it: some hundred microseconds.
    pub fn run(self) -> HandshakeDone {
        let outcome = match &self.work {
            Work::Call(call) => self.call(call).map(|(_, message)| Outcome::Called(message)),
            Work::Conclude(call, ack) => self.conclude(call, ack).map(Outcome::Concluded),
            Work::Respond(respond) => self.respond(respond),
        };
        HandshakeDone { id: self.id, outcome: outcome.map_err(|_| HandshakeError::Refused) }
    }

    /// Both halves of a state before the first message.
    fn start(
        &self,
        ephemeral: &[u8; 32],
        prologue: &[u8],
        peer: Option<&PublicKey>,
    ) -> Result<HandshakeState, snow::Error> {
        let private = Zeroizing::new(self.own.to_bytes());
        let primitives = Primitives { ephemeral: *ephemeral };
        let builder = Builder::with_resolver(NOISE.parse()?, alloc::boxed::Box::new(primitives))
            .local_private_key(private.as_slice())?
            .prologue(prologue)?;
        match peer {
            Some(peer) => builder.remote_public_key(&peer.0)?.build_initiator(),
            None => builder.build_responder(),
        }
    }

    fn call(&self, call: &Call) -> Result<(HandshakeState, [u8; CALL_LEN]), snow::Error> {
        let mut state = self.start(&call.ephemeral, &call.prologue, Some(&call.peer))?;
        let mut message = [0; CALL_LEN];
        let len = state.write_message(&call.stamp, &mut message)?;
        debug_assert_eq!(len, CALL_LEN);
        Ok((state, message))
    }

    fn conclude(
        &self,
        call: &Call,
        ack: &[u8; ACK_SIGNED_LEN + ACK_MAC_LEN],
    ) -> Result<Concluded, snow::Error> {
        let (mut state, _) = self.call(call)?;
        let (signed, given) = ack.split_at(ACK_SIGNED_LEN);
        state.read_message(&signed[ACK_SIGNED_LEN - ANSWER_LEN..], &mut [])?;
        let secret = secret(&mut state);
        if !mac::equal(&ack_mac(&secret, signed), given) {
            return Err(snow::Error::Decrypt);
        }
        Ok(Concluded { secret })
    }

    fn respond(&self, respond: &Respond) -> Result<Outcome, snow::Error> {
        let mut state = self.start(&respond.ephemeral, &respond.prologue, None)?;
        let mut stamp = [0; STAMP_LEN];
        state.read_message(&respond.message, &mut stamp)?;
        let key = state.get_remote_static().and_then(|key| key.try_into().ok()).map(PublicKey);
        let key = key.ok_or(snow::Error::Input)?;
        let mut message = [0; ANSWER_LEN];
        let len = state.write_message(&[], &mut message)?;
        debug_assert_eq!(len, ANSWER_LEN);
        Ok(Outcome::Responded { key, stamp, message, secret: secret(&mut state) })
    }
}

fn secret(state: &mut HandshakeState) -> Secret {
    let mut secret = Zeroizing::new([0; 96]);
    let (to_mn, to_cn) = state.dangerously_get_raw_split();
    secret[..32].copy_from_slice(&to_mn);
    secret[32..64].copy_from_slice(&to_cn);
    secret[64..].copy_from_slice(state.get_handshake_hash());
    secret
}
