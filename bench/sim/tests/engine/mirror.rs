//! A mirrored position (a part of a region with two copies, on two memory nodes): random writes and reads, while one
//! memory node or both are cut off or paused. The test acts as the manager. No acknowledged write is lost, no read is
//! older than the last acknowledged write, and both copies are equal in the end.

use std::collections::BTreeMap;

use cxloe_cn_core::engine::{EngineEvent, LegTarget, Pacing};
use cxloe_wire::Transmit;
use cxloe_wire::session::Timing;

use super::*;

const LINES: u64 = 16 * 64;
const TARGETS: usize = 2;

/// Generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Completions of operations, by request id.
#[derive(Default)]
struct Results {
    reads: BTreeMap<u32, Vec<u8>>,
    written: Vec<u32>,
    failed: Vec<u32>,
}

impl Sink for Results {
    fn read(&mut self, id: RequestId, data: &[u8]) {
        self.reads.insert(id.number().unwrap(), data.to_vec());
    }
    fn written(&mut self, id: RequestId) {
        self.written.push(id.number().unwrap());
    }
    fn failed(&mut self, id: RequestId, _: EngineError) {
        self.failed.push(id.number().unwrap());
    }
}

/// Versions of a line, by which reads are checked.
#[derive(Clone, Default)]
struct LineHistory {
    /// Latest version whose write was acknowledged.
    acknowledged: u32,
    /// Latest version that was submitted.
    written: u32,
    /// True while a write or a read of the line is in flight.
    busy: bool,
}

struct World {
    net: SimNetwork,
    link: SimLink,
    engine: Engine,
    mns: Vec<MemoryNode>,
    results: Results,
    random: Random,
    peers: [usize; TARGETS],
    incarnations: [u64; TARGETS],
    in_sync: [bool; TARGETS],
    epoch: u64,
    /// Pending answers of the simulated manager: due time, leg (a copy on one memory node), whether the leg was filled,
    /// and the reported epoch.
    answers: Vec<(Time, usize, bool, u64)>,
    history: Vec<LineHistory>,
    ops: BTreeMap<u32, (u64, Option<u32>, u32)>,
    next: u32,
    cut: [bool; TARGETS],
    stale_count: usize,
    failures: usize,
}

fn mac(index: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, index as u8])
}

fn data(line: u64, version: u32) -> [u8; 64] {
    let mut data = [0; 64];
    data[..8].copy_from_slice(&line.to_le_bytes());
    data[8..12].copy_from_slice(&version.to_le_bytes());
    data[60..].copy_from_slice(&version.to_le_bytes());
    data
}

impl World {
    fn new(seed: u64) -> World {
        World::of_frames(seed, [1514; TARGETS])
    }

    /// A world whose memory nodes have links for frames of these lengths.
    fn of_frames(seed: u64, max_frames: [usize; TARGETS]) -> World {
        let net = SimNetwork::new(seed);
        let link = net.attach(CN, PortConfig::default()).expect("a new address");
        let shape = Shape { pages: 16, page_lines: 64 };
        let mn = |index| {
            let port = net.attach(mac(index), PortConfig::default()).expect("another");
            let responder = ResponderConfig::new(mac(index), max_frames[index], 0, 7 + index as u64);
            MemoryNode::new(index, port, responder, vec![CN], shape)
        };
        let mns: Vec<MemoryNode> = (0..TARGETS).map(mn).collect();
        let mut engine = Engine::new(CacheConfig::OFF);
        let peers = [0, 1].map(|index| {
            let timing = Timing { dead_after: MS * 400, ..TIMING };
            let config = RequesterConfig {
                identity: Identity { own: CN, peer: mac(index), ethertype: ETHERTYPE_DEFAULT },
                max_frame: 1514,
                streams: 2,
                instance: 1,
                key: None,
                keys: None,
                timing,
                seed: (5 + index as u64).into(),
            };
            engine.add_peer(config, net.now())
        });
        engine.add_route(direct(peers[0], 0)).expect("a route");
        let mut world = World {
            net,
            link,
            engine,
            mns,
            results: Results::default(),
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            peers,
            incarnations: [0; TARGETS],
            in_sync: [true, false],
            epoch: 1,
            answers: Vec::new(),
            history: vec![LineHistory::default(); LINES as usize],
            ops: BTreeMap::new(),
            next: 0,
            cut: [false; TARGETS],
            stale_count: 0,
            failures: 0,
        };
        while !world.engine.is_connected() {
            world.step();
        }
        world.incarnations = peers.map(|peer| world.engine.peer_incarnation(peer).expect("it is connected"));
        world.tell();
        world
    }

