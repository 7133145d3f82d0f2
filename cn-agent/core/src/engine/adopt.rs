//! Adding and removing regions of a running engine without allocating or freeing memory: a thread that faults while it
//! holds the allocator's lock may wait for the thread that drives the engine.
//!
//! ```text
//!   another engine, filled without time pressure by SessionSettings::attach: sessions, routes, a policy
//!        | adopt: moved, in one step
//!        v
//!   the running engine
//!        | part: routes, moved out, to be freed later
//!        v
//! ```

use alloc::vec::Vec;

use cxloe_wire::frame::Mac;
use cxloe_wire::machine::Deadline;
use cxloe_wire::time::Time;

use super::{Engine, Pacing, PeerSession, Route, RouteError};

impl Engine {
    /// Makes room for a total of `peers` memory nodes and for `routes` routes and as many policies, so that
    /// they are [adopted](Self::adopt) without allocation.
    pub fn reserve(&mut self, peers: usize, routes: usize) {
        self.peers.reserve(peers.saturating_sub(self.peers.len()));
        self.routes.reserve(routes);
        self.miss_policies.reserve(routes);
    }

    /// Parameters of rate control; `None` if requests are not paced.
    pub fn pacing(&self) -> Option<Pacing> {
        self.pacing
    }

    /// Whether the session with the memory node at `mac` is open; one that is still connecting is not.
    pub fn is_connected_to(&self, mac: Mac) -> bool {
        self.peers.iter().any(|peer| peer.mac == mac && peer.requester.is_open())
    }

    /// Moves the content of `ready`, an engine without operations, into this one: the routes, the policies,
    /// and those memory nodes that this engine does not have yet. A memory node that both engines have keeps
    /// its session here, or gets a new one as by [`add_peer`](Self::add_peer). Nothing is allocated or freed.
    ///
    /// # Errors
    /// [`RouteError::Peers`] and [`RouteError::Full`] beyond the [reserved](Self::reserve) room, and
    /// [`RouteError::Overlap`]. On error nothing has changed.
    pub fn adopt(&mut self, ready: &mut Engine, now: Time) -> Result<(), RouteError> {
        debug_assert!(self.queues() == 1 && ready.queues() == 1, "one session with each memory node");
        let here = self.peers.len();
        let known = |mac: Mac| self.peers.iter().position(|peer| peer.mac == mac);
        let new = |peers: &[PeerSession]| peers.iter().filter(|peer| known(peer.mac).is_none()).count();
        if here + new(&ready.peers) > self.peers.capacity() {
            return Err(RouteError::Peers(self.peers.capacity()));
        }
        let ((policies, room), (more, _)) = (self.miss_policies.count(), ready.miss_policies.count());
        let routes = self.routes.iter().count() + ready.routes.iter().count();
        if routes > self.routes.room() || policies + more > room {
            return Err(RouteError::Full(self.routes.room().min(room)));
        }
        let there = |route: &&Route| {
            let (hpa, bytes) = (route.hpa(), route.decoder.size);
            self.routes.overlap(hpa, bytes) || self.locals.overlap(hpa, bytes)
        };
        let meeting = ready.routes.iter().find(there).map(Route::hpa);
        if let Some(hpa) = meeting.or_else(|| self.miss_policies.first_overlap(&ready.miss_policies)) {
            return Err(RouteError::Overlap { hpa });
        }

        // Route targets refer to memory nodes by index. Memory nodes that this engine has keep their index here; new
        // ones follow in their order in `ready`.
        for target in ready.routes.targets_mut().flat_map(|(_, targets)| targets) {
            let before = &ready.peers[..target.peer];
            target.peer = known(ready.peers[target.peer].mac).unwrap_or_else(|| here + new(before));
        }
        let mut at = 0;
        while let Some(peer) = ready.peers.get(at) {
            match self.peers.iter_mut().find(|known| known.mac == peer.mac) {
                Some(known) => {
                    known.requester.expect(now);
                    at += 1;
                }
                None => self.peers.push(ready.peers.remove(at)),
            }
        }
        // The next poll is due at once, in order to open sessions with the new memory nodes.
        self.deadline.keep_earlier(Deadline::new(now, "sessions with new memory nodes"));
        self.miss_policies.take_over(&mut ready.miss_policies);
        self.sealed.take_over(&mut ready.sealed);
        while let Some(route) = ready.routes.pop() {
            self.add_route(route)?;
        }
        Ok(())
    }

    /// Moves the routes that begin in the `bytes` bytes from `hpa` on to `parted`, which must have room for
    /// them, and removes the policy that begins at `hpa`. Lines and operations are treated as by
    /// [`remove_route`](Self::remove_route). Nothing is allocated or freed.
    pub fn part(&mut self, hpa: u64, bytes: u64, parted: &mut Vec<Route>) {
        while let Some(start) = self.routes.first_from(hpa).filter(|start| start - hpa < bytes) {
            parted.extend(self.remove_route(start));
        }
        self.remove_miss_policy(hpa);
        self.unseal(hpa);
    }
}

