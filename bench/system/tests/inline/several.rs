//! Several regions of one program over one port, or over one interface: threads fault in all of them at once, while
//! regions are mapped and unmapped in any order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, LinkConfig, Middlewares};
use cxloe_port::connect::{Access, ConnectOptions, Connected};
use cxloe_port::inline::{InlineError, InlineRegion, SPACES_MAX};
use cxloe_port::rate_control::RateControl;
use cxloe_system::cable::LinkKind;
use cxloe_system::pair::{Pair, REGION};
use cxloe_system::{Failed, LIMIT, Outcome, ensure, text};

use super::{BYTES, Draw, HPA, LOCAL, Rig, THREADS, TOUCH, WORDS_PER_PAGE, local};

const HALF: u64 = BYTES / 2;

fn value(salt: u64, page: usize, version: u64) -> u64 {
    (page as u64).rotate_left(40) ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt << 8
}

/// Reads and increments words on a thread's own pages of a region, in scattered order in each round, and checks each
/// word against its last write.
fn add(region: &InlineRegion, salt: u64, own: usize, rounds: std::ops::Range<u64>) -> Result<(), String> {
    let pages = region.len() / super::PAGE / THREADS;
    let mut draw = Draw(salt + own as u64 + 0x5EED);
    for version in rounds {
        let first = draw.below(pages);
        for step in 0..pages {
            // The number of pages is a power of two, so an odd stride visits each page once.
            let page = (first + step * 37) % pages * THREADS + own;
            let word = &region[page * WORDS_PER_PAGE + page % WORDS_PER_PAGE];
            let (found, expected) = (word.load(Ordering::Relaxed), value(salt, page, version));
            if found != expected && (version, found) != (0, 0) {
                return Err(format!("region {salt}, page {page}: {found:#x}, not {expected:#x}"));
            }
            word.store(value(salt, page, version + 1), Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Runs [`add`] with several threads in each of these regions at once.
fn add_in(regions: &[(&InlineRegion, u64)], rounds: std::ops::Range<u64>) -> Outcome {
    thread::scope(|scope| -> Outcome {
        let mut threads = Vec::new();
        for (region, salt) in regions {
            for own in 0..THREADS {
                let rounds = rounds.clone();
                threads.push(scope.spawn(move || add(region, *salt, own, rounds)));
            }
        }
        for thread in threads {
            thread.join().map_err(|_| "it panicked")??;
        }
        Ok(())
    })
}

/// Each half of a port's memory is a region: the region that was mapped first is unmapped first, and mapped again.
pub fn two_over_one_port(over: LinkKind, faults: Option<&str>) -> Outcome {
    let rig = Rig::new(over, faults)?;
    let port = rig.inline(over, faults)?;
    let first = port.map(HPA, HALF, local(LOCAL))?;
    let second = port.map(HPA + HALF, HALF, local(LOCAL))?;
    add_in(&[(&first, 1), (&second, 2)], 0..2)?;
    thread::scope(|scope| -> Outcome {
        let beside = scope.spawn(|| add_in(&[(&second, 2)], 2..4).map_err(|error| format!("{error:?}")));
        first.close()?;
        let again = port.map(HPA, HALF, local(LOCAL))?;
        add_in(&[(&again, 1)], 2..3)?;
        beside.join().map_err(|_| "it panicked")??;
        add_in(&[(&again, 1)], 3..4)?;
        again.close().map_err(Failed::from)
    })?;
    let counters = second.counters();
    ensure(counters.evicted > 0 && counters.written_back > 0, format!("{counters:?}"))?;
    ensure(second.resident() <= LOCAL, "each has its own limit")?;
    second.close()?;
    // The memory node holds the last writes of both regions.
    let mut port = port.into_port()?;
    let mut bytes = vec![0; BYTES as usize];
    port.read_bytes(HPA, &mut bytes)?;
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    for (salt, words) in [1, 2].into_iter().zip(words.chunks(HALF as usize / 8)) {
        for (page, words) in words.chunks(WORDS_PER_PAGE).enumerate() {
            let found = words[page % WORDS_PER_PAGE];
            ensure(found == value(salt, page, 4), format!("region {salt}, page {page}: {found:#x}"))?;
        }
    }
    rig.end()
}

/// A port has slots for a fixed number of regions; the mapping of one more is refused.
pub fn a_port_has_places_for_so_many() -> Outcome {
    let rig = Rig::new(Backend::Packet, None)?;
    let port = rig.inline(Backend::Packet, None)?;
    let part = BYTES / 64;
    let map = |at: usize| port.map(HPA + at as u64 * part, part, local(LOCAL));
    let regions = (0..SPACES_MAX).map(map).collect::<Result<Vec<_>, _>>()?;
    ensure(matches!(map(SPACES_MAX), Err(InlineError::Full(SPACES_MAX))), "one more is refused")?;
    let all: Vec<(&InlineRegion, u64)> = regions.iter().zip(0..).collect();
    all.chunks(4).try_for_each(|some| add_in(some, 0..2))?;
    drop(regions);
    port.into_port()?.close()?;
    rig.end()
}

/// Starts a manager and a memory node, and creates regions of the compute node `cn0`.
fn fabric(regions: &[&str]) -> Outcome<Pair> {
    let rig = Pair::bare()?;
    rig.start_gmm()?;
    rig.start_mn_with("anon", &["--node-key", text(&rig.path("mn.key"))])?;
    regions.iter().try_for_each(|name| rig.create_region(name).map(drop))?;
    Ok(rig)
}

/// Options by which this program, as a compute node, connects to a new region.
fn way(rig: &Pair) -> ConnectOptions {
    ConnectOptions {
        name: "several".into(),
        link: LinkConfig { backend: Backend::Packet, ..LinkConfig::new("cn0") },
        extras: Middlewares::default(),
        wait: WaitStyle::Busy,
        manager: rig.manager_url(),
        access: Access { data_dir: Some(rig.path("nobody")), ..Access::default() },
        region: None,
        size: REGION,
        ways: Ways::One,
        granularity: Granularity::PAGE,
        timeout: LIMIT,
        rate_control: Some(RateControl::default()),
    }
}

/// Options by which this program connects to an existing region.
fn to(way: &ConnectOptions, region: &str) -> ConnectOptions {
    ConnectOptions { region: Some(region.into()), ..way.clone() }
}

/// Regions over one interface, sealed and paced: the second region is mapped while threads fault in the first; the
/// first is unmapped while threads fault in the second, and is mapped again; a failed region does not affect the
/// others; after the last region is unmapped, the interface is free.
pub fn regions_come_and_go_over_one_interface() -> Outcome {
    let rig = fabric(&["first", "second"])?;
    let way = way(&rig);
    let open = |region: Option<&str>| {
        let way = region.map_or_else(|| way.clone(), |region| to(&way, region));
        InlineRegion::open(&way, local(LOCAL))
    };
    rig.lab.enter("cn", || -> Result<(), String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let both = |done: Outcome| done.map_err(|error| format!("{error:?}"));
        for round in [0, 6] {
            let first = open(Some("first")).map_err(|e| words(&e))?;
            let second = thread::scope(|scope| {
                let beside =
                    scope.spawn(|| add_in(&[(&first, 1)], round..round + 2).map_err(|e| format!("{e:?}")));
                let second = open(Some("second")).map_err(|e| words(&e));
                beside.join().map_err(|_| "it panicked".to_owned())??;
                second
            })?;
            both(add_in(&[(&second, 2)], round..round + 2))?;
            both(add_in(&[(&first, 1), (&second, 2)], round + 2..round + 3))?;
            let gone = open(Some("third")).err().map(|error| error.to_string()).unwrap_or_default();
            if !gone.contains("third") {
                return Err(gone);
            }
            let elsewhere = ConnectOptions { manager: "unix:/nowhere".into(), ..to(&way, "first") };
            let other = InlineRegion::open(&elsewhere, local(LOCAL)).err().map(|e| e.to_string());
            if !other
                .as_ref()
                .is_some_and(|output_text| output_text.contains("by another link, manager or key"))
            {
                return Err(format!("{other:?}"));
            }
            let line = Connected::open(&to(&way, "first")).err().map(|e| e.to_string());
            if !line.as_ref().is_some_and(|output_text| output_text.contains("has a port on interface `cn0`"))
            {
                return Err(format!("{line:?}"));
            }
            thread::scope(|scope| {
                let beside = scope
                    .spawn(|| add_in(&[(&second, 2)], round + 3..round + 5).map_err(|e| format!("{e:?}")));
                first.close().map_err(|e| words(&e))?;
                let own = open(None).map_err(|e| words(&e))?;
                both(add_in(&[(&own, 3)], 0..2))?;
                let again = open(Some("first")).map_err(|e| words(&e))?;
                both(add_in(&[(&again, 1)], round + 3..round + 6))?;
                own.close().map_err(|e| words(&e))?;
                beside.join().map_err(|_| "it panicked".to_owned())??;
                both(add_in(&[(&second, 2)], round + 5..round + 6))?;
                again.close().map_err(|e| words(&e))
            })?;
            second.close().map_err(|e| words(&e))?;
        }
        // A line port can use the free interface, and finds the data.
        let Connected { mut port, hpa, lease, .. } =
            Connected::open(&to(&way, "first")).map_err(|e| words(&e))?;
        let found = port.read(hpa).map_err(|e| words(&e))?;
        if found[..8] != value(1, 0, 12).to_le_bytes() {
            return Err(format!("{found:?}"));
        }
        port.close().map_err(|e| words(&e))?;
        lease.end().map_err(|e| words(&e))
    })??;
    let temporary = format!("several-{}", std::process::id());
    let output_text = rig.gmm(&["list"])?;
    ensure(!output_text.contains(&temporary), output_text)
}

/// A thread faults repeatedly while it holds the allocator's lock: the fault is served without that lock, even while
/// another region is mapped or unmapped over the same interface.
pub fn a_region_comes_while_a_thread_faults_within_the_allocator() -> Outcome {
    let rig = fabric(&["first", "second"])?;
    let way = way(&rig);
    rig.lab.enter("cn", || -> Result<(), String> {
        let words = |error: InlineError| error.to_string();
        let first = InlineRegion::open(&to(&way, "first"), local(LOCAL)).map_err(words)?;
        let (stop, faults) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            let within = scope.spawn(|| {
                let pages = first.len() / super::PAGE;
                while !stop.load(Ordering::Acquire) {
                    let page = faults.load(Ordering::Relaxed) * 37 % pages;
                    let word = std::ptr::from_ref(&first[page * WORDS_PER_PAGE]) as u64;
                    TOUCH.set(word);
                    drop(std::hint::black_box(vec![0_u8; 100]));
                    // Without a pause, other threads would hardly get the allocator's lock on a busy machine.
                    thread::sleep(Duration::from_millis(1));
                    faults.fetch_add(1, Ordering::Relaxed);
                }
            });
            // The second region is mapped at least five times, and on a slow machine until the other thread has caused
            // enough faults.
            let more = |turn: &i32| *turn < 5 || faults.load(Ordering::Relaxed) <= 100;
            let outcome = (0..500).take_while(more).try_for_each(|_| {
                let second = InlineRegion::open(&to(&way, "second"), local(LOCAL)).map_err(words)?;
                second[0].fetch_add(1, Ordering::Relaxed);
                second.close().map_err(words)
            });
            stop.store(true, Ordering::Release);
            within.join().map_err(|_| "it panicked".to_owned())?;
            let faults = faults.load(Ordering::Relaxed);
            outcome.and(if faults > 100 { Ok(()) } else { Err(format!("{faults} faults")) })
        })?;
        first.close().map_err(words)
    })??;
    Ok(())
}
