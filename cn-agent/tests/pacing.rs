//! Several compute nodes share a memory node that serves fewer requests than they could send. With rate control each
//! compute node gets its share, and fewer requests are lost in the queue than without. Engines and service are real,
//! and time is virtual.

use std::sync::Arc;
use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{
    BUCKET_DEFAULT, Engine, EngineError, Pacing, Read, RequestId, Route, RouteTarget, Segment, Sink,
};
use cxloe_fabric::model::Watermark;
use cxloe_link::sim::{PortConfig, SimLink, SimNetwork};
use cxloe_link::{Link, LinkCounters};
use cxloe_mn::control::Mappings;
use cxloe_mn::control::static_map::{self, StaticMap, StaticRange};
use cxloe_mn::pool::{ByteSize, Host, PoolOptions};
use cxloe_mn_core::congestion::{CongestionConfig, CongestionSignals};
use cxloe_mn_core::service::Service;
use cxloe_wire::frame::WIRE_OVERHEAD;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac, PfcVector};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{Identity, RequesterConfig, ResponderConfig, Timing};
use cxloe_wire::time::Time;

const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
/// Bytes of memory that each compute node has.
const BYTES: u64 = 1 << 20;
/// Time that the memory node takes for a request.
const SERVICE: Duration = Duration::from_micros(1);
/// Number of frames that the memory node's receive queue holds.
const FIFO: usize = 512;
const LINK: u64 = 10_000_000_000;

/// Sink that counts completed requests.
#[derive(Default)]
struct Ended {
    done: u64,
    failed: u64,
}

impl Sink for Ended {
    fn read(&mut self, _: RequestId, _: &[u8]) {
        self.done += 1;
    }
    fn written(&mut self, _: RequestId) {
        self.done += 1;
    }
    fn failed(&mut self, _: RequestId, _: EngineError) {
        self.failed += 1;
    }
}

/// A compute node that reads line after line, with `depth` requests in flight.
struct Cn {
    link: SimLink,
    engine: Engine,
    ended: Ended,
    made: u64,
    depth: u64,
}

impl Cn {
    fn new(net: &SimNetwork, index: u8, depth: u64, paced: bool) -> Cn {
        let own = Mac([2, 0, 0, 0, 0, 0x10 + index]);
        let port = PortConfig { egress: Some("10Gbit/s".parse().expect("a rate")), ..PortConfig::default() };
        let link = net.attach(own, port).expect("a new address");
        let mut engine = Engine::new(CacheConfig::OFF);
        if paced {
            let pacing =
                Pacing { control: cxloe_cc::Config::for_link(LINK), bucket: BUCKET_DEFAULT, class: 0 };
            engine.set_pacing(Some(pacing), Time::ZERO);
        }
        let config = RequesterConfig {
            identity: Identity { own, peer: MN, ethertype: ETHERTYPE_DEFAULT },
            max_frame: 1514,
            streams: 4,
            instance: u64::from(index),
            key: None,
            keys: None,
            timing: Timing::default(),
            seed: (1 + u64::from(index)).into(),
        };
        let peer = engine.add_peer(config, Time::ZERO);
        let target = RouteTarget { peer, cmem: 0, incarnation: None, mirror: None };
        engine.add_route(Route::direct(0, BYTES, target)).expect("the first route");
        Cn { link, engine, ended: Ended::default(), made: 0, depth }
    }

    /// Handles frames that have arrived, and sends requests until `depth` are in flight.
    fn work(&mut self, now: Time) {
        let Cn { link, engine, ended, made, depth } = self;
        link.receive(64, &mut |frame, tx| engine.handle(frame, now, tx, ended)).expect("a simulated link");
        while engine.is_connected() && *made - ended.done - ended.failed < *depth {
            let hpa = *made * 64 % BYTES;
            match engine.read(hpa, RequestId::Number(*made as u32), now, link.transmit()) {
                Ok(Read::Sent) => *made += 1,
                Ok(Read::Hit(_)) => unreachable!("there is no cache"),
                Err(_) => break,
            }
        }
        if engine.deadline().is_due(now) {
            engine.poll(now, link.transmit(), ended);
        }
        link.flush().expect("a simulated link");
    }
}

/// Counts at the end of a run.
#[derive(Debug)]
struct Figures {
    /// Number of completed requests of each compute node.
    done: Vec<u64>,
    dropped: u64,
    repeated: u64,
    pauses: u64,
}

