//! A memory node: the real service over a real pool, which survives restarts or does not.

use std::sync::Arc;

use cxloe_gmm::model::Watermark;
use cxloe_mn::control::{Mappings, StaticMap, StaticRange};
use cxloe_mn::pool::{ByteSize, Host, MpAddr, Pool, PoolOptions};
use cxloe_mn::service::Service;
use cxloe_wire::frame::{LINE_SIZE, Mac};
use cxloe_wire::link::Link;
use cxloe_wire::link::sim::SimLink;
use cxloe_wire::session::ResponderConfig;
use cxloe_wire::time::Time;

use crate::model::{LINES, Origin, content, offset};

/// Bytes of an extent: what one life of a region gets.
pub const EXTENT: u64 = 64 << 10;
/// Lives of each region.
pub const LIVES: u64 = 8;

pub struct Mn {
    pub mac: Mac,
    pub config: ResponderConfig,
    /// The incarnations of its pools, the present one last.
    pub incarnations: Vec<u64>,
    link: SimLink,
    index: usize,
    cns: Vec<Mac>,
    mappings: Mappings,
    service: Service,
    polled: Time,
}

/// A new pool in which each CN has a range for every life of its region, filled with what it is to read first.
fn memory(index: usize, cns: &[Mac], losses: usize) -> Mappings {
    let extents = cns.len() as u64 * LIVES;
    let options = PoolOptions {
        bytes: Some(extents * EXTENT),
        extent_bytes: Some(EXTENT),
        prefault: Some(false),
        ..PoolOptions::default()
    };
    let pool = Pool::open(&options, &Host::default(), &|_, _| {}).expect("a small pool");
    let mut mappings = Mappings::open(Arc::new(pool), Watermark::default()).0;
    let range = |cn: &Mac| StaticRange { cn: *cn, base: ByteSize(0), size: ByteSize(LIVES * EXTENT) };
    StaticMap { ranges: cns.iter().map(range).collect() }.apply(&mut mappings).expect("it fits");
    let table = mappings.table().clone();
    for t in table.iter() {
        let cn = cns.iter().position(|mac| mac.to_u64() == t.cn).expect("only these were mapped");
        let origin = Origin { cn, mn: index, life: t.cmem_extent, losses };
        for line in 0..LINES {
            let at = MpAddr(table.pool().extent_start(t.mp_extent).0 + offset(line));
            table.pool().write_lines(at, &content(origin.initial(line)));
        }
    }
    mappings
}

impl Mn {
    pub fn new(index: usize, link: SimLink, config: ResponderConfig, cns: Vec<Mac>) -> Mn {
        let mappings = memory(index, &cns, 0);
        let config = ResponderConfig { incarnation: mappings.table().pool().incarnation(), ..config };
        let incarnations = vec![config.incarnation];
        let service = Service::new(config.clone(), mappings.table().clone(), 16);
        Mn { mac: config.own, config, incarnations, link, index, cns, mappings, service, polled: Time::ZERO }
    }

    /// Comes back as a new process, with its pool or without.
    pub fn restart(&mut self, keeps_pool: bool) {
        self.config.seed += 1;
        if !keeps_pool {
            self.mappings = memory(self.index, &self.cns, self.incarnations.len());
            self.config.incarnation = self.mappings.table().pool().incarnation();
            self.incarnations.push(self.config.incarnation);
        }
        self.service = Service::new(self.config.clone(), self.mappings.table().clone(), 16);
    }

    /// How many times it has lost its pool.
    pub fn losses(&self) -> usize {
        self.incarnations.len() - 1
    }

    /// The line at `cmem` of CN `cn`, as the pool has it.
    pub fn line(&self, cn: Mac, cmem: u64) -> [u8; LINE_SIZE] {
        let table = self.mappings.table();
        let t = table.iter().find(|t| t.cn == cn.to_u64() && t.cmem_extent == cmem / EXTENT).expect("mapped");
        let mut out = [0; LINE_SIZE];
        table.pool().read_lines(MpAddr(table.pool().extent_start(t.mp_extent).0 + cmem % EXTENT), &mut out);
        out
    }

    /// Takes what has arrived; whether there was anything.
    pub fn work(&mut self, now: Time, batch: usize) -> bool {
        let Mn { link, service, .. } = self;
        service.begin_batch();
        let received =
            link.receive(batch, &mut |frame, tx| service.handle(frame, now, tx)).expect("a simulated link");
        service.finish_batch(link.transmit());
        if now.since(self.polled).as_millis() >= 100 {
            self.polled = now;
            service.responder().poll(now);
        }
        link.flush().expect("a simulated link");
        received > 0
    }

    /// Nothing waits in its sessions.
    pub fn is_at_rest(&mut self, now: Time) -> bool {
        self.service.responder().statuses(now).iter().all(|s| s.waiting == 0 && s.buffered == 0)
    }
}
