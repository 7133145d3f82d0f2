//! Sealed regions: read by several compute nodes, by lines and as mapped memory, and written by none, even
//! while daemons stop and start.

#![expect(unsafe_code, reason = "mapped memory is accessed through raw pointers")]

use std::process::{Command, Output};

use cxloe_client::client::{self, Client, ClientError};
use cxloe_client::mapping::{MapError, MapOptions, Mapping};
use cxloe_cn_core::engine::EngineError;
use cxloe_fabric::model::RegionState;
use cxloe_lab::program;

use cxloe_system::command::{answered, output};
use cxloe_system::star::*;

const BYTES: u64 = 4 * MIB;

fn gmm(rig: &Star, arguments: &[&str]) -> Outcome<Output> {
    output(Command::new(program("gmm")?).args(["--manager", &rig.manager_url()]).args(arguments))
}

/// Checks that a compute node reads every line of the region, and that its writes are refused; returns the
/// port and the HPA.
fn reads(rig: &Star, owner: usize, seed: u64) -> Outcome<(Client, u64)> {
    let region = rig.attached(owner, "r")?;
    ensure(region.sealed, format!("{region:?}"))?;
    let (mut port, hpa) = (rig.connect(owner)?, region.hpa);
    check(&mut port, hpa, BYTES, |at| line(at - hpa, seed))?;
    for at in [hpa, hpa + BYTES - 64] {
        let refused = port.write(at, &[0; 64]).expect_err("a sealed region was written");
        ensure(
            matches!(refused, ClientError::Engine(EngineError::Sealed(_))),
            format!("refused for another reason: {refused}"),
        )?;
    }
    check(&mut port, hpa, BYTES, |at| line(at - hpa, seed))?;
    Ok((port, hpa))
}

pub fn sealed_regions_are_read_by_many_and_written_by_none() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    let rig = Star::new(2, 3, &[])?;
    // With `--pool-keep`, keeper processes hold the pools' memory until a killed memory node is started again.
    let node = ["--pool-size", "64MiB", "--pool-keep", "60s"];
    (0..2).try_for_each(|index| rig.start_mn(index, &node))?;
    (0..3).try_for_each(|index| rig.start_agent(index, &[]))?;
    let hpa = rig.create("r", 0, BYTES, &[1, 0], 256)?;
    let mut port = rig.connect(0)?;
    for offset in (0..BYTES).step_by(64) {
        port.write(hpa + offset, &line(offset, 7))?;
    }
    // The last lines are in the owner's cache, and not yet at the memory nodes.
    answered(&gmm(&rig, &["share-region", "r", "--with", "cn1"])?, 5, &["seal-region"])?;
    answered(&gmm(&rig, &["seal-region", "r"])?, 0, &["\"sealed\""])?;
    answered(&gmm(&rig, &["seal-region", "r"])?, 0, &["\"sealed\""])?;
    reads(&rig, 0, 7)?;
    for reader in ["cn1", "cn2"] {
        answered(&gmm(&rig, &["share-region", "r", "--with", reader])?, 0, &["\"shared\""])?;
    }
    let (mut reader, at) = reads(&rig, 1, 7)?;
    reads(&rig, 2, 7)?;

    // A sealed region that is shared can be neither moved, grown, mirrored, relocated nor destroyed.
    for (arguments, words) in [
        (&["move-region", "r", "--to", "cn1"][..], "share-region r"),
        (&["grow-region", "r", "-s", "+2M"], "sealed"),
        (&["protect", "r", "mirror"], "sealed"),
        (&["relocate", "r", "--from", "mn0", "--to", "mn1"], "sealed"),
        (&["destroy-region", "r"], "share-region r"),
    ] {
        answered(&gmm(&rig, arguments)?, 5, &[words])?;
    }

    // Readers continue without the owner and the manager. A restarted memory node serves them without a manager, too.
    rig.kill("cn0")?;
    rig.kill("gmm")?;
    check(&mut reader, at, BYTES, |here| line(here - at, 7))?;
    rig.kill("mn0")?;
    rig.start_mn_alone(0, &node)?;
    eventually("the memory node is there again", || {
        (at..at + 1024).step_by(64).all(|here| reader.read(here).is_ok()).then_some(())
    })?;
    check(&mut reader, at, BYTES, |here| line(here - at, 7))?;
    rig.start_gmm(&[])?;
    rig.start_agent(0, &[])?;
    reads(&rig, 0, 7)?;
    reads(&rig, 2, 7)?;

    answered(&gmm(&rig, &["share-region", "r", "--with", "cn1", "--stop"])?, 0, &["\"not shared\""])?;
    eventually("the former reader lists it no more", || {
        let regions = client::regions(&rig.socket(1)).ok()?;
        regions.iter().all(|region| region.region != "r").then_some(())
    })?;
    ensure(reader.read(at).is_err(), "the former reader reads it")?;
    reads(&rig, 2, 7)?;
    answered(&gmm(&rig, &["share-region", "r", "--with", "cn1"])?, 0, &["\"shared\""])?;
    reads(&rig, 1, 7)?;
    answered(&gmm(&rig, &["list", "-E"])?, 0, &["region_shared", "region_unshared"])?;
    answered(&gmm(&rig, &["destroy-region", "--force", "r"])?, 0, &[])?;
    for node in 0..3 {
        eventually("nobody has it", || client::regions(&rig.socket(node)).ok()?.is_empty().then_some(()))?;
    }
    Ok(())
}

