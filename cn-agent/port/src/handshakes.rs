//! Diffie-Hellman computations of an engine's sessions. A separate thread makes them, because they would delay frames.

use cxloe_cn_core::engine::Engine;
use cxloe_link::keys::Handshaker;
use cxloe_wire::time::Time;

/// Hands computations to the handshaker, and passes finished ones to their sessions.
#[inline]
pub fn exchange(handshaker: &mut Handshaker<usize>, engine: &mut Engine, now: Time) {
    while let Some((session, job)) = engine.poll_handshake() {
        handshaker.compute(session, job);
    }
    while let Some((session, done)) = handshaker.finished() {
        engine.handshake_done(session, done, now);
    }
}
