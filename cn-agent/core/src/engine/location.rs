//! Location of an address: the decoded target in the route table, and the CMem address at that target. An address is
//! decoded once; its location is then carried in the [`Segment`](super::Segment) of a burst.
//!
//! A location names its target by index, so it is stale once a route was added or removed. Each such change
//! increments the table's generation: a location of another generation is decoded again before it is used. State that
//! changes without a new generation is read where the location is used: the incarnations of targets, drains,
//! sessions, and clients' rights, which are checked for each segment.

/// A decoded address of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// Generation of the route table at the time of decoding.
    pub generation: u64,
    /// Index of the route in the table; [`NO_ROUTE`](Self::NO_ROUTE) for an address without one.
    pub route: u32,
    /// Position in the route's interleave set.
    pub position: u8,
    /// CMem address on the memory node at that position.
    pub cmem: u64,
}

impl Location {
    /// Value of `route` for an address without a route.
    pub const NO_ROUTE: u32 = u32::MAX;
    /// Location that is always decoded before use, because no table has its generation.
    pub const UNDECODED: Location = Location { generation: 0, route: Self::NO_ROUTE, position: 0, cmem: 0 };
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
    use cxloe_net::Link;
    use cxloe_net::sim::{PortConfig, SimLink, SimNetwork};
    use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
    use cxloe_wire::machine::StateMachine;
    use cxloe_wire::session::{Identity, RequesterConfig, Timing};
    use cxloe_wire::time::Time;

    use crate::cache::CacheConfig;
    use crate::engine::{
        Direction, DrainReason, Engine, EngineError, RequestId, Route, RouteTarget, Segment, SegmentIter,
    };
    use crate::pager::{BufferId, PageBuffers, Store, Urgency};
    use crate::transfers::{BufferSource, PageIo, Transfers};

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PAGE: u64 = 4096;
    const HPA: u64 = 1 << 40;

    fn mn(index: u8) -> Mac {
        Mac([2, 0, 0, 0, 1, index])
    }

    /// An engine with three memory nodes that never answer: a burst's error names the memory node that the burst was
    /// for.
    struct Node {
        engine: Engine,
        link: SimLink,
    }

    impl Node {
        fn new() -> Node {
            let link = SimNetwork::new(1).attach(OWN, PortConfig::default()).unwrap();
            let mut engine = Engine::new(CacheConfig::OFF);
            for index in 0..3 {
                let config = RequesterConfig {
                    identity: Identity { own: OWN, peer: mn(index), ethertype: ETHERTYPE_DEFAULT },
                    max_frame: 1514,
                    streams: 2,
                    instance: 1,
                    key: None,
                    keys: None,
                    timing: Timing::default(),
                    seed: 1.into(),
                };
                engine.add_peer(config, Time::ZERO);
            }
            Node { engine, link }
        }

        fn add(&mut self, hpa: u64, peer: usize, pages: u64) {
            self.engine.add_route(Route::direct(hpa, pages * PAGE, target(peer))).unwrap();
        }

        fn burst(&mut self, segment: &Segment) -> EngineError {
            let id = RequestId::Number(0);
            self.engine.burst_read(segment, id, Time::ZERO, self.link.transmit()).unwrap_err()
        }

        fn decodes(&mut self) -> u64 {
            core::mem::take(&mut self.engine.routes.decodes)
        }
    }

    fn target(peer: usize) -> RouteTarget {
        RouteTarget { peer, cmem: 0, incarnation: None, mirror: None }
    }

    struct Source(PageBuffers);

    impl BufferSource for Source {
        fn buffers(&mut self, _: u16) -> Option<&mut PageBuffers> {
            Some(&mut self.0)
        }
    }

    #[test]
    fn a_page_fault_decodes_its_address_once() {
        let mut node = Node::new();
        node.add(HPA, 1, 8);
        let (mut transfers, mut source, mut ended) =
            (Transfers::new(0), Source(PageBuffers::new(1)), Vec::new());
        let wait_limit = Duration::from_secs(1);
        let mut io = PageIo { transfers: &mut transfers, space: 0, hpa: HPA, wait_limit, now: Time::ZERO };
        io.fetch(3, BufferId(0), Urgency::Demand);
        let Node { engine, link } = &mut node;
        transfers.advance_demand(engine, Time::ZERO, link.transmit(), &mut source, &mut ended);
        assert!(!transfers.deadline().is_never(), "its burst was refused, and is to be retried");
        assert_eq!(node.decodes(), 1, "from the choice of its lane to the refused burst");
    }

