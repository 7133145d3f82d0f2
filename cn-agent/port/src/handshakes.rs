//! Diffie-Hellman computations of an engine's sessions. A separate thread makes them, because they would delay frames.

use cxloe_cn_core::engine::Engine;
use cxloe_link::keys::Handshaker;
use cxloe_wire::time::Time;

/// Passes finished computations to their sessions, and hands new ones to the handshaker.
#[inline]
pub fn exchange(handshaker: &mut Handshaker<usize>, engine: &mut Engine, now: Time) {
    while let Some((session, done)) = handshaker.finished() {
        engine.handshake_done(session, done, now);
    }
    // After the results: one that was forged brings the next computation.
    while let Some((session, job)) = engine.poll_handshake() {
        handshaker.compute(session, job);
    }
}
