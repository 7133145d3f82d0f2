//! Check that the data path allocates nothing after its start: an allocator counts its calls while real frames are
//! exchanged.
//!
//! A memory node's service runs on one thread, a line port on another, with a packet link each, joined by a cable. Once
//! they are connected and warm, each thread counts its allocations while lines and bursts are read and written, with
//! and without the cache: the sums must be zero.

#![expect(unsafe_code, reason = "an allocator counts its calls")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cxloe_cn_core::cache::CacheConfig;
use cxloe_lab::LabPrivilege;
use cxloe_link::Clock;
use cxloe_link::{Backend, Link, LinkConfig};
use cxloe_mn::control::Mappings;
use cxloe_mn::control::static_map::{self, StaticMap};
use cxloe_mn::pool::{Host, PoolOptions};
use cxloe_mn_core::service::Service;
use cxloe_port::port::Port;
use cxloe_system::node::{link_on, port};
use cxloe_system::{Failed, Subject, Test, run};
use cxloe_system::{LIMIT, Outcome, cable::cable, ensure, eventually};
use cxloe_wire::frame::Mac;
use cxloe_wire::session::ResponderConfig;

thread_local! {
    /// Number of allocations by this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // The counter of an ending thread no longer exists; such a thread allocates nothing that has to be counted.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is passed on unchanged to the system's allocator, which fulfils the contract; counting accesses a
// constant-initialised thread-local without a destructor, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller fulfils the contract of `alloc`, and `System.alloc` has the same contract.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the contract is that of `System`, which receives the call.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller fulfils the contract of `alloc_zeroed`, and `System.alloc_zeroed` has the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: the contract is that of `System`, which receives the call.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `at` came from `System` with this layout, as every allocation here does.
        unsafe { System.realloc(at, layout, size) }
    }

    // SAFETY: the contract is that of `System`, which receives the call.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System` with this layout, as every allocation here does.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
const HPA: u64 = 1 << 32;
const REGION: u64 = 8 << 20;

fn main() -> ExitCode {
    run(&[Subject::new("", tests).also_as_nobody(&[])], &[])
}

fn tests(_: LabPrivilege) -> Vec<Test> {
    vec![
        Test::new("the_counter_counts", the_counter_counts),
        Test::new("nothing_is_allocated_after_start", nothing_is_allocated_after_start),
    ]
}

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

fn the_counter_counts() -> Outcome {
    let before = allocations();
    let mut grows = std::hint::black_box(vec![1_u8]);
    grows.extend_from_slice(&[0; 100]);
    drop(std::hint::black_box(grows));
    ensure(allocations() >= before + 2, "the allocator does not count")
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Number of allocations by the memory node's thread, written after each batch.
    allocated: AtomicU64,
    /// Number of batches that the memory node has completed.
    batches: AtomicU64,
}

/// Loop of the memory node: the loop of a worker of `mn-server`, without its other tasks.
fn serve(mut link: Box<dyn Link>, mut service: Service, shared: &Shared) -> Result<(), Failed> {
    let clock = Clock::new();
    let until = Instant::now() + 4 * LIMIT;
    while !shared.stop.load(Ordering::Acquire) && Instant::now() < until {
        let now = clock.now();
        service.begin_batch();
        let received = link.receive(64, &mut |frame, tx| service.handle(frame, now, tx))?;
        if received > 0 {
            service.poll(now, link.transmit());
            link.flush()?;
        }
        shared.allocated.store(allocations(), Ordering::Release);
        shared.batches.fetch_add(1, Ordering::Release);
        if received == 0 {
            link.wait(Duration::from_millis(1))?;
        }
    }
    Ok(())
}