    /// State of both legs (copies) for the engine; legs that are in sync come first.
    fn legs(&self) -> [LegTarget; TARGETS] {
        let leg = |index: usize| LegTarget {
            peer: self.peers[index],
            cmem: 0,
            incarnation: Some(self.incarnations[index]),
            in_sync: self.in_sync[index],
        };
        let mut legs = [leg(0), leg(1)];
        legs.sort_by_key(|leg| !leg.in_sync);
        legs
    }

    /// Passes the state of both legs (copies) to the engine.
    fn tell(&mut self) {
        let legs = self.legs();
        self.engine.set_legs(0, 0, &legs, self.epoch, self.net.now());
    }

    /// Lets time pass until the next event, and passes frames on. Events of the engine stay in its queue.
    fn exchange(&mut self) {
        let next = self.engine.deadline().at.min(self.net.now() + MS);
        let next = self.net.next_event().map_or(next, |at| at.min(next));
        self.net.step(next.max(self.net.now()));
        let now = self.net.now();
        for (mn, cut) in self.mns.iter_mut().zip(self.cut) {
            if !cut {
                mn.work(now, 64);
            }
        }
        let World { link, engine, results, .. } = self;
        link.receive(64, &mut |frame, tx| engine.handle(frame, now, tx, results)).expect("a simulated link");
        if engine.deadline().is_due(now) {
            engine.poll(now, link.transmit(), results);
        }
        link.flush().expect("a simulated link");
    }

