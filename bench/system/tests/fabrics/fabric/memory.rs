//! Regions and their content: interleaving, growth, quotas, disabling, losses, and zeroing before reuse.

use cxloe_client::client::{self, ClientError};
use cxloe_cn_core::engine::EngineError;
use cxloe_fabric::api::{
    CreateRegion, DestroyRegion, DisableRegion, ErrorCode, GrowRegion, ReleaseOrphans, ResetRegion,
};
use cxloe_fabric::model::{Health, RegionState};
use nix::sys::signal::Signal;

use super::load::{Load, Trouble};
use cxloe_system::star::*;

fn grow(rig: &Star, region: &str, bytes: u64) -> Outcome {
    let grow = GrowRegion { size: size(bytes), on: Vec::new(), wait_ms: WAIT_MS };
    rig.ask(rig.manager.grow_region(&name(region), &grow))?;
    Ok(())
}

/// Number of requests sent to each memory node so far.
fn requests(rig: &Star, owner: usize) -> Outcome<Vec<u64>> {
    let sessions = client::sessions(&rig.socket(owner))?;
    Ok(sessions.iter().map(|session| session.status.counters.requests).collect())
}

pub fn interleaved_regions_hold_every_byte_and_grow_under_load() -> Outcome {
    let rig = Star::whole(4, 1, "64MiB")?;
    let (four, three) = (8 * MIB, 6 * MIB);
    let wide = rig.create("wide", 0, four, &[0, 1, 2, 3], 1024)?;
    let odd = rig.create("odd", 0, three, &[3, 1, 0], 256)?;
    let listed = rig.attached(0, "wide")?;
    let decoder = listed.decoders.first().ok_or("a region has a decoder")?;
    ensure((decoder.interleave_ways, decoder.interleave_granularity) == (4, 1024), format!("{listed:?}"))?;
    let offsets: Vec<u64> = listed.memory_nodes.iter().map(|leg| leg.offset).collect();
    ensure(offsets == [0, 1024, 2048, 3072], format!("{listed:?}"))?;

    let mut port = rig.connect(0)?;
    let before = requests(&rig, 0)?;
    fill(&mut port, wide, four, 1)?;
    fill(&mut port, odd, three, 2)?;
    port.flush()?;
    verify(&mut port, wide, four, 1)?;
    verify(&mut port, odd, three, 2)?;
    // Every line is requested twice, by a write and a read. So each memory node gets at least a quarter of
    // the requests for the lines of the first region, which is interleaved over four memory nodes.
    let lines = |bytes: u64| bytes / 64 * 2;
    for (after, before) in requests(&rig, 0)?.iter().zip(before) {
        ensure(after - before >= lines(four) / 4, format!("a leg was asked {} times", after - before))?;
    }

    // Growth does not change the content, and does not disturb the load.
    let load = Load::start(rig.socket(0), wide, four);
    load.goes_on()?;
    for step in 2..4 {
        grow(&rig, "wide", step * four)?;
        let grown = rig.listed(0, "wide", |region| region.size == step * four)?;
        ensure(grown.hpa == wide && grown.decoders.len() == step as usize, format!("{grown:?}"))?;
        load.goes_on()?;
        let mut last = None;
        eventually("the new part can be used", || {
            port.read(wide + (step - 1) * four).map_err(|error| last = Some(error)).ok()
        })
        .map_err(|e| format!("{}: {last:?}", e.message().unwrap_or_default()))?;
        check(&mut port, wide + (step - 1) * four, four, |_| [0; 64])?;
        fill(&mut port, wide + (step - 1) * four, four, 3 + step)?;
    }
    load.goes_on()?;
    load.end().map_err(|trouble| format!("growth was noticed: {trouble}"))?;
    for step in 2..4 {
        verify(&mut port, wide + (step - 1) * four, four, 3 + step)?;
    }
    verify(&mut port, odd, three, 2)?;
    // Addresses above the last decoder are unmapped.
    let beyond = port.read(wide + 3 * four).expect_err("nobody maps it");
    ensure(matches!(beyond, ClientError::Engine(EngineError::Unmapped(_))), beyond.to_string())
}

