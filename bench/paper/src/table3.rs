//! Table III: cost of the system. An FPGA costs look-up tables and flip-flops; software costs CPU time and
//! memory.
//!
//! CPU time is that of the two threads on the path, as the kernel counts it, divided by the number of
//! operations. Memory is what the allocator hands out while the real structures are made: a cache, a worker,
//! and sessions that have transferred requests. For a pool, it is what the pool allocates in addition to the
//! memory that it lends.

use cxloe_wire::random::Random;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cxloe_cn_core::attach::{STREAMS_DEFAULT, SessionKeys, SessionSettings};
use cxloe_cn_core::cache::{CacheConfig, LineCache};
use cxloe_cn_core::engine::{Engine, EngineError, RequestId, Route, RouteTarget, Sink};
use cxloe_fabric::model::Watermark;
use cxloe_link::Backend;
use cxloe_link::wait::WaitStyle;
use cxloe_mn::control::Mappings;
use cxloe_mn::control::static_map::{self, StaticMap, StaticRange};
use cxloe_mn::pool::{ByteSize, EXTENT_BYTES_DEFAULT, Host, Pool, PoolOptions};
use cxloe_mn_core::service::Service;
use cxloe_mn_core::translation::TLB_ENTRIES_DEFAULT;
use cxloe_wire::Transmit;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, LINE_SIZE, Mac};
use cxloe_wire::session::{ResponderConfig, Timing};
use cxloe_wire::time::Time;
use serde::Serialize;

use super::testbed::Testbed;
use super::{PaperError, heap};
use cxloe_measure::{MeasureError, MeasuredRegion};

/// Number of lines in one call of the port.
const CALL: usize = 4096;
/// Number of operations in flight with a full window.
const WINDOW: usize = 128;
/// Number of sessions over which the memory of a session is averaged.
const SESSIONS: u64 = 16;
/// Maximum length of a frame in bytes at MTU 1500.
const FRAME_MAX: usize = 1514;

#[derive(Debug, Default, Serialize)]
pub struct Table3 {
    /// CPU time, for each wait style, kind of operation and depth.
    pub cpu: Vec<Cpu>,
    /// Memory of each structure; empty if the allocator does not report it.
    pub memory: Vec<Memory>,
}

/// CPU time of single-line operations with one wait style.
#[derive(Debug, Serialize)]
pub struct Cpu {
    /// Kind of operation, operations in flight, and wait style of both ends, as text.
    pub name: String,
    pub operations: u64,
    /// Rate of operations, per second.
    pub per_s: f64,
    /// CPU time of the compute node's thread per operation, in nanoseconds.
    pub cn_ns: f64,
    /// CPU time of the memory node's worker per operation, in nanoseconds; `None` if the worker is on another machine.
    pub mn_ns: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct Memory {
    pub name: String,
    /// Node that has the structure: `MN` or `CN`.
    pub node: String,
    pub bytes: f64,
}

impl Table3 {
    /// Measures CPU time and memory; each kind of operation is measured for the duration `each`. Calls
    /// `progress` for each of [`Table3::STEPS`] steps.
    pub fn measure(
        ends: &Testbed,
        backend: Backend,
        each: Duration,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Table3, PaperError> {
        let mut table = Table3::default();
        // A spinning thread uses all of its core; only sleeping ends show what an operation costs.
        for (wait, name) in [(ends.wait(), ends.wait().to_string()), (WaitStyle::Sleep, "sleep".into())] {
            let _served = ends.serve(backend, wait)?;
            ends.pin()?;
            let (mut target, _) = ends.target(backend, wait)?;
            for (write, depth) in [(false, 1), (true, 1), (false, WINDOW), (true, WINDOW)] {
                ends.check()?;
                progress("CPU time");
                let worker = Thread::named("worker-0");
                table.cpu.push(cpu(&mut target, &name, (write, depth), each, worker.as_ref())?);
            }
            target.port.close()?;
        }
        progress("memory");
        table.memory = memory()?;
        Ok(table)
    }

    pub const STEPS: u64 = 9;

    /// Measures the CPU time of the compute node alone, over a link to a memory node that runs already.
    pub(crate) fn over_link(
        target: &mut MeasuredRegion,
        wait: WaitStyle,
        each: Duration,
    ) -> Result<Table3, PaperError> {
        let mut table = Table3 { memory: memory()?, ..Table3::default() };
        for (write, depth) in [(false, 1), (true, 1), (false, WINDOW), (true, WINDOW)] {
            table.cpu.push(cpu(target, &wait.to_string(), (write, depth), each, None)?);
        }
        Ok(table)
    }
}

/// Thread of this process, by the path of its scheduler statistics in `/proc`.
struct Thread(std::path::PathBuf);

impl Thread {
    fn own() -> Thread {
        Thread("/proc/thread-self/schedstat".into())
    }

