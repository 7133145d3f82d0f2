//! The engine with several memory nodes over which a region is interleaved.

use super::*;

struct Fabric {
    net: SimNetwork,
    link: SimLink,
    engine: Engine,
    mns: Vec<MemoryNode>,
    layout: Layout,
    ended: Ended,
}

fn mn_mac(index: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, index as u8])
}

impl Fabric {
    /// Opens sessions with as many memory nodes as `ways`, and adds a route from HPA 0 to an extent of each.
    fn open(ways: Ways, granularity: Granularity, max_frame: usize) -> Fabric {
        let net = SimNetwork::new(1);
        let link = net.attach(CN, PortConfig::default()).expect("a new address");
        let count = ways.count() as usize;
        let shape = Shape { pages: 16, page_lines: 64 };
        let mn = |index| {
            let port = net.attach(mn_mac(index), PortConfig::default()).expect("another");
            let responder = ResponderConfig::new(mn_mac(index), 1514, 0, 7 + index as u64);
            MemoryNode::new(index, port, responder, vec![CN], shape)
        };
        let mns = (0..count).map(mn).collect();
        let mut engine = Engine::new(CacheConfig { bytes: 64 * 64, ways: 4 });
        let targets = (0..count).map(|index| {
            let config = RequesterConfig {
                identity: Identity { own: CN, peer: mn_mac(index), ethertype: ETHERTYPE_DEFAULT },
                max_frame,
                streams: 2,
                instance: 1,
                key: None,
                keys: None,
                timing: TIMING,
                seed: (5 + index as u64).into(),
            };
            let peer = engine.add_peer(config, net.now());
            RouteTarget { peer, cmem: 0, incarnation: None, mirror: None }
        });
        let targets = targets.collect();
        let decoder = Decoder { base: 0, size: count as u64 * EXTENT, ways, granularity };
        engine.add_route(Route { decoder, targets }).expect("a route");
        let layout = Layout::new(count, Some(Interleave { ways, granularity }), 0);
        let mut fabric = Fabric { net, link, engine, mns, layout, ended: Ended::default() };
        fabric.until("sessions", |fabric| fabric.engine.is_connected());
        fabric
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Fabric) -> bool) {
        let end = self.net.now() + MS * 1000;
        while !done(self) {
            assert!(self.net.now() < end, "{what} does not come");
            let next = self.engine.deadline().at.min(self.net.now() + MS);
            let next = self.net.next_event().map_or(next, |at| at.min(next));
            self.net.step(next.max(self.net.now()));
            let now = self.net.now();
            for mn in &mut self.mns {
                mn.work(now, 64);
            }
            let Fabric { link, engine, ended, .. } = self;
            link.receive(64, &mut |frame, tx| engine.handle(frame, now, tx, ended))
                .expect("a simulated link");
            if engine.deadline().is_due(now) {
                engine.poll(now, link.transmit(), ended);
            }
            link.flush().expect("a simulated link");
        }
    }

    /// Returns the initial content of the line at `hpa`, by the simulation's own decoding of addresses.
    fn initial(&self, hpa: u64) -> [u8; 64] {
        let (mn, dpa) = self.layout.place(hpa).expect("it is mapped");
        content(Origin { cn: 0, mn, life: 0, losses: 0, zero: false }.initial(dpa as usize / 64))
    }

    /// Requests a range piece by piece, so that all pieces are in flight before the first answer; returns the
    /// pieces.
    fn read_range(&mut self, range: std::ops::Range<u64>) -> Vec<Segment> {
        let mut walk = SegmentIter::new(range);
        let mut pieces = Vec::new();
        let now = self.net.now();
        while let Some(piece) = walk.segment(&mut self.engine, Direction::Read) {
            let read = self.engine.burst_read(
                &piece,
                RequestId::Number(pieces.len() as u32),
                now,
                self.link.transmit(),
            );
            assert_eq!(read, Ok(BurstRead::Sent), "{piece:?}");
            walk.advance(&piece);
            pieces.push(piece);
        }
        pieces
    }
}

