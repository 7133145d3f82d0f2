//! Regions that nobody uses, which memory nodes copy to each other: whoever is killed meanwhile, and whoever comes
//! back, the owner reads afterwards what it has written.

use std::process::{Command, Output};
use std::thread;

use cxloe_fabric::model::{Health, MemoryNode, RegionState};
use cxloe_lab::{LabPrivilege, expect_error, program};
use cxloe_system::command::{answered, output, succeeded};
use cxloe_system::star::*;
use cxloe_system::{Test, tests, text};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    let mut tests = tests![
        a_memory_node_is_emptied_while_no_agent_runs,
        disabled_regions_and_snapshots_move_while_their_owner_runs,
        what_a_killed_agent_may_have_changed_waits_for_an_operator,
    ];
    let slow = "a copy over a link that loses most frames";
    let killed = a_copy_is_completed_whichever_daemon_is_killed;
    tests.push(Test::new("a_copy_is_completed_whichever_daemon_is_killed", killed).long(slow));
    let early = an_agent_that_starts_during_a_copy_has_every_line;
    tests.push(Test::new("an_agent_that_starts_during_a_copy_has_every_line", early).long(slow));
    tests
}

const BYTES: u64 = 16 * MIB;
/// Options of an agent without a line cache, so that a killed one leaves nothing behind.
const UNCACHED: &[&str] = &["--cache-size", "0"];
const POOL: &[&str] = &["--pool-size", "64MiB"];
/// A pool that outlives its process.
const KEPT: &[&str] = &["--pool-size", "64MiB", "--pool-keep", "60s"];
/// So many frames are lost that a copy takes some seconds.
const LOSSY: &[&str] = &["--faults", "drop=40%,seed=7"];

fn gmm(star: &Star, arguments: &[&str]) -> Outcome<Output> {
    output(Command::new(program("gmm")?).args(["--manager", &star.manager_url()]).args(arguments))
}

/// Starts two memory nodes with these options and an agent, and writes the region `m`, which is on the first node.
fn written(first: &[&str], second: &[&str]) -> Outcome<Star> {
    expect_error("has lost its content");
    expect_error("has not answered within the limit");
    let star = Star::new(2, 1, &["--rebuild-after", "0"])?;
    star.start_mn(0, first)?;
    star.start_mn(1, second)?;
    star.start_agent(0, UNCACHED)?;
    let hpa = star.create("m", 0, BYTES, &[0], 4096)?;
    fill(&mut star.connect(0)?, hpa, BYTES, 1)?;
    Ok(star)
}

fn drain(star: &Star) -> Outcome {
    Ok(star.ask(star.manager.drain_memory_node(&name("mn0"), true))?)
}

/// Waits until a part of the region has been copied, and not all of it.
fn copying(star: &Star) -> Outcome {
    let found = eventually("a memory node copies the region", || {
        let status = star.ask(star.manager.region_status(&name("m"))).ok()?;
        let moved = !status.region.lies_on(&name("mn0"));
        let partly = status.copying.is_some_and(|copying| (1..copying.bytes).contains(&copying.done));
        (moved || partly).then_some(partly)
    })?;
    ensure(found, "the copy was completed before it could be disturbed")
}

fn is_emptied(star: &Star) -> Outcome {
    eventually("mn0 has no part of the region", || {
        star.ask(star.manager.region(&name("m"))).is_ok_and(|region| !region.lies_on(&name("mn0")))
    })
}

/// Waits until the owner can use the region, and compares every line.
fn reads(star: &Star, region: &str, seed: u64) -> Outcome<u64> {
    let hpa = star.attached(0, region)?.hpa;
    verify(&mut star.connect(0)?, hpa, BYTES, seed)?;
    Ok(hpa)
}

/// All daemons have keys. The first memory node is gone when the agent starts again, and would have been named to it by
/// the agent's own state.
fn a_memory_node_is_emptied_while_no_agent_runs() -> Outcome {
    expect_error("has not answered within the limit");
    let star = Star::new(2, 1, &["--rebuild-after", "0"])?;
    let key = |daemon: &str, binary: &str| -> Outcome<String> {
        let file = text(&star.path(&format!("{daemon}.key"))).to_owned();
        succeeded(output(Command::new(program(binary)?).args(["key", "--node-key", &file]))?)?;
        Ok(file)
    };
    for index in 0..2 {
        let key = key(&format!("mn{index}"), "mn-server")?;
        star.start_mn(index, &[POOL, &["--node-key", &key]].concat())?;
    }
    let key = key("cn0", "cn-agent")?;
    let agent = ["--node-key", &key];
    star.start_agent(0, &agent)?;
    let hpa = star.create("m", 0, BYTES, &[0], 4096)?;
    // The last lines are in the agent's cache, and it writes them back when it ends.
    fill(&mut star.connect(0)?, hpa, BYTES, 1)?;
    star.stop("cn0")?;

    answered(&gmm(&star, &["drain", "mn0"])?, 0, &["\"state\": \"drained\"", "left of 16"])?;
    star.says("mn1", "copied from another memory node")?;
    star.kill("mn0")?;
    star.start_agent(0, &agent)?;
    ensure(reads(&star, "m", 1)? == hpa, "the region has another address")?;
    let mut port = star.connect(0)?;
    fill(&mut port, hpa, BYTES, 2)?;
    verify(&mut port, hpa, BYTES, 2)
}