pub fn quotas_are_kept() -> Outcome {
    let rig = Star::whole(2, 1, "64MiB")?;
    rig.set_quota(0, 12 * MIB)?;
    let refused = |result: Result<(), cxloe_fabric::ClientError>, what: &str| {
        let code = result.as_ref().err().and_then(cxloe_fabric::ClientError::code);
        ensure(code == Some(ErrorCode::OverQuota), format!("{what}: {result:?}"))
    };
    let create = |name: &str, bytes| {
        let create = CreateRegion { wait_ms: WAIT_MS, ..CreateRegion::new(self::name(name), bytes, cn(0)) };
        rig.ask(rig.manager.create_region(&create)).map(drop)
    };
    refused(create("large", 16 * MIB), "a region larger than the quota")?;
    create("a", 8 * MIB)?;
    refused(create("b", 8 * MIB), "a second region")?;
    let grow = GrowRegion { size: size(16 * MIB), on: Vec::new(), wait_ms: WAIT_MS };
    refused(rig.ask(rig.manager.grow_region(&name("a"), &grow)).map(drop), "growth")?;
    let hpa = rig.attached(0, "a")?.hpa;
    let mut port = rig.connect(0)?;
    fill(&mut port, hpa, 8 * MIB, 1)?;
    verify(&mut port, hpa, 8 * MIB, 1)?;
    rig.set_quota(0, 16 * MIB)?;
    rig.ask(rig.manager.grow_region(&name("a"), &grow))?;
    rig.listed(0, "a", |region| region.size == 16 * MIB)?;
    verify(&mut port, hpa, 8 * MIB, 1)
}

pub fn disabled_regions_keep_content_and_address() -> Outcome {
    let rig = Star::whole(2, 1, "64MiB")?;
    let bytes = 4 * MIB;
    let hpa = rig.create("r", 0, bytes, &[0, 1], 4096)?;
    let other = rig.create("other", 0, bytes, &[1], 4096)?;
    let mut port = rig.connect(0)?;
    let load = Load::start(rig.socket(0), other, bytes);
    load.goes_on()?;
    fill(&mut port, hpa, bytes, 1)?;
    // These lines are written to the cache only, and are not yet at the memory node.
    for i in 0..64 {
        port.write(hpa + i * 64, &line(hpa + i * 64, 2))?;
    }
    let disable = DisableRegion { wait_ms: WAIT_MS };
    let disabled = rig.ask(rig.manager.disable_region(&name("r"), disable))?;
    ensure(disabled.state == RegionState::Disabled, format!("{disabled:?}"))?;
    let error = port.read(hpa + MIB).expect_err("it is disabled");
    ensure(matches!(error, ClientError::Engine(EngineError::Draining(_))), error.to_string())?;
    let error = port.write(hpa, &[7; 64]).expect_err("it is disabled");
    ensure(matches!(error, ClientError::Engine(EngineError::Draining(_))), error.to_string())?;
    rig.listed(0, "r", |region| region.state == "disabled")?;

    let content = |at: u64| if at < hpa + 64 * 64 { line(at, 2) } else { line(at, 1) };
    rig.ask(rig.manager.enable_region(&name("r")))?;
    ensure(rig.attached(0, "r")?.hpa == hpa, "it keeps its address")?;
    check(&mut port, hpa, bytes, content)?;

    // A disabled region stays disabled when the agent restarts.
    load.end().map_err(|trouble| format!("another region was disturbed: {trouble}"))?;
    rig.ask(rig.manager.disable_region(&name("r"), disable))?;
    rig.end("cn0", Signal::SIGTERM)?;
    rig.start_agent(0, &[])?;
    rig.attached(0, "other")?;
    let mut port = rig.connect(0)?;
    let error = port.read(hpa).expect_err("it is disabled");
    ensure(matches!(error, ClientError::Engine(EngineError::Draining(_))), error.to_string())?;
    rig.ask(rig.manager.enable_region(&name("r")))?;
    ensure(rig.attached(0, "r")?.hpa == hpa, "it keeps its address")?;
    check(&mut port, hpa, bytes, content)
}

