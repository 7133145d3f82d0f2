//! Sessions with keys. Diffie-Hellman computations are slow, so they are handed to the caller, to be done
//! outside the thread that drives the engine.

use cxloe_wire::frame::Mac;
use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::session::{HandshakeDone, HandshakeJob, KeyPair};
use cxloe_wire::time::Time;

use super::Engine;

impl Engine {
    /// Sets the keys of the sessions with memory nodes. A session under other keys continues until its successor has
    /// been negotiated.
    pub fn set_keys(&mut self, keys: impl Fn(Mac) -> Option<KeyPair>, now: Time) {
        for peer in &mut self.peers {
            peer.requester.set_keys(keys(peer.mac), now);
            self.deadline.keep_earlier(peer.requester.deadline());
        }
    }

    /// Bars the memory nodes that `barred` selects: their sessions end at the next poll, which is due at once, and
    /// operations on these nodes fail. All other nodes are admitted, including formerly barred ones.
    pub fn bar(&mut self, barred: impl Fn(Mac) -> bool, now: Time) {
        for peer in &mut self.peers {
            peer.requester.bar(barred(peer.mac), now);
            self.deadline.keep_earlier(peer.requester.deadline());
        }
    }

    /// Returns the next Diffie-Hellman computation that a session needs, and the index of the session. To be
    /// called after each poll.
    #[inline]
    pub fn poll_handshake(&mut self) -> Option<(usize, HandshakeJob)> {
        let mut jobs = self.peers.iter_mut().enumerate();
        jobs.find_map(|(index, peer)| peer.requester.poll_handshake().map(|job| (index, job)))
    }

    /// Passes the result of a Diffie-Hellman computation to the session of index `peer`.
    pub fn handshake_done(&mut self, peer: usize, done: HandshakeDone, now: Time) {
        let Some(peer) = self.peers.get_mut(peer) else { return };
        peer.requester.handshake_done(done, now);
        self.deadline.keep_earlier(peer.requester.deadline());
        if peer.requester.undrained().is_some() {
            // A refusal is an event, which the next poll takes.
            self.deadline.keep_earlier(Deadline::new(now, "an event of a session"));
        }
    }
}
