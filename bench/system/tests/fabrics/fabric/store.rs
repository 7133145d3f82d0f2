//! Stores of the manager that are restored from an old copy, or emptied. Nodes do not follow a manager with
//! such a store, however often it starts, and keep their content until an operator releases what the store
//! lacks. A further test has a store on a full disk.

use std::fs;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::client::{self, ClientError};
use cxloe_client::message::Attaching;
use cxloe_cn_core::engine::EngineError;
use cxloe_fabric::api::{AdoptFabric, ErrorCode, Owner, ReleaseOrphans};
use cxloe_fabric::model::{Health, RegionState};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;

use cxloe_system::star::*;

const BYTES: u64 = 4 * MIB;

/// Starts one memory node with a pool in a file and one compute node, creates region `a` with content, copies the
/// store, and creates region `b`. Returns the options of the memory node, and the HPAs of the regions.
fn with_a_copy(rig: &Star) -> Outcome<(Vec<String>, [u64; 2])> {
    let pool = format!("file:{}", rig.path("pool").display());
    let options = ["--pool", &pool, "--pool-size", "16MiB"].map(str::to_owned).to_vec();
    rig.start_mn(0, &options.iter().map(String::as_str).collect::<Vec<_>>())?;
    rig.start_agent(0, &[])?;
    let a = rig.create("a", 0, BYTES, &[0], 4096)?;
    let mut port = rig.connect(0)?;
    fill(&mut port, a, BYTES, 1)?;
    port.flush()?;
    rig.end("gmm", Signal::SIGTERM)?;
    fs::copy(rig.path("gmm.redb"), rig.path("copy.redb"))?;
    rig.start_gmm(&[])?;
    let b = rig.create("b", 0, BYTES, &[0], 4096)?;
    fill(&mut port, b, BYTES, 2)?;
    port.flush()?;
    Ok((options, [a, b]))
}

/// Number of times a manager with a wrong store is started.
fn rounds() -> u32 {
    if cxloe_system::all_are_run() { 3 } else { 2 }
}

fn put_back(rig: &Star) -> Outcome {
    rig.end("gmm", Signal::SIGTERM)?;
    fs::rename(rig.path("gmm.redb"), rig.path("newest.redb"))?;
    fs::copy(rig.path("copy.redb"), rig.path("gmm.redb"))?;
    rig.start_gmm(&[])
}

/// Waits until the manager lists both nodes as refused.
fn both_refused(rig: &Star) -> Outcome {
    eventually("both nodes are refused", || {
        let refused = rig.ask(rig.manager.refused_nodes()).ok()?;
        (refused.len() == 2 && refused.iter().all(|node| !node.would_lose.is_empty())).then_some(())
    })?;
    let health = rig.ask(rig.manager.health())?;
    ensure(health.refused.len() == 2, format!("{health:?}"))?;
    for node in ["mn0", "cn0"] {
        rig.says(node, "gmm adopt-fabric")?;
    }
    Ok(())
}

/// Checks that the content of both regions is unchanged, through existing and new connections.
fn all_there(rig: &Star, [a, b]: [u64; 2]) -> Outcome {
    let regions = client::regions(&rig.socket(0))?;
    let hpas: Vec<u64> = regions.iter().map(|region| region.hpa).collect();
    ensure(hpas == [a, b], format!("regions stay where they are: {regions:?}"))?;
    let is_there = |how| matches!(how, Attaching::Attached | Attaching::Connecting);
    ensure(regions.iter().all(|region| is_there(region.attachment)), format!("{regions:?}"))?;
    let mut port = rig.connect(0)?;
    verify(&mut port, a, BYTES, 1)?;
    verify(&mut port, b, BYTES, 2)
}

