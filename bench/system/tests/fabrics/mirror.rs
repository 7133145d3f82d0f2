//! Mirrored regions under real daemons: memory nodes that are killed and return without their content, protection that
//! is added and removed while the region is written.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use cxloe_client::client::Client;
use cxloe_fabric::api::{CreateRegion, ProtectRegion};
use cxloe_fabric::model::{Name, Protection, Region, RegionState};
use cxloe_lab::{LabPrivilege, expect_error, program};
use cxloe_system::command::{answered, output};
use cxloe_system::star::{MIB, Outcome, Star, WAIT_MS, cn, ensure, eventually, line, name, verify};
use cxloe_system::{Test, tests};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        writes_go_on_when_a_memory_node_is_killed,
        either_leg_has_every_write,
        interleaved_regions_are_mirrored,
        protection_is_added_and_removed_in_use,
        two_dead_legs_fail_operations_by_name,
        a_memory_node_is_drained_in_use,
        regions_move_to_the_nodes_that_are_used_least,
        an_agent_that_ends_in_order_leaves_both_copies_in_sync,
    ]
}

const BYTES: u64 = 4 * MIB;
/// Options of an agent without a line cache, with which every operation reaches memory nodes.
const UNCACHED: &[&str] = &["--cache-size", "0"];

fn star(memory_nodes: usize) -> Outcome<Star> {
    expect_error("has lost its content");
    expect_error("has not answered within the limit");
    let star = Star::new(memory_nodes, 1, &["--rebuild-after", "0"])?;
    for index in 0..memory_nodes {
        star.start_mn(index, &["--pool-size", "64MiB"])?;
    }
    star.start_agent(0, UNCACHED)?;
    Ok(star)
}

/// Creates the region `m` over memory nodes `on`, and returns its address.
fn create(star: &Star, protect: Protection, ways: u32, on: &[usize]) -> Outcome<u64> {
    let on: Vec<Name> = on.iter().map(|index| name(&format!("mn{index}"))).collect();
    let create = CreateRegion {
        protect,
        on,
        ways: ways.try_into()?,
        wait_ms: WAIT_MS,
        ..CreateRegion::new(name("m"), BYTES, cn(0))
    };
    star.ask(star.manager.create_region(&create))?;
    Ok(star.attached(0, "m")?.hpa)
}

/// Writes every line of the region with content that depends on `seed`; returns the longest time that a batch
/// of 64 lines took.
fn write(port: &mut Client, hpa: u64, seed: u64) -> Outcome<Duration> {
    write_and(port, hpa, seed, |_| Ok(()))
}

/// Like [`write`]; `meanwhile` is called after half of the lines.
fn write_and(
    port: &mut Client,
    hpa: u64,
    seed: u64,
    meanwhile: impl FnOnce(&mut Client) -> Outcome,
) -> Outcome<Duration> {
    let hpas: Vec<u64> = (hpa..hpa + BYTES).step_by(64).collect();
    let (mut longest, mut meanwhile) = (Duration::ZERO, Some(meanwhile));
    for (count, chunk) in hpas.chunks(64).enumerate() {
        if count == hpas.len() / 128 {
            meanwhile.take().map_or(Ok(()), |act| act(port))?;
        }
        let lines: Vec<_> = chunk.iter().map(|hpa| (*hpa, line(*hpa, seed))).collect();
        let began = Instant::now();
        port.write_batch(&lines)?;
        longest = longest.max(began.elapsed());
    }
    Ok(longest)
}

fn whole(star: &Star) -> Outcome<Region> {
    star.region_is("m", RegionState::Active)
}

fn exposed(star: &Star) -> Outcome<Region> {
    star.region_is("m", RegionState::Exposed)
}

fn writes_go_on_when_a_memory_node_is_killed() -> Outcome {
    let star = star(2)?;
    let hpa = create(&star, Protection::Mirror, 1, &[0, 1])?;
    let mut port = star.connect(0)?;
    write(&mut port, hpa, 1)?;
    let stall = write_and(&mut port, hpa, 2, |_| star.kill("mn0"))?;
    verify(&mut port, hpa, BYTES, 2)?;
    exposed(&star)?;
    // The node starts again without its content, and is filled while the region is written.
    star.start_mn(0, &["--pool-size", "64MiB"])?;
    write(&mut port, hpa, 3)?;
    whole(&star)?;
    write(&mut port, hpa, 4)?;
    let second = write_and(&mut port, hpa, 5, |_| star.kill("mn1"))?;
    verify(&mut port, hpa, BYTES, 5)?;
    println!("longest 64 lines at the kills: {stall:?}, {second:?}");
    exposed(&star).map(drop)
}

