//! Handshake computations outside the worker thread: a few multiplications on the curve take longer than a
//! thousand frames.

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

/// Handshake pattern and primitives, in the notation of the Noise framework.
const NOISE: &str = "Noise_IK_25519_AESGCM_SHA256";
/// Start of the prologue; it separates these handshakes from other uses of Noise.
const PROLOGUE: &[u8; 7] = b"cxloe 2";
const PROLOGUE_LEN: usize = PROLOGUE.len() + 6 + 6 + Hello::LEN;
/// Label for the derivation of the mac key of a HelloAck.
const ACK_CONTEXT: &[u8] = b"cxloe 2 hello ack";

/// Time at which a Hello was made, in TAI64N format: comparing the bytes compares the times.
pub(crate) type TimeStamp = [u8; STAMP_LEN];

/// Prologue of the handshake. An array, because a Hello may be made where allocation is not permitted.
pub(crate) type Prologue = [u8; PROLOGUE_LEN];

/// Secret that only the two ends have after the handshake: both chaining keys and the handshake hash.
pub(crate) type Secret = Zeroizing<[u8; 96]>;

/// Encodes the values that both ends must agree on; if they differ, the handshake fails.
pub(crate) fn prologue(cn: Mac, mn: Mac, hello: &Hello) -> Prologue {
    let mut prologue = [0; PROLOGUE_LEN];
    let (label, rest) = prologue.split_at_mut(PROLOGUE.len());
    label.copy_from_slice(PROLOGUE);
    rest[..6].copy_from_slice(&cn.0);
    rest[6..12].copy_from_slice(&mn.0);
    rest[12..].copy_from_slice(&hello.to_bytes());
    prologue
}

/// Returns the mac of a HelloAck, where `frame` is all bytes before the mac.
pub(crate) fn ack_mac(secret: &Secret, frame: &[u8]) -> [u8; ACK_MAC_LEN] {
    let mut key = Zeroizing::new([0; 32]);
    let hkdf = Hkdf::<Sha256>::new(None, secret.as_slice());
    hkdf.expand(ACK_CONTEXT, key.as_mut_slice()).expect("HKDF-SHA256 gives up to 8160 bytes");
    mac::keyed(key.as_slice(), &[frame])
}

/// Reason why a handshake cannot be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The message was not addressed to this key, was changed on the way, or is forged.
    #[error("the handshake does not open under this node's key and the other's")]
    Refused,
}

/// Input for making message 1, at the CN.
#[derive(Clone)]
pub(crate) struct Call {
    pub peer: PublicKey,
    pub ephemeral: Zeroizing<[u8; 32]>,
    pub prologue: Prologue,
    pub stamp: TimeStamp,
}

/// Input for answering message 1, at the MN.
pub(crate) struct Respond {
    pub ephemeral: Zeroizing<[u8; 32]>,
    pub prologue: Prologue,
    pub message: [u8; CALL_LEN],
}

/// Kind of computation, with its input.
pub(crate) enum Work {
    /// At the CN: makes message 1, for a Hello.
    Call(Call),
    /// At the CN: verifies the HelloAck and takes the secret from its message 2.
    Conclude(Call, [u8; ACK_SIGNED_LEN + ACK_MAC_LEN]),
    /// At the MN: verifies message 1 and makes message 2.
    Respond(Respond),
}

pub(crate) enum JobOutcome {
    Called([u8; CALL_LEN]),
    Concluded(Concluded),
    Responded {
        /// Public key that the CN proved.
        key: PublicKey,
        stamp: TimeStamp,
        message: [u8; ANSWER_LEN],
        secret: Secret,
    },
}

pub(crate) struct Concluded {
    pub secret: Secret,
}

/// Diffie-Hellman computation that the caller runs outside the worker thread. Owns all its data.
pub struct HandshakeJob {
    pub(crate) id: u64,
    pub(crate) own: Arc<NodeKey>,
    pub(crate) work: Work,
}

/// Result of a [`HandshakeJob`], to be passed to the state machine that the job came from.
pub struct HandshakeDone {
    pub(crate) id: u64,
    pub(crate) outcome: Result<JobOutcome, HandshakeError>,
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
    /// Runs the computation, which takes some hundred microseconds.
    pub fn run(self) -> HandshakeDone {
        let outcome = match &self.work {
            Work::Call(call) => self.call(call).map(|(_, message)| JobOutcome::Called(message)),
            Work::Conclude(call, ack) => self.conclude(call, ack).map(JobOutcome::Concluded),
            Work::Respond(respond) => self.respond(respond),
        };
        HandshakeDone { id: self.id, outcome: outcome.map_err(|_| HandshakeError::Refused) }
    }

    /// Makes the Noise state before the first message: an initiator if `peer` is given, else a responder.
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
        // A job holds plain data, not a Noise state. So message 1 is computed again, with the same result.
        let (mut state, _) = self.call(call)?;
        let (signed, given) = ack.split_at(ACK_SIGNED_LEN);
        state.read_message(&signed[ACK_SIGNED_LEN - ANSWER_LEN..], &mut [])?;
        let secret = secret(&mut state);
        // The mac covers the fields of the HelloAck, which message 2 does not authenticate.
        if !mac::equal(&ack_mac(&secret, signed), given) {
            return Err(snow::Error::Decrypt);
        }
        Ok(Concluded { secret })
    }

    fn respond(&self, respond: &Respond) -> Result<JobOutcome, snow::Error> {
        let mut state = self.start(&respond.ephemeral, &respond.prologue, None)?;
        let mut stamp = [0; STAMP_LEN];
        state.read_message(&respond.message, &mut stamp)?;
        let key = state.get_remote_static().and_then(|key| key.try_into().ok()).map(PublicKey);
        let key = key.ok_or(snow::Error::Input)?;
        let mut message = [0; ANSWER_LEN];
        let len = state.write_message(&[], &mut message)?;
        debug_assert_eq!(len, ANSWER_LEN);
        Ok(JobOutcome::Responded { key, stamp, message, secret: secret(&mut state) })
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
