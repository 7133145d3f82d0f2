//! An agent with several workers: regions are distributed over them, a client reaches all of them, and a restart with
//! another number of workers changes nothing but which worker serves a region.

use std::collections::BTreeSet;

use cxloe_client::client;
use cxloe_lab::Builder;
use cxloe_system::cable::{cable, with_addresses};
use cxloe_system::pair::*;
use serde_json::Value;

const REGIONS: [&str; 4] = ["one", "two", "three", "four"];
/// Number of lines written in each region.
const EACH: u64 = 512;

/// Addresses and content of the same lines of all regions, ordered so that consecutive lines have different
/// workers.
fn lines_of(hpas: &[u64], seed: u64) -> Vec<(u64, [u8; 64])> {
    let at = |i: u64| hpas.iter().map(move |hpa| hpa + i * 64);
    (0..EACH).flat_map(at).map(|hpa| (hpa, line(hpa, seed))).collect()
}

/// Reads all lines, one by one and in a batch, and compares them.
fn verify_all(rig: &Pair, hpas: &[u64], seed: u64) -> Outcome {
    let mut client = rig.connect()?;
    let written = lines_of(hpas, seed);
    let addresses: Vec<u64> = written.iter().map(|(hpa, _)| *hpa).collect();
    let mut read = vec![[0; 64]; addresses.len()];
    eventually("all regions are served", || client.read_batch(&addresses, &mut read).ok())?;
    let wrong = written.iter().zip(&read).find(|((_, expected), found)| expected != *found);
    ensure(wrong.is_none(), format!("another line than was written: {wrong:?}"))?;
    for (hpa, expected) in written.iter().step_by(37) {
        ensure(client.read(*hpa)? == *expected, format!("{hpa:#x}, read alone"))?;
    }
    Ok(())
}

/// Index of each region's worker, in the order of [`REGIONS`].
fn workers(rig: &Pair) -> Outcome<Vec<usize>> {
    REGIONS.iter().map(|name| Ok(rig.attached(name, "active")?.worker)).collect()
}

/// Output of a command of `cn-agent` as JSON.
fn json(rig: &Pair, arguments: &[&str]) -> Outcome<Value> {
    Ok(serde_json::from_str(&succeeded(rig.cli(&[arguments, &["--json"]].concat())?)?)?)
}

/// Numbers of the workers that the items of a list name.
fn named(list: &Value) -> Vec<u64> {
    list.as_array().into_iter().flatten().filter_map(|item| item["worker"].as_u64()).collect()
}

/// Commands show each of four workers, and the sums of all.
fn shown_by_worker(rig: &Pair) -> Outcome {
    let all = [0, 1, 2, 3];
    let regions = json(rig, &["list"])?;
    ensure(named(&regions["regions"]) == all, regions.to_string())?;
    let sessions = json(rig, &["sessions"])?;
    ensure(named(&sessions) == all, sessions.to_string())?;
    let table = succeeded(rig.cli(&["sessions"])?)?;
    let rows = table.lines().filter_map(|line| line.strip_prefix(MN)?.split_whitespace().next());
    ensure(rows.take(4).eq(["0", "1", "2", "3"]), table)?;

    let counters = json(rig, &["counters"])?;
    ensure(named(&counters["workers"]) == all, counters.to_string())?;
    let sent = |of: &Value| of["link"]["tx_frames"].as_u64().unwrap_or_default();
    let each: Vec<u64> = counters["workers"].as_array().into_iter().flatten().map(sent).collect();
    let is_sum = each.iter().all(|frames| *frames > 0) && each.iter().sum::<u64>() == sent(&counters);
    ensure(is_sum, counters.to_string())?;
    let second = json(rig, &["counters", "--worker", "2"])?;
    ensure(second["worker"] == 2 && second["cpu_time_ns"].as_u64() > Some(0), second.to_string())?;
    failed_with(&rig.cli(&["counters", "--worker", "4"])?, 2, &["no worker 4", "0 to 3"])?;

    let once = ["top", "--once", "--interval", "100ms"];
    let figures = json(rig, &once)?;
    ensure(named(&figures["workers"]) == all, figures.to_string())?;
    let is_one_each =
        figures["workers"].as_array().into_iter().flatten().all(|worker| worker["regions"] == 1);
    ensure(is_one_each && named(&figures["regions"]).len() == REGIONS.len(), figures.to_string())?;
    let screen = succeeded(rig.cli(&once)?)?;
    ensure(screen.lines().any(|line| line == " workers") && screen.contains("awake"), screen)
}

