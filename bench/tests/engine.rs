//! Single cases of the compute node's engine: one engine, one memory node, a perfect network that is cut and healed.

use std::time::Duration;

use cxloe_bench::sim::register::{Shape, content};
use cxloe_bench::sim::{EXTENT, MemoryNode, TIMING};
use cxloe_cn::cache::CacheConfig;
use cxloe_cn::engine::{Engine, EngineError, Read, Route, Sink, Write};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::link::Link;
use cxloe_wire::link::sim::{PortConfig, SimLink, SimNetwork};
use cxloe_wire::session::{Identity, RequesterConfig, ResponderConfig};

const CN: Mac = Mac([2, 0, 0, 0, 0, 0]);
const MN: Mac = Mac([2, 0, 0, 0, 1, 0]);
const MS: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Ended {
    data: Vec<u8>,
    errors: Vec<EngineError>,
    ended: usize,
}

impl Sink for Ended {
    fn read(&mut self, _user: u64, data: &[u8]) {
        self.data = data.to_vec();
        self.ended += 1;
    }
    fn written(&mut self, _user: u64) {
        self.ended += 1;
    }
    fn failed(&mut self, _user: u64, error: EngineError) {
        self.errors.push(error);
        self.ended += 1;
    }
}

struct Pair {
    net: SimNetwork,
    link: SimLink,
    engine: Engine,
    mn: MemoryNode,
    ended: Ended,
}

impl Pair {
    /// An engine with a cache of 64 lines and an open session.
    fn open() -> Pair {
        let net = SimNetwork::new(1);
        let link = net.attach(CN, PortConfig::default()).expect("a new address");
        let responder = ResponderConfig::new(MN, 1514, 0, 7);
        let shape = Shape { pages: 2, page_lines: 5 };
        let mn_link = net.attach(MN, PortConfig::default()).expect("another");
        let mn = MemoryNode::new(0, mn_link, responder, vec![CN], shape);
        let mut engine = Engine::new(CacheConfig { bytes: 64 * 64, ways: 4 });
        let config = RequesterConfig {
            identity: Identity { own: CN, peer: MN, ethertype: ETHERTYPE_DEFAULT },
            max_frame: 1514,
            streams: 2,
            instance: 1,
            key: None,
            timing: TIMING,
            seed: 5,
        };
        let peer = engine.add_peer(config, net.now());
        engine.add_route(Route { hpa: 0, bytes: EXTENT, peer, cmem: 0, incarnation: None }).expect("a route");
        let mut pair = Pair { net, link, engine, mn, ended: Ended::default() };
        pair.until("a session", |pair| pair.engine.is_connected());
        pair
    }

    fn step(&mut self) {
        let next = self.engine.deadline().min(self.net.now() + MS);
        let next = self.net.next_event().map_or(next, |at| at.min(next));
        self.net.step(next.max(self.net.now()));
        let now = self.net.now();
        self.mn.work(now, 64);
        let Pair { link, engine, ended, .. } = self;
        link.receive(64, &mut |frame, tx| engine.handle(frame, now, tx, ended)).expect("a simulated link");
        if now >= engine.deadline() {
            engine.poll(now, link.transmit(), ended);
        }
        link.flush().expect("a simulated link");
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Pair) -> bool) {
        let end = self.net.now() + MS * 1000;
        while !done(self) {
            assert!(self.net.now() < end, "{what} does not come");
            self.step();
        }
    }

    fn write(&mut self, hpa: u64, value: u64) {
        let now = self.net.now();
        let written = self.engine.write(hpa, &content(value), 0, now, self.link.transmit());
        assert_eq!(written, Ok(Write::Done), "the cache takes it");
    }

    fn flush(&mut self) -> Result<bool, EngineError> {
        let now = self.net.now();
        self.engine.flush(now, self.link.transmit())
    }

    /// Leaves the line at `hpa` stranded with `value`.
    fn strand(&mut self, hpa: u64, value: u64) {
        self.write(hpa, value);
        self.net.partition(&[MN]);
        assert_eq!(self.flush(), Ok(false));
        self.until("the session's death", |pair| !pair.engine.is_connected() && pair.engine.stranded() == 1);
    }
}

