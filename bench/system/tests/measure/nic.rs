//! `cxloe-bench nic-report` on a virtual cable: what it says of an interface, and the times of each kind of link to an
//! end that echoes, and to a memory node. The tests assert no speed.

use std::fs;
use std::process::{Command, Output, Stdio};

use cxloe_lab::{LabPrivilege, program};
use cxloe_system::cable::{CN_AT, MN_AT, cable, with_addresses};
use cxloe_system::command::{answered, output_text};
use cxloe_system::pair::{CN, MN, Pair};
use cxloe_system::{Failed, Outcome, Test, ensure};
use serde_json::Value;

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    vec![
        Test::new("each_link_is_timed_to_an_echo", move || each_link_is_timed(standing)),
        Test::new("lines_are_timed_to_a_memory_node", lines_are_timed),
        Test::new("settings_are_told_without_a_link", settings_are_told),
        Test::new("what_does_not_work_has_its_reason", what_does_not_work),
    ]
}

/// Runs `nic-report` at the compute node's end of the cable.
fn report(rig: &Pair, arguments: &[&str]) -> Outcome<Output> {
    let mut command = Command::new(program("cxloe-bench")?);
    command.arg("nic-report").args(arguments).stdin(Stdio::null()).current_dir(rig.dir.path());
    Ok(rig.lab.enter("cn", || command.output())??)
}

/// Starts an end that echoes at the memory node's end of the cable.
fn start_echo(rig: &Pair, name: &str, more: &[&str]) -> Outcome {
    let mut command = Command::new(program("cxloe-bench")?);
    command.args(["echo", "-i", "mn0", "--serve"]).args(more);
    rig.start(name, "mn", command)?;
    rig.says(name, "answering echoes")
}

fn link<'j>(json: &'j Value, kind: &str) -> Result<&'j Value, Failed> {
    let links = json["links"].as_array().ok_or("no links")?;
    links.iter().find(|link| link["link"] == kind).ok_or_else(|| format!("no {kind} in {json}").into())
}

fn value<'j>(json: &'j Value, list: &str, name: &str) -> Result<&'j str, Failed> {
    let facts = json[list].as_array().ok_or("no facts")?;
    let fact = facts.iter().find(|fact| fact["name"] == name).and_then(|fact| fact["value"].as_str());
    fact.ok_or_else(|| format!("no {name} in {list}: {json}").into())
}

fn each_link_is_timed(standing: LabPrivilege) -> Outcome {
    let rig = Pair::on(with_addresses(cable()))?;
    start_echo(&rig, "echo", &["--link", "packet"])?;
    start_echo(&rig, "echo-udp", &["--link", "udp", "--udp-peer", &format!("{CN}={CN_AT}")])?;
    let peer = format!("{MN}={MN_AT}");
    let few = ["--trials", "1", "--operations", "50", "--depth", "8"];
    let options = ["-i", "cn0", "--peer", MN, "--udp-peer", &peer, "--json", "--output", "report.json"];
    answered(&report(&rig, &[&options[..], &few].concat())?, 0, &["report: report.json"])?;
    let json: Value = serde_json::from_slice(&fs::read(rig.path("report.json"))?)?;
    for kind in ["packet", "xdp", "udp"] {
        let found = link(&json, kind)?;
        if kind == "xdp" && standing != LabPrivilege::Root {
            let why = found["detail"].as_str().unwrap_or_default();
            ensure(found["works"] == false && !why.is_empty(), found.to_string())?;
            continue;
        }
        ensure(found["works"] == true && found.get("unmeasured").is_none(), found.to_string())?;
        ensure(found["echo64"]["samples"].as_u64() > Some(0), found.to_string())?;
        ensure(found["echo64"]["p99_ns"].as_f64() >= found["echo64"]["p50_ns"].as_f64(), found.to_string())?;
        ensure(found["echoes_per_s"].as_f64() > Some(0.0), found.to_string())?;
    }
    if standing == LabPrivilege::Root {
        let xdp = link(&json, "xdp")?["detail"].as_str().unwrap_or_default();
        ensure(xdp.contains("copy") && xdp.contains("need-wakeup"), xdp)?;
    }
    let auto = json["auto"].as_str().unwrap_or_default();
    ensure(auto.starts_with("packet: ") && auto.contains("taken because"), auto)?;
    ensure(value(&json, "settings", "driver")? == "veth", json.to_string())?;
    ensure(value(&json, "settings", "MTU")? == "1500", json.to_string())?;
    ensure(value(&json, "settings", "offloads")?.contains("gro"), json.to_string())?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    ensure(value(&json, "machine", "kernel")? == kernel.trim(), json.to_string())?;
    // A veth is no card: there is no slot to name, and nothing to judge for DPDK.
    let is_empty = |list: &str| json[list].as_array().is_some_and(Vec::is_empty);
    ensure(is_empty("card") && is_empty("dpdk"), json.to_string())?;
    let checks = json["checks"].as_array().ok_or("no checks")?;
    let mtu = checks.iter().find(|check| check["name"] == "MTU").ok_or("no check of the MTU")?;
    ensure(mtu["advice"].as_str().is_some_and(|advice| advice.contains("mtu 9000")), mtu.to_string())?;
    ensure(json["commands"].to_string().contains("tune/nic -i cn0 --queues 1 --apply"), json.to_string())
}

fn lines_are_timed() -> Outcome {
    let rig = Pair::bare()?;
    rig.start_gmm()?;
    rig.start_mn_with("anon", &["--echo"])?;
    let manager = rig.manager_url();
    let few = ["--trials", "1", "--operations", "100", "--size", "4M"];
    let options = ["-i", "cn0", "--links", "packet", "--lines", "--insecure", "--manager", &manager];
    let output = report(&rig, &[&options[..], &few, &["--json"]].concat())?;
    ensure(output.status.success(), output_text(&output))?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    let packet = link(&json, "packet")?;
    for time in ["echo64", "read64", "write64"] {
        ensure(packet[time]["samples"].as_u64() > Some(0), format!("{time}: {packet}"))?;
    }
    ensure(packet.get("unmeasured").is_none(), packet.to_string())
}

/// People get tables; nothing is opened.
fn settings_are_told() -> Outcome {
    let rig = Pair::bare()?;
    let words = [
        "driver",
        "veth",
        "kernel",
        "checks for a node with one worker",
        "ip link set cn0 mtu 9000",
        "--undo",
    ];
    let output = report(&rig, &["-i", "cn0", "--no-links"])?;
    answered(&output, 0, &words)?;
    ensure(!output_text(&output).contains("auto takes"), output_text(&output))
}

fn what_does_not_work() -> Outcome {
    let rig = Pair::on(with_addresses(cable()))?;
    answered(&report(&rig, &["-i", "nowhere0"])?, 1, &["there is no interface nowhere0", "cn0"])?;
    answered(&report(&rig, &["-i", "cn0", "--no-links", "--peer", MN])?, 2, &["--no-links"])?;
    // Nobody answers, and nothing but the cable is there.
    let output =
        report(&rig, &["-i", "cn0", "--links", "packet,udp", "--dpdk", "--peer", MN, "--trials", "1"])?;
    let own = format!("--udp-peer {CN}={CN_AT}");
    let words = [
        "does not answer; start there: cxloe-bench echo -i INTERFACE --serve",
        own.as_str(),
        "no card on the PCI bus",
    ];
    answered(&output, 0, &words)
}