    #[test]
    fn a_range_decodes_one_address_of_each_route() {
        let mut node = Node::new();
        let decoder = Decoder { base: HPA, size: 4 * PAGE, ways: Ways::Two, granularity: Granularity::MIN };
        node.engine.add_route(Route { decoder, targets: vec![target(0), target(1)] }).unwrap();
        node.add(HPA + 4 * PAGE, 2, 2);
        let mut segments = SegmentIter::new(HPA..HPA + 6 * PAGE);
        let mut count = [0; 3];
        while let Some(segment) = segments.segment(&mut node.engine, Direction::Read) {
            let peer = node.engine.peer_of(&segment).unwrap();
            assert_eq!(node.burst(&segment), EngineError::NotConnected(mn(peer as u8)));
            count[peer] += segment.lines as u64;
            segments.advance(&segment);
        }
        assert_eq!(count, [2, 2, 2].map(|pages| pages * PAGE / 64));
        assert_eq!(node.decodes(), 2);
    }

    /// Tests that, when the route changes between the creation of a segment and its use, the segment goes to
    /// the new target or is refused.
    #[test]
    fn a_stale_location_is_never_used() {
        let mut node = Node::new();
        node.add(HPA, 0, 2);
        let segment = node.engine.segment(HPA, 8);
        let mut segments = SegmentIter::new(HPA..HPA + PAGE);
        assert!(segments.segment(&mut node.engine, Direction::Read).is_some());
        assert_eq!(node.burst(&segment), EngineError::NotConnected(mn(0)));
        // Another region with lower addresses changes the route's index in the table.
        node.add(HPA - PAGE, 1, 1);
        assert_eq!(node.burst(&segment), EngineError::NotConnected(mn(0)));
        // The addresses are routed to another memory node.
        node.engine.remove_route(HPA).unwrap();
        node.add(HPA, 2, 2);
        assert_eq!(
            (node.burst(&segment), node.engine.peer_of(&segment)),
            (EngineError::NotConnected(mn(2)), Some(2))
        );
        let again = segments.segment(&mut node.engine, Direction::Read).unwrap();
        assert_eq!(node.burst(&again), EngineError::NotConnected(mn(2)));
        // The addresses are interleaved differently.
        node.engine.remove_route(HPA).unwrap();
        let decoder = Decoder { base: HPA, size: 2 * PAGE, ways: Ways::Two, granularity: Granularity::MIN };
        node.engine.add_route(Route { decoder, targets: vec![target(0), target(1)] }).unwrap();
        let bad = EngineError::BadBurst(HPA);
        assert_eq!((node.burst(&segment), node.burst(&again)), (bad, bad));
        let before = segments.segment(&mut node.engine, Direction::Read).unwrap();
        assert_eq!(node.burst(&before), bad, "its iterator counts in the former interleave set");
        // The addresses have no route.
        node.engine.remove_route(HPA).unwrap();
        let unmapped = EngineError::Unmapped(HPA);
        assert_eq!((node.burst(&segment), node.engine.peer_of(&segment)), (unmapped, None));
    }

    /// Tests that a drain or a loss of content affects segments created before it, because such state is read
    /// at each use.
    #[test]
    fn a_drain_and_a_loss_are_seen_by_segments_made_before() {
        let mut node = Node::new();
        node.add(HPA, 0, 2);
        let segment = node.engine.segment(HPA, 8);
        node.engine.begin_drain(HPA..HPA + 2 * PAGE, DrainReason::Draining);
        assert_eq!(node.burst(&segment), EngineError::Draining(HPA));
        node.engine.end_drain(HPA);
        assert_eq!(node.burst(&segment), EngineError::NotConnected(mn(0)));
        let targets = node.engine.routes.targets_mut().flat_map(|(_, targets)| targets);
        targets.for_each(|target| target.incarnation = Some(RouteTarget::LOST));
        assert_eq!(node.burst(&segment), EngineError::DataLost(mn(0)));
        assert_eq!(node.decodes(), 1);
    }
}
