//! Sessions between keys: Diffie-Hellman is handed out, to be done beside whoever drives the engine.

use cxloe_wire::frame::Mac;
use cxloe_wire::session::{HandshakeDone, HandshakeJob, KeyPair};
use cxloe_wire::time::Time;

use super::Engine;

impl Engine {
    /// Speaks with each memory node under the keys that `keys` names for it. A session that was agreed on otherwise goes on
    /// until the next one has been agreed on.
    pub fn set_keys(&mut self, keys: impl Fn(Mac) -> Option<KeyPair>, now: Time) {
        for peer in &mut self.peers {
            peer.requester.set_keys(keys(peer.mac), now);
            self.deadline = self.deadline.min(peer.requester.deadline());
        }
    }

    /// Speaks with none of the memory nodes that `barred` names: their sessions end at the next poll, which is due at once,
    /// and operations there fail. The others are spoken with, also those that were named before.
    pub fn bar(&mut self, barred: impl Fn(Mac) -> bool, now: Time) {
        for peer in &mut self.peers {
            peer.requester.bar(barred(peer.mac), now);
            self.deadline = self.deadline.min(peer.requester.deadline());
        }
    }

    /// Diffie-Hellman to be done, and for which session. To be asked for after each poll.
    #[inline]
    pub fn poll_handshake(&mut self) -> Option<(usize, HandshakeJob)> {
        let mut jobs = self.peers.iter_mut().enumerate();
        jobs.find_map(|(index, peer)| peer.requester.poll_handshake().map(|job| (index, job)))
    }

    /// Takes what has come of a job of session `peer`.
    pub fn handshake_done(&mut self, peer: usize, done: HandshakeDone, now: Time) {
        let Some(peer) = self.peers.get_mut(peer) else { return };
        peer.requester.handshake_done(done, now);
        self.deadline = self.deadline.min(peer.requester.deadline());
    }
}