/// Scenario: a region with all combinations of ways and granularity. Each line must be read from its memory
/// node.
#[test]
fn an_interleaved_region_reads_as_its_memory_nodes_hold_it() {
    for (ways, granularity) in Ways::ALL.into_iter().flat_map(|w| Granularity::all().map(move |g| (w, g))) {
        let mut fabric = Fabric::open(ways, granularity, 1514);
        let size = u64::from(ways.count()) * EXTENT;
        // One range begins within a chunk; the other includes the last page of each memory node.
        for range in [320..12_352, size - 8192..size] {
            let before = fabric.ended.reads.len();
            let pieces = fabric.read_range(range.clone());
            fabric.until("all pieces", |fabric| fabric.ended.reads.len() == before + pieces.len());
            let mut out = vec![0; (range.end - range.start) as usize];
            for (id, data) in fabric.ended.reads[before..].iter() {
                let piece = &pieces[id.number().unwrap() as usize];
                assert!(piece.scatter(data, &mut out[(piece.hpa - range.start) as usize..]));
            }
            for (at, line) in out.chunks(64).enumerate() {
                let hpa = range.start + at as u64 * 64;
                assert_eq!(line, fabric.initial(hpa), "{ways} ways of {granularity}, HPA {hpa:#x}");
            }
        }
    }
}

/// Scenario: a read of a page over four memory nodes. It must result in four requests of 1 KiB, all in flight at once.
#[test]
fn a_burst_is_in_flight_on_all_memory_nodes_at_once() {
    let mut fabric = Fabric::open(Ways::Four, Granularity::MIN, 1514);
    let pieces = fabric.read_range(0..4096);
    assert_eq!(pieces.iter().map(|piece| piece.lines).collect::<Vec<_>>(), [16; 4]);
    assert!(fabric.engine.sessions().iter().all(|session| session.unanswered == 1));
    fabric.until("all pieces", |fabric| fabric.ended.ended == 4);
}

/// Scenario: bursts on lines that are modified in the cache. A read must return the modified lines; a write
/// must replace them.
#[test]
fn bursts_of_interleaved_lines_meet_the_cache() {
    let mut fabric = Fabric::open(Ways::Three, Granularity::MIN, 1514);
    // This is the second chunk of memory node 1.
    let hpa = fabric.layout.hpa(1, 320);
    let now = fabric.net.now();
    assert_eq!(fabric.engine.write(hpa, &content(77), ID, now, fabric.link.transmit()), Ok(Write::Done));
    let piece = fabric.engine.segment(fabric.layout.hpa(1, 0), 8);
    assert_eq!(piece.hpa + piece.offset(5), hpa);
    let read = fabric.engine.burst_read(&piece, ID, now, fabric.link.transmit());
    assert_eq!(read, Ok(BurstRead::Sent));
    fabric.until("the read", |fabric| fabric.ended.ended == 1);
    let data = &fabric.ended.reads[0].1;
    assert_eq!(data[5 * 64..6 * 64], content(77), "written back ahead of it");
    assert_eq!(data[4 * 64..5 * 64], fabric.initial(fabric.layout.hpa(1, 256)));

    let now = fabric.net.now();
    let lines = [content(5), content(6)];
    let mask = 1 << 3 | 1 << 5;
    let written =
        fabric.engine.burst_write(&piece, mask, lines.as_flattened(), ID, now, fabric.link.transmit());
    assert_eq!(written, Ok(Write::Sent));
    assert_eq!(fabric.engine.read_here(hpa).ok(), None, "the burst has replaced it");
    fabric.until("the write", |fabric| fabric.ended.ended == 2);
    assert_eq!([fabric.mns[1].line(CN, 192).unwrap(), fabric.mns[1].line(CN, 320).unwrap()], lines);
}