/// Values of the first word of each page.
fn words(memory: &Mapping) -> impl Iterator<Item = u64> {
    let start = memory.as_ptr();
    // SAFETY: each word is within the mapping and aligned, and nobody writes a sealed region.
    (0..memory.len())
        .step_by(4096)
        .map(move |offset| unsafe { start.add(offset).cast::<u64>().read_volatile() })
}

pub fn sealed_regions_are_mapped_to_be_read() -> Outcome {
    let rig = Star::whole(1, 2, "64MiB")?;
    rig.create("r", 0, BYTES, &[0], 4096)?;
    let map = |owner: usize| -> Outcome<Mapping> {
        // A quarter of the region may be resident, so pages are evicted and fetched again.
        Ok(Mapping::open(&rig.socket(owner), "r", MapOptions { limit: BYTES / 4, ..MapOptions::default() })?)
    };
    rig.attached(0, "r")?;
    let memory = map(0)?;
    for (page, offset) in (0..).zip((0..memory.len()).step_by(4096)) {
        // SAFETY: the word is within the mapping and aligned, and only this thread uses it.
        unsafe { memory.as_ptr().add(offset).cast::<u64>().write_volatile(900 + page) };
    }
    // Changed pages are in the program's memory alone until it ends, so sealing has to wait for its end.
    let sealing = gmm(&rig, &["seal-region", "r", "--no-wait"])?;
    answered(&sealing, 0, &["\"sealing\""])?;
    drop(memory);
    rig.region_is("r", RegionState::Active)?;
    answered(&gmm(&rig, &["seal-region", "r"])?, 0, &["\"sealed\""])?;
    answered(&gmm(&rig, &["share-region", "r", "--with", "cn1"])?, 0, &["\"shared\""])?;
    (0..2).try_for_each(|owner| rig.attached(owner, "r").map(drop))?;
    let mapped = [map(0)?, map(1)?, map(1)?];
    for memory in &mapped {
        ensure(memory.is_sealed(), "it is mapped to be read")?;
        for _ in 0..2 {
            let wrong = (900..).zip(words(memory)).find(|(expected, word)| expected != word);
            ensure(wrong.is_none(), format!("a page has another content: {wrong:?}"))?;
        }
        for refused in [memory.discard(0..4096), memory.store(0, 0)] {
            ensure(matches!(refused, Err(MapError::Sealed)), format!("{refused:?}"))?;
        }
        ensure(memory.load(0) == 900, "a refused write has changed the content")?;
    }
    Ok(())
}