impl Figures {
    fn sum(&self) -> u64 {
        self.done.iter().sum()
    }
}

/// Runs `depths.len()` compute nodes for `span` of virtual time.
fn run(depths: &[u64], paced: bool, span: Duration) -> Figures {
    let net = SimNetwork::new(7);
    let fifo = PortConfig {
        egress: Some("10Gbit/s".parse().expect("a rate")),
        ingress: Some("10Gbit/s".parse().expect("a rate")),
        fifo_capacity: FIFO,
        ..PortConfig::default()
    };
    let mut mn = net.attach(MN, fifo).expect("a new address");
    let mut cns: Vec<Cn> = (0..).zip(depths).map(|(i, depth)| Cn::new(&net, i, *depth, paced)).collect();
    let mut service = service(&cns, paced);
    let (mut now, mut mn_free) = (Time::ZERO, Time::ZERO);
    let end = now + span;
    while now < end {
        let mn_due = (net.fifo(MN).is_some_and(|f| f.occupancy > 0)).then_some(mn_free);
        let due = cns.iter().map(|cn| cn.engine.deadline().at).chain(net.next_event()).chain(mn_due).min();
        now = due.unwrap_or(end).max(now).min(end);
        net.step(now);
        for cn in &mut cns {
            cn.work(now);
        }
        if now >= mn_free {
            service.begin_batch();
            let received =
                mn.receive(1, &mut |frame, tx| service.handle(frame, now, tx)).expect("a simulated link");
            service.poll(now, mn.transmit());
            match service.check_queue(|count| mn.holds(count), now) {
                CongestionSignals::Quiet => {}
                verdict => drop(service.send_signals(verdict, mn.transmit())),
            }
            mn.flush().expect("a simulated link");
            if received > 0 {
                mn_free = now + SERVICE;
            }
        }
    }
    let repeated = |cn: &Cn| cn.engine.sessions()[0].counters.retransmitted;
    assert!(cns.iter().all(|cn| cn.ended.failed == 0), "no request fails");
    Figures {
        done: cns.iter().map(|cn| cn.ended.done).collect(),
        dropped: net.fifo(MN).map_or(0, |fifo| fifo.dropped),
        repeated: cns.iter().map(repeated).sum(),
        pauses: cns.iter().map(|cn| cn.engine.counters().pauses_mn).sum(),
    }
}

/// A memory-node service with memory for every compute node.
fn service(cns: &[Cn], watched: bool) -> Service {
    let options = PoolOptions {
        bytes: Some(cns.len() as u64 * BYTES),
        extent_bytes: Some(BYTES),
        prefault: Some(false),
        ..PoolOptions::default()
    };
    let pool = cxloe_mn::pool::open(&options, &Host::default(), None, &|_, _| {}).expect("a small pool");
    let mut mappings = Mappings::open(Arc::new(pool), Watermark::default()).0;
    let range = |cn: &Cn| StaticRange { cn: cn.link.info().mac, base: ByteSize(0), size: ByteSize(BYTES) };
    static_map::apply(&StaticMap { ranges: cns.iter().map(range).collect() }, &mut mappings)
        .expect("it fits");
    let config = ResponderConfig::new(MN, 1514, mappings.table().pool().incarnation(), 3);
    let mut service = Service::new(config, mappings.table().clone(), 16);
    let threshold = if watched { FIFO / 4 } else { 0 };
    service.set_congestion(CongestionConfig { threshold, ..CongestionConfig::default() });
    service
}

#[test]
fn several_nodes_share_a_slow_one_and_none_starves() {
    let span = Duration::from_millis(60);
    let depths = [400; 4];
    let (free, paced) = (run(&depths, false, span), run(&depths, true, span));
    println!("without rate control {free:?}\nwith {paced:?}");
    assert!(free.dropped > 0, "too easy to show anything: {free:?}");
    assert!(paced.pauses > 0, "{paced:?}");
    assert!(paced.dropped * 4 < free.dropped && paced.repeated < free.repeated, "{paced:?} {free:?}");
    let fair = paced.sum() / 4;
    assert!(paced.done.iter().all(|done| *done > fair * 6 / 10 && *done < fair * 14 / 10), "{paced:?}");
    // At least 80 % of the memory node's capacity is used.
    assert!(paced.sum() > 60_000 * 8 / 10, "{paced:?}");
}

