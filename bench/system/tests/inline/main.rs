//! Regions mapped with inline faults: real pages, real signals, a real `mn-server` over a virtual cable. The threads of
//! this program access remote memory and fetch its pages themselves, in a signal handler; no write may be lost by
//! eviction, and the signal handler may not allocate. Several regions of a program share a port.

mod several;
mod stacks;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_cn_core::cache::CacheConfig;
use cxloe_lab::{Lab, LabPrivilege, Process};
use cxloe_link::{Backend, LinkConfig, Middlewares, open_with};
use cxloe_port::inline::{InlineOptions, InlinePort, InlineRegion};
use cxloe_port::port::Port;
use cxloe_system::cable::{LinkKind, cable_for};
use cxloe_system::memif::{self, by_dpdk};
use cxloe_system::node::{MemoryNode, config_to, port};
use cxloe_system::{Failed, Subject, Test, run};
use cxloe_system::{LIMIT, Outcome, Role, copy_as, ensure, eventually};
use cxloe_wire::frame::Mac;
use tempfile::TempDir;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
const HPA: u64 = 1 << 32;
const PAGE: usize = 4096;
/// Bytes of the mapped region.
const BYTES: u64 = 8 << 20;
/// Resident limit in bytes, the lowest possible, so that pages are often evicted before their reader has used
/// them.
const LOCAL: u64 = 64 << 10;
const WORDS: usize = BYTES as usize / 8;
const WORDS_PER_PAGE: usize = PAGE / 8;

/// An allocator that aborts the process if a thread allocates where that is forbidden, and that can be made to access a
/// word while it holds its lock.
struct Strict;

/// The allocator's lock, held for a moment at the start of each call.
static LOCKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
    /// Word that this thread accesses in its next allocation. The variable is thread-local because the
    /// threads of a port block SIGBUS: an access by one of them to an absent page would end the process.
    static TOUCH: Cell<u64> = const { Cell::new(0) };
}

impl Strict {
    #[expect(unsafe_code, reason = "the allocator accesses mapped memory by its address")]
    fn check(&self) {
        if FORBIDDEN.try_with(Cell::get).unwrap_or(false) {
            // SAFETY: ends the program.
            unsafe { libc::abort() };
        }
        while LOCKED.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        let word = TOUCH.try_with(Cell::take).unwrap_or(0);
        if word != 0 {
            // SAFETY: the test sets the address of a word of a live mapping.
            unsafe { (word as *mut u64).write_volatile(word) };
        }
        LOCKED.store(false, Ordering::Release);
    }
}

#[expect(unsafe_code, reason = "an allocator passes raw memory on")]
// SAFETY: all requests are passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Strict {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.check();
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.check();
        // SAFETY: the caller fulfils the contract of `dealloc`.
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
    ("is_interrupted", stacks::is_interrupted),
];

fn main() -> ExitCode {
    const AS_NOBODY: &[&str] = &["packet::records_survive_eviction", "the_kernel_is_refused_and_says_so"];
    run(&[Subject::new("", tests).also_as_nobody(&["mn-server"]).only(AS_NOBODY)], ROLES)
}

fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = vec![
        Test::new("packet::records_survive_eviction", || records_survive(Backend::Packet.into(), None, 4000)),
        Test::new("packet::records_survive_losses", || records_survive(Backend::Packet.into(), LOSSY, 1500)),
        Test::new("readers_in_steps_are_served_ahead", readers_in_steps_are_served_ahead),
        Test::new("the_handler_allocates_nothing", the_handler_allocates_nothing),
        Test::new("the_kernel_is_refused_and_says_so", the_kernel_is_refused_and_says_so),
        Test::new("other_signals_go_where_they_went", other_signals_go_where_they_went),
        Test::new("lost_memory_ends_the_access", lost_memory_ends_the_access),
        Test::new("the_least_signal_stack_will_do", stacks::the_least_signal_stack_will_do),
        Test::new("more_threads_than_stacks", stacks::more_threads_than_stacks),
        Test::new("a_child_leaves_the_mapping_alone", a_child_leaves_the_mapping_alone),
        Test::new("other_handlers_touch_mapped_memory", other_handlers_touch_mapped_memory),
    ];
    let two = |over, faults| move || several::two_over_one_port(over, faults);
    tests.push(Test::new("packet::two_regions_over_one_port", two(Backend::Packet.into(), None)));
    tests.push(Test::new("packet::two_regions_survive_losses", two(Backend::Packet.into(), LOSSY)));
    tests.push(Test::new("udp::two_regions_over_one_port", two(Backend::Udp.into(), None)));
    tests.push(Test::new("a_port_has_places_for_so_many", several::a_port_has_places_for_so_many));
    let comes = several::regions_come_and_go_over_one_interface;
    tests.push(Test::new("regions_come_and_go_over_one_interface", comes));
    let within = several::a_region_comes_while_a_thread_faults_within_the_allocator;
    tests.push(Test::new("a_region_comes_while_a_thread_faults_within_the_allocator", within));
    let udp = |faults, each| move || records_survive(Backend::Udp.into(), faults, each);
    tests.push(Test::new("udp::records_survive_eviction", udp(None, 2000)));
    tests.push(Test::new("udp::records_survive_losses", udp(LOSSY, 1000)));
    if standing == LabPrivilege::Root {
        let xdp = || records_survive(Backend::Xdp.into(), None, 4000);
        tests.push(Test::new("xdp::records_survive_eviction", xdp));
        tests.push(Test::new("xdp::two_regions_over_one_port", two(Backend::Xdp.into(), None)));
        let memory = || records_survive(LinkKind::DPDK, None, 1000);
        tests.push(by_dpdk("records_survive_eviction", memory));
        tests.push(by_dpdk("two_regions_over_one_port", two(LinkKind::DPDK, None)));
        let long = || records_survive(Backend::Packet.into(), LOSSY, 400_000);
        tests.push(Test::new("packet::records_survive_for_minutes", long).long("minutes of the same"));
    }
    tests
}