/// Scenario: one of four memory nodes restarts without its pool. The chunks on this memory node must be lost; those on
/// the other memory nodes must stay usable, including their modified lines in the cache.
#[test]
fn a_lost_leg_loses_only_its_chunks() {
    let mut fabric = Fabric::open(Ways::Four, Granularity::MIN, 1514);
    let now = fabric.net.now();
    for chunk in 0..4_u64 {
        let written =
            fabric.engine.write(chunk * 256, &content(100 + chunk), ID, now, fabric.link.transmit());
        assert_eq!(written, Ok(Write::Done));
    }
    fabric.mns[2].restart(false);
    let session = |fabric: &Fabric| fabric.engine.peer_incarnation(2);
    let before = session(&fabric);
    fabric.until("the next session", |fabric| session(fabric).is_some_and(|now| Some(now) != before));
    let now = fabric.net.now();
    let tx = fabric.link.transmit();
    for turn in 0..2 {
        for chunk in 0..4_u64 {
            let hpa = turn * 1024 + chunk * 256 + 64;
            let read = fabric.engine.read(hpa, ID, now, tx);
            let lost = Err(EngineError::DataLost(mn_mac(2)));
            assert_eq!(read, if chunk == 2 { lost } else { Ok(Read::Sent) }, "HPA {hpa:#x}");
        }
    }
    assert_eq!(fabric.engine.read_here(2 * 256).ok(), None);
    assert_eq!(fabric.engine.read_here(3 * 256).ok(), Some(&content(103)));
    fabric.until("the flush", |fabric| {
        let now = fabric.net.now();
        fabric.engine.flush(now, fabric.link.transmit()) == Ok(true)
    });
    for mn in [0, 1, 3] {
        assert_eq!(fabric.mns[mn].line(CN, 0).unwrap(), content(100 + mn as u64));
    }
}

/// Scenario: a region has grown, so that two adjacent routes belong to it. A read across both routes must return all
/// lines without a gap.
#[test]
fn a_region_that_has_grown_is_one_range() {
    let mut fabric = Fabric::open(Ways::Three, Granularity::MIN, 1514);
    // The part added by growth is in other extents, mapped by a decoder of two ways behind the first decoder.
    let base = 3 * EXTENT;
    let target = |peer| RouteTarget { peer, cmem: EXTENT, incarnation: None, mirror: None };
    let decoder = Decoder { base, size: 2 * EXTENT, ways: Ways::Two, granularity: Granularity::PAGE };
    fabric.engine.add_route(Route { decoder, targets: vec![target(2), target(0)] }).expect("it fits behind");
    let pieces = fabric.read_range(base - 4096..base + 8192);
    fabric.until("all pieces", |fabric| fabric.ended.reads.len() == pieces.len());
    let mut lines = 0;
    for (id, data) in &fabric.ended.reads {
        let piece = &pieces[id.number().unwrap() as usize];
        lines += piece.lines;
        for (i, line) in data.chunks(64).enumerate() {
            let hpa = piece.hpa + piece.offset(i);
            let expected = match hpa.checked_sub(base) {
                None => fabric.initial(hpa),
                Some(offset) => {
                    let mn = [2, 0][(offset / 4096) as usize];
                    let line = (offset % 4096 / 64) as usize;
                    content(Origin { cn: 0, mn, life: 1, losses: 0, zero: false }.initial(line))
                }
            };
            assert_eq!(line, expected, "HPA {hpa:#x}");
        }
    }
    assert_eq!(lines, 3 * 64);
}

/// Scenario: a piece (one request of a larger access) was computed for an interleave set that was replaced afterwards.
/// The engine must refuse the piece, because its lines would be misplaced.
#[test]
fn a_piece_of_another_interleave_set_is_refused() {
    let mut fabric = Fabric::open(Ways::Two, Granularity::MIN, 1514);
    let now = fabric.net.now();
    let piece = fabric.engine.segment(0, 8);
    let route = fabric.engine.remove_route(0).expect("the route");
    let decoder = Decoder { granularity: Granularity::PAGE, ..route.decoder };
    fabric.engine.add_route(Route { decoder, ..route }).expect("its place is free");
    let tx = fabric.link.transmit();
    assert_eq!(fabric.engine.burst_read(&piece, ID, now, tx), Err(EngineError::BadBurst(0)));
    assert_eq!(
        fabric.engine.burst_read(&Segment::straight(0, 8), ID, now, tx),
        Err(EngineError::BadBurst(0))
    );
    let piece = fabric.engine.segment(0, 8);
    assert_eq!(fabric.engine.burst_read(&piece, ID, now, tx), Ok(BurstRead::Sent));
}