fn either_leg_has_every_write() -> Outcome {
    let star = star(2)?;
    let hpa = create(&star, Protection::Mirror, 1, &[0, 1])?;
    let mut port = star.connect(0)?;
    for round in 0..4 {
        write(&mut port, hpa, round)?;
        let away = format!("mn{}", round % 2);
        star.pause(&away, true)?;
        verify(&mut port, hpa, BYTES, round)?;
        exposed(&star)?;
        let lines: Vec<_> = (hpa..hpa + 4096).step_by(64).map(|at| (at, line(at, 100 + round))).collect();
        port.write_batch(&lines)?;
        star.pause(&away, false)?;
        whole(&star)?;
        let mut read = vec![[0; 64]; lines.len()];
        port.read_batch(&lines.iter().map(|(at, _)| *at).collect::<Vec<_>>(), &mut read)?;
        let wrong = lines.iter().zip(&read).find(|((_, wanted), read)| wanted != *read);
        ensure(wrong.is_none(), format!("round {round}: {wrong:x?}"))?;
    }
    Ok(())
}

fn interleaved_regions_are_mirrored() -> Outcome {
    let star = star(4)?;
    let hpa = create(&star, Protection::Mirror, 2, &[0, 1, 2, 3])?;
    let mut port = star.connect(0)?;
    write(&mut port, hpa, 1)?;
    for index in 0..4 {
        write_and(&mut port, hpa, 2 + index, |_| star.kill(&format!("mn{index}")))?;
        verify(&mut port, hpa, BYTES, 2 + index)?;
        star.start_mn(index as usize, &["--pool-size", "64MiB"])?;
        whole(&star)?;
    }
    verify(&mut port, hpa, BYTES, 5)
}

fn protection_is_added_and_removed_in_use() -> Outcome {
    let star = star(2)?;
    let hpa = create(&star, Protection::None, 1, &[0])?;
    let mut port = star.connect(0)?;
    write(&mut port, hpa, 1)?;
    let protect = |protect| {
        let protect = ProtectRegion { protect, on: Vec::new(), wait_ms: WAIT_MS };
        star.ask(star.manager.protect_region(&name("m"), &protect))
    };
    protect(Protection::Mirror)?;
    write(&mut port, hpa, 2)?;
    whole(&star)?;
    star.kill("mn0")?;
    verify(&mut port, hpa, BYTES, 2)?;
    exposed(&star)?;
    protect(Protection::None)?;
    whole(&star)?;
    write(&mut port, hpa, 3)?;
    verify(&mut port, hpa, BYTES, 3)
}

/// Drains `mn0` while the region is written, until no part of the region is on `mn0`.
fn drain(star: &Star, port: &mut Client, hpa: u64) -> Outcome {
    star.ask(star.manager.drain_memory_node(&name("mn0"), true))?;
    for seed in 10..200 {
        write(port, hpa, seed)?;
        verify(port, hpa, BYTES, seed)?;
        if !star.ask(star.manager.region(&name("m")))?.lies_on(&name("mn0")) {
            return Ok(());
        }
    }
    Err("a part of the region is still on the drained node".into())
}

fn a_memory_node_is_drained_in_use() -> Outcome {
    for (protect, others) in [(Protection::None, &[0][..]), (Protection::Mirror, &[0, 1])] {
        let star = star(3)?;
        let hpa = create(&star, protect, 1, others)?;
        let mut port = star.connect(0)?;
        write(&mut port, hpa, 1)?;
        drain(&star, &mut port, hpa)?;
        whole(&star)?;
        star.kill("mn0")?;
        write(&mut port, hpa, 2)?;
        verify(&mut port, hpa, BYTES, 2)?;
        whole(&star)?;
    }
    Ok(())
}

/// Runs `gmm` for the manager at `url` and returns its output.
fn gmm(url: &str, arguments: &[&str]) -> Outcome<Output> {
    output(Command::new(program("gmm")?).args(["--manager", url]).args(arguments))
}