/// Commands do not name the worker of an agent that has one.
fn shown_without_workers(rig: &Pair) -> Outcome {
    for command in [&["list"][..], &["sessions"], &["counters"], &["top", "--once", "--interval", "100ms"]] {
        let shown = json(rig, command)?.to_string();
        ensure(!shown.contains("\"worker"), format!("{command:?}: {shown}"))?;
    }
    let table = succeeded(rig.cli(&["sessions"])?)?;
    ensure(!table.contains("worker"), table)
}

fn over(cable: Builder, link: &'static str) -> Outcome {
    let mut rig = Pair::on(cable)?;
    rig.link = link;
    rig.start_gmm()?;
    rig.start_mn_with("file", &["--workers", "2"])?;
    rig.start_agent(&["--workers", "4"])?;
    REGIONS.iter().try_for_each(|name| rig.create_region(name).map(drop))?;
    ensure(workers(&rig)? == [0, 1, 2, 3], format!("{:?}", workers(&rig)?))?;
    let hpas =
        REGIONS.iter().map(|name| Ok(rig.attached(name, "active")?.hpa)).collect::<Outcome<Vec<_>>>()?;
    let mut client = rig.connect()?;
    let written = lines_of(&hpas, 7);
    eventually("all regions can be written", || client.write_batch(&written).ok())?;
    client.flush()?;
    verify_all(&rig, &hpas, 7)?;
    // Bulk transfers and commands reach the worker of a region as well.
    let pages: Vec<u8> = (0..64 << 10).map(|at: usize| (at / 64) as u8).collect();
    client.write_bytes(hpas[3] + (1 << 20), &pages)?;
    let mut back = vec![0; pages.len()];
    client.read_bytes(hpas[3] + (1 << 20), &mut back)?;
    ensure(back == pages, "other bytes than were written")?;
    succeeded(rig.cli(&["write", "three+2M", "--text", "by a worker", "--flush"])?)?;
    ensure(succeeded(rig.cli(&["read", "three+2M"])?)?.contains("|by a worker"), "read by the command line")?;
    // Each worker has a session of its own, in which it has received answers.
    let sessions = client::sessions(&rig.socket())?;
    let peers: BTreeSet<String> = sessions.iter().map(|session| session.status.peer.clone()).collect();
    let worker = |worker| format!("{MN} worker {worker}");
    ensure(peers == [MN.to_owned(), worker(1), worker(2), worker(3)].into(), format!("{peers:?}"))?;
    let used = sessions.iter().all(|session| session.status.counters.answered > 0);
    ensure(used, "a worker has sent nothing")?;
    let counters = client::counters(&rig.socket())?;
    ensure(counters.clients == 4, format!("{} ports", counters.clients))?;
    shown_by_worker(&rig)?;
    drop(client);

    // After a restart with fewer workers, each region has the same address and content.
    rig.kill("agent")?;
    rig.start_agent(&["--workers", "3", "--cache-size", "0"])?;
    ensure(workers(&rig)? == [0, 1, 2, 0], format!("{:?}", workers(&rig)?))?;
    verify_all(&rig, &hpas, 7)?;
    // All workers open their sessions again after the memory node has restarted.
    rig.stop("mn")?;
    rig.start_mn_with("file", &["--workers", "3"])?;
    verify_all(&rig, &hpas, 7)?;
    // The session of the first worker is opened although that worker has no region now: the sessions of the
    // other workers depend on it.
    rig.stop("agent")?;
    rig.gmm(&["destroy-region", "--force", "one"])?;
    rig.gmm(&["destroy-region", "--force", "four"])?;
    rig.start_agent(&["--workers", "3"])?;
    verify_all(&rig, &hpas[1..3], 7)?;
    rig.stop("agent")?;
    rig.start_agent(&[])?;
    verify_all(&rig, &hpas[1..3], 7)?;
    shown_without_workers(&rig)
}

pub fn lines_over_four_workers() -> Outcome {
    over(cable().queues(4), "packet")
}

/// Over UDP, each worker has a UDP port of its own.
pub fn lines_over_four_workers_over_udp() -> Outcome {
    over(with_addresses(cable()), "udp")
}

/// Options that do not go together are refused with the reason.
pub fn workers_and_their_options_are_checked() -> Outcome {
    let rig = Pair::bare()?;
    for (options, why) in [
        (&["--workers", "17"][..], "choose 1 to 16"),
        (&["--workers", "8", "--queues", "4"], "more than 16 queues"),
        (&["--workers", "2", "--cpus", "0"], "1 CPUs for 2 workers"),
    ] {
        let all = rig.agent_arguments("agent", options);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        failed_with(&run("cn-agent", &all, None)?, 2, &[why])?;
    }
    Ok(())
}