    /// Exchanges frames, without the manager, until `done` holds.
    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let end = self.net.now() + MS * 3000;
        while !done(self) {
            assert!(self.net.now() < end, "{what}: {} requests in flight", self.engine.in_flight());
            self.exchange();
        }
    }

    /// A world in which both legs (copies) are in sync, no request is in flight, and the engine has a line cache.
    fn in_sync_with_cache() -> World {
        let mut world = World::new(1);
        while world.in_sync != [true; 2] || world.engine.in_flight() > 0 {
            world.step();
        }
        world.engine.set_cache(CacheConfig { bytes: 64 * 64, ways: 4 }).expect("nothing is in flight");
        world
    }

    /// Writes a line in the cache, and sends it to the legs (copies).
    fn write_through(&mut self, line: u64, version: u32) {
        let now = self.net.now();
        let written = self.engine.write(line * 64, &data(line, version), ID, now, self.link.transmit());
        assert_eq!(written, Ok(Write::Done), "the line is in the cache");
        assert_eq!(self.engine.flush(now, self.link.transmit()), Ok(false));
    }

    fn step(&mut self) {
        self.exchange();
        let now = self.net.now();
        while let Some(event) = self.engine.poll_event() {
            let delay = MS * self.random.below(8) as u32;
            let index = |mac: Mac| usize::from(mac.0[5]);
            match event {
                EngineEvent::LegSilent { mac, epoch, .. } => {
                    self.answers.push((now + delay, index(mac), false, epoch));
                }
                EngineEvent::LegFilled { mac, epoch, .. } => {
                    self.answers.push((now + delay, index(mac), true, epoch));
                }
                _ => {}
            }
        }
        while let Some(at) = self.answers.iter().position(|(due, ..)| *due <= now) {
            let (_, leg, filled, epoch) = self.answers.remove(at);
            if filled && epoch == self.epoch && !self.in_sync[leg] {
                self.in_sync[leg] = true;
                self.epoch += 1;
            } else if !filled && epoch == self.epoch && self.in_sync == [true; 2] {
                self.in_sync[leg] = false;
                self.epoch += 1;
                self.stale_count += 1;
            } else if !filled && !self.in_sync[leg] {
                self.epoch += 1;
            }
            self.tell();
        }
        self.collect();
    }

    /// Checks the results that have arrived since the last call.
    fn collect(&mut self) {
        for id in std::mem::take(&mut self.results.written) {
            let (line, version, _) = self.ops.remove(&id).expect("a known write");
            let history = &mut self.history[line as usize];
            history.busy = false;
            history.acknowledged = history.acknowledged.max(version.expect("it is a write"));
        }
        for (id, read) in std::mem::take(&mut self.results.reads) {
            let (line, version, floor) = self.ops.remove(&id).expect("a known read");
            assert!(version.is_none());
            let history = &mut self.history[line as usize];
            history.busy = false;
            let got = u32::from_le_bytes(read[8..12].try_into().unwrap());
            if floor > 0 || got > 0 && read[..8] == line.to_le_bytes() {
                assert_eq!(read[..8], line.to_le_bytes(), "line {line} of version {floor} was lost");
                assert!(got >= floor && got <= history.written, "line {line}: {got} after {floor}");
            }
        }
        for id in std::mem::take(&mut self.results.failed) {
            self.failures += 1;
            let (line, _, _) = self.ops.remove(&id).expect("a known operation");
            self.history[line as usize].busy = false;
        }
    }

    /// Begins an operation on a random line, unless one is in flight there.
    fn operate(&mut self) {
        let line = self.random.below(LINES);
        if self.history[line as usize].busy {
            return;
        }
        let (now, id) = (self.net.now(), RequestId::Number(self.next));
        if self.random.below(3) == 0 {
            let floor = self.history[line as usize].acknowledged;
            match self.engine.read(line * 64, id, now, self.link.transmit()) {
                Ok(Read::Sent) => drop(self.ops.insert(self.next, (line, None, floor))),
                Ok(Read::Hit(_)) | Err(_) => return,
            }
        } else {
            let version = self.history[line as usize].written + 1;
            match self.engine.write(line * 64, &data(line, version), id, now, self.link.transmit()) {
                Ok(Write::Sent) => drop(self.ops.insert(self.next, (line, Some(version), 0))),
                Ok(Write::Done) | Err(_) => return,
            }
            self.history[line as usize].written = version;
        }
        self.history[line as usize].busy = true;
        self.next += 1;
    }

    /// Checks that both copies are equal and have the acknowledged writes.
    fn check_copies(&self, seed: u64) {
        for line in 0..LINES {
            let lines = [0, 1].map(|index| self.mns[index].line(CN, line * 64).expect("it is mapped"));
            let (history, got) =
                (&self.history[line as usize], u32::from_le_bytes(lines[0][8..12].try_into().unwrap()));
            assert_eq!(lines[0], lines[1], "seed {seed}: copies of line {line} differ");
            if history.acknowledged > 0 {
                assert!(
                    got >= history.acknowledged && got <= history.written,
                    "seed {seed}: line {line} has {got}"
                );
            }
        }
    }
}

/// Runs random operations and failures, and checks the outcome. Returns how often a leg (a copy on one memory node)
/// became stale, and the number of operations.
fn play(seed: u64) -> (usize, u32) {
    let mut world = World::new(seed);
    let (end, mut change_at) = (world.net.now() + MS * 1500, world.net.now());
    while world.net.now() < end {
        if world.ops.len() < 48 && world.random.below(8) == 0 {
            (0..world.random.below(16)).for_each(|_| world.operate());
        }
        if world.net.now() >= change_at {
            change_at = world.net.now() + MS * (5 + world.random.below(80)) as u32;
            // A paused node answers late; a node that is cut off neither receives nor sends frames.
            world.cut = [0, 1].map(|_| world.random.below(4) == 0);
            world.net.heal_all();
            for index in 0..TARGETS {
                if world.random.below(4) == 0 {
                    world.net.partition(&[mac(index)]);
                }
            }
        }
        world.step();
    }
    world.cut = [false; TARGETS];
    world.net.heal_all();
    let end = world.net.now() + MS * 20_000;
    while !world.ops.is_empty() || world.in_sync != [true; 2] || !world.answers.is_empty() {
        assert!(
            world.net.now() < end,
            "seed {seed}: {} operations in flight, in sync: {:?}, epoch {}",
            world.ops.len(),
            world.in_sync,
            world.epoch
        );
        world.step();
    }
    for _ in 0..200 {
        world.step();
    }
    world.check_copies(seed);
    (world.stale_count, world.next)
}

#[test]
fn no_acknowledged_write_is_lost_whichever_legs_fail() {
    let (stale, operations) = (1..=100).map(play).fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
    assert!(stale > 250 && operations > 30_000, "legs fail often: {stale} in {operations} operations");
}

