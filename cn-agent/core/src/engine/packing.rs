//! Many lines in one frame: requests of single lines wait for each other while their maker has more of them.
//!
//! ```text
//!   hold --> read, write, write-back ... --> requests wait, by memory node and stream
//!   release ------------------------------> frames of as many as fit, then the link's flush
//! ```
//!
//! Nobody waits for company: whoever makes one request and looks for its answer does not hold. Where a memory node has
//! not agreed on such frames, each request leaves at once.

use cxloe_wire::Transmit;
use cxloe_wire::session::Requester;
use cxloe_wire::time::Time;

#[cfg(doc)]
use cxloe_wire::frame::FEATURES;

use super::Engine;

impl Engine {
    /// Asks memory nodes that are added from now on for these features at most, of those there are ([`FEATURES`]).
    pub fn set_features(&mut self, features: u32) {
        self.features = features;
    }

    /// More operations follow at once. [`release`](Self::release) is to follow before the link is flushed; what still
    /// waits then leaves with the next poll that is due. Whether it was not so already.
    #[inline]
    pub fn hold(&mut self) -> bool {
        let begins = !core::mem::replace(&mut self.held, true);
        if begins {
            self.peers.iter_mut().for_each(|peer| peer.requester.hold());
        }
        begins
    }

    /// Sends what waits for more operations, though more follow: the link is to be flushed for what is urgent.
    #[inline]
    pub fn send_waiting(&mut self, now: Time, tx: &mut dyn Transmit) {
        if self.held {
            self.each_waiting(tx, |requester, tx| requester.send_waiting(now, tx));
        }
    }

    /// Whether any memory node takes frames of many lines.
    #[inline]
    pub fn has_multi(&self) -> bool {
        self.peers.iter().any(|peer| peer.requester.has_multi())
    }

    /// No more operations follow at this moment: sends those that wait. Flush the link afterwards.
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
            self.deadline = self.deadline.min(peer.requester.deadline());
        }
    }
}