    fn named(name: &str) -> Option<Thread> {
        let threads = std::fs::read_dir("/proc/self/task").ok()?;
        threads.flatten().map(|entry| entry.path()).find_map(|path| {
            let comm = std::fs::read_to_string(path.join("comm")).ok()?;
            (comm.trim() == name).then(|| Thread(path.join("schedstat")))
        })
    }

    /// Returns the CPU time of the thread so far in nanoseconds. The kernel's count may be behind by a timer
    /// tick.
    fn ran_ns(&self) -> Option<u64> {
        std::fs::read_to_string(&self.0).ok()?.split_whitespace().next()?.parse().ok()
    }
}

fn cpu(
    target: &mut MeasuredRegion,
    wait: &str,
    (write, depth): (bool, usize),
    each: Duration,
    worker: Option<&Thread>,
) -> Result<Cpu, PaperError> {
    target.port.set_depth(depth);
    let mut random = Random::new(3);
    let mut at = || target.hpa + random.below(target.bytes / LINE_SIZE as u64) * LINE_SIZE as u64;
    let hpas: Vec<u64> = (0..CALL).map(|_| at()).collect();
    let lines: Vec<(u64, [u8; LINE_SIZE])> = hpas.iter().map(|at| (*at, [7; LINE_SIZE])).collect();
    let mut out = vec![[0; LINE_SIZE]; CALL];
    let call = if depth == 1 { CALL / 16 } else { CALL };
    // The first call is not timed, since the worker may be asleep and caches are cold.
    target.port.read_batch(&hpas[..call], &mut out[..call])?;
    let own = Thread::own();
    let (cn, mn) = (own.ran_ns(), worker.and_then(Thread::ran_ns));
    let (start, mut operations) = (Instant::now(), 0);
    while start.elapsed() < each {
        target.check()?;
        match write {
            true => target.port.write_batch(&lines[..call])?,
            false => target.port.read_batch(&hpas[..call], &mut out[..call])?,
        }
        operations += call as u64;
    }
    let took = start.elapsed();
    let for_each = |before: Option<u64>, after: Option<u64>| {
        before.zip(after).map(|(before, after)| after.saturating_sub(before) as f64 / operations as f64)
    };
    let what = if write { "writes" } else { "reads" };
    let flight = if depth == 1 { "one at a time".to_owned() } else { format!("{depth} in flight") };
    target.port.set_depth(cxloe_port::port::DEPTH_DEFAULT);
    Ok(Cpu {
        name: format!("{what}, {flight}, {wait}"),
        operations,
        per_s: operations as f64 / took.as_secs_f64(),
        // Without the kernel's count, the thread is assumed to have run all the time, as a spinning one does.
        cn_ns: for_each(cn, own.ran_ns()).unwrap_or(took.as_nanos() as f64 / operations as f64),
        mn_ns: for_each(mn, worker.and_then(Thread::ran_ns)),
    })
}

/// Measures the memory of each structure on the path, on the heap of this process.
fn memory() -> Result<Vec<Memory>, PaperError> {
    let mut list = Vec::new();
    let mut add = |name: &str, node: &str, bytes: f64| {
        list.push(Memory { name: name.into(), node: node.into(), bytes });
    };
    for gib in [1, 64] {
        let bytes = Pool::overhead_bytes(gib << 30, EXTENT_BYTES_DEFAULT)?;
        let name = format!("a GiB served, besides it (pool of {gib} GiB)");
        add(&name, "MN", bytes as f64 / gib as f64);
    }
    let config = CacheConfig::default();
    let (cache, bytes) = heap::grown(|| LineCache::new(config));
    if let (Some(cache), Some(bytes)) = (&cache, bytes) {
        add("a cached line, its 64 bytes included", "CN", bytes as f64 / cache.places().count() as f64);
    }
    if let Some((worker, at_mn, at_cn)) = sessions()? {
        add("a worker, with its TLB", "MN", worker as f64);
        add("a session", "MN", at_mn);
        add("a session", "CN", at_cn);
    }
    Ok(list)
}

/// Returns the memory in bytes of a worker's service, of a session at the memory node, and of a session at a
/// compute node; `None` if the allocator does not report it. The compute nodes connect and send requests;
/// frames are passed without a link.
fn sessions() -> Result<Option<(i64, f64, f64)>, PaperError> {
    const EXTENT: u64 = 64 << 10;
    const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
    let cn = |index: u64| Mac([2, 0, 0, 0, 1, index as u8]);
    let options = PoolOptions {
        bytes: Some(SESSIONS * EXTENT),
        extent_bytes: Some(EXTENT),
        prefault: Some(false),
        ..PoolOptions::default()
    };
    let pool = Arc::new(cxloe_mn::pool::open(&options, &Host::default(), None, &|_, _| {})?);
    let incarnation = pool.incarnation();
    let (mut mappings, _) = Mappings::open(pool, Watermark::default());
    let range = |index| StaticRange { cn: cn(index), base: ByteSize(0), size: ByteSize(EXTENT) };
    static_map::apply(&StaticMap { ranges: (0..SESSIONS).map(range).collect() }, &mut mappings)?;
    let table = Arc::clone(mappings.table());
    let (mut service, worker) = heap::grown(|| {
        Service::new(ResponderConfig::new(MN, FRAME_MAX, incarnation, 1), table, TLB_ENTRIES_DEFAULT)
    });
    let (mut requests, mut answers) = (Slots::new(), Slots::new());
    let (mut at_mn, mut at_cn) = (0, 0);
    let mut engines = Vec::new();
    let mut now = Time(1);
    for index in 0..SESSIONS {
        let station = SessionSettings {
            own: cn(index),
            ethertype: ETHERTYPE_DEFAULT,
            max_frame: FRAME_MAX,
            streams: STREAMS_DEFAULT,
            instance: index + 1,
            key: None,
            keys: SessionKeys::none(1.into()),
            timing: Timing::default(),
        };
        let mut engine = Engine::new(CacheConfig::OFF);
        let (peer, bytes) = heap::grown(|| engine.add_peer(station.requester(MN), now));
        at_cn += bytes.unwrap_or(0);
        let target = RouteTarget { peer, cmem: 0, incarnation: None, mirror: None };
        engine.add_route(Route::direct(0, EXTENT, target))?;
        // Connecting takes two round trips; after that, requests fill all streams.
        for turn in 0..200 {
            let id = RequestId::Number(turn);
            now = now + Duration::from_millis(1);
            let ((), grown) = heap::grown(|| {
                engine.poll(now, &mut requests, &mut DiscardCompletions);
                if engine.is_connected() {
                    let at = u64::from(turn) * 4096 % EXTENT;
                    // The window may be full, and the request is then refused; the error is ignored, because the memory
                    // of a full window is to be measured.
                    let _ = engine.read(at, id, now, &mut requests);
                    let _ = engine.write(at + 64, &[1; LINE_SIZE], id, now, &mut requests);
                }
            });
            at_cn += grown.unwrap_or(0);
            let ((), grown) = heap::grown(|| {
                service.begin_batch();
                requests.drain(|frame| service.handle(frame, now, &mut answers));
                service.poll(now, &mut answers);
            });
            at_mn += grown.unwrap_or(0);
            let ((), grown) = heap::grown(|| {
                answers.drain(|frame| engine.handle(frame, now, &mut requests, &mut DiscardCompletions))
            });
            at_cn += grown.unwrap_or(0);
        }
        if !engine.is_connected() {
            return Err(MeasureError::NoEcho(MN).into());
        }
        engines.push(engine);
    }
    Ok(worker.map(|worker| (worker, at_mn as f64 / SESSIONS as f64, at_cn as f64 / SESSIONS as f64)))
}

struct DiscardCompletions;

impl Sink for DiscardCompletions {
    fn read(&mut self, _: RequestId, _data: &[u8]) {}
    fn written(&mut self, _: RequestId) {}
    fn failed(&mut self, _: RequestId, _error: EngineError) {}
}

/// Frames from one end to the other, in preallocated memory, so that they do not count as memory of the
/// sessions.
struct Slots {
    room: Vec<[u8; FRAME_MAX]>,
    lengths: Vec<usize>,
    lent: usize,
}

impl Slots {
    fn new() -> Slots {
        Slots { room: vec![[0; FRAME_MAX]; 64], lengths: Vec::with_capacity(64), lent: 0 }
    }