/// Time from the first request that fills a leg (a copy) of 16 pages until the engine reports the leg as filled. No
/// program has operations in flight.
fn time_to_fill(world: &mut World) -> Duration {
    world.until("the fill begins", |world| world.engine.in_flight() > 0);
    let begun = world.net.now();
    loop {
        world.exchange();
        while let Some(event) = world.engine.poll_event() {
            if matches!(event, EngineEvent::LegFilled { .. }) {
                return world.net.now() - begun;
            }
        }
        assert!(world.net.now() - begun < MS * 3000, "the leg is not filled");
    }
}

#[test]
fn a_leg_is_reported_as_soon_as_it_is_filled() {
    let took = time_to_fill(&mut World::new(1));
    assert!(took < MS * 2, "{took:?}, although a check of the legs is due when the last page is copied");
}

/// Scenario: rate control has tokens for few requests, so that the fill is often without a request in flight, whose
/// answer would continue it. It has to continue when there are tokens.
#[test]
fn a_fill_continues_when_there_are_tokens() {
    let mut world = World::new(1);
    let (now, long) = (world.net.now(), Duration::from_secs(10));
    // The pause halves the rate for `long`: 64 KiB take some 5.5 ms.
    let control = cxloe_cc::Config { t1: long, ..cxloe_cc::Config::for_link(200_000_000) };
    world.engine.set_pacing(Some(Pacing { control, bucket: 1500, class: 0 }), now);
    world.engine.on_nic_pause(now);
    let took = time_to_fill(&mut world);
    assert!(MS * 5 < took && took < MS * 20, "{took:?}");
}

/// Scenario: while a leg (copy) is filled, a write of a page that it has already is lost on the way there, and the
/// session ends and begins again at once. The write is done with the other leg, and the page is copied again.
#[test]
fn a_page_is_copied_again_whose_write_failed_at_the_leg_that_is_filled() {
    let mut world = World::new(1);
    let (now, long) = (world.net.now(), Duration::from_secs(10));
    let control = cxloe_cc::Config { t1: long, ..cxloe_cc::Config::for_link(200_000_000) };
    world.engine.set_pacing(Some(Pacing { control, bucket: 1500, class: 0 }), now);
    world.engine.on_nic_pause(now);
    let copied = |world: &World| world.mns[0].line(CN, 0) == world.mns[1].line(CN, 0);
    world.until("the first page is copied", copied);
    let segment = Segment::straight(0, 1);
    loop {
        let now = world.net.now();
        match world.engine.burst_write(&segment, 1, &data(0, 1), ID, now, world.link.transmit()) {
            Ok(sent) => break assert_eq!(sent, Write::Sent),
            Err(error) => assert_eq!(error, EngineError::Busy),
        }
        world.exchange();
    }
    world.ops.insert(0, (0, Some(1), 0));
    world.history[0].written = 1;
    world.net.partition(&[mac(1)]);
    world.exchange();
    let World { net, link, engine, results, .. } = &mut world;
    let now = net.now();
    engine.bar(|node| node == mac(1), now);
    engine.poll(now, link.transmit(), results);
    engine.bar(|_| false, now);
    net.heal_all();
    assert_eq!(world.in_sync, [true, false], "the leg is still being filled");
    let end = now + MS * 300;
    while !world.ops.is_empty() || world.in_sync != [true; 2] {
        assert!(world.net.now() < end, "in sync: {:?}, {} writes wait", world.in_sync, world.ops.len());
        world.step();
    }
    assert_eq!(world.failures, 0);
    world.check_copies(1);
}

