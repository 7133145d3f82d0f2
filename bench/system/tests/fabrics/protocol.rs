//! A second implementation of the protocol (`bench/system/protocol`, in Python), written only from the documentation
//! page of the protocol. This client computes the examples of the page, executes the protocol's rules against a real
//! memory node with every kind of trailer, joins a fabric, and exchanges data with this project's agent in both
//! directions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cxloe_lab::LabPrivilege;
use cxloe_link::Backend;
use cxloe_system::cable::cable;
use cxloe_system::command::{output, printed, succeeded};
use cxloe_system::lines::{check, line};
use cxloe_system::node::MemoryNode;
use cxloe_system::outcome::{Outcome, ensure};
use cxloe_system::{Test, source, tests, text};
use nix::sys::signal::Signal;

use super::access::{CN, Doors};

/// MAC address of the memory node in tests without a manager.
const MN: &str = "02:00:00:00:00:02";
const REGION: u64 = 2 << 20;

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    let mut tests =
        tests![examples_of_the_page_are_computed, losses_are_made_good, nodes_join_and_share_regions];
    let plain = || node_alone(None, &["rules", "fill:1", "verify:1", "turn"]).map(drop);
    tests.push(Test::new("rules_hold::plain", plain));
    let pre_shared = || node_alone(Some("a key of 26 bytes, no less"), &["rules"]).map(drop);
    tests.push(Test::new("rules_hold::pre_shared", pre_shared));
    tests
}

/// Command of the client, under the system's own Python or the first on the PATH, whichever has the required package.
fn client() -> Outcome<Command> {
    let has_it = |python: &&str| {
        let asked = Command::new(python).args(["-c", "import cryptography"]).output();
        asked.is_ok_and(|output| output.status.success())
    };
    let python = ["/usr/bin/python3", "python3"].into_iter().find(has_it);
    let python = python.ok_or("no Python has `cryptography`: deploy/install/need.sh python-protocol")?;
    let mut client = Command::new(python);
    // Python writes no bytecode into the source tree.
    client.arg("-B").arg(source("bench/system/protocol/client.py"));
    Ok(client)
}

fn examples_of_the_page_are_computed() -> Outcome {
    printed(client()?.arg("vectors").arg(source("wire/PROTOCOL.md"))).map(drop)
}

/// Runs the client's `steps` with a memory node that has a static map, without keys or with a shared one; returns the
/// client's output.
fn node_alone(key: Option<&str>, steps: &[&str]) -> Outcome<String> {
    let lab = cable().mac("cn0", CN).mac("mn0", MN).build()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("key");
    let mut work = client()?;
    work.args(["work", "--interface", "cn0", "--mn", MN, "--size", "131072"]);
    let mut options = Vec::new();
    if let Some(key) = key {
        fs::write(&file, key)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        work.arg("--pre-shared").arg(&file);
        options = vec!["--key-file", text(&file)];
    }
    let map = [(CN.parse()?, REGION)];
    let node = MemoryNode::start_with(&lab, "mn0", Backend::Packet, &map, folder.path(), &options)?;
    let output_text = succeeded(lab.enter("cn", || output(work.args(steps)))??)?;
    ensure(output_text.contains(if key.is_some() { "GcmSiv:" } else { "Plain:" }), output_text.as_str())?;
    ensure(node.end()?.success(), "an orderly end")?;
    Ok(output_text)
}

/// The client detects frames lost in either direction, by SACKs, by gaps in answers, and finally by time-outs.
fn losses_are_made_good() -> Outcome {
    let output_text = node_alone(None, &["--loss", "0.03", "fill:1", "verify:1"])?;
    ensure(output_text.contains("'repeated'") && output_text.contains("'0x83'"), output_text)
}

/// Joins the client to the fabric as the compute node, with new keys; the compute node keeps its regions.
fn join(doors: &Doors, folder: &str) -> Outcome<PathBuf> {
    let folder = doors.path(folder);
    fs::create_dir(&folder)?;
    let mut join = client()?;
    join.args(["join", "--interface", "cn0", "--manager", &doors.url, "--folder", text(&folder)]);
    join.arg("--authority").arg(doors.path("ca.pem"));
    join.env("CXLOE_TOKEN", doors.token(&["--role", "cn", "--cn", CN])?);
    succeeded(doors.lab.enter("cn", || output(&mut join))??)?;
    Ok(folder)
}

/// Runs `steps` of the client on the region, in a session sealed with node keys.
fn work(doors: &Doors, folder: &Path, steps: &[&str]) -> Outcome {
    let mut work = client()?;
    work.args(["work", "--interface", "cn0", "--manager", &doors.url, "--folder", text(folder)]);
    work.args(["--name", "cn0", "--region", "scratch"]).args(steps);
    let output_text = succeeded(doors.lab.enter("cn", || output(&mut work))??)?;
    ensure(output_text.contains("Gcm:"), output_text)
}

fn nodes_join_and_share_regions() -> Outcome {
    let doors = Doors::new()?;
    doors.join_mn()?;
    let folder = join(&doors, "first")?;
    doors.gmm(&["create-region", "-s", "2M", "--owner", CN, "scratch"])?;
    work(&doors, &folder, &["rules", "turn", "fill:1", "verify:1"])?;

    // The agent reads data that the client has written.
    doors.join_cn_by(&doors.token(&["--role", "cn", "--cn", CN])?)?;
    let (mut port, hpa) = doors.attached("scratch")?;
    check(&mut port, hpa, REGION, |at| line(at - hpa, 1))?;
    let all: Vec<u64> = (hpa..hpa + REGION).step_by(64).collect();
    for some in all.chunks(4096) {
        let lines: Vec<_> = some.iter().map(|at| (*at, line(at - hpa, 2))).collect();
        port.write_batch(&lines)?;
    }
    port.flush()?;
    drop(port);
    doors.end("cn0", Signal::SIGTERM)?;

    // The client reads data that the agent has written.
    let folder = join(&doors, "second")?;
    work(&doors, &folder, &["verify:2"])
}