pub fn an_older_store_changes_nothing_however_often_it_is_started() -> Outcome {
    let rig = Star::new(1, 1, &[])?;
    let (options, hpas) = with_a_copy(&rig)?;
    put_back(&rig)?;
    for _ in 0..rounds() {
        both_refused(&rig)?;
        all_there(&rig, hpas)?;
        rig.end("gmm", Signal::SIGTERM)?;
        rig.start_gmm(&[])?;
    }
    both_refused(&rig)?;
    // The nodes still refuse the manager after they have restarted.
    rig.end("cn0", Signal::SIGTERM)?;
    rig.end("mn0", Signal::SIGTERM)?;
    rig.start_mn_alone(0, &options.iter().map(String::as_str).collect::<Vec<_>>())?;
    rig.says("mn0", "serving")?;
    rig.start_agent(0, &[])?;
    both_refused(&rig)?;
    rig.attached(0, "b")?;
    all_there(&rig, hpas)?;

    // Nodes follow a manager with the newest store again, without a recovery command.
    rig.end("gmm", Signal::SIGTERM)?;
    fs::rename(rig.path("newest.redb"), rig.path("gmm.redb"))?;
    rig.start_gmm(&[])?;
    eventually("both nodes follow", || {
        let health = rig.ask(rig.manager.health()).ok()?;
        let reachable = health.memory_nodes.reachable + health.compute_nodes.reachable;
        (reachable == 2 && health.refused.is_empty()).then_some(())
    })?;
    all_there(&rig, hpas)?;
    ensure(rig.ask(rig.manager.regions())?.len() == 2, "both regions are known")
}

pub fn an_empty_store_detaches_nothing() -> Outcome {
    let rig = Star::new(1, 1, &[])?;
    let (_, hpas) = with_a_copy(&rig)?;
    rig.end("gmm", Signal::SIGTERM)?;
    fs::rename(rig.path("gmm.redb"), rig.path("newest.redb"))?;
    for _ in 0..rounds() {
        rig.start_gmm(&[])?;
        both_refused(&rig)?;
        all_there(&rig, hpas)?;
        rig.end("gmm", Signal::SIGTERM)?;
    }
    fs::rename(rig.path("newest.redb"), rig.path("gmm.redb"))?;
    rig.start_gmm(&[])?;
    rig.says("cn0", "registered with the manager")?;
    eventually("the agent follows", || {
        let health = rig.ask(rig.manager.health()).ok()?;
        (health.compute_nodes.reachable == 1 && health.memory_nodes.reachable == 1).then_some(())
    })?;
    all_there(&rig, hpas)
}

pub fn an_older_store_can_be_adopted_and_what_it_lacks_is_kept_until_it_is_released() -> Outcome {
    let rig = Star::new(1, 1, &[])?;
    let (_, [a, b]) = with_a_copy(&rig)?;
    put_back(&rig)?;
    both_refused(&rig)?;
    let refused = rig.ask(rig.manager.refused_nodes())?;
    let lost: Vec<_> = refused.iter().flat_map(|node| &node.would_lose).collect();
    let named = lost.iter().filter_map(|held| held.region.as_ref()).map(ToString::to_string);
    ensure(named.eq(["b".to_owned()]), format!("{lost:?}"))?;
    ensure(lost.iter().all(|held| held.bytes == BYTES), format!("{lost:?}"))?;
    let seen = refused.iter().map(|node| node.seen).collect();
    rig.ask(rig.manager.adopt_fabric(&AdoptFabric { seen }))?;

    eventually("the agent drops what is given up", || {
        let regions = client::regions(&rig.socket(0)).ok()?;
        (regions.len() == 1 && regions[0].hpa == a).then_some(())
    })?;
    let mut port = rig.connect(0)?;
    verify(&mut port, a, BYTES, 1)?;
    let error = port.read(b).expect_err("it is nobody's");
    ensure(matches!(error, ClientError::Engine(EngineError::Unmapped(_))), error.to_string())?;
    // The memory is kept and not assigned: 8 of 16 MiB are free, also after a restart of the manager.
    let node = || rig.ask(rig.manager.memory_nodes()).ok().and_then(|mut nodes| nodes.pop());
    let kept = || node().filter(|node| (node.orphan_bytes, node.free_bytes) == (BYTES, 8 * MIB));
    eventually("the memory node reports what it keeps", kept)?;
    rig.end("gmm", Signal::SIGTERM)?;
    rig.start_gmm(&[])?;
    eventually("it is known over a restart", || kept().filter(|node| node.node.health == Health::Reachable))?;
    let c = rig.create("c", 0, 2 * BYTES, &[0], 4096)?;
    let mut port = rig.connect(0)?;
    check(&mut port, c, 2 * BYTES, |_| [0; 64])?;
    let full =
        rig.ask(rig.manager.create_region(&cxloe_fabric::api::CreateRegion::new(name("d"), BYTES, cn(0))));
    ensure(full.is_err(), "what is kept is not given away")?;

    let left = rig.ask(rig.manager.release_orphans(&name("mn0"), ReleaseOrphans { wait_ms: WAIT_MS }))?;
    ensure(left.orphans.is_empty(), format!("{left:?}"))?;
    let d = rig.create("d", 0, BYTES, &[0], 4096)?;
    let mut port = rig.connect(0)?;
    check(&mut port, d, BYTES, |_| [0; 64])?;
    verify(&mut port, a, BYTES, 1)
}

