//! Regions that move to another compute node with their content, under load on other regions; and the outcome
//! of a move if a daemon stops during it.

#![expect(unsafe_code, reason = "mapped memory is accessed through raw pointers")]

use std::process::{Command, Output};

use cxloe_client::client::{self, Client};
use cxloe_client::mapping::{MapOptions, Mapping};
use cxloe_fabric::api::MoveRegion;
use cxloe_fabric::model::{Region, RegionState};
use cxloe_lab::{expect_error, program};

use super::load::Load;
use cxloe_system::command::{answered, output};
use cxloe_system::star::*;

const BYTES: u64 = 4 * MIB;

fn gmm(rig: &Star, arguments: &[&str]) -> Outcome<Output> {
    output(Command::new(program("gmm")?).args(["--manager", &rig.manager_url()]).args(arguments))
}

/// Writes every line of the region at `hpa`; the content does not depend on the address.
fn write(port: &mut Client, hpa: u64, seed: u64) -> Outcome {
    for offset in (0..BYTES).step_by(64) {
        port.write(hpa + offset, &line(offset, seed))?;
    }
    Ok(())
}

fn read(port: &mut Client, hpa: u64, seed: u64) -> Outcome {
    check(port, hpa, BYTES, |at| line(at - hpa, seed))
}

pub fn regions_move_between_compute_nodes_with_their_content() -> Outcome {
    let rig = Star::whole(2, 2, "64MiB")?;
    let theirs = [0, 1].map(|owner| rig.create(&format!("stays{owner}"), owner, BYTES, &[0, 1], 1024));
    let mut hpa = rig.create("r", 0, BYTES, &[1, 0], 256)?;
    let mut loads = Vec::new();
    for (owner, stays) in theirs.into_iter().enumerate() {
        loads.push(Load::start(rig.socket(owner), stays?, BYTES));
    }
    let mut owner = 0;
    for seed in 1..7 {
        let mut port = rig.connect(owner)?;
        // The last lines are in the cache of the owner, and not yet at the memory nodes.
        write(&mut port, hpa, seed)?;
        let to = 1 - owner;
        let moved = gmm(&rig, &["move-region", "r", "--to", &format!("cn{to}")])?;
        answered(&moved, 0, &["\"state\": \"moved\"", &cn(to).to_string()])?;
        ensure(port.read(hpa).is_err(), "the former owner reads it")?;
        ensure(port.write(hpa, &[0; 64]).is_err(), "the former owner writes it")?;
        let before = hpa;
        hpa = rig.attached(to, "r")?.hpa;
        read(&mut rig.connect(to)?, hpa, seed)?;
        ensure(port.read(before).is_err(), "the former owner reads it")?;
        eventually("the former owner lists it no more", || {
            let regions = client::regions(&rig.socket(owner)).ok()?;
            regions.iter().all(|region| region.region != "r").then_some(())
        })?;
        owner = to;
    }
    for load in loads {
        load.goes_on()?;
        load.end().map_err(|trouble| format!("another region was disturbed: {trouble}"))?;
    }
    for (arguments, code, words) in [
        (&["move-region", "r", "--to", "nosuch"][..], 4, "nosuch"),
        (&["move-region", "nosuch", "--to", "cn1"], 4, "nosuch"),
        (&["move-region", "r"], 2, "--to"),
        (&["move-region", "r", "--stop"], 0, "stopped"),
        (&["list", "-E"], 0, "region_moved"),
    ] {
        answered(&gmm(&rig, arguments)?, code, &[words])?;
    }
    rig.says("gmm", "region_moved seq=")?;
    rig.destroy("r")
}

/// Orders a move and returns at once.
fn order(rig: &Star, to: usize) -> Outcome<Region> {
    let order = MoveRegion { to: Some(cn(to).into()), force: false, wait_ms: 0 };
    Ok(rig.ask(rig.manager.move_region(&name("r"), &order))?)
}

