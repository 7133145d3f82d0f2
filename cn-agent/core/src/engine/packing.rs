//! Several lines in one frame: while a caller has more operations, requests of single lines are held back.
//!
//! ```text
//!   hold --> read, write, write-back ... --> requests wait, by memory node and stream
//!   release ------------------------------> frames of as many as fit, then the link's flush
//! ```
//!
//! No timer holds a request back: a caller that makes one request and waits for its answer does not call `hold`. If a
//! memory node has not agreed to frames of several lines, each request is sent at once.

use cxloe_wire::Transmit;
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::Requester;
use cxloe_wire::time::Time;

#[cfg(doc)]
use cxloe_wire::frame::FEATURES;

use super::Engine;

impl Engine {
    /// Sets the features, a subset of [`FEATURES`], to be requested of memory nodes added from now on.
    pub fn set_features(&mut self, features: u32) {
        self.features = features;
    }

    /// Announces that more operations follow at once. [`release`](Self::release) must follow before the link is
    /// flushed; otherwise held requests are sent with the next poll that is due. Returns `true` if requests were not
    /// held before this call.
    #[inline]
    pub fn hold(&mut self) -> bool {
        let begins = !core::mem::replace(&mut self.held, true);
        if begins {
            self.peers.iter_mut().for_each(|peer| peer.requester.hold());
        }
        begins
    }

    /// Sends held requests although more operations follow, because the link is about to be flushed for urgent
    /// requests.
    #[inline]
    pub fn send_waiting(&mut self, now: Time, tx: &mut dyn Transmit) {
        if self.held {
            self.each_waiting(tx, |requester, tx| requester.send_waiting(now, tx));
        }
    }

    /// Whether any memory node accepts frames of several lines.
    #[inline]
    pub fn has_multi(&self) -> bool {
        self.peers.iter().any(|peer| peer.requester.has_multi())
    }

    /// Sends held requests and ends the holding. Flush the link afterwards.
    #[inline]
    pub fn release(&mut self, now: Time, tx: &mut dyn Transmit) {
        if core::mem::take(&mut self.held) {
            self.each_waiting(tx, |requester, tx| requester.release(now, tx));
        }
    }

    #[inline]
    fn each_waiting(&mut self, tx: &mut dyn Transmit, send: impl Fn(&mut Requester, &mut dyn Transmit)) {
        for peer in &mut self.peers {
            tx.steer(peer.queue);
            send(&mut peer.requester, tx);
            if let Some(pacer) = &mut peer.pacer {
                pacer.charge_sent(peer.requester.wire_bytes());
            }
            self.deadline.keep_earlier(peer.requester.deadline());
        }
    }
}
