//! Snapshots and clones: each has the content that its source had when it was made, whatever is written
//! afterwards, and whichever memory node is killed during the copy.

use std::process::{Command, Output};
use std::thread;

use cxloe_client::client::{Client, ClientError};
use cxloe_cn_core::engine::EngineError;
use cxloe_lab::program;

use cxloe_system::command::{answered, output};
use cxloe_system::star::*;

const BYTES: u64 = 8 * MIB;

fn gmm(rig: &Star, arguments: &[&str]) -> Outcome<Output> {
    output(Command::new(program("gmm")?).args(["--manager", &rig.manager_url()]).args(arguments))
}

/// Waits until a compute node can read its region; returns a port of its agent, and the region's HPA.
fn opened(rig: &Star, owner: usize, region: &str) -> Outcome<(Client, u64)> {
    let hpa = rig.attached(owner, region)?.hpa;
    Ok((rig.connect(owner)?, hpa))
}

fn fill(port: &mut Client, hpa: u64, seed: u64) -> Outcome {
    // Lines are written backwards, so that the last pages change while the background copy is at the first.
    for offset in (0..BYTES / 64).rev().map(|at| at * 64) {
        port.write(hpa + offset, &line(offset, seed))?;
    }
    Ok(())
}

fn has(port: &mut Client, hpa: u64, seed: u64) -> Outcome {
    check(port, hpa, BYTES, |at| line(at - hpa, seed))
}

pub fn snapshots_and_clones_keep_their_content() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    let rig = Star::new(2, 2, &[])?;
    // With `--pool-keep`, keeper processes hold the pools' memory until a killed memory node is started again.
    let node = ["--pool-size", "64MiB", "--pool-keep", "60s"];
    (0..2).try_for_each(|index| rig.start_mn(index, &node))?;
    (0..2).try_for_each(|index| rig.start_agent(index, &[]))?;
    let hpa = rig.create("r", 0, BYTES, &[1, 0], 256)?;
    let mut port = rig.connect(0)?;
    fill(&mut port, hpa, 1)?;
    // The last lines are in the owner's cache, and not yet at the memory nodes.
    answered(&gmm(&rig, &["snapshot", "r", "s", "--owner", "cn1"])?, 0, &["snapshot made"])?;
    let (mut port, hpa) = opened(&rig, 0, "r")?;
    let (mut snapshot, at) = opened(&rig, 1, "s")?;
    thread::scope(|scope| {
        let writer = scope.spawn(|| fill(&mut port, hpa, 2));
        let read = has(&mut snapshot, at, 1);
        writer.join().expect("the writer panicked").and(read)
    })?;
    has(&mut port, hpa, 2)?;
    has(&mut snapshot, at, 1)?;
    let refused = snapshot.write(at, &[0; 64]).expect_err("a snapshot was written");
    ensure(matches!(refused, ClientError::Engine(EngineError::Sealed(_))), refused.to_string())?;

    // A clone of the snapshot is made, and a memory node is killed while the clone is copied.
    answered(&gmm(&rig, &["clone-region", "s", "c"])?, 0, &["cloned"])?;
    rig.kill("mn0")?;
    rig.start_mn_alone(0, &node)?;
    let (mut clone, there) = opened(&rig, 1, "c")?;
    eventually("the memory node is there again", || {
        (there..there + 1024).step_by(64).all(|here| clone.read(here).is_ok()).then_some(())
    })?;
    has(&mut clone, there, 1)?;
    fill(&mut clone, there, 3)?;
    has(&mut snapshot, at, 1)?;
    has(&mut port, hpa, 2)?;

    // A clone keeps its content after its origins are destroyed.
    answered(&gmm(&rig, &["clone-region", "c", "d", "--owner", "cn0"])?, 0, &["cloned"])?;
    answered(&gmm(&rig, &["destroy-region", "--force", "c", "s"])?, 0, &[])?;
    let (mut last, here) = opened(&rig, 0, "d")?;
    has(&mut last, here, 3)?;
    has(&mut port, hpa, 2)?;
    // The memory of destroyed regions is free again, and reads as zeros in the next region.
    answered(&gmm(&rig, &["destroy-region", "--force", "r", "d"])?, 0, &[])?;
    let hpa = rig.create("z", 0, 5 * BYTES, &[1, 0], 256)?;
    let mut port = rig.connect(0)?;
    check(&mut port, hpa, 5 * BYTES, |_| [0; 64])
}

pub fn what_is_cloned_is_named_and_what_cannot_be() -> Outcome {
    let rig = Star::whole(1, 1, "64MiB")?;
    rig.create("r", 0, BYTES, &[0], 4096)?;
    answered(&gmm(&rig, &["clone-region", "none", "c"])?, 4, &["none"])?;
    answered(&gmm(&rig, &["clone-region", "r", "r"])?, 5, &["already"])?;
    answered(&gmm(&rig, &["clone-region", "r", "c"])?, 0, &["\"origin\"", "cloned"])?;
    rig.create("filler", 0, 6 * BYTES, &[0], 4096)?;
    answered(&gmm(&rig, &["snapshot", "r", "s"])?, 5, &["mn0", "relocate"])?;
    // The refusal has left the region with its owner.
    rig.attached(0, "r").map(drop)
}
