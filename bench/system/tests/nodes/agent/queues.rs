//! An agent with a session for each of several queues of its interface, and a memory node with the same number of
//! workers.

use std::process::Command;

use cxloe_client::client;
use cxloe_lab::program;
use cxloe_system::cable::cable;
use cxloe_system::pair::*;

pub fn lines_over_four_queues() -> Outcome {
    let rig = Pair::on(cable().queues(4))?;
    rig.start_gmm()?;
    rig.start_mn_with("file", &["--workers", "4"])?;
    rig.start_agent(&["--queues", "4"])?;
    rig.create_region("scratch")?;
    let (mut port, hpa) = rig.written(41)?;
    verify(&mut port, hpa, 41)?;
    let all: Vec<u8> = (0..REGION as usize).map(|at| (at / 64) as u8 ^ (at / 4096) as u8).collect();
    port.write_bytes(hpa, &all)?;
    let sessions = client::sessions(&rig.socket())?;
    let peers: Vec<&str> = sessions.iter().map(|session| session.status.peer.as_str()).collect();
    let queue = |queue| format!("{MN} queue {queue}");
    ensure(peers == [MN.to_owned(), queue(1), queue(2), queue(3)], format!("{peers:?}"))?;
    let used = sessions.iter().all(|session| session.status.counters.answered > 0);
    ensure(used, "a queue was not used")?;
    // After a kill, the next agent uses fewer queues, and reads all data that the memory node has stored.
    drop(port);
    rig.kill("agent")?;
    rig.start_agent(&["--queues", "2", "--cache-size", "0"])?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    let mut back = vec![0; all.len()];
    eventually("every page is served", || port.read_bytes(hpa, &mut back).ok())?;
    ensure(back == all, "other bytes than were written")?;
    // The sessions of all queues detect the memory node's end, and are opened again when it restarts.
    rig.stop("mn")?;
    rig.start_mn_with("file", &["--workers", "2"])?;
    recovered(&mut port, hpa)?;
    eventually("every page is served again", || port.read_bytes(hpa, &mut back).ok())?;
    ensure(back == all, "other bytes after the memory node's return")
}

pub fn queues_and_throughput_are_measured() -> Outcome {
    let rig = Pair::on(cable().queues(4))?;
    rig.start_gmm()?;
    rig.start_mn_with("anon", &["--workers", "4"])?;
    let (json, manager) = (rig.path("scale.json"), rig.manager_url());
    let mut bench = Command::new(program("cxloe-bench")?);
    bench.args(["scale", "-i", "cn0", "--link", "packet", "--wait", "adaptive", "--manager", &manager]);
    bench.args([
        "--insecure",
        "--size",
        "8M",
        "--queues",
        "4",
        "--trials",
        "1",
        "--each-ms",
        "100",
        "--json",
        text(&json),
    ]);
    let output_text = succeeded(rig.lab.enter("cn", || bench.output())??)?;
    let rows: Vec<&str> = output_text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    ensure(["1", "2", "4"].iter().all(|queues| rows.contains(queues)), output_text)?;
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json)?)?;
    let throughputs = report["throughput"].as_array().ok_or("no throughputs")?;
    for name in ["lines_q1", "burst_read_q2", "burst_write_q4"] {
        let found = throughputs.iter().find(|throughput| throughput["name"] == name);
        ensure(
            found.is_some_and(|found| found["ops_per_s"].as_f64() > Some(0.0)),
            format!("{name}: {report}"),
        )?;
    }
    Ok(())
}