pub fn new_regions_never_show_old_bytes() -> Outcome {
    cxloe_lab::expect_error("a modified line could not be written back");
    // The pool has room for two regions only, so that every extent is reused repeatedly.
    let rig = Star::whole(1, 2, "8MiB")?;
    let bytes = 4 * MIB;
    for round in 0..8_u64 {
        let owner = round as usize % 2;
        let region = format!("r{round}");
        let hpa = rig.create(&region, owner, bytes, &[0], 4096)?;
        let mut port = rig.connect(owner)?;
        check(&mut port, hpa, bytes, |_| [0; 64])
            .map_err(|e| format!("round {round}: {}", e.message().unwrap_or_default()))?;
        fill(&mut port, hpa, bytes, round + 1)?;
        port.flush()?;
        // The region is destroyed during writes: writes in flight must not reach the next owner's memory.
        let load = Load::start(rig.socket(owner), hpa, bytes);
        load.goes_on()?;
        rig.destroy(&region)?;
        match load.trouble()? {
            Trouble::Failed(ClientError::Engine(_)) => {}
            other => return Err(format!("round {round}: the load stopped of this: {other}").into()),
        }
    }
    Ok(())
}

pub fn a_lost_leg_takes_its_chunks_and_no_others() -> Outcome {
    cxloe_lab::expect_error("has lost its content");
    let rig = Star::whole(2, 1, "16MiB")?;
    let bytes = 4 * MIB;
    let hpa = rig.create("r", 0, bytes, &[0, 1], 1024)?;
    let mut port = rig.connect(0)?;
    fill(&mut port, hpa, bytes, 1)?;
    port.flush()?;
    rig.end("mn1", Signal::SIGKILL)?;
    rig.start_mn(1, &["--pool-size", "16MiB"])?;
    rig.region_is("r", RegionState::Lost)?;
    rig.listed(0, "r", |region| region.state == "lost")?;
    let legs = rig.listed(0, "r", |_| true)?.memory_nodes;
    let lost = legs.iter().find(|leg| leg.memory_node == "mn1").ok_or("a leg is on mn1")?.position;
    let mine = |at: u64| (at - hpa) / 1024 % 2 == u64::from(lost);
    let hpas: Vec<u64> = (hpa..hpa + bytes).step_by(64).collect();
    let other = hpa + 1024 * u64::from(1 - lost);
    eventually("what is on the other memory node can be read", || port.read(other).ok())?;
    for at in hpas.iter().step_by(61).copied() {
        match (mine(at), port.read(at)) {
            (false, Ok(read)) if read == line(at, 1) => {}
            (true, Err(ClientError::Engine(EngineError::DataLost(_)))) => {}
            (_, other) => return Err(format!("line {at:#x}: {other:x?}").into()),
        }
    }
    rig.ask(rig.manager.reset_region(&name("r"), ResetRegion { wait_ms: WAIT_MS }))?;
    ensure(rig.attached(0, "r")?.hpa == hpa, "it keeps its address")?;
    check(&mut port, hpa, bytes, |at| if mine(at) { [0; 64] } else { line(at, 1) })
}