/// Scenario: the link of one memory node carries shorter frames than that of the other, which serves reads. Bursts must
/// have the length that both carry.
#[test]
fn a_burst_fits_the_frames_of_both_legs() {
    let mut world = World::of_frames(1, [1514, 700]);
    while world.in_sync != [true; 2] || world.engine.in_flight() > 0 {
        world.step();
    }
    while world.engine.poll_event().is_some() {}
    let lines = world.engine.burst_write_lines_max(0);
    let (now, segment) = (world.net.now(), Segment::straight(0, lines));
    let content: Vec<u8> = (0..lines as u64).flat_map(|line| data(line, 1)).collect();
    let mask = (1 << lines) - 1;
    let sent = world.engine.burst_write(&segment, mask, &content, ID, now, world.link.transmit());
    assert_eq!(sent, Ok(Write::Sent));
    world.until("the write ends", |world| !world.results.written.is_empty());
    assert_eq!(world.engine.poll_event(), None, "no leg has missed it");
    for (index, mn) in world.mns.iter().enumerate() {
        assert_eq!(mn.line(CN, (lines as u64 - 1) * 64), Some(data(lines as u64 - 1, 1)), "leg {index}");
    }
    // The other leg answers a read that the first one leaves unanswered.
    world.cut = [true, false];
    let (now, lines) = (world.net.now(), world.engine.burst_read_lines_max(0));
    let sent = world.engine.burst_read(&Segment::straight(0, lines), ID, now, world.link.transmit());
    assert_eq!(sent, Ok(BurstRead::Sent));
    world.history[0] = LineHistory { acknowledged: 1, written: 1, busy: true };
    world.ops.insert(0, (0, None, 1));
    world.results.written.clear();
    let end = now + MS * 300;
    while !world.ops.is_empty() {
        assert!(world.net.now() < end, "the read waits for the leg that is cut off");
        world.step();
    }
    assert_eq!(world.failures, 0);
}

/// Scenario: as at the end of a drain, the leg (copy) that serves reads is removed while requests to it are unanswered.
/// The other leg must answer them, without an error.
#[test]
fn reads_and_writes_in_flight_outlive_a_leg_that_leaves() {
    let mut world = World::new(1);
    while world.in_sync != [true; 2] {
        world.step();
    }
    (0..200).for_each(|_| world.operate());
    while !world.ops.is_empty() {
        world.step();
    }
    world.cut = [true, false];
    while world.ops.len() < 24 {
        world.operate();
    }
    world.step();
    let [_, peer] = world.peers;
    let stays = LegTarget { peer, cmem: 0, incarnation: Some(world.incarnations[1]), in_sync: true };
    world.engine.set_legs(0, 0, &[stays], world.epoch + 1, world.net.now());
    let end = world.net.now() + MS * 100;
    while !world.ops.is_empty() {
        assert!(world.net.now() < end, "{} operations wait for a leg that has left", world.ops.len());
        world.step();
    }
    assert_eq!(world.failures, 0);
}

/// Scenario: a leg (copy) is stale and lacks writes, and the manager's store is replaced by an older copy of itself, with an
/// earlier epoch, that lists the leg as in sync. The leg must not be read from, and must be filled.
#[test]
fn a_leg_that_a_restored_store_lists_as_in_sync_is_filled_before_it_is_read() {
    let mut world = World::new(1);
    while world.in_sync != [true; 2] {
        world.step();
    }
    let end = world.net.now() + MS * 20_000;
    world.cut = [true, false];
    while world.in_sync[0] {
        assert!(world.net.now() < end, "the leg that is cut off does not become stale");
        world.operate();
        world.step();
    }
    (0..400).for_each(|_| world.operate());
    while !world.ops.is_empty() {
        assert!(world.net.now() < end, "{} operations wait for a stale leg", world.ops.len());
        world.step();
    }
    let stale_count = world.stale_count;
    world.answers.clear();
    (world.cut, world.in_sync, world.epoch) = ([false; TARGETS], [true; TARGETS], 0);
    let legs = world.legs();
    world.engine.set_restored_legs(0, 0, &legs, world.epoch, world.net.now());
    while world.stale_count == stale_count || world.in_sync != [true; 2] || !world.ops.is_empty() {
        assert!(world.net.now() < end, "in sync: {:?}, epoch {}", world.in_sync, world.epoch);
        if world.in_sync != [true; 2] || world.stale_count == stale_count {
            world.operate();
        }
        world.step();
    }
    (0..200).for_each(|_| world.step());
    world.check_copies(1);
}