fn service(max_frame: usize) -> Result<Service, Failed> {
    let options = PoolOptions { bytes: Some(2 * REGION), prefault: Some(true), ..PoolOptions::default() };
    let pool = Arc::new(cxloe_mn::pool::open(&options, &Host::default(), None, &|_, _| {})?);
    let incarnation = pool.incarnation();
    let (mut mappings, _) = Mappings::open(pool, Default::default());
    let map: StaticMap = serde_json::from_value(
        serde_json::json!({ "map": [{ "cn": CN.to_string(), "size": REGION.to_string() }] }),
    )?;
    static_map::apply(&map, &mut mappings)?;
    let table = Arc::clone(mappings.table());
    Ok(Service::new(ResponderConfig::new(MN, max_frame, incarnation, 42), table, 1024))
}

/// Runs operations of each kind, with and without the cache; the buffers in `room` were allocated before.
fn work(port: &mut Port, room: &mut Room, rounds: u64) -> Outcome {
    for round in 0..rounds {
        let at = |i: u64| HPA + (round * 7919 + i * 4160) % REGION / 64 * 64;
        for i in 0..50 {
            port.write(at(i), &[i as u8; 64])?;
            if port.read(at(i))? != [i as u8; 64] {
                return Err("a line holds other bytes than were written".into());
            }
            // Repeated accesses: with a cache they are hits.
            port.write(at(i), &[!i as u8; 64])?;
            port.read(at(i))?;
        }
        for (i, (hpa, pair)) in room.hpas.iter_mut().zip(&mut room.pairs).enumerate() {
            *hpa = HPA + (round * 64 + i as u64) * 64 % REGION;
            *pair = (*hpa, [i as u8; 64]);
        }
        port.write_batch(&room.pairs)?;
        port.read_batch(&room.hpas, &mut room.lines)?;
        let page = HPA + round * 65_536 % REGION;
        port.write_bytes(page, &room.bytes)?;
        port.read_bytes(page, &mut room.bytes)?;
    }
    port.flush()?;
    Ok(())
}

struct Room {
    hpas: Vec<u64>,
    pairs: Vec<(u64, [u8; 64])>,
    lines: Vec<[u8; 64]>,
    bytes: Vec<u8>,
}

fn nothing_is_allocated_after_start() -> Outcome {
    let lab = cable().mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?;
    let on = |interface: &str| {
        link_on(&lab, &LinkConfig { backend: Backend::Packet, ..LinkConfig::new(interface) })
    };
    let (near, far) = (on("cn0")?, on("mn0")?);
    let service = service(far.info().max_frame)?;
    let shared = Arc::new(Shared::default());
    let theirs = Arc::clone(&shared);
    let node = std::thread::spawn(move || serve(far, service, &theirs));

    let mut port = port(near, MN, HPA, REGION, CacheConfig::OFF)?;
    port.connect(LIMIT)?;
    let mut room = Room {
        hpas: vec![0; 200],
        pairs: vec![(0, [0; 64]); 200],
        lines: vec![[0; 64]; 200],
        bytes: (0..16_384).map(|i| i as u8).collect(),
    };
    let there = |shared: &Shared| -> Result<u64, Failed> {
        let batch = shared.batches.load(Ordering::Acquire);
        eventually("the memory node is at rest", || shared.batches.load(Ordering::Acquire) > batch + 1)?;
        Ok(shared.allocated.load(Ordering::Acquire))
    };
    for cache in [CacheConfig::OFF, CacheConfig::default()] {
        port.engine().set_cache(cache)?;
        work(&mut port, &mut room, 3)?; // brings everything to its size
        let node_before = there(&shared)?;
        let before = allocations();
        let worked = work(&mut port, &mut room, 40);
        let here = allocations() - before;
        worked?;
        let node = there(&shared)? - node_before;
        ensure(
            here == 0,
            format!("the compute node's thread allocated {here} times, {} bytes of cache", cache.bytes),
        )?;
        ensure(
            node == 0,
            format!("the memory node's thread allocated {node} times, {} bytes of cache", cache.bytes),
        )?;
        let hits = port.engine().counters().read_hits;
        ensure((hits > 0) == (cache.bytes > 0), format!("{hits} hits with {} bytes of cache", cache.bytes))?;
    }
    port.close()?;
    shared.stop.store(true, Ordering::Release);
    node.join().map_err(|_| "the memory node's thread panicked")?
}