pub fn forgotten_memory_nodes_come_back_empty() -> Outcome {
    let rig = Star::new(1, 1, &[])?;
    let pool = format!("file:{}", rig.path("pool").display());
    let options = ["--pool", &pool, "--pool-size", "16MiB"];
    rig.start_mn(0, &options)?;
    rig.start_agent(0, &[])?;
    let hpa = rig.create("r", 0, 12 * MIB, &[0], 4096)?;
    let mut port = rig.connect(0)?;
    fill(&mut port, hpa, 12 * MIB, 1)?;
    port.flush()?;
    let there = rig.ask(rig.manager.forget_memory_node(&name("mn0"), true));
    ensure(
        there.as_ref().err().and_then(cxloe_fabric::ClientError::code) == Some(ErrorCode::WrongState),
        format!("{there:?}"),
    )?;
    rig.end("mn0", Signal::SIGKILL)?;
    eventually("it is missed", || {
        let nodes = rig.ask(rig.manager.memory_nodes()).ok()?;
        nodes.iter().all(|node| node.node.health == Health::Unreachable).then_some(())
    })?;
    let needed = rig.ask(rig.manager.forget_memory_node(&name("mn0"), false));
    ensure(needed.is_err(), "a region lies on it")?;
    rig.ask(rig.manager.forget_memory_node(&name("mn0"), true))?;
    ensure(rig.ask(rig.manager.memory_nodes())?.is_empty(), "it is forgotten")?;
    eventually("the region is detached", || client::regions(&rig.socket(0)).ok()?.is_empty().then_some(()))?;

    // The memory node restarts with its pool and still has content and mappings, which it keeps until they are
    // released.
    rig.start_mn(0, &options)?;
    eventually("it says what it keeps", || {
        let nodes = rig.ask(rig.manager.memory_nodes()).ok()?;
        nodes.iter().any(|node| node.orphan_bytes == 12 * MIB).then_some(())
    })?;
    let left = rig.ask(rig.manager.release_orphans(&name("mn0"), ReleaseOrphans { wait_ms: WAIT_MS }))?;
    ensure(left.orphans.is_empty(), format!("{left:?}"))?;
    let hpa = rig.create("fresh", 0, 16 * MIB, &[0], 4096)?;
    let mut port = rig.connect(0)?;
    check(&mut port, hpa, 16 * MIB, |_| [0; 64])?;
    let destroy = DestroyRegion { force: true, wait_ms: WAIT_MS, created_ms: None };
    rig.ask(rig.manager.destroy_region(&name("fresh"), destroy))?;
    Ok(())
}

/// While one client's flush waits for a stopped memory node, another client's writes continue.
pub fn a_flush_holds_up_nobody() -> Outcome {
    let rig = Star::new(2, 1, &[])?;
    (0..2).try_for_each(|index| rig.start_mn(index, &["--pool-size", "16MiB"]))?;
    // This time-out exceeds every wait in the test, so that the other client cannot continue merely because
    // the session has ended.
    rig.start_agent_with(0, "60s", &[])?;
    let stuck = rig.create("stuck", 0, 2 * MIB, &[0], 4096)?;
    let free = rig.create("free", 0, 2 * MIB, &[1], 4096)?;
    let mut port = rig.connect(0)?;
    for i in 0..16 {
        port.write(stuck + i * 64, &line(stuck + i * 64, 1))?;
    }
    rig.pause("mn0", true)?;
    let flusher = std::thread::spawn(move || {
        let flushed = port.flush();
        (port, flushed)
    });
    eventually("the flush is under way", || {
        (client::counters(&rig.socket(0)).ok()?.engine.write_backs >= 16).then_some(())
    })?;
    let mut other = rig.connect(0)?;
    for round in 0..64 {
        let lines: Vec<_> = (0..1024).map(|i| free + i * 64).map(|hpa| (hpa, line(hpa, round))).collect();
        other.write_batch(&lines)?;
    }
    verify(&mut other, free, 1024 * 64, 63)?;
    ensure(!flusher.is_finished(), "the flush waits for its memory node")?;
    rig.pause("mn0", false)?;
    eventually("the flush ends", || flusher.is_finished().then_some(()))?;
    let (mut port, flushed) = flusher.join().expect("no panic");
    flushed?;
    verify(&mut port, stuck, 16 * 64, 1)
}