/// Scenario: a memory node unmaps a leg (a copy) before the compute node removes the leg. The requests that the memory
/// node refuses must be answered by the other leg.
#[test]
fn what_a_leg_refuses_that_has_left_goes_to_the_other() {
    for steps in 0..2 {
        let mut world = World::new(3);
        while world.in_sync != [true; 2] {
            world.step();
        }
        (0..200).for_each(|_| world.operate());
        while !world.ops.is_empty() {
            world.step();
        }
        let leg = |peer: usize, cmem: u64| LegTarget {
            peer: world.peers[peer],
            cmem,
            incarnation: Some(world.incarnations[peer]),
            in_sync: true,
        };
        // No memory is mapped at this CMem address, which stands for the address of an unmapped leg (copy).
        let (unmapped, stays) = (leg(0, 1 << 30), leg(1, 0));
        world.engine.set_legs(0, 0, &[unmapped], world.epoch + 1, world.net.now());
        let now = world.net.now();
        for line in 0..24 {
            let id = RequestId::Number(world.next);
            let sent = world.engine.read(line * 64, id, now, world.link.transmit());
            assert!(matches!(sent, Ok(Read::Sent)), "{sent:?}");
            world.ops.insert(world.next, (line, None, world.history[line as usize].acknowledged));
            world.next += 1;
        }
        (0..steps).for_each(|_| world.step());
        world.engine.set_legs(0, 0, &[stays], world.epoch + 2, world.net.now());
        let end = world.net.now() + MS * 300;
        while !world.ops.is_empty() {
            assert!(world.net.now() < end, "{} operations wait for a leg that has left", world.ops.len());
            world.step();
        }
        assert_eq!(world.failures, 0, "after {steps} steps");
    }
}

/// Scenario: the leg (copy) to read from is silent until its session dies, and its memory node comes back without its
/// content before the manager has decided. A read in flight must not be answered from what is there now.
#[test]
fn a_read_in_flight_is_not_answered_by_a_leg_that_has_lost_its_content() {
    let mut world = World::in_sync_with_cache();
    world.write_through(0, 1);
    world.until("the line is written", |world| world.engine.in_flight() == 0);
    world.cut = [true, false];
    let (now, id) = (world.net.now(), RequestId::Number(1));
    let sent = world.engine.burst_read(&Segment::straight(0, 1), id, now, world.link.transmit());
    assert_eq!(sent, Ok(BurstRead::Sent));
    (world.history[0].written, world.history[0].acknowledged) = (1, 1);
    world.ops.insert(1, (0, None, 1));
    world.until("the session dies", |world| world.engine.in_flight() == 0);
    world.mns[0].restart(false);
    world.cut = [false; 2];
    world.until("the memory node is back", |world| world.engine.is_connected());
    world.incarnations[0] = world.engine.peer_incarnation(world.peers[0]).expect("it is connected");
    let end = world.net.now() + MS * 300;
    while !world.ops.is_empty() {
        assert!(world.net.now() < end, "the read waits for a leg without content");
        world.step();
    }
    assert_eq!(world.failures, 0);
}

/// Scenario: a line is written back twice while both memory nodes are silent, and both sessions die. The first content
/// must not replace the second, whose write was acknowledged.
#[test]
fn the_last_of_several_failed_write_backs_of_a_line_is_kept() {
    let mut world = World::in_sync_with_cache();
    // Places of writes in flight are used again in the reverse order.
    for (id, line) in [1, 2].into_iter().enumerate() {
        let (now, id) = (world.net.now(), RequestId::Number(id as u32));
        let segment = Segment::straight(line * 64, 1);
        let sent = world.engine.burst_write(&segment, 1, &data(line, 1), id, now, world.link.transmit());
        assert_eq!(sent, Ok(Write::Sent));
    }
    world.until("both writes are done", |world| world.results.written.len() == 2);
    world.cut = [true; 2];
    world.write_through(0, 1);
    world.write_through(0, 2);
    world.until("both write-backs fail", |world| world.engine.in_flight() == 0);
    world.until("the line is kept", |world| world.engine.stranded() == 1);
    world.cut = [false; 2];
    world.until("it is written", |world| world.engine.stranded() == 0 && world.engine.in_flight() == 0);
    for (index, mn) in world.mns.iter().enumerate() {
        assert_eq!(mn.line(CN, 0), Some(data(0, 2)), "leg {index}");
    }
}

/// A world in which the write-back of line 0, of version 1, has reached one leg (copy) only. The session with the leg
/// to read from has died meanwhile and begun again, and the manager has not decided yet.
fn half_written_back() -> World {
    let mut world = World::in_sync_with_cache();
    world.net.partition(&[mac(0)]);
    world.write_through(0, 1);
    world.until("the session dies", |world| world.engine.in_flight() == 0);
    world.net.heal_all();
    world.until("it begins again", |world| world.engine.is_connected());
    assert_ne!(world.mns[0].line(CN, 0), Some(data(0, 1)));
    world
}