/// Fault plan of both ends: one frame in a hundred is lost, and other faults are rarer.
const LOSSY: Option<&str> = Some("drop=1%,dup=0.5%,reorder=0.5%,corrupt=0.2%,dir=tx,seed=7");

struct Rig {
    lab: Lab,
    node: Option<MemoryNode>,
    /// Interface of the compute node.
    interface: String,
    folder: TempDir,
}

impl Rig {
    fn new(over: impl Into<LinkKind>, faults: Option<&str>) -> Result<Rig, Failed> {
        let over = over.into();
        let lab = cable_for(over).mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?;
        let folder = tempfile::tempdir()?;
        let more: Vec<&str> = faults.map_or_else(Vec::new, |faults| vec!["--faults", faults]);
        let [interface, mn] = memif::interfaces(over, folder.path(), CN, MN);
        let node = MemoryNode::start_with(&lab, &mn, over, &[(CN, BYTES)], folder.path(), &more)?;
        Ok(Rig { lab, node: Some(node), interface, folder })
    }

    fn port(&self, over: LinkKind, faults: Option<&str>) -> Result<Port, Failed> {
        let faults = faults.map(str::parse).transpose()?;
        let extras = Middlewares { faults, ..Middlewares::default() };
        let config = LinkConfig { interface: self.interface.clone(), ..config_to(over, MN) };
        let link = self.lab.home_of("cn0")?.enter(|| open_with(&config, &extras))??;
        let mut port = port(link, MN, HPA, BYTES, CacheConfig::OFF)?;
        port.connect(LIMIT)?;
        Ok(port)
    }

    fn map(&self, options: InlineOptions) -> Result<InlineRegion, Failed> {
        Ok(self.inline(Backend::Packet, None)?.map(HPA, BYTES, options)?)
    }

    fn inline(&self, over: impl Into<LinkKind>, faults: Option<&str>) -> Result<InlinePort, Failed> {
        Ok(InlinePort::new(self.port(over.into(), faults)?)?)
    }

    /// Ends the memory node, also while a port to it is open that no thread uses.
    fn end(mut self) -> Outcome {
        let status = self.node.take().ok_or("it was killed")?.end()?;
        ensure(status.success(), format!("mn-server ended with {status}"))
    }
}

fn local(local: u64) -> InlineOptions {
    InlineOptions { local, ..InlineOptions::default() }
}

/// A small random number generator with fixed seeds, so that tests can be repeated.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Number of words in a record, whose last word is a checksum.
const RECORD: usize = 16;
const THREADS: usize = 4;

fn seal(record: usize, version: u64, word: usize) -> u64 {
    (record as u64).rotate_left(40) ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (word as u64) << 3
}