/// Makes one small change of the manager's state: sets a quota of 1 TiB plus `count` bytes.
fn change(rig: &Star, count: u64) -> Result<(), cxloe_fabric::ClientError> {
    rig.ask(rig.manager.set_quota(&Owner::CnId(cn(0)), Some((1 << 40) + count))).map(drop)
}

pub fn a_full_disk_stops_changes_and_nothing_else() -> Outcome {
    cxloe_lab::expect_error("nothing can be changed until the store can be written");
    let rig = Star::new(1, 1, &[])?;
    // The store is on its own small disk.
    let disk = rig.path("disk");
    fs::create_dir(&disk)?;
    mount(Some("none"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=24m"))?;
    rig.end("gmm", Signal::SIGTERM)?;
    // Free pages of the copied store occupy no disk space yet.
    let sparse = ["--sparse=always", "gmm.redb", "disk/"];
    let copied = std::process::Command::new("cp").args(sparse).current_dir(rig.dir.path()).status()?;
    ensure(copied.success(), "the store cannot be copied")?;
    fs::remove_file(rig.path("gmm.redb"))?;
    std::os::unix::fs::symlink(disk.join("gmm.redb"), rig.path("gmm.redb"))?;
    rig.start_gmm(&[])?;
    rig.start_mn(0, &["--pool-size", "16MiB"])?;
    rig.start_agent(0, &[])?;
    let hpa = rig.create("r", 0, BYTES, &[0], 4096)?;
    let mut port = rig.connect(0)?;
    fill(&mut port, hpa, BYTES, 1)?;

    for round in 0..2 {
        let mut filler = fs::File::create(disk.join("filler"))?;
        let mut filled = 0_u64;
        for block in [1 << 20, 4096] {
            while filler.write_all(&vec![1; block]).is_ok() {
                filled += block as u64;
                ensure(filled < 64 * MIB, "the disk does not become full")?;
            }
        }
        drop(filler);
        let refused = (0..40_000).find_map(|count| change(&rig, count).err());
        let refused = refused.ok_or("a full disk is never noticed")?;
        ensure(refused.code() == Some(ErrorCode::StoreFull), refused.to_string())?;
        ensure(refused.to_string().contains("No space left on device"), refused.to_string())?;
        let before = rig.ask(rig.manager.compute_nodes())?;
        // Queries are answered and nodes stay reachable, for longer than the node time-out.
        let until = Instant::now() + Duration::from_millis(2500);
        while Instant::now() < until {
            let health = rig.ask(rig.manager.health())?;
            ensure(health.status == "read-only" && health.read_only.is_some(), format!("{health:?}"))?;
            ensure(
                health.memory_nodes.reachable == 1 && health.compute_nodes.reachable == 1,
                format!("{health:?}"),
            )?;
            ensure(
                change(&rig, 7).is_err_and(|error| error.code() == Some(ErrorCode::StoreFull)),
                "refused",
            )?;
            verify(&mut port, hpa, BYTES, 1 + round)?;
            // All rounds together outlast several heartbeats of the nodes.
            thread::sleep(Duration::from_millis(200));
        }
        ensure(rig.ask(rig.manager.compute_nodes())? == before, "what was refused was not done")?;
        fs::remove_file(disk.join("filler"))?;
        eventually("changes are made again", || change(&rig, 9 + round).ok())?;
        let health = rig.ask(rig.manager.health())?;
        ensure(health.status == "ok" && health.read_only.is_none(), format!("{health:?}"))?;
        rig.region_is("r", RegionState::Active)?;
        fill(&mut port, hpa, BYTES, 2 + round)?;
    }
    // After a restart, the manager's store is consistent.
    rig.end("gmm", Signal::SIGTERM)?;
    rig.start_gmm(&[])?;
    let quota = rig.ask(rig.manager.compute_nodes())?.first().and_then(|node| node.quota);
    ensure(quota == Some((1 << 40) + 10), format!("{quota:?}"))?;
    rig.attached(0, "r")?;
    verify(&mut port, hpa, BYTES, 3)?;
    rig.end("gmm", Signal::SIGTERM)?;
    Ok(umount2(&disk, MntFlags::MNT_DETACH)?)
}