#[test]
fn a_line_is_not_read_from_a_leg_that_has_missed_its_write_back() {
    let mut world = half_written_back();
    (world.history[0].written, world.history[0].acknowledged) = (1, 1);
    let end = world.net.now() + MS * 300;
    loop {
        let (now, id) = (world.net.now(), RequestId::Number(1));
        match world.engine.burst_read(&Segment::straight(0, 1), id, now, world.link.transmit()) {
            Ok(sent) => break assert_eq!(sent, BurstRead::Sent),
            Err(error) => assert_eq!(error, EngineError::Busy),
        }
        assert!(world.net.now() < end, "the manager's decision does not end the wait");
        world.step();
    }
    world.ops.insert(1, (0, None, 1));
    while !world.ops.is_empty() {
        assert!(world.net.now() < end, "the read is not answered");
        world.step();
    }
    assert_eq!(world.failures, 0);
}

#[test]
fn a_write_back_that_is_given_up_does_not_replace_a_later_one() {
    let mut world = half_written_back();
    let (now, end) = (world.net.now(), world.net.now() + MS * 1500);
    let written = world.engine.write(0, &data(0, 2), ID, now, world.link.transmit());
    assert_eq!(written, Ok(Write::Done), "the line is in the cache");
    while !world.engine.flush(world.net.now(), world.link.transmit()).expect("both are connected") {
        assert!(world.net.now() < end, "the flush does not end");
        world.exchange();
    }
    for (index, mn) in world.mns.iter().enumerate() {
        assert_eq!(mn.line(CN, 0), Some(data(0, 2)), "leg {index}");
    }
}

/// Scenario: both memory nodes have unmapped a region before the compute node detaches it. A write-back that both
/// refuse must end, as that of a region with one copy does.
#[test]
fn a_write_back_that_both_legs_refuse_ends() {
    let mut world = World::in_sync_with_cache();
    // No memory is mapped at this CMem address.
    let leg = |index: usize| LegTarget {
        peer: world.peers[index],
        cmem: 1 << 30,
        incarnation: Some(world.incarnations[index]),
        in_sync: true,
    };
    let (legs, now) = ([leg(0), leg(1)], world.net.now());
    world.engine.set_legs(0, 0, &legs, world.epoch + 1, now);
    world.write_through(0, 1);
    let end = now + MS * 100;
    while !world.engine.flush(world.net.now(), world.link.transmit()).expect("both are connected") {
        assert!(world.net.now() < end, "the write-back is sent for ever");
        world.exchange();
    }
    let mut events = std::iter::from_fn(|| world.engine.poll_event());
    assert!(events.any(|event| matches!(event, EngineEvent::WriteBackRefused { hpa: 0, .. })));
}

/// Scenario: a write is lost on the way to one leg (copy), and the manager decides about the leg only after the write
/// was given up. The leg must be filled with the page.
#[test]
fn a_leg_is_filled_with_the_page_of_a_write_that_was_given_up() {
    let mut world = World::in_sync_with_cache();
    let now = world.net.now();
    world.net.partition(&[mac(1)]);
    let segment = Segment::straight(0, 1);
    let sent = world.engine.burst_write(&segment, 1, &data(0, 1), ID, now, world.link.transmit());
    assert_eq!(sent, Ok(Write::Sent));
    world.history[0].written = 1;
    world.ops.insert(0, (0, Some(1), 0));
    world.until("the session dies", |world| world.engine.in_flight() == 0);
    world.net.heal_all();
    world.until("the write is given up", |world| world.results.failed == [0]);
    let (stale_count, end) = (world.stale_count, world.net.now() + MS * 3000);
    while world.stale_count == stale_count || world.in_sync != [true; 2] {
        assert!(world.net.now() < end, "in sync: {:?}, epoch {}", world.in_sync, world.epoch);
        world.step();
    }
    world.check_copies(1);
}

