//! The engine with one memory node: ended sessions, stranded lines (modified lines whose memory node is unreachable),
//! and ranges that are written back and closed.

use super::*;

struct Pair {
    net: SimNetwork,
    link: SimLink,
    engine: Engine,
    mn: MemoryNode,
    ended: Ended,
}

impl Pair {
    /// Returns an engine with a cache of 64 lines and an open session.
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
            keys: None,
            timing: TIMING,
            seed: 5.into(),
        };
        let peer = engine.add_peer(config, net.now());
        engine.add_route(direct(peer, 0)).expect("a route");
        let mut pair = Pair { net, link, engine, mn, ended: Ended::default() };
        pair.until("a session", |pair| pair.engine.is_connected());
        pair
    }

    fn step(&mut self) {
        let next = self.engine.deadline().at.min(self.net.now() + MS);
        let next = self.net.next_event().map_or(next, |at| at.min(next));
        self.net.step(next.max(self.net.now()));
        let now = self.net.now();
        self.mn.work(now, 64);
        let Pair { link, engine, ended, .. } = self;
        link.receive(64, &mut |frame, tx| engine.handle(frame, now, tx, ended)).expect("a simulated link");
        if engine.deadline().is_due(now) {
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
        let written = self.engine.write(hpa, &content(value), ID, now, self.link.transmit());
        assert_eq!(written, Ok(Write::Done), "the cache takes it");
    }

    fn flush(&mut self) -> Result<bool, EngineError> {
        let now = self.net.now();
        self.engine.flush(now, self.link.transmit())
    }

    /// Writes `value` to the line at `hpa` and ends the session before the write-back, so that the modified line is
    /// stranded in the cache.
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
    assert_eq!(pair.engine.read(65, ID, now, tx), Err(EngineError::Unaligned(65)));
    assert_eq!(pair.engine.write(65, &content(2), ID, now, tx), Err(EngineError::Unaligned(65)));
}

#[test]
fn what_is_stranded_is_read_and_names_the_dead_node_where_it_cannot_be() {
    let mut pair = Pair::open();
    pair.strand(64, 1);
    let now = pair.net.now();
    let tx = pair.link.transmit();
    let dead = Err(EngineError::NotConnected(MN));
    assert_eq!(pair.engine.read(64, ID, now, tx), Ok(Read::Hit(content(1))));
    assert_eq!(pair.engine.burst_read(&Segment::straight(0, 4), ID, now, tx), dead);
    let written = pair.engine.burst_write(&Segment::straight(64, 1), 1, &content(3), ID, now, tx);
    assert_eq!(written, Err(EngineError::NotConnected(MN)));
    assert_eq!(pair.engine.flush(now, tx), Err(EngineError::NotConnected(MN)));
    assert_eq!(pair.engine.stranded(), 1, "errors change nothing");

    pair.net.heal_all();
    pair.until("the flush", |pair| pair.flush() == Ok(true));
    assert_eq!(pair.mn.line(CN, 64).unwrap(), content(1));
    assert_eq!((pair.engine.stranded(), pair.engine.in_flight()), (0, 0));
}

#[test]
fn a_later_value_replaces_the_failed_write_back() {
    let mut pair = Pair::open();
    pair.strand(64, 1);
    // The stranded line is still in the cache and is written again. Its write-back must not be requested twice.
    pair.write(64, 2);
    assert_eq!(pair.flush(), Err(EngineError::NotConnected(MN)));
    assert_eq!(pair.engine.stranded(), 1);
    // Writes to the other lines of the same cache set evict the line.
    for line in 1..=4_u64 {
        pair.write(64 + line * 16 * 64, 10 + line);
    }
    let now = pair.net.now();
    assert_eq!(pair.engine.read_here(64).ok(), None);
    assert_eq!(pair.engine.read(64, ID, now, pair.link.transmit()), Ok(Read::Hit(content(2))));
    pair.net.heal_all();
    pair.until("the flush", |pair| pair.flush() == Ok(true));
    assert_eq!(pair.mn.line(CN, 64).unwrap(), content(2));
}

#[test]
fn frames_of_a_removed_region_are_dropped() {
    let mut pair = Pair::open();
    pair.write(64, 1);
    assert_eq!(pair.flush(), Ok(false));
    let now = pair.net.now();
    assert_eq!(pair.engine.read(128, ID, now, pair.link.transmit()), Ok(Read::Sent));
    pair.net.partition(&[MN]);
    assert!(pair.engine.remove_route(0).is_some());
    pair.engine.add_route(direct(0, EXTENT)).expect("its place is free");
    assert_eq!(pair.flush(), Ok(true), "nothing of the new region is modified");
    pair.until("the end of the read", |pair| pair.ended.ended == 1);
    assert_eq!(pair.ended.errors.len(), 1, "it fails with the session");
    assert_eq!(pair.engine.stranded(), 0);
    assert_eq!(pair.engine.read_here(64).ok(), None);
    assert_eq!(pair.engine.read_here(128).ok(), None);
}

