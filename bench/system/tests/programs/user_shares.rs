//! Shares of each user in the resources of an agent: ports, mapped regions, processes with remote memory, and
//! temporary regions. One user takes as much as possible; other users and root have to get theirs.
//!
//! Runs as root, which starts copies of this program as both users.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Output};

use cxloe_client::client::Client;
use cxloe_client::mapping::Owner;
use cxloe_cn_core::mapped::MappingKind;
use cxloe_lab::{LabPrivilege, Process};

use super::tenants::{ALICE, BOB, lent, request, rig_whose_agent, user_command};
use cxloe_system::copies::ROLE;
use cxloe_system::pair::*;
use cxloe_system::{Test, tests};

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    match standing {
        LabPrivilege::Root => tests![each_user_has_a_share_of_what_all_need],
        _ => Vec::new(),
    }
}

pub fn each_user_has_a_share_of_what_all_need() -> Outcome {
    let shares = "--user-ports 2 --user-regions 1 --user-processes 1 --user-memory 16M --allow-kernel-faults";
    let rig = rig_whose_agent(&shares.split(' ').collect::<Vec<_>>())?;
    let taken = taking(&rig, ALICE, &["alice", "all"])?.output()?;
    let refused = ["user 4711 may have 2 open ports", "user 4711 may have 1 mapped regions"];
    ensure(refused.iter().all(|words| text(&taken).contains(words)), text(&taken))?;
    eventually("nothing is mapped", || {
        cxloe_client::client::paging(&rig.socket(), None).ok()?.is_empty().then_some(())
    })?;
    // Bob may still map a region, and root may open more ports than a user may.
    let taken = taking(&rig, BOB, &["bob"])?.output()?;
    ensure(!text(&taken).contains("mapped regions"), text(&taken))?;
    let ports = (0..3).map(|_| Client::connect(&rig.socket())).collect::<Result<Vec<_>, _>>()?;
    drop(ports);
    for (uid, size, words) in [
        (ALICE, "32M", "raise user-memory in cn-agent.toml"),
        (ALICE, "16M", "raise user-processes in cn-agent.toml"),
        (0, "32M", "child 3"),
    ] {
        let output_text = exec(&rig, uid, size)?;
        ensure(output_text.contains(words), format!("{uid} {size}: {output_text}"))?;
        ensure(uid == 0 || !output_text.contains("child 3"), output_text)?;
    }
    Ok(())
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Command that runs [`play`] in a copy of this program, as a user.
fn taking(rig: &Pair, uid: u32, regions: &[&str]) -> Outcome<Command> {
    let mut command = user_command(uid, &lent(rig)?.join("tenant"));
    command.env(ROLE, "shares").arg(rig.socket()).args(regions);
    Ok(command)
}

/// Runs a program with a child under `cn-agent exec` as a user; returns what both have printed.
fn exec(rig: &Pair, uid: u32, size: &str) -> Outcome<String> {
    let mut command = user_command(uid, &lent(rig)?.join("cn-agent"));
    command.args(["exec", "--size", size, "--local", "4M", "--", "sh", "-c", "(exit 3); echo child $?"]);
    command.env("CXLOE_AGENT", rig.socket());
    let log = rig.path(&format!("exec-{uid}-{size}.log"));
    Process::log_to(&mut command, &log)?;
    rig.lab.spawn("cn", command)?.wait(LIMIT)?;
    Ok(fs::read_to_string(&log)?)
}

/// Role: opens three ports and maps regions, keeps all of them open, and prints the refusals. The arguments
/// are the agent's socket and the regions.
pub fn play() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, socket, regions @ ..] = &arguments[..] else { return ExitCode::from(2) };
    let socket = Path::new(socket);
    let ports: Vec<_> = (0..3).map(|_| Client::connect(socket)).collect();
    let owners: Vec<_> =
        regions.iter().map(|region| Owner::map(socket, request(region, MappingKind::Shared))).collect();
    ports.iter().filter_map(|port| port.as_ref().err()).for_each(|error| println!("{error}"));
    owners.iter().filter_map(|owner| owner.as_ref().err()).for_each(|error| println!("{error}"));
    ExitCode::SUCCESS
}