/// Scenario: a line is written back to both legs (copies), one of which answers and leaves its region. A region that is
/// mirrored on its memory node comes, and the session with the other leg dies. The line must be kept for its own region.
#[test]
fn a_failed_write_back_goes_to_no_other_region() {
    let mut world = World::in_sync_with_cache();
    let [first, second] = world.peers;
    let leg =
        |peer: usize, page: u64| LegTarget { peer, cmem: page * 4096, incarnation: None, in_sync: true };
    world.cut = [false, true];
    world.write_through(0, 1);
    world.until("one leg answers", |world| world.engine.in_flight() == 1);
    let now = world.net.now();
    world.engine.set_legs(0, 0, &[leg(second, 0)], world.epoch + 1, now);
    let target = RouteTarget { peer: first, cmem: 8 * 4096, incarnation: None, mirror: None };
    world.engine.add_route(Route::direct(EXTENT, 4 * 4096, target)).expect("a free range");
    world.engine.set_legs(EXTENT, 0, &[leg(first, 8), leg(first, 12)], 1, now);
    let segment = Segment::straight(EXTENT, 1);
    let sent = world.engine.burst_write(&segment, 1, &data(99, 9), ID, now, world.link.transmit());
    assert_eq!(sent, Ok(Write::Sent));
    world.until("the other region is written", |world| world.results.written.len() == 1);
    // Longer than the time-out of the session and the wait for the manager's decision.
    let end = now + MS * 1500;
    world.until("time passes", |world| world.net.now() >= end);
    for page in [8, 12] {
        assert_eq!(world.mns[0].line(CN, page * 4096), Some(data(99, 9)), "CMem page {page}");
    }
    assert_eq!(world.engine.stranded(), 1, "the line waits for its memory node");
}

/// Scenario: both memory nodes are silent, and the region is destroyed while writes to it are unanswered. The writes must
/// fail with the sessions.
#[test]
fn writes_in_flight_end_although_their_region_is_gone() {
    let mut world = World::in_sync_with_cache();
    world.cut = [true; 2];
    let now = world.net.now();
    for line in 0..8 {
        let (id, segment) = (RequestId::Number(line as u32), Segment::straight(line * 64, 1));
        let sent = world.engine.burst_write(&segment, 1, &data(line, 1), id, now, world.link.transmit());
        assert_eq!(sent, Ok(Write::Sent));
    }
    world.engine.remove_route(0).expect("the region's route");
    world.until("the writes fail", |world| world.results.failed.len() == 8);
    assert!(world.results.written.is_empty());
}

/// A transmit ring with room for a few frames.
struct AlmostFull<'a> {
    ring: &'a mut dyn Transmit,
    room: usize,
}

impl Transmit for AlmostFull<'_> {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.room == 0 { None } else { self.ring.slot(len) }
    }

    fn commit(&mut self) {
        self.room -= 1;
        self.ring.commit();
    }
}

/// A world in which the ring had room for one of the two requests of a write to line 0, of version 7. The other request
/// is for the leg (copy) to read from.
fn half_sent() -> World {
    let mut world = World::in_sync_with_cache();
    let leg = |index: usize| LegTarget {
        peer: world.peers[index],
        cmem: 0,
        incarnation: Some(world.incarnations[index]),
        in_sync: true,
    };
    let (legs, now) = ([leg(1), leg(0)], world.net.now());
    world.engine.set_legs(0, 0, &legs, world.epoch + 1, now);
    let mut ring = AlmostFull { ring: world.link.transmit(), room: 1 };
    let sent = world.engine.burst_write(&Segment::straight(0, 1), 1, &data(0, 7), ID, now, &mut ring);
    assert_eq!((sent, ring.room), (Ok(Write::Sent), 0));
    world
}

#[test]
fn a_read_does_not_overtake_the_second_request_of_a_write() {
    let mut world = half_sent();
    let (now, id) = (world.net.now(), RequestId::Number(1));
    let sent = world.engine.burst_read(&Segment::straight(0, 1), id, now, world.link.transmit());
    assert_eq!(sent, Ok(BurstRead::Sent));
    world.until("both end", |world| world.results.reads.len() + world.results.written.len() == 2);
    assert_eq!(world.results.reads[&1], data(0, 7));
}

#[test]
fn the_second_request_of_a_write_is_not_sent_once_its_region_is_gone() {
    let mut world = half_sent();
    world.engine.remove_route(0).expect("the region's route");
    world.until("the write fails", |world| world.results.failed == [0]);
    assert_eq!(world.mns[0].line(CN, 0), Some(data(0, 7)));
    assert_ne!(world.mns[1].line(CN, 0), Some(data(0, 7)));
}