#[test]
fn a_region_added_to_an_open_session_is_lost_with_its_memory() {
    let mut pair = Pair::open();
    pair.engine.remove_route(0);
    pair.engine.add_route(direct(0, EXTENT)).expect("its place is free");
    pair.write(64, 1);
    pair.mn.restart(false);
    let now = pair.net.now();
    assert_eq!(pair.engine.read(0, ID, now, pair.link.transmit()), Ok(Read::Sent));
    pair.until("the end of the read", |pair| pair.ended.ended == 1);
    assert_eq!(pair.ended.data, [0; 0], "no zeros");
    let now = pair.net.now();
    let tx = pair.link.transmit();
    for hpa in [0, 64] {
        assert_eq!(pair.engine.read(hpa, ID, now, tx), Err(EngineError::DataLost(MN)));
    }
    assert_eq!(pair.engine.flush(now, tx), Ok(true), "what is lost is not modified");
}

/// Scenario: a range is closed. Only the modified lines of the range must be written back, and new operations
/// on the range must be refused.
#[test]
fn a_closed_range_is_written_back_alone() {
    let mut pair = Pair::open();
    pair.write(64, 1);
    pair.write(8192, 2);
    pair.write(8192 + 64, 3);
    let now = pair.net.now();
    assert_eq!(
        pair.engine.read(8192 + 128, ID, now, pair.link.transmit()),
        Ok(Read::Sent),
        "it fills the cache"
    );
    let closed = 8192..8192 + 4096;
    let mut work = pair.engine.begin_drain(closed.clone(), DrainReason::Draining);
    let (engine, tx) = (&mut pair.engine, pair.link.transmit());
    assert_eq!(engine.read(8192 + 256, ID, now, tx), Err(EngineError::Draining(8192 + 256)));
    assert_eq!(engine.write(8192 + 256, &content(9), ID, now, tx), Err(EngineError::Draining(8192 + 256)));
    assert_eq!(engine.burst_read(&Segment::straight(8192, 2), ID, now, tx), Err(EngineError::Draining(8192)));
    assert_eq!(
        engine.write(8192, &content(4), ID, now, tx),
        Ok(Write::Done),
        "what is modified still may be"
    );
    pair.until("the read", |pair| pair.ended.ended == 1);
    assert_eq!(pair.engine.read_here(8192 + 128).ok(), None, "it does not come back into the cache");
    pair.until("the end", |pair| {
        let now = pair.net.now();
        pair.engine.write_back_range(&mut work, now, pair.link.transmit()) == Ok(true)
    });
    assert_eq!(
        (pair.mn.line(CN, 8192).unwrap(), pair.mn.line(CN, 8192 + 64).unwrap()),
        (content(4), content(3))
    );
    assert_ne!(pair.mn.line(CN, 64).unwrap(), content(1), "the rest stays where it is");
    assert_eq!(pair.engine.read_here(64).ok(), Some(&content(1)));
    assert_eq!(pair.engine.read_here(8192).ok(), None);

    // While the range is being moved, operations are deferred. After it is opened again, they are accepted.
    pair.engine.begin_drain(closed.clone(), DrainReason::Moving);
    let now = pair.net.now();
    assert_eq!(pair.engine.read(8192, ID, now, pair.link.transmit()), Err(EngineError::Busy));
    pair.engine.set_in_reset(true);
    assert_eq!(pair.engine.read(8192, ID, now, pair.link.transmit()), Err(EngineError::InReset(8192)));
    assert_eq!(pair.engine.read(0, ID, now, pair.link.transmit()), Err(EngineError::InReset(0)));
    pair.engine.set_in_reset(false);
    pair.engine.end_drain(closed.start);
    assert_eq!(pair.engine.read(8192, ID, now, pair.link.transmit()), Ok(Read::Sent));
}

/// Scenario: a range is closed while its memory node is unreachable. Its modified lines must stay in the
/// cache, and the range must not count as drained until they are written back.
#[test]
fn a_closed_range_waits_for_its_memory_node() {
    let mut pair = Pair::open();
    pair.strand(64, 1);
    pair.write(128, 2);
    let mut work = pair.engine.begin_drain(0..4096, DrainReason::Draining);
    let now = pair.net.now();
    let stuck = pair.engine.write_back_range(&mut work, now, pair.link.transmit());
    assert_eq!(stuck, Err(EngineError::NotConnected(MN)));
    pair.net.heal_all();
    pair.until("the end", |pair| {
        let now = pair.net.now();
        pair.engine.write_back_range(&mut work, now, pair.link.transmit()) == Ok(true)
    });
    assert_eq!((pair.mn.line(CN, 64).unwrap(), pair.mn.line(CN, 128).unwrap()), (content(1), content(2)));
}