#[test]
fn an_unaligned_address_is_an_error_also_where_its_line_is_cached() {
    let mut pair = Pair::open();
    pair.write(64, 1);
    let now = pair.net.now();
    let tx = pair.link.transmit();
    assert_eq!(pair.engine.read(65, 0, now, tx), Err(EngineError::Unaligned(65)));
    assert_eq!(pair.engine.write(65, &content(2), 0, now, tx), Err(EngineError::Unaligned(65)));
}

#[test]
fn what_is_stranded_is_read_and_names_the_dead_node_where_it_cannot_be() {
    let mut pair = Pair::open();
    pair.strand(64, 1);
    let now = pair.net.now();
    let tx = pair.link.transmit();
    let dead = Err(EngineError::NotConnected(MN));
    assert_eq!(pair.engine.read(64, 0, now, tx), Ok(Read::Hit(content(1))));
    assert_eq!(pair.engine.burst_read(0, 4, 0, now, tx), dead);
    assert_eq!(pair.engine.burst_write(64, 1, &content(3), 0, now, tx), dead);
    assert_eq!(pair.engine.flush(now, tx), Err(EngineError::NotConnected(MN)));
    assert_eq!(pair.engine.stranded(), 1, "errors change nothing");

    pair.net.heal_all();
    pair.until("the flush", |pair| pair.flush() == Ok(true));
    assert_eq!(pair.mn.line(CN, 64), content(1));
    assert_eq!((pair.engine.stranded(), pair.engine.in_flight()), (0, 0));
}

#[test]
fn a_later_value_replaces_the_stranded_one() {
    let mut pair = Pair::open();
    pair.strand(64, 1);
    // The line is in the cache still, where it is written again; writing it back is no second request.
    pair.write(64, 2);
    assert_eq!(pair.flush(), Err(EngineError::NotConnected(MN)));
    assert_eq!(pair.engine.stranded(), 1);
    // Every other line of its set, so that it leaves the cache.
    for line in 1..=4_u64 {
        pair.write(64 + line * 16 * 64, 10 + line);
    }
    let now = pair.net.now();
    assert_eq!(pair.engine.read_cached(64), None);
    assert_eq!(pair.engine.read(64, 0, now, pair.link.transmit()), Ok(Read::Hit(content(2))));
    pair.net.heal_all();
    pair.until("the flush", |pair| pair.flush() == Ok(true));
    assert_eq!(pair.mn.line(CN, 64), content(2));
}

#[test]
fn what_a_removed_region_leaves_on_its_way_is_nobodys() {
    let mut pair = Pair::open();
    pair.write(64, 1);
    assert_eq!(pair.flush(), Ok(false));
    let now = pair.net.now();
    assert_eq!(pair.engine.read(128, 0, now, pair.link.transmit()), Ok(Read::Sent));
    pair.net.partition(&[MN]);
    assert!(pair.engine.remove_route(0).is_some());
    let route = Route { hpa: 0, bytes: EXTENT, peer: 0, cmem: EXTENT, incarnation: None };
    pair.engine.add_route(route).expect("its place is free");
    assert_eq!(pair.flush(), Ok(true), "nothing of the new region is modified");
    pair.until("the end of the read", |pair| pair.ended.ended == 1);
    assert_eq!(pair.ended.errors.len(), 1, "it fails with the session");
    assert_eq!(pair.engine.stranded(), 0);
    assert_eq!(pair.engine.read_cached(64), None);
    assert_eq!(pair.engine.read_cached(128), None);
}

#[test]
fn a_region_added_to_an_open_session_is_lost_with_its_memory() {
    let mut pair = Pair::open();
    pair.engine.remove_route(0);
    let route = Route { hpa: 0, bytes: EXTENT, peer: 0, cmem: EXTENT, incarnation: None };
    pair.engine.add_route(route).expect("its place is free");
    pair.write(64, 1);
    pair.mn.restart(false);
    let now = pair.net.now();
    assert_eq!(pair.engine.read(0, 0, now, pair.link.transmit()), Ok(Read::Sent));
    pair.until("the end of the read", |pair| pair.ended.ended == 1);
    assert_eq!(pair.ended.data, [0; 0], "no zeros");
    let now = pair.net.now();
    let tx = pair.link.transmit();
    for hpa in [0, 64] {
        assert_eq!(pair.engine.read(hpa, 0, now, tx), Err(EngineError::DataLost(MN)));
    }
    assert_eq!(pair.engine.flush(now, tx), Ok(true), "what is lost is not modified");
}
