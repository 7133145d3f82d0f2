//! The client's example programs for one region at several compute nodes: a sealed data set that two of them read at
//! once, and a counter that moves from one to the other and back.

use std::fs;
use std::process::{Command, Output};

use cxloe_lab::{Process, example, program};

use cxloe_system::command::{answered, output};
use cxloe_system::star::*;

const BYTES: u64 = 4 * MIB;

fn gmm(rig: &Star, arguments: &[&str]) -> Outcome<Output> {
    output(Command::new(program("gmm")?).args(["--manager", &rig.manager_url()]).args(arguments))
}

/// Command of an example program that uses the agent of compute node number `node`.
fn at(rig: &Star, node: usize, name: &str, arguments: &[&str]) -> Outcome<Command> {
    let mut command = Command::new(example(name)?);
    command.args(arguments).env("CXLOE_AGENT", rig.socket(node));
    Ok(command)
}

pub fn a_sealed_set_is_scanned_at_two_nodes_at_once() -> Outcome {
    let rig = Star::whole(1, 2, "64MiB")?;
    rig.create("set", 0, BYTES, &[0], 4096)?;
    answered(&output(&mut at(&rig, 0, "shared_set", &["fill", "set"])?)?, 0, &["4096 records written"])?;
    let early = output(&mut at(&rig, 0, "shared_set", &["scan", "set"])?)?;
    answered(&early, 1, &["gmm seal-region set"])?;
    answered(&gmm(&rig, &["seal-region", "set"])?, 0, &["sealed"])?;
    answered(&gmm(&rig, &["share-region", "set", "--with", "cn1"])?, 0, &["shared"])?;
    (0..2).try_for_each(|node| rig.attached(node, "set").map(drop))?;

    let mut scans = Vec::new();
    for node in 0..2 {
        let log = rig.path(&format!("scan{node}.log"));
        let mut command = at(&rig, node, "shared_set", &["scan", "set"])?;
        Process::log_to(&mut command, &log)?;
        scans.push((rig.lab.spawn(&format!("cn{node}"), command)?, log));
    }
    for (mut scan, log) in scans {
        let status = scan.wait(LIMIT)?;
        let said = fs::read_to_string(&log)?;
        let all_right = format!("4096 records right, {BYTES} bytes, ");
        let named = [all_right.as_str(), "a write is refused: the region is sealed"];
        let right = status.success() && named.iter().all(|words| said.contains(words));
        ensure(right, format!("{status}: {said}"))?;
    }
    Ok(())
}

/// Epoch and count in the last line of a counter that has ended.
fn handed_over(said: &str) -> Outcome<(u64, u64)> {
    let last = said.lines().last().unwrap_or_default();
    let numbers = last.strip_prefix("region counter, epoch ").and_then(|rest| rest.split_once(", count "));
    let (epoch, count) =
        numbers.ok_or_else(|| format!("no region, epoch and count at the end of: {said}"))?;
    Ok((epoch.parse()?, count.parse()?))
}

pub fn a_counter_moves_and_loses_no_count() -> Outcome {
    let rig = Star::whole(1, 2, "64MiB")?;
    rig.create("counter", 0, BYTES, &[0], 4096)?;
    rig.start("counter0", "cn0", at(&rig, 0, "hand_over", &["counter"])?)?;
    let (mut node, mut count) = (0, 0_u64);
    let mut former: Option<u64> = None;
    for _ in 0..3 {
        let name = format!("counter{node}");
        rig.says(&name, &format!("counts from {count} on\n"))?;
        // It reports each multiple of 500.
        let reported = (count / 500 + 1) * 500;
        rig.says(&name, &format!("\ncount {reported}\n"))?;
        rig.stop(&name)?;
        let (epoch, counted) = handed_over(&fs::read_to_string(rig.log(&name))?)?;
        ensure(counted >= reported, format!("{counted} after {reported}"))?;
        ensure(former.is_none_or(|former| epoch > former), format!("epoch {epoch} after {former:?}"))?;
        let former_epoch = epoch.to_string();
        let expected = ["counter", "--expect-epoch", former_epoch.as_str()];

        // Here the region still has the epoch that it was handed over with, so an instance waits, and can be ended.
        rig.start(&name, &format!("cn{node}"), at(&rig, node, "hand_over", &expected)?)?;
        rig.says(&name, "waits for region counter")?;
        rig.stop(&name)?;

        let to = 1 - node;
        let next = format!("counter{to}");
        rig.start(&next, &format!("cn{to}"), at(&rig, to, "hand_over", &expected)?)?;
        rig.says(&next, "waits for region counter")?;
        let moved = gmm(&rig, &["move-region", "counter", "--to", &format!("cn{to}")])?;
        answered(&moved, 0, &["moved"])?;
        (node, count, former) = (to, counted, Some(epoch));
    }
    let last = format!("counter{node}");
    rig.says(&last, &format!("counts from {count} on\n"))?;
    rig.stop(&last)
}
