//! Regions mapped with inline faults: real pages, real signals, a real `mn-server` over a virtual cable. The threads of
//! this program touch remote memory and fetch it themselves; nothing they write may be lost, whatever leaves memory
//! meanwhile, and what runs in their signal handler may not allocate.

mod stacks;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_cn_core::cache::CacheConfig;
use cxloe_lab::{Lab, Process, Standing};
use cxloe_link::{Backend, Extras, LinkConfig, open_with};
use cxloe_port::inline::{InlineOptions, InlineRegion};
use cxloe_port::port::Port;
use cxloe_system::cable::cable_for;
use cxloe_system::node::{MemoryNode, config_to, port};
use cxloe_system::{Failed, Subject, Test, run};
use cxloe_system::{LIMIT, Outcome, Role, copy_as, ensure, eventually};
use cxloe_wire::frame::Mac;
use tempfile::TempDir;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
const HPA: u64 = 1 << 32;
const PAGE: usize = 4096;
/// The region, and the part of it that may be here: the least there can be, so that pages often leave before whoever
/// wanted them has looked.
const BYTES: u64 = 8 << 20;
const LOCAL: u64 = 64 << 10;
const WORDS: usize = BYTES as usize / 8;
const WORDS_PER_PAGE: usize = PAGE / 8;

/// An allocator that ends the program when a thread that has forbidden it allocates, and that can be made to touch a
/// word while it holds its own lock.
struct Strict;

static LOCKED: AtomicBool = AtomicBool::new(false);
static TOUCH: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}

impl Strict {
    fn check(&self) {
        if FORBIDDEN.try_with(Cell::get).unwrap_or(false) {
            // SAFETY: ends the program.
            unsafe { libc::abort() };
        }
        while LOCKED.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        let word = TOUCH.swap(0, Ordering::AcqRel);
        if word != 0 {
            // SAFETY: the test names a word of a mapping that lives.
            unsafe { (word as *mut u64).write_volatile(word) };
        }
        LOCKED.store(false, Ordering::Release);
    }
}

// SAFETY: all requests go to the system's allocator as they are.
unsafe impl GlobalAlloc for Strict {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.check();
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.check();
        // SAFETY: as the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Strict = Strict;

const ROLES: &[Role] = &[
    ("loses_its_memory_node", loses_its_memory_node),
    ("hits_a_hole", hits_a_hole),
    ("is_told_to_end", stacks::is_told_to_end),
    ("has_a_child", stacks::has_a_child),
];

fn main() -> ExitCode {
    const AS_NOBODY: &[&str] = &["packet::records_survive_eviction", "the_kernel_is_refused_and_says_so"];
    run(&[Subject::new("", tests).also_as_nobody(&["mn-server"]).only(AS_NOBODY)], ROLES)
}

fn tests(standing: Standing) -> Vec<Test> {
    let mut tests = vec![
        Test::new("packet::records_survive_eviction", || records_survive(Backend::Packet, None, 4000)),
        Test::new("packet::records_survive_losses", || records_survive(Backend::Packet, LOSSY, 1500)),
        Test::new("readers_in_steps_are_served_ahead", readers_in_steps_are_served_ahead),
        Test::new("the_handler_allocates_nothing", the_handler_allocates_nothing),
        Test::new("the_kernel_is_refused_and_says_so", the_kernel_is_refused_and_says_so),
        Test::new("other_signals_go_where_they_went", other_signals_go_where_they_went),
        Test::new("lost_memory_ends_the_access", lost_memory_ends_the_access),
        Test::new("the_least_signal_stack_will_do", stacks::the_least_signal_stack_will_do),
        Test::new("more_threads_than_stacks", stacks::more_threads_than_stacks),
        Test::new("a_child_leaves_the_mapping_alone", a_child_leaves_the_mapping_alone),
    ];
    tests.push(Test::new("udp::records_survive_eviction", || records_survive(Backend::Udp, None, 2000)));
    tests.push(Test::new("udp::records_survive_losses", || records_survive(Backend::Udp, LOSSY, 1000)));
    if standing == Standing::Root {
        let xdp = || records_survive(Backend::Xdp, None, 4000);
        tests.push(Test::new("xdp::records_survive_eviction", xdp));
        let long = || records_survive(Backend::Packet, LOSSY, 400_000);
        tests.push(Test::new("packet::records_survive_for_minutes", long).long("minutes of the same"));
    }
    tests
}

/// Both ends lose one frame in a hundred, and do worse things less often.
const LOSSY: Option<&str> = Some("drop=1%,dup=0.5%,reorder=0.5%,corrupt=0.2%,dir=tx,seed=7");

struct Rig {
    lab: Lab,
    node: Option<MemoryNode>,
    folder: TempDir,
}

impl Rig {
    fn new(backend: Backend, faults: Option<&str>) -> Result<Rig, Failed> {
        let lab = cable_for(backend).mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?;
        let folder = tempfile::tempdir()?;
        let more: Vec<&str> = faults.map_or_else(Vec::new, |faults| vec!["--faults", faults]);
        let node = MemoryNode::start_with(&lab, "mn0", backend, &[(CN, BYTES)], folder.path(), &more)?;
        Ok(Rig { lab, node: Some(node), folder })
    }