/// Scenario: lines are written all the time during a flush. The flush must end, and include all writes before
/// it.
#[test]
fn a_flush_ends_while_others_write() {
    let mut pair = Pair::open();
    for line in 0..8 {
        pair.write(line * 64, 100 + line);
    }
    let mut flush = Flush::default();
    let mut rounds = 0;
    pair.until("the flush", |pair| {
        rounds += 1;
        // The lines are written again and again, including those that were just written back.
        for line in 0..8_u64 {
            let (now, hpa) = (pair.net.now(), 4096 + (line + rounds) % 32 * 64);
            let _ = pair.engine.write(hpa, &content(rounds), ID, now, pair.link.transmit());
        }
        let now = pair.net.now();
        pair.engine.flush_on(&mut flush, now, pair.link.transmit()) == Ok(true)
    });
    for line in 0..8 {
        assert_eq!(pair.mn.line(CN, line * 64).unwrap(), content(100 + line), "line {line}");
    }
    assert_eq!(pair.flush(), Ok(false), "what was written meanwhile is modified still");
}

/// Scenario: a region is added while a new session is replacing the current one. The new session fails, and the current
/// one continues without further messages. The region must belong to the memory content of the current session, and be
/// lost with that content.
#[test]
fn a_region_added_during_a_hand_over_is_lost_with_its_memory() {
    let mut pair = Pair::open();
    // The network is silent until the engine sends a Hello again. Then only that Hello arrives.
    let calls = pair.net.now() + TIMING.ping_every + TIMING.suspect_after + TIMING.hello_first / 2;
    pair.net.cut(CN, MN);
    pair.until("a call", |pair| pair.net.now() >= calls);
    pair.net.heal_all();
    let handed_over = |pair: &Pair| !pair.engine.is_connected() && pair.engine.peer_incarnation(0).is_some();
    pair.until("a hand-over", |pair| handed_over(pair));
    pair.mn.paused_until = Time(u64::MAX);
    pair.engine.remove_route(0);
    pair.engine.add_route(direct(0, EXTENT)).expect("its place is free");
    pair.until("the old session", |pair| pair.engine.is_connected());
    pair.write(64, 1);
    let before = pair.engine.peer_incarnation(0);
    pair.mn.restart(false);
    pair.until("the next session", |pair| {
        pair.engine.is_connected() && pair.engine.peer_incarnation(0) != before
    });
    let now = pair.net.now();
    let tx = pair.link.transmit();
    for hpa in [0, 64] {
        assert_eq!(pair.engine.read(hpa, ID, now, tx), Err(EngineError::DataLost(MN)));
    }
}

/// Scenario: accesses to addresses without a route. The result must be an error, poison or all ones, as specified by
/// the policy of the surrounding range or, without a policy, by the engine's default.
#[test]
fn what_nobody_maps_is_answered_by_policy() {
    let mut pair = Pair::open();
    let (poison, ones, rest) = (EXTENT, 2 * EXTENT, 4 * EXTENT);
    // The first policy range includes the region's addresses, for which the route takes precedence.
    pair.engine.add_miss_policy(0, 2 * EXTENT, Unmapped::Poison).expect("a hole");
    pair.engine.add_miss_policy(ones, EXTENT, Unmapped::AllOnes).expect("another");
    assert!(matches!(
        pair.engine.add_miss_policy(EXTENT, 4096, Unmapped::Error),
        Err(RouteError::Overlap { .. })
    ));
    let now = pair.net.now();
    let tx = pair.link.transmit();
    let engine = &mut pair.engine;
    assert_eq!(engine.read(64, ID, now, tx), Ok(Read::Sent), "a region is no hole");
    let ff = [0xFF; 64];
    for (hpa, read, written) in [
        (poison, Err(EngineError::Poisoned(poison)), Ok(Write::Done)),
        (ones, Ok(Read::Hit(ff)), Ok(Write::Done)),
        (rest, Err(EngineError::Unmapped(rest)), Err(EngineError::Unmapped(rest))),
    ] {
        let piece = engine.segment(hpa, 5);
        assert_eq!(engine.read(hpa, ID, now, tx), read);
        let alike = read.map(|_| BurstRead::Alike(ff));
        assert_eq!(engine.burst_read(&piece, ID, now, tx), alike);
        assert_eq!(engine.write(hpa, &content(1), ID, now, tx), written);
        assert_eq!(engine.burst_write(&piece, 1, &content(1), ID, now, tx), written);
        assert_eq!(engine.read(hpa, ID, now, tx), read, "nothing was kept");
    }
    let counters = engine.counters();
    assert_eq!((counters.unmapped_errors, counters.unmapped_poisoned), (5, 3));
    assert_eq!((counters.unmapped_ones, counters.unmapped_dropped, counters.failures), (3, 4, 8));
    assert_eq!(engine.remove_miss_policy(0), Some(Unmapped::Poison));
    assert_eq!(engine.read(poison, ID, now, tx), Err(EngineError::Unmapped(poison)));
    assert_eq!(engine.remove_miss_policy(0), None);
    // A burst must not extend from an unmapped address into a mapped one.
    let over = Segment::straight(EXTENT * 8 - 64, 2);
    assert_eq!(engine.burst_read(&over, ID, now, tx), Err(EngineError::BadBurst(over.hpa)));
}
