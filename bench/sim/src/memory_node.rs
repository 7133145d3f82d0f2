//! A memory node: the service of `mn-server` over a pool, which survives restarts or does not.

use std::sync::Arc;
use std::time::Duration;

use cxloe_fabric::model::Watermark;
use cxloe_link::Link;
use cxloe_link::sim::SimLink;
use cxloe_mn::control::{Mappings, StaticMap, StaticRange};
use cxloe_mn::pool::{ByteSize, Host, MpAddr, PoolOptions};
use cxloe_mn_core::congestion::{CongestionConfig, Verdict};
use cxloe_mn_core::service::Service;
use cxloe_mn_core::translation::PageTable;
use cxloe_wire::frame::{LINE_SIZE, Mac};
use cxloe_wire::session::ResponderConfig;
use cxloe_wire::time::Time;

use crate::mistake::{Lines, Meddler, Mistake};
use crate::register::{Origin, Shape, content};

/// Bytes of an extent: what one life of a region gets.
pub const EXTENT: u64 = 64 << 10;
/// Lives of each region.
pub const LIVES: u64 = 8;

/// Translations that a service keeps at hand.
const TLB_ENTRIES: usize = 16;
/// How often a service looks for sessions that have gone silent.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// A memory node.
pub struct MemoryNode {
    /// Its address.
    pub mac: Mac,
    /// What its service is told at the next restart.
    pub config: ResponderConfig,
    /// The incarnations of its pools, the present one last.
    pub incarnations: Vec<u64>,
    /// It does nothing until then.
    pub paused_until: Time,
    link: SimLink,
    index: usize,
    cns: Vec<Mac>,
    shape: Shape,
    memory: Memory,
    service: Service,
    polled: Time,
    /// How long a frame keeps it busy, and until when the last ones do.
    service_time: Duration,
    busy_until: Time,
    meddler: Option<Meddler>,
    congestion: CongestionConfig,
}

/// The pool and who owns what of it.
struct Memory {
    mappings: Mappings,
    cns: Vec<Mac>,
    /// Where the extent of each life of each CN's region begins.
    extents: Vec<MpAddr>,
}

impl Memory {
    /// A new pool in which each CN has a range for every life of its region, filled with what it is to read first.
    fn new(index: usize, cns: &[Mac], losses: usize, shape: Shape) -> Memory {
        let extents = cns.len() as u64 * LIVES;
        let options = PoolOptions {
            bytes: Some(extents * EXTENT),
            extent_bytes: Some(EXTENT),
            prefault: Some(false),
            ..PoolOptions::default()
        };
        let pool = cxloe_mn::pool::open(&options, &Host::default(), &|_, _| {}).expect("a small pool");
        let mut mappings = Mappings::open(Arc::new(pool), Watermark::default()).0;
        let range = |cn: &Mac| StaticRange { cn: *cn, base: ByteSize(0), size: ByteSize(LIVES * EXTENT) };
        StaticMap { ranges: cns.iter().map(range).collect() }.apply(&mut mappings).expect("it fits");
        let table = mappings.table();
        let mut starts = vec![MpAddr(0); extents as usize];
        for t in table.iter() {
            let cn = cns.iter().position(|mac| mac.to_u64() == t.cn).expect("only these were mapped");
            let origin = Origin { cn, mn: index, life: t.cmem_extent, losses };
            let start = table.pool().extent_start(t.mp_extent);
            starts[cn * LIVES as usize + t.cmem_extent as usize] = start;
            for line in 0..shape.lines() {
                table
                    .pool()
                    .write_lines(MpAddr(start.0 + shape.offset(line)), &content(origin.initial(line)));
            }
        }
        Memory { mappings, cns: cns.to_vec(), extents: starts }
    }

    fn table(&self) -> &Arc<PageTable> {
        self.mappings.table()
    }

    fn find(&self, cn: Mac, cmem: u64) -> Option<MpAddr> {
        let cn = self.cns.iter().position(|mac| *mac == cn)?;
        let life = usize::try_from(cmem / EXTENT).ok().filter(|life| *life < LIVES as usize)?;
        Some(MpAddr(self.extents[cn * LIVES as usize + life].0 + cmem % EXTENT))
    }
}

impl Lines for Memory {
    fn get(&self, cn: Mac, cmem: u64) -> Option<[u8; LINE_SIZE]> {
        let mut out = [0; LINE_SIZE];
        self.table().pool().read_lines(self.find(cn, cmem)?, &mut out);
        Some(out)
    }