    fn port(&self, backend: Backend, faults: Option<&str>) -> Result<Port, Failed> {
        let faults = faults.map(str::parse).transpose()?;
        let extras = Extras { faults, ..Extras::default() };
        let config = config_to(backend, MN);
        let link = self.lab.home_of("cn0")?.enter(|| open_with(&config, &extras))??;
        let mut port = port(link, MN, HPA, BYTES, CacheConfig::OFF)?;
        port.connect(LIMIT)?;
        Ok(port)
    }

    fn map(&self, options: InlineOptions) -> Result<InlineRegion, Failed> {
        Ok(InlineRegion::map(self.port(Backend::Packet, None)?, HPA, BYTES, options)?)
    }

    fn end(mut self) -> Outcome {
        let status = self.node.take().ok_or("it was killed")?.end()?;
        ensure(status.success(), format!("mn-server ended with {status}"))
    }
}

fn local(local: u64) -> InlineOptions {
    InlineOptions { local, ..InlineOptions::default() }
}

/// A small generator: tests are to be the same each time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Words of a record: the last is a checksum.
const RECORD: usize = 16;
const THREADS: usize = 4;

fn seal(record: usize, version: u64, word: usize) -> u64 {
    (record as u64).rotate_left(40) ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (word as u64) << 3
}

/// Threads go through records at random, several of them on each page; what they find is what they wrote last. In the
/// end the memory node has it.
fn records_survive(backend: Backend, faults: Option<&str>, each: usize) -> Outcome {
    let rig = Rig::new(backend, faults)?;
    let region = InlineRegion::map(rig.port(backend, faults)?, HPA, BYTES, local(LOCAL))?;
    let words = &region[..];
    let records = WORDS / RECORD;
    let versions: Vec<Vec<u64>> = thread::scope(|scope| {
        let work = |own: usize| {
            move || -> Result<Vec<u64>, String> {
                let mut versions = vec![0_u64; records];
                let mut draw = Draw(own as u64 + 0x5EED);
                for _ in 0..each {
                    // Half of all accesses go to an eighth of the records.
                    let part = if draw.below(2) == 0 { records / 8 } else { records };
                    let record = draw.below(part / THREADS) * THREADS + own;
                    let at = record * RECORD;
                    let version = versions[record];
                    for word in 0..RECORD {
                        let found = words[at + word].load(Ordering::Relaxed);
                        let expected = if version == 0 { 0 } else { seal(record, version, word) };
                        if found != expected {
                            return Err(format!(
                                "record {record} word {word}: {found:#x}, not {expected:#x}"
                            ));
                        }
                    }
                    if draw.below(3) > 0 {
                        versions[record] += 1;
                        for word in 0..RECORD {
                            words[at + word].store(seal(record, versions[record], word), Ordering::Relaxed);
                        }
                    }
                }
                Ok(versions)
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|own| scope.spawn(work(own))).collect();
        threads.into_iter().map(|t| t.join().expect("it does not panic")).collect::<Result<_, String>>()
    })?;
    let counters = region.counters();
    let enough = each as u64 / 8;
    let said = format!("{counters:?}");
    ensure(counters.evicted > enough && counters.refaulted > 0 && counters.written_back > enough, &said)?;
    ensure(region.resident() <= LOCAL, said)?;
    let mut port = region.close()?;
    let mut bytes = vec![0; BYTES as usize];
    port.read_bytes(HPA, &mut bytes)?;
    for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
        let (record, version) = (at / RECORD, versions[at / RECORD % THREADS][at / RECORD]);
        let expected = if version == 0 { 0 } else { seal(record, version, at % RECORD) };
        ensure(u64::from_le_bytes(*word) == expected, format!("record {record} at the memory node"))?;
    }
    stacks::well_below()?;
    rig.end()
}

fn readers_in_steps_are_served_ahead() -> Outcome {
    let rig = Rig::new(Backend::Packet, None)?;
    let pages = WORDS / WORDS_PER_PAGE;
    for prefetch in [true, false] {
        let region = rig.map(InlineOptions { prefetch, ..local(BYTES / 4) })?;
        for page in 0..pages {
            region[page * WORDS_PER_PAGE + 3].store(page as u64 + 1, Ordering::Relaxed);
        }
        region.flush()?;
        let before = region.counters();
        for page in 0..pages {
            let found = region[page * WORDS_PER_PAGE + 3].load(Ordering::Relaxed);
            ensure(found == page as u64 + 1, format!("page {page}: {found}"))?;
        }
        let after = region.counters();
        let ahead = after.prefetched - before.prefetched;
        ensure((ahead > 0) == prefetch, format!("{ahead} ahead"))?;
        let hits = after.prefetch_hits - before.prefetch_hits;
        // How far ahead depends on how soon what left has made room; that most of it is wanted does not.
        ensure(!prefetch || ahead > pages as u64 / 4, format!("{ahead} of {pages} ahead: {after:?}"))?;
        ensure(!prefetch || hits > ahead / 2, format!("{hits} of {ahead} were wanted: {after:?}"))?;
    }
    rig.end()
}

/// Faults from a thread that may not allocate, and from within the allocator itself, whose lock is held then.
fn the_handler_allocates_nothing() -> Outcome {
    let rig = Rig::new(Backend::Packet, None)?;
    let region = rig.map(local(LOCAL))?;
    let pages = WORDS / WORDS_PER_PAGE;
    let mut draw = Draw(77);
    let order: Vec<usize> = (0..4 * pages).map(|_| draw.below(pages)).collect();
    FORBIDDEN.set(true);
    for page in &order {
        let word = &region[page * WORDS_PER_PAGE];
        // First read, then written: one instruction for both would be a write alone.
        let read = std::hint::black_box(word.load(Ordering::Relaxed));
        word.store(read + 1, Ordering::Relaxed);
    }
    FORBIDDEN.set(false);
    let counters = region.counters();
    ensure(counters.faults > pages as u64 && counters.write_faults > 0, format!("{counters:?}"))?;
    for page in (0..pages).step_by(97) {
        let word = std::ptr::from_ref(&region[page * WORDS_PER_PAGE + 9]) as u64;
        TOUCH.store(word, Ordering::Release);
        drop(std::hint::black_box(vec![0_u8; 100]));
        ensure(
            region[page * WORDS_PER_PAGE + 9].load(Ordering::Relaxed) == word,
            "the allocator's write is there",
        )?;
    }
    for page in 0..pages {
        let expected = order.iter().filter(|other| **other == page).count() as u64;
        let found = region[page * WORDS_PER_PAGE].load(Ordering::Relaxed);
        ensure(found == expected, format!("page {page}: {found} of {expected} increments"))?;
    }
    region.close()?;
    rig.end()
}

fn the_kernel_is_refused_and_says_so() -> Outcome {
    use std::io::Read;
    let rig = Rig::new(Backend::Packet, None)?;
    let region = rig.map(local(LOCAL))?;
    // SAFETY: the page is this mapping's, and no reference to its bytes is held elsewhere.
    let page = unsafe { std::slice::from_raw_parts_mut(region.as_ptr().add(5 * PAGE), PAGE) };
    let mut zeros = std::fs::File::open("/dev/zero")?;
    let refused = zeros.read(page).err().and_then(|error| error.raw_os_error());
    ensure(refused == Some(libc::EFAULT), format!("{refused:?}"))?;
    page[17] = 1;
    ensure(
        zeros.read(page)? == PAGE && page[17] == 0,
        "a page that is there and was written can be read into",
    )?;
    drop(region);
    rig.end()
}

fn other_signals_go_where_they_went() -> Outcome {
    let rig = Rig::new(Backend::Packet, None)?;
    for role in ["hits_a_hole", "is_told_to_end"] {
        let mut process = play(&rig, role)?;
        let status = process.wait(LIMIT)?;
        ensure(status.signal() == Some(libc::SIGBUS), format!("{role}: {status}"))?;
    }
    rig.end()
}

/// Maps a region, and then touches a page of a file that ends before it.
fn hits_a_hole() -> ExitCode {
    let Some(region) = in_copy(InlineOptions::default()) else { return ExitCode::from(4) };
    region[0].store(1, Ordering::Relaxed);
    let Ok(file) = tempfile::tempfile() else { return ExitCode::from(5) };
    let Ok(map) = memmap2::MmapOptions::new().len(PAGE).map_raw(&file) else { return ExitCode::from(6) };
    // SAFETY: the read is of a mapping that lives; that it fails is the point.
    let found = unsafe { map.as_ptr().read_volatile() };
    ExitCode::from(found)
}

fn a_child_leaves_the_mapping_alone() -> Outcome {
    let rig = Rig::new(Backend::Packet, None)?;
    let status = play(&rig, "has_a_child")?.wait(LIMIT)?;
    ensure(status.success(), format!("{status}"))?;
    rig.end()
}

fn lost_memory_ends_the_access() -> Outcome {
    let mut rig = Rig::new(Backend::Packet, None)?;
    let mut process = play(&rig, "loses_its_memory_node")?;
    let log = rig.folder.path().join("copy.log");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("the copy has written", || said().contains("written"))?;
    rig.node.take().ok_or("it runs")?.kill()?;
    let status = process.wait(LIMIT)?;
    ensure(status.signal() == Some(libc::SIGBUS), format!("{status}: {}", said()))
}

/// Writes more than may be here, and reads it until that ends it.
fn loses_its_memory_node() -> ExitCode {
    let Some(region) = in_copy(InlineOptions { lost_wait: Duration::from_millis(700), ..local(LOCAL) })
    else {
        return ExitCode::from(4);
    };
    let pages = WORDS / WORDS_PER_PAGE;
    (0..pages).for_each(|page| region[page * WORDS_PER_PAGE].store(7, Ordering::Relaxed));
    eprintln!("written");
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        for page in 0..pages {
            if region[page * WORDS_PER_PAGE].load(Ordering::Relaxed) != 7 {
                return ExitCode::from(9);
            }
        }
    }
    ExitCode::from(8)
}

fn in_copy(options: InlineOptions) -> Option<InlineRegion> {
    let config = LinkConfig { backend: Backend::Packet, ..LinkConfig::new("cn0") };
    let link = open_with(&config, &Extras::default()).ok()?;
    let mut port = port(link, MN, HPA, BYTES, CacheConfig::OFF).ok()?;
    port.connect(LIMIT).ok()?;
    InlineRegion::map(port, HPA, BYTES, options).ok()
}

fn play(rig: &Rig, role: &str) -> Result<Process, Failed> {
    let mut copy: Command = copy_as(role)?;
    Process::log_to(&mut copy, &rig.folder.path().join("copy.log"))?;
    Ok(rig.lab.spawn("cn", copy)?)
}