/// Threads access random records and check them against their last writes; each page has records of several
/// threads. At the end the memory node holds all last writes.
fn records_survive(over: LinkKind, faults: Option<&str>, each: usize) -> Outcome {
    let rig = Rig::new(over, faults)?;
    let inline = rig.inline(over, faults)?;
    let region = inline.map(HPA, BYTES, local(LOCAL))?;
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
    let output_text = format!("{counters:?}");
    ensure(
        counters.evicted > enough && counters.refaulted > 0 && counters.written_back > enough,
        &output_text,
    )?;
    ensure(region.resident() <= LOCAL, output_text)?;
    region.close()?;
    let mut port = inline.into_port()?;
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
        // The amount of read-ahead depends on timing, but most pages read ahead are used.
        ensure(!prefetch || ahead > pages as u64 / 4, format!("{ahead} of {pages} ahead: {after:?}"))?;
        ensure(!prefetch || hits > ahead / 2, format!("{hits} of {ahead} were wanted: {after:?}"))?;
    }
    rig.end()
}

/// Faults in a thread that may not allocate, and inside the allocator while it holds its lock.
fn the_handler_allocates_nothing() -> Outcome {
    let rig = Rig::new(Backend::Packet, None)?;
    let region = rig.map(local(LOCAL))?;
    let pages = WORDS / WORDS_PER_PAGE;
    let mut draw = Draw(77);
    let order: Vec<usize> = (0..4 * pages).map(|_| draw.below(pages)).collect();
    FORBIDDEN.set(true);
    for page in &order {
        let word = &region[page * WORDS_PER_PAGE];
        // The word is read before it is written. `black_box` keeps the compiler from merging both into a single write
        // access.
        let read = std::hint::black_box(word.load(Ordering::Relaxed));
        word.store(read + 1, Ordering::Relaxed);
    }
    FORBIDDEN.set(false);
    let counters = region.counters();
    ensure(counters.faults > pages as u64 && counters.write_faults > 0, format!("{counters:?}"))?;
    for page in (0..pages).step_by(97) {
        let word = std::ptr::from_ref(&region[page * WORDS_PER_PAGE + 9]) as u64;
        TOUCH.set(word);
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

#[expect(unsafe_code, reason = "the kernel fills a slice of mapped memory")]
fn the_kernel_is_refused_and_says_so() -> Outcome {
    use std::io::Read;
    let rig = Rig::new(Backend::Packet, None)?;
    let region = rig.map(local(LOCAL))?;
    // SAFETY: the page belongs to this mapping, and no reference to its bytes is held elsewhere.
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

/// Role: maps a region, and then accesses a page beyond the end of a mapped file.
#[expect(unsafe_code, reason = "a page beyond the end of a file is read through a raw pointer")]
fn hits_a_hole() -> ExitCode {
    let Some(region) = in_copy(InlineOptions::default()) else { return ExitCode::from(4) };
    region[0].store(1, Ordering::Relaxed);
    let Ok(file) = tempfile::tempfile() else { return ExitCode::from(5) };
    let Ok(map) = memmap2::MmapOptions::new().len(PAGE).map_raw(&file) else { return ExitCode::from(6) };
    // SAFETY: reads a page of a live mapping; the access is expected to end the process by a signal.
    let found = unsafe { map.as_ptr().read_volatile() };
    ExitCode::from(found)
}

fn a_child_leaves_the_mapping_alone() -> Outcome {
    let rig = Rig::new(Backend::Packet, None)?;
    let status = play(&rig, "has_a_child")?.wait(LIMIT)?;
    ensure(status.success(), format!("{status}"))?;
    rig.end()
}

fn other_handlers_touch_mapped_memory() -> Outcome {
    let rig = Rig::new(Backend::Packet, None)?;
    let status = play(&rig, "is_interrupted")?.wait(LIMIT)?;
    ensure(status.success(), format!("{status}"))?;
    rig.end()
}

fn lost_memory_ends_the_access() -> Outcome {
    let mut rig = Rig::new(Backend::Packet, None)?;
    let mut process = play(&rig, "loses_its_memory_node")?;
    let log = rig.folder.path().join("copy.log");
    let output_text = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("the copy has written", || output_text().contains("written"))?;
    rig.node.take().ok_or("it runs")?.kill()?;
    let status = process.wait(LIMIT)?;
    ensure(status.signal() == Some(libc::SIGBUS), format!("{status}: {}", output_text()))
}

/// Role: writes more pages than may be resident, and reads them until the loss of the memory node ends the process.
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
    let link = open_with(&config, &Middlewares::default()).ok()?;
    let mut port = port(link, MN, HPA, BYTES, CacheConfig::OFF).ok()?;
    port.connect(LIMIT).ok()?;
    InlinePort::new(port).ok()?.map(HPA, BYTES, options).ok()
}

fn play(rig: &Rig, role: &str) -> Result<Process, Failed> {
    let mut copy: Command = copy_as(role)?;
    Process::log_to(&mut copy, &rig.folder.path().join("copy.log"))?;
    Ok(rig.lab.spawn("cn", copy)?)
}