fn a_copy_is_completed_whichever_daemon_is_killed() -> Outcome {
    let star = written(KEPT, &[POOL, LOSSY].concat())?;
    star.stop("cn0")?;
    drain(&star)?;
    copying(&star)?;
    // The memory node that copies loses what it has copied.
    star.kill("mn1")?;
    star.start_mn(1, &[KEPT, LOSSY].concat())?;
    copying(&star)?;
    // Another manager takes over, while the memory node that is read does not answer.
    star.pause("mn0", true)?;
    star.kill("gmm")?;
    star.start_gmm(&["--rebuild-after", "0"])?;
    copying(&star)?;
    star.pause("mn0", false)?;
    copying(&star)?;
    star.kill("mn0")?;
    star.start_mn(0, KEPT)?;
    // The memory node that copies keeps what it has copied, but not the record of how much that is.
    copying(&star)?;
    star.kill("mn1")?;
    star.start_mn(1, KEPT)?;
    is_emptied(&star)?;
    star.stop("mn0")?;
    star.start_agent(0, UNCACHED)?;
    reads(&star, "m", 1).map(drop)
}

fn an_agent_that_starts_during_a_copy_has_every_line() -> Outcome {
    let star = written(POOL, &[POOL, LOSSY].concat())?;
    star.stop("cn0")?;
    drain(&star)?;
    copying(&star)?;
    star.start_agent(0, UNCACHED)?;
    let hpa = reads(&star, "m", 1)?;
    // From now on, the agent copies, while the region is written.
    star.kill("mn1")?;
    star.start_mn(1, POOL)?;
    let mut port = star.connect(0)?;
    fill(&mut port, hpa, BYTES, 2)?;
    is_emptied(&star)?;
    verify(&mut port, hpa, BYTES, 2)?;
    star.kill("mn0")?;
    verify(&mut port, hpa, BYTES, 2)
}

fn disabled_regions_and_snapshots_move_while_their_owner_runs() -> Outcome {
    let star = Star::whole(2, 1, "64MiB")?;
    let hpa = star.create("m", 0, BYTES, &[0], 4096)?;
    fill(&mut star.connect(0)?, hpa, BYTES, 1)?;
    answered(&gmm(&star, &["snapshot", "m", "s"])?, 0, &["snapshot made"])?;
    star.attached(0, "m")?;
    fill(&mut star.connect(0)?, hpa, BYTES, 2)?;
    for region in ["m", "s"] {
        answered(&gmm(&star, &["disable-region", region])?, 0, &[])?;
        star.region_is(region, RegionState::Disabled)?;
    }
    answered(&gmm(&star, &["drain", "mn0"])?, 0, &["\"state\": \"drained\""])?;
    star.kill("mn0")?;
    for region in ["m", "s"] {
        answered(&gmm(&star, &["enable-region", region])?, 0, &[])?;
        star.region_is(region, RegionState::Active)?;
    }
    reads(&star, "m", 2)?;
    // The snapshot has the lines that the region had at its addresses.
    let at = star.attached(0, "s")?.hpa;
    check(&mut star.connect(0)?, at, BYTES, |here| line(here - at + hpa, 1))
}

fn what_a_killed_agent_may_have_changed_waits_for_an_operator() -> Outcome {
    let star = written(POOL, POOL)?;
    star.kill("cn0")?;
    let url = star.manager_url();
    let drained = thread::scope(|scope| -> Outcome<Output> {
        let drain = scope.spawn(|| -> Result<Output, String> {
            let run = || output(Command::new(program("gmm")?).args(["--manager", &url, "drain", "mn0"]));
            run().map_err(|error| error.message().unwrap_or_default().to_owned())
        });
        let rests = || star.ask(star.manager.region_status(&name("m"))).is_ok_and(|status| status.at_rest);
        eventually("the drain has begun", || {
            let nodes = star.ask(star.manager.memory_nodes()).unwrap_or_default();
            let is_draining = |node: &MemoryNode| node.name == name("mn0") && node.draining;
            nodes.iter().any(|status| is_draining(&status.node))
        })?;
        eventually("the agent counts as gone", || {
            let nodes = star.ask(star.manager.compute_nodes()).unwrap_or_default();
            nodes.iter().any(|node| node.health == Health::Unreachable)
        })?;
        ensure(!rests(), "the killed agent may have had changes")?;
        answered(&gmm(&star, &["disable-region", "m"])?, 0, &[])?;
        eventually("the region is at rest, or has moved", || rests() || drain.is_finished())?;
        Ok(drain.join().map_err(|_| "the drain panicked")??)
    })?;
    answered(&drained, 0, &["\"state\": \"drained\""])?;
    star.kill("mn0")?;
    answered(&gmm(&star, &["enable-region", "m"])?, 0, &[])?;
    star.start_agent(0, UNCACHED)?;
    reads(&star, "m", 1).map(drop)
}