    fn drain(&mut self, mut handle: impl FnMut(&mut [u8])) {
        for (frame, length) in self.room.iter_mut().zip(&self.lengths) {
            handle(&mut frame[..*length]);
        }
        self.lengths.clear();
    }
}

impl Transmit for Slots {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        let slot = self.room.get_mut(self.lengths.len())?.get_mut(..len)?;
        self.lent = len;
        Some(slot)
    }

    fn commit(&mut self) {
        if self.lent > 0 {
            self.lengths.push(std::mem::take(&mut self.lent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_found_and_its_time_passes() {
        assert!(Thread::named("no such thread").is_none());
        let own = Thread::own();
        let before = own.ran_ns().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while own.ran_ns().unwrap() == before && Instant::now() < until {
            std::hint::spin_loop();
        }
        assert!(own.ran_ns().unwrap() > before);
    }

    #[test]
    fn memory_is_told_for_each_thing() {
        // Other tests of this program allocate at the same time, but not during every attempt.
        let plausible = || {
            let list = memory().unwrap();
            let bytes = |name: &str| list.iter().find(|m| m.name.starts_with(name)).map_or(0.0, |m| m.bytes);
            // A cached line has data, tag and time stamp; a session has buffers for frames in flight.
            let heap = (64.0..128.0).contains(&bytes("a cached line")) && bytes("a session") > 1000.0;
            // A page table takes 2 MiB for each GiB, a fifth of a percent.
            bytes("a GiB served") == 2.0 * 1024.0 * 1024.0 && (heap || heap::used().is_none())
        };
        assert!((0..20).any(|_| plausible()), "{:?}", memory());
    }
}