/// Two memory nodes are full, a third one is new: `gmm rebalance` moves regions there while one of them is written.
fn regions_move_to_the_nodes_that_are_used_least() -> Outcome {
    let star = star(3)?;
    let hpa = create(&star, Protection::None, 2, &[0, 1])?;
    for (at, region) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let on = vec![name(&format!("mn{}", at % 2))];
        let create = CreateRegion { on, wait_ms: WAIT_MS, ..CreateRegion::new(name(region), 8 * MIB, cn(0)) };
        star.ask(star.manager.create_region(&create))?;
        star.attached(0, region)?;
    }
    let mut port = star.connect(0)?;
    write(&mut port, hpa, 1)?;
    let url = star.manager.url().to_owned();
    let planned = gmm(&url, &["rebalance", "--dry-run", "--json"])?;
    answered(&planned, 0, &["\"to\": \"mn2\"", "\"from\": \"mn0\"", "spread_after_percent"])?;
    ensure(star.ask(star.manager.region(&name("a")))?.lies_on(&name("mn0")), "a plan moves nothing")?;

    // While the region is written, one of its parts is moved by `gmm relocate`, and others by `gmm
    // rebalance`.
    let done = std::thread::scope(|scope| -> Outcome<Vec<Output>> {
        let mover = scope.spawn(|| -> Result<Vec<Output>, String> {
            let orders: [&[&str]; 2] = [&["relocate", "m", "--from", "mn1", "--to", "mn2"], &["rebalance"]];
            let run =
                |order: &&[&str]| gmm(&url, order).map_err(|e| e.message().unwrap_or_default().to_owned());
            orders.iter().map(run).collect()
        });
        let mut seed = 10;
        while !mover.is_finished() && seed < 2000 {
            write(&mut port, hpa, seed)?;
            verify(&mut port, hpa, BYTES, seed)?;
            seed += 1;
        }
        let done = mover.join().map_err(|_| "the mover panicked")?;
        verify(&mut port, hpa, BYTES, seed - 1)?;
        Ok(done?)
    })?;
    answered(&done[0], 0, &["\"state\": \"moved\""])?;
    answered(&done[1], 0, &["\"state\": \"balanced\""])?;
    let moved = star.ask(star.manager.region(&name("m")))?;
    ensure(!moved.lies_on(&name("mn1")), format!("{moved:?}"))?;
    whole(&star)?;
    for (arguments, code, words) in [
        (&["relocate", "m", "--from", "mn1", "--to", "mn2"][..], 5, "no part of it lies on mn1"),
        (&["relocate", "nosuch", "--from", "mn1", "--to", "mn2"], 4, "nosuch"),
        (&["relocate", "m", "--from", "mn1"], 2, "--to"),
        (&["rebalance", "--stop"], 0, "stopped"),
    ] {
        answered(&gmm(&url, arguments)?, code, &[words])?;
    }
    write(&mut port, hpa, 3)?;
    verify(&mut port, hpa, BYTES, 3)
}

/// Starts the agent again and waits until the manager has registered it. Waiting for the regions is not
/// enough, because the agent attaches them from its own state, before it registers; after a kill, the manager
/// registers the successor only at the node time-out.
fn start_successor(star: &Star) -> Outcome {
    let registration = || {
        let nodes = star.ask(star.manager.compute_nodes()).ok()?;
        nodes.first().map(|node| node.registration)
    };
    let before = registration().ok_or("no compute node")?;
    star.start_agent(0, UNCACHED)?;
    eventually("the new agent registers", || registration().is_some_and(|now| now > before))?;
    star.attached(0, "m").map(drop)
}

fn an_agent_that_ends_in_order_leaves_both_copies_in_sync() -> Outcome {
    let star = star(2)?;
    let hpa = create(&star, Protection::Mirror, 1, &[0, 1])?;
    let mut port = star.connect(0)?;
    write(&mut port, hpa, 1)?;
    drop(port);
    let epoch = whole(&star)?.epoch;
    star.stop("cn0")?;
    start_successor(&star)?;
    ensure(whole(&star)?.epoch == epoch, "a leg became stale although the agent had ended in order")?;
    // A killed agent may have written to one copy only, so the other copy is filled again.
    star.kill("cn0")?;
    start_successor(&star)?;
    ensure(whole(&star)?.epoch > epoch, "both copies counted as the same after a kill")?;
    let mut port = star.connect(0)?;
    verify(&mut port, hpa, BYTES, 1)?;
    star.kill("mn0")?;
    verify(&mut port, hpa, BYTES, 1)
}

fn two_dead_legs_fail_operations_by_name() -> Outcome {
    let star = star(2)?;
    let hpa = create(&star, Protection::Mirror, 1, &[0, 1])?;
    let mut port = star.connect(0)?;
    write(&mut port, hpa, 1)?;
    star.kill("mn0")?;
    write(&mut port, hpa, 2)?;
    star.kill("mn1")?;
    let error = write(&mut port, hpa, 3).err().ok_or("a write without any memory node is done")?;
    let said = error.message().unwrap_or_default();
    ensure(said.contains("memory node") || said.contains("session"), format!("another error: {said}"))
}
