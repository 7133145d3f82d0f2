//! Emulated processors: programs of this project run on processors that lack instructions, give the same results there,
//! and seal frames that this machine opens.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cxloe_lab::{LabPrivilege, program};
use cxloe_link::Backend;
use cxloe_link::keys::node_key;
use cxloe_system::cable::cable_for;
use cxloe_system::command::succeeded;
use cxloe_system::node::{MemoryNode, config_to, keyed_port, link_on};
use cxloe_system::{LIMIT, Outcome, Test, ensure, tests, text};
use cxloe_wire::frame::{Mac, PublicKey};
use cxloe_wire::session::NodeKey;

/// Names of processor models in QEMU: one with SSSE3 only; one with CRC32 and without AES; one with AES, AVX2 and BMI;
/// one with all instructions that QEMU emulates.
const AGES: [&str; 4] = ["core2duo", "Nehalem", "Haswell", "max"];
const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
const HPA: u64 = 1 << 40;
const REGION: u64 = 4 << 20;

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![runs_come_to_the_same_on_all, sealed_lines_cross_between_two]
}

/// Command that runs a program of this project on an emulated processor of the model.
fn on(model: &str, name: &str) -> Outcome<Command> {
    let mut command = Command::new("qemu-x86_64");
    command.args(["-cpu", model]).arg(program(name)?);
    Ok(command)
}

/// Runs a few simulations of nodes with keys; returns the results without times.
fn came_of(mut command: Command, report: &Path) -> Outcome<serde_json::Value> {
    command.args(["sim", "--scenario", "intruders", "--start", "3", "--seeds", "2", "--json", text(report)]);
    succeeded(command.output()?)?;
    let mut report: serde_json::Value = serde_json::from_slice(&std::fs::read(report)?)?;
    let members = report.as_object_mut().ok_or("a report is an object")?;
    members.retain(|name, _| ["failing", "latencies", "figures"].contains(&name.as_str()));
    ensure(members.len() == 3 && members["failing"] == serde_json::json!([]), format!("{members:?}"))?;
    Ok(report)
}

fn runs_come_to_the_same_on_all() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("report.json");
    let here = came_of(Command::new(program("cxloe-bench")?), &file)?;
    for model in AGES {
        let there = came_of(on(model, "cxloe-bench")?, &file)?;
        ensure(there == here, format!("{model} found {there}, and this processor {here}"))?;
        for name in ["gmm", "mn-server", "cn-agent"] {
            succeeded(on(model, name)?.arg("--version").output()?)?;
        }
    }
    Ok(())
}

fn sealed_lines_cross_between_two() -> Outcome {
    let own = Arc::new(NodeKey::generate(cxloe_link::keys::SYSTEM));
    for model in ["Nehalem", "max"] {
        let cable = cable_for(Backend::Udp).mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string());
        let lab = cable.build()?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("mn.key");
        let shown = Command::new(program("mn-server")?).args(["key", "--node-key", text(&file)]).output()?;
        let mn: PublicKey = String::from_utf8(shown.stdout)?.trim().parse()?;
        ensure(mn == node_key(&file)?.public(), "`mn-server key` prints the public key")?;
        let named = format!("{CN}={}", own.public());
        let options = ["--node-key", text(&file), "--peer-key", &named];
        let program = on(model, "mn-server")?;
        let map = [(CN, REGION)];
        let node = MemoryNode::start_by(program, &lab, "mn0", Backend::Udp, &map, folder.path(), &options)?;
        let link = link_on(&lab, &config_to(Backend::Udp, MN))?;
        let mut port = keyed_port(link, own.clone(), BTreeMap::from([(MN, mn)]), MN, HPA, REGION)?;
        port.connect(LIMIT)?;
        for line in (0..REGION).step_by(64 << 10) {
            port.write(HPA + line, &[(line >> 16) as u8; 64])?;
        }
        for line in (0..REGION).step_by(64 << 10) {
            let read = port.read(HPA + line)?;
            ensure(read == [(line >> 16) as u8; 64], format!("{model}: line {line:#x} reads {read:?}"))?;
        }
        let all: Vec<u8> = (0..REGION as usize).map(|at| (at / 64) as u8 ^ (at / 4096) as u8).collect();
        port.write_bytes(HPA, &all)?;
        let mut back = vec![0; all.len()];
        port.read_bytes(HPA, &mut back)?;
        ensure(back == all, format!("{model}: other bytes than were written"))?;
        ensure(node.end()?.success(), "an orderly end")?;
    }
    Ok(())
}