#[cfg(test)]
mod tests {
    use super::super::RequestId;
    use std::collections::BTreeSet;

    use cxloe_net::Link;
    use cxloe_net::sim::{PortConfig, SimNetwork};
    use cxloe_wire::frame::ETHERTYPE_DEFAULT;
    use cxloe_wire::session::Timing;

    use super::*;
    use crate::attach::{SessionKeys, SessionSettings};
    use crate::attachments::Attachment;
    use crate::attachments::tests::spread;
    use crate::cache::CacheConfig;
    use crate::engine::{EngineError, RouteTarget};

    const MIB: u64 = 1 << 20;
    const HPA: u64 = 1 << 40;
    const NEXT: u64 = 2 << 40;

    fn station() -> SessionSettings {
        SessionSettings {
            own: Mac([2, 0, 0, 0, 0, 1]),
            ethertype: ETHERTYPE_DEFAULT,
            max_frame: 1514,
            streams: 2,
            instance: 1,
            key: None,
            keys: SessionKeys::none(0.into()),
            timing: Timing::default(),
        }
    }

    fn with(hpa: u64, ways: u8) -> Engine {
        let mut engine = Engine::new(CacheConfig::OFF);
        let region = spread("r", u64::from(ways) * 2 * MIB, ways.into());
        let window = region.size;
        station().attach(&mut engine, &Attachment::over_ethernet(region, hpa, window), Time::ZERO).unwrap();
        engine
    }

    #[test]
    fn who_is_known_keeps_his_place_and_others_come_behind() {
        let net = SimNetwork::new(1);
        let mut link = net.attach(station().own, PortConfig::default()).unwrap();
        let mn = |position: u8| Mac([2, 0, 0, 0, 1, position]);
        let mut engine = Engine::new(CacheConfig::OFF);
        engine.reserve(4, 4);
        let mut first = with(HPA, 1);
        engine.adopt(&mut first, Time(7)).unwrap();
        assert_eq!((engine.peers.len(), first.peers.len(), engine.deadline.at), (1, 0, Time(7)));
        let mut second = with(NEXT, 3);
        engine.adopt(&mut second, Time(8)).unwrap();
        assert_eq!((engine.peers.len(), second.peers.len()), (3, 1), "the first is known");
        let mut nobody = |engine: &mut Engine, hpa| {
            engine.read(hpa, RequestId::Number(0), Time(9), link.transmit()).unwrap_err()
        };
        let there: Vec<EngineError> = (0..4).map(|chunk| nobody(&mut engine, NEXT + chunk * 1024)).collect();
        let expected = [mn(0), mn(1), mn(2), mn(0)].map(EngineError::NotConnected);
        assert_eq!(there, expected);
        assert_eq!(nobody(&mut engine, HPA), EngineError::NotConnected(mn(0)));

        let mut parted = Vec::with_capacity(1);
        engine.part(HPA, 2 * MIB, &mut parted);
        assert_eq!((parted.len(), engine.routes.iter().count()), (1, 1));
        assert_eq!(nobody(&mut engine, HPA), EngineError::Unmapped(HPA));
        assert_eq!(nobody(&mut engine, NEXT), EngineError::NotConnected(mn(0)), "the other is as it was");
        assert_eq!(engine.miss_policies.count().0, 1);
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut engine = with(HPA, 1);
        engine.reserve(2, 2);
        let room = engine.peers.capacity() as u8;
        let state = |engine: &Engine| {
            let macs: BTreeSet<Mac> = engine.peers.iter().map(|peer| peer.mac).collect();
            (macs, engine.routes.iter().count(), engine.miss_policies.count())
        };
        let before = state(&engine);
        let mut again = with(HPA, 1);
        assert_eq!(engine.adopt(&mut again, Time::ZERO), Err(RouteError::Overlap { hpa: HPA }));
        let mut many = with(NEXT, if room < 8 { 8 } else { 16 });
        assert_eq!(engine.adopt(&mut many, Time::ZERO), Err(RouteError::Peers(room.into())));
        let mut full = Engine::new(CacheConfig::OFF);
        let peer = full.add_peer(station().requester(Mac([2, 0, 0, 0, 1, 0])), Time::ZERO);
        let routes = engine.routes.room() as u64;
        for at in 0..routes {
            let target = RouteTarget { peer, cmem: 0, incarnation: None, mirror: None };
            full.add_route(Route::direct(NEXT + at * 4096, 4096, target)).unwrap();
        }
        assert!(matches!(engine.adopt(&mut full, Time::ZERO), Err(RouteError::Full(_))));
        assert_eq!(state(&engine), before);
        assert_eq!(
            (again.peers.len(), full.routes.iter().count() as u64),
            (1, routes),
            "what was ready is, too"
        );
    }
}
