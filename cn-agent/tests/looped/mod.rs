//! A compute node's port with real memory-node services over a simulated network, which advances whenever the port
//! polls for frames.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use cxloe_cn_core::attach::STREAMS_DEFAULT;
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Route, RouteTarget};
use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
use cxloe_fabric::model::Watermark;
use cxloe_link::sim::{PortConfig, SimLink, SimNetwork};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Link, LinkCounters, LinkError, LinkInfo, OnFrame};
use cxloe_mn::control::Mappings;
use cxloe_mn::control::static_map::{self, StaticMap, StaticRange};
use cxloe_mn::pool::{ByteSize, Host, PoolOptions};
use cxloe_mn_core::service::Service;
use cxloe_mn_core::translation::PageTable;
use cxloe_port::port::Port;
use cxloe_wire::Transmit;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::session::{Identity, RequesterConfig, ResponderConfig, Timing};

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Bytes that each memory node grants the compute node: one extent, so that CMem and pool have the same layout.
pub const BYTES: u64 = 128 << 10;
/// HPA of the first region.
pub const HPA: u64 = 1 << 32;

/// The compute node's link, and the memory nodes at the other end of the network.
struct Looped {
    link: SimLink,
    net: SimNetwork,
    nodes: Vec<(SimLink, Service)>,
}

impl Link for Looped {
    fn info(&self) -> &LinkInfo {
        self.link.info()
    }
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        self.net.step(self.net.now() + Duration::from_micros(5));
        let now = self.net.now();
        for (link, service) in &mut self.nodes {
            service.begin_batch();
            link.receive(64, &mut |frame, tx| service.handle(frame, now, tx))?;
            service.poll(now, link.transmit());
            link.flush()?;
        }
        self.link.receive(budget, on_frame)
    }
    fn transmit(&mut self) -> &mut dyn Transmit {
        self.link.transmit()
    }
    fn flush(&mut self) -> Result<(), LinkError> {
        self.link.flush()
    }
    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.link.wait(timeout)
    }
    fn readiness(&self) -> Option<RawFd> {
        None
    }
    fn counters(&mut self) -> LinkCounters {
        self.link.counters()
    }
}

/// A port without a line cache, with sessions to `count` memory nodes; and the memory nodes' page tables.
pub fn open(count: u8, max_frame: usize) -> (Port, Vec<Arc<PageTable>>) {
    open_with(CacheConfig::OFF, count, max_frame)
}

/// Like [`open`], but with the line cache `cache`.
pub fn open_with(cache: CacheConfig, count: u8, max_frame: usize) -> (Port, Vec<Arc<PageTable>>) {
    let net = SimNetwork::new(7);
    let link = net.attach(CN, PortConfig::default()).expect("a new address");
    let mut engine = Engine::new(cache);
    let (mut nodes, mut tables) = (Vec::new(), Vec::new());
    for index in 0..count {
        let mac = Mac([2, 0, 0, 0, 1, index]);
        let options = PoolOptions {
            bytes: Some(BYTES),
            extent_bytes: Some(BYTES),
            prefault: Some(false),
            ..PoolOptions::default()
        };
        let pool = cxloe_mn::pool::open(&options, &Host::default(), None, &|_, _| {}).expect("a small pool");
        let mut mappings = Mappings::open(Arc::new(pool), Watermark::default()).0;
        let range = StaticRange { cn: CN, base: ByteSize(0), size: ByteSize(BYTES) };
        static_map::apply(&StaticMap { ranges: vec![range] }, &mut mappings).expect("it fits");
        let table = mappings.table().clone();
        let config = ResponderConfig::new(mac, 1514, table.pool().incarnation(), 3);
        let port = net.attach(mac, PortConfig::default()).expect("another address");
        nodes.push((port, Service::new(config, table.clone(), 16)));
        tables.push(table);
        let config = RequesterConfig {
            identity: Identity { own: CN, peer: mac, ethertype: ETHERTYPE_DEFAULT },
            max_frame,
            streams: STREAMS_DEFAULT,
            instance: 1,
            key: None,
            keys: None,
            timing: Timing::default(),
            seed: u64::from(index).into(),
        };
        engine.add_peer(config, cxloe_wire::time::Time::ZERO);
    }
    let looped = Looped { link, net, nodes };
    let mut port = Port::new(Box::new(looped), engine, WaitStyle::Busy);
    port.connect(Duration::from_secs(20)).expect("sessions");
    (port, tables)
}

/// A route at `base`, interleaved over memory nodes from `first` on, with the first or second half of their memory.
pub fn route(base: u64, ways: Ways, granularity: Granularity, first: usize, second_half: bool) -> Route {
    let size = u64::from(ways.count()) * BYTES / 2;
    let cmem = if second_half { BYTES / 2 } else { 0 };
    let target = |position| RouteTarget { peer: first + position, cmem, incarnation: None, mirror: None };
    let targets = (0..ways.count() as usize).map(target).collect();
    Route { decoder: Decoder { base, size, ways, granularity }, targets }
}

/// Bytes that differ from line to line and between values of `salt`.
pub fn pattern(bytes: usize, salt: u32) -> Vec<u8> {
    let word = |i: usize| (i as u32).wrapping_mul(0x9E37_79B9).wrapping_add(salt).to_le_bytes();
    (0..bytes / 4).flat_map(word).collect()
}