/// Tests that a compute node that requests little is not slowed down by others that request much.
#[test]
fn who_asks_little_gets_it() {
    let span = Duration::from_millis(60);
    let paced = run(&[400, 400, 400, 2], true, span);
    println!("{paced:?}");
    let alone = run(&[2], true, span);
    assert_eq!(alone.pauses, 0, "{alone:?}");
    assert!(paced.done[3] > 0 && paced.sum() > 60_000 * 8 / 10, "{paced:?}");
}

/// Returns the bits per second on the wire of a compute node that is paced to half of 1 Gbit/s, measured over
/// half a second. Reads count by their responses, writes by their requests (R13); with `bursts`, both are
/// bursts of lines.
fn moved(bursts: bool, writes: bool) -> f64 {
    let span = Duration::from_millis(500);
    let net = SimNetwork::new(1);
    let mut mn = net.attach(MN, PortConfig::default()).expect("a new address");
    let mut cn = Cn::new(&net, 0, 64, false);
    let long = Duration::from_secs(10);
    let control = cxloe_cc::Config { t1: long, ..cxloe_cc::Config::for_link(1_000_000_000) };
    cn.engine.set_pacing(Some(Pacing { control, bucket: BUCKET_DEFAULT, class: 5 }), Time::ZERO);
    let mut service = service(std::slice::from_ref(&cn), false);
    let mut vector = PfcVector { enabled: 1 << 5, quanta: [0; 8] };
    vector.quanta[5] = 100;
    let (mut now, mut before) = (Time::ZERO, None);
    let line = vec![1; 23 * 64];
    while now < Time::ZERO + span {
        let due = net.next_event().into_iter().chain([cn.engine.deadline().at]).min().expect("a deadline");
        now = due.max(now).min(Time::ZERO + span);
        net.step(now);
        let Cn { link, engine, ended, made, depth } = &mut cn;
        link.receive(64, &mut |frame, tx| engine.handle(frame, now, tx, ended)).expect("a simulated link");
        if engine.is_connected() && before.is_none() {
            engine.on_pfc(&vector, now);
            before = Some((now, link.counters(), mn.counters()));
        }
        while before.is_some() && *made - ended.done < *depth {
            let (hpa, lines) = (*made * 4096 % BYTES, if bursts { 23 } else { 1 });
            let tx = link.transmit();
            let sent = match (writes, bursts) {
                (false, true) => engine
                    .burst_read(&Segment::straight(hpa, lines), RequestId::Number(*made as u32), now, tx)
                    .map(drop),
                (false, false) => engine.read(hpa, RequestId::Number(*made as u32), now, tx).map(drop),
                (true, true) => {
                    let (segment, data) = (Segment::straight(hpa, lines), &line[..lines * 64]);
                    engine
                        .burst_write(
                            &segment,
                            (1 << lines) - 1,
                            data,
                            RequestId::Number(*made as u32),
                            now,
                            tx,
                        )
                        .map(drop)
                }
                (true, false) => {
                    engine.write(hpa, &[2; 64], RequestId::Number(*made as u32), now, tx).map(drop)
                }
            };
            match sent {
                Ok(()) => *made += 1,
                Err(EngineError::Busy) => break,
                Err(error) => panic!("{error}"),
            }
        }
        if engine.deadline().is_due(now) {
            engine.poll(now, link.transmit(), ended);
        }
        link.flush().expect("a simulated link");
        service.begin_batch();
        mn.receive(64, &mut |frame, tx| service.handle(frame, now, tx)).expect("a simulated link");
        service.poll(now, mn.transmit());
        mn.flush().expect("a simulated link");
    }
    let (since, cn_before, mn_before) = before.expect("a session");
    let sent = |now: LinkCounters, before: LinkCounters| {
        (now.tx_bytes - before.tx_bytes) + (now.tx_frames - before.tx_frames) * WIRE_OVERHEAD as u64
    };
    let bytes = if writes { sent(cn.link.counters(), cn_before) } else { sent(mn.counters(), mn_before) };
    bytes as f64 * 8.0 / now.since(since).as_secs_f64()
}

/// Tests R13: tokens are spent on the larger of request and response, so neither direction exceeds the rate.
#[test]
fn what_moves_keeps_the_rate_both_ways() {
    for (bursts, writes) in [(false, false), (true, false), (false, true), (true, true)] {
        let rate = moved(bursts, writes);
        assert!((0.49e9..=0.502e9).contains(&rate), "bursts {bursts}, writes {writes}: {rate:.3e} bit/s");
    }
}