    fn set(&self, cn: Mac, cmem: u64, data: &[u8; LINE_SIZE]) {
        if let Some(at) = self.find(cn, cmem) {
            self.table().pool().write_lines(at, data);
        }
    }
}

impl MemoryNode {
    /// The `index`-th memory node, with memory for `cns`. Its incarnations follow from the config's seed.
    pub fn new(
        index: usize,
        link: SimLink,
        config: ResponderConfig,
        cns: Vec<Mac>,
        shape: Shape,
    ) -> MemoryNode {
        let memory = Memory::new(index, &cns, 0, shape);
        let config = ResponderConfig { incarnation: incarnation(config.seed, 0), ..config };
        let service = Service::new(config.clone(), memory.table().clone(), TLB_ENTRIES);
        MemoryNode {
            mac: config.own,
            incarnations: vec![config.incarnation],
            config,
            paused_until: Time::ZERO,
            link,
            index,
            cns,
            shape,
            memory,
            service,
            polled: Time::ZERO,
            service_time: Duration::ZERO,
            busy_until: Time::ZERO,
            meddler: None,
            congestion: CongestionConfig { threshold: 0, ..CongestionConfig::default() },
        }
    }

    /// Makes it slow: busy for so long with each frame.
    pub fn slow_down(&mut self, service_time: Duration) {
        self.service_time = service_time;
    }

    /// Has it ask compute nodes for less when its receive queue is long.
    pub fn watch_queue(&mut self, congestion: CongestionConfig) {
        self.congestion = congestion;
        self.service.set_congestion(congestion);
    }

    /// Makes it break a rule.
    pub fn plant(&mut self, mistake: Mistake) {
        self.meddler = Some(Meddler::new(mistake));
    }

    /// Comes back as a new process, with its pool or without.
    pub fn restart(&mut self, keeps_pool: bool) {
        self.config.seed += 1;
        if !keeps_pool {
            self.memory = Memory::new(self.index, &self.cns, self.incarnations.len(), self.shape);
            self.config.incarnation = incarnation(self.config.seed, self.incarnations.len());
            self.incarnations.push(self.config.incarnation);
        }
        self.service = Service::new(self.config.clone(), self.memory.table().clone(), TLB_ENTRIES);
        self.service.set_congestion(self.congestion);
        (self.busy_until, self.paused_until) = (Time::ZERO, Time::ZERO);
    }

    /// How many times it has lost its pool.
    pub fn losses(&self) -> usize {
        self.incarnations.len() - 1
    }

    /// The line at `cmem` of CN `cn`, as the pool has it.
    pub fn line(&self, cn: Mac, cmem: u64) -> [u8; LINE_SIZE] {
        self.memory.get(cn, cmem).expect("every region has memory")
    }

    /// When it goes on with what it has, if it waits for that.
    pub fn deadline(&self, now: Time) -> Option<Time> {
        Some(self.busy_until.max(self.paused_until)).filter(|at| *at > now)
    }

    /// Takes what has arrived; whether there was anything.
    pub fn work(&mut self, now: Time, batch: usize) -> bool {
        if now < self.busy_until || now < self.paused_until {
            return false;
        }
        let MemoryNode { link, service, meddler, memory, .. } = self;
        service.begin_batch();
        let received = match meddler {
            None => link.receive(batch, &mut |frame, tx| service.handle(frame, now, tx)),
            Some(meddler) => link.receive(batch, &mut |frame, tx| {
                if meddler.before(frame, memory) {
                    service.handle(frame, now, tx);
                }
                meddler.after(memory);
            }),
        };
        let received = received.expect("a simulated link");
        if received > 0 {
            service.finish_batch(link.transmit());
            // The cable's own pause needs somebody at its other end who hears it; nobody does here.
            let verdict = service.look_at_queue(|count| link.holds(count), now);
            if verdict != Verdict::Quiet {
                service.tell(verdict, link.transmit());
            }
            self.busy_until = now + self.service_time * received as u32;
        }
        if now.since(self.polled) >= POLL_EVERY {
            self.polled = now;
            self.service.responder().poll(now);
        }
        self.link.flush().expect("a simulated link");
        received > 0
    }

    /// Nothing waits in its sessions.
    pub fn is_at_rest(&mut self, now: Time) -> bool {
        self.service.responder().statuses(now).iter().all(|s| s.waiting == 0 && s.buffered == 0)
    }
}

/// The incarnation of a node's pool after so many losses; pools draw theirs, here it has to follow from the seed.
fn incarnation(seed: u64, losses: usize) -> u64 {
    seed.rotate_left(17) ^ (losses as u64 + 1) << 56 | 1
}