pub fn a_move_is_finished_or_ends_whoever_stops() -> Outcome {
    expect_error("has not answered within the limit");
    let rig = Star::whole(2, 2, "64MiB")?;
    let hpa = rig.create("r", 0, BYTES, &[0, 1], 4096)?;
    let mut port = rig.connect(0)?;
    write(&mut port, hpa, 1)?;
    port.flush()?;

    // The owner's agent is stopped, so it cannot release the region. Then the agent is killed, and the region
    // stays with its owner.
    port.write(hpa + BYTES - 64, &line(BYTES - 64, 1))?;
    rig.pause("cn0", true)?;
    ensure(order(&rig, 1)?.state == RegionState::Releasing, "it waits for the owner")?;
    rig.kill("cn0")?;
    let kept = rig.region_is("r", RegionState::Active)?;
    ensure(kept.owner == cn(0), format!("{kept:?}"))?;
    let refused = gmm(&rig, &["move-region", "r", "--to", "cn1"])?;
    answered(&refused, 5, &["--force"])?;
    rig.start_agent(0, &[])?;
    let hpa = rig.attached(0, "r")?.hpa;
    read(&mut rig.connect(0)?, hpa, 1)?;

    // After the change of owner, a memory node does not answer and the manager is killed; the move has to be
    // finished nevertheless.
    rig.pause("mn1", true)?;
    order(&rig, 1)?;
    eventually("it has another owner", || {
        let region = rig.ask(rig.manager.region(&name("r"))).ok()?;
        (region.owner == cn(1)).then_some(())
    })?;
    rig.kill("gmm")?;
    rig.start_gmm(&[])?;
    let waits = rig.ask(rig.manager.region(&name("r")))?;
    ensure((waits.owner, waits.state) == (cn(1), RegionState::Creating), format!("{waits:?}"))?;
    rig.pause("mn1", false)?;
    rig.region_is("r", RegionState::Active)?;
    let hpa = rig.attached(1, "r")?.hpa;
    read(&mut rig.connect(1)?, hpa, 1)?;
    ensure(client::regions(&rig.socket(0))?.is_empty(), "cn0 has no region")?;

    // The region is moved by force from an unreachable owner, which had written everything back before.
    rig.kill("cn1")?;
    eventually("its owner counts as unreachable", || {
        let refused = gmm(&rig, &["move-region", "r", "--to", "cn0"]).ok()?;
        (refused.status.code() == Some(5)).then_some(())
    })?;
    answered(&gmm(&rig, &["move-region", "r", "--to", "cn0", "--force"])?, 0, &["moved"])?;
    let hpa = rig.attached(0, "r")?.hpa;
    read(&mut rig.connect(0)?, hpa, 1)
}

const PAGE: usize = 4096;

/// Words of a mapped region: the first of each page.
fn words(memory: &Mapping) -> impl Iterator<Item = *mut u64> {
    let start = memory.as_ptr();
    // SAFETY: each address is within the mapping.
    (0..memory.len()).step_by(PAGE).map(move |offset| unsafe { start.add(offset).cast() })
}

/// Writes the first word of each page of a mapped region.
fn write_pages(memory: &Mapping, seed: u64) {
    // SAFETY: the words are aligned and mapped, and no other thread uses them.
    (0..).zip(words(memory)).for_each(|(page, word)| unsafe { word.write_volatile(seed + page) });
}

fn pages_are(memory: &Mapping, seed: u64) -> Outcome {
    // SAFETY: the words are aligned and mapped, and no other thread uses them.
    let wrong = (0..).zip(words(memory)).find(|(page, word)| unsafe { word.read_volatile() } != seed + page);
    ensure(wrong.is_none(), format!("page {:?} has another content", wrong.map(|(page, _)| page)))
}

/// While a program maps the region, the region stays with its owner; the changed pages are written back
/// before the move.
pub fn a_mapped_region_moves_once_it_is_unmapped() -> Outcome {
    let rig = Star::whole(2, 2, "64MiB")?;
    rig.create("r", 0, BYTES, &[0, 1], 4096)?;
    let map = |owner: usize| -> Outcome<Mapping> {
        rig.attached(owner, "r")?;
        Ok(Mapping::open(&rig.socket(owner), "r", MapOptions::default())?)
    };
    let memory = map(0)?;
    write_pages(&memory, 100);
    order(&rig, 1)?;
    rig.says("cn0", "it is released once no program maps it")?;
    write_pages(&memory, 200);
    pages_are(&memory, 200)?;
    let waits = rig.ask(rig.manager.region(&name("r")))?;
    ensure((waits.owner, waits.state) == (cn(0), RegionState::Releasing), format!("{waits:?}"))?;

    // The order is withdrawn; the program can access its pages all the time.
    answered(&gmm(&rig, &["move-region", "r", "--stop"])?, 0, &["stopped"])?;
    rig.says("cn0", "region stays attached")?;
    write_pages(&memory, 300);
    memory.flush()?;
    pages_are(&memory, 300)?;

    order(&rig, 1)?;
    write_pages(&memory, 400);
    drop(memory);
    let memory = map(1)?;
    pages_are(&memory, 400)?;
    write_pages(&memory, 500);
    drop(memory);
    answered(&gmm(&rig, &["move-region", "r", "--to", "cn0"])?, 0, &["moved"])?;
    pages_are(&map(0)?, 500)
}
