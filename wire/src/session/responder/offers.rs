//! Offered sessions: Hellos that were accepted, but not yet followed by a Start.
//!
//! The number of offers is limited. A new offer displaces the oldest one to the same CN; an offer to a guest
//! (a CN without memory) displaces only offers to guests. So a sender that invents or forges addresses cannot
//! prevent a CN with memory from starting its session.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::keyed::AckHandshake;
use crate::frame::{Hello, HelloAck, Mac, PublicKey};
use crate::session::framer::Framer;
use crate::time::Time;

/// Maximum number of offers to one CN: more than one, because a Hello may be a delayed copy or forged.
pub(super) const OFFERS_PER_CN: usize = 16;
/// Maximum number of offers to all guests together.
pub(super) const GUEST_OFFERS_MAX: usize = 64;
/// Maximum number of offers to all CNs together.
pub(super) const OFFERS_MAX: usize = 1024;

/// Time within which an offered session can be started. A later Start belongs to an attempt that the CN has
/// given up.
const OFFER_LIFETIME: Duration = Duration::from_secs(5);

pub(super) struct Offer {
    pub offered_at: Time,
    pub guest: bool,
    pub hello: Hello,
    pub ack: HelloAck,
    /// For a session between nodes' keys: the key that the CN proved, and the handshake data of the answer.
    pub keyed: Option<(PublicKey, AckHandshake)>,
    pub framer: Framer,
}

impl Offer {
    fn cn(&self) -> Mac {
        self.framer.id.peer
    }
}

/// All offers, oldest first.
pub(super) struct Offers(VecDeque<Offer>);

impl Offers {
    pub fn new() -> Offers {
        Offers(VecDeque::with_capacity(OFFERS_PER_CN))
    }

    /// Returns the earlier answer to the same Hello, so that a repeated Hello makes no second offer.
    pub fn repeat(&self, cn: Mac, hello: &Hello) -> Option<HelloAck> {
        let same = |offer: &&Offer| offer.keyed.is_none() && offer.cn() == cn && offer.hello == *hello;
        self.0.iter().find(same).map(|offer| offer.ack)
    }

    /// [`repeat`](Self::repeat) for a Hello of a CN with a key.
    pub fn repeat_keyed(&self, cn: Mac, hello: &Hello) -> Option<(HelloAck, &AckHandshake)> {
        let offer = self.0.iter().find(|offer| offer.cn() == cn && offer.hello == *hello)?;
        offer.keyed.as_ref().map(|(_, answer)| (offer.ack, answer))
    }

    /// Keeps an offer. If a limit is reached, the offer displaces an older one.
    pub fn add(&mut self, offer: Offer) {
        let (cn, guest) = (offer.cn(), offer.guest);
        if self.0.iter().filter(|known| known.cn() == cn).count() >= OFFERS_PER_CN {
            self.drop_oldest(|known| known.cn() == cn);
        }
        if guest && self.0.iter().filter(|known| known.guest).count() >= GUEST_OFFERS_MAX {
            self.drop_oldest(|known| known.guest);
        }
        // Offers to guests are displaced first.
        if self.0.len() >= OFFERS_MAX && !self.drop_oldest(|known| known.guest) {
            self.0.pop_front();
        }
        self.0.push_back(offer);
    }

    fn drop_oldest(&mut self, which: impl Fn(&Offer) -> bool) -> bool {
        let found = self.0.iter().position(which);
        found.is_some_and(|at| self.0.remove(at).is_some())
    }

    /// Takes the offer to `cn` for which `opens` returns `true`, and removes all other offers to `cn`.
    pub fn take(&mut self, cn: Mac, mut opens: impl FnMut(&Offer) -> bool) -> Option<Offer> {
        let at = self.0.iter().position(|offer| offer.cn() == cn && opens(offer))?;
        let offer = self.0.remove(at)?;
        self.0.retain(|other| other.cn() != cn);
        Some(offer)
    }

    pub fn any_to(&self, cn: Mac) -> bool {
        self.0.iter().any(|offer| offer.cn() == cn)
    }

    /// Removes offers that are too old, or whose frames are longer than `max_frame`.
    pub fn expire(&mut self, now: Time, max_frame: usize) {
        let stays = |offer: &Offer| {
            now - offer.offered_at < OFFER_LIFETIME && usize::from(offer.ack.max_frame) <= max_frame
        };
        self.0.retain(stays);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{HelloStatus, Integrity, Seal};
    use crate::session::framer::Identity;

    fn offer(number: u32, guest: bool) -> Offer {
        let [a, b, c, d] = number.to_be_bytes();
        let id = Identity { own: Mac([2, 0, 0, 0, 0, 1]), peer: Mac([2, 1, a, b, c, d]), ethertype: 0x88b5 };
        let hello = Hello {
            version: 1,
            features: 0,
            nonce: 1,
            instance: 1,
            streams: 1,
            max_frame: 1500,
            integrity: Integrity::Plain,
            shard: 0,
            owner: Mac::default(),
        };
        let ack = HelloAck {
            hello_nonce: 1,
            version_min: 1,
            version_max: 1,
            features: 0,
            session: 1,
            nonce: 1,
            window: 1,
            streams: 1,
            max_frame: 1500,
            incarnation: 1,
            integrity: Integrity::Plain,
            status: HelloStatus::Ok,
        };
        let framer = Framer::at_mn(id, Seal::Plain { session: 1 });
        Offer { offered_at: Time::ZERO, guest, hello, ack, keyed: None, framer }
    }

    #[test]
    fn room_is_bounded_and_taken_from_ones_own_kind() {
        let mut offers = Offers::new();
        for _ in 0..3 * OFFERS_PER_CN {
            offers.add(offer(0, false));
        }
        assert_eq!(offers.0.len(), OFFERS_PER_CN);
        for number in 1..=3 * GUEST_OFFERS_MAX as u32 {
            offers.add(offer(number, true));
        }
        assert_eq!(offers.0.len(), OFFERS_PER_CN + GUEST_OFFERS_MAX);
        for number in 1_000..3_000 {
            offers.add(offer(number, false));
        }
        assert_eq!(offers.0.len(), OFFERS_MAX);
        assert!(!offers.0.iter().any(|offer| offer.guest), "guests go first");
    }
}
