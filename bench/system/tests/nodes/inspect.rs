//! Inspection of a running memory node: `mn-server sessions` and `mn-server counters` show the activity of compute
//! nodes; the queried socket belongs to one node and its user, and is removed when the node ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use cxloe_cn_core::cache::CacheConfig;
use cxloe_lab::{Lab, LabPrivilege, Process, program};
use cxloe_link::{Backend, LinkConfig};
use cxloe_port::port::Port;
use cxloe_system::node::{MemoryNode, link_on, port};
use cxloe_system::{Failed, Test};
use cxloe_system::{LIMIT, Outcome, cable::cable, ensure, eventually};
use cxloe_wire::frame::Mac;
use serde_json::Value;

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    vec![
        Test::new("sessions_and_counters_are_those_of_the_compute_node", sessions_and_counters),
        Test::new("losses_are_counted_by_kind", losses_are_counted_by_kind),
        Test::new("the_socket_is_one_nodes_and_goes_with_it", the_socket_is_one_nodes),
        Test::new("what_cannot_be_asked_is_named", an_unreachable_daemon_is_named),
    ]
}

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
const BYTES: u64 = 4 << 20;
/// Number of lines written, and then read.
const LINES: u64 = 64;

fn lab() -> Result<Lab, Failed> {
    Ok(cable().mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?)
}

fn node(lab: &Lab, folder: &Path, more: &[&str]) -> Result<MemoryNode, Failed> {
    let socket = folder.join("mn.sock");
    let options = [&["--socket", path(&socket)?], more].concat();
    MemoryNode::start_with(lab, "mn0", Backend::Packet, &[(CN, BYTES)], folder, &options)
}

fn path(path: &Path) -> Result<&str, Failed> {
    Ok(path.to_str().ok_or("a path that is no text")?)
}

fn connected(lab: &Lab) -> Result<Port, Failed> {
    let config = LinkConfig { backend: Backend::Packet, busy_poll: false, ..LinkConfig::new("cn0") };
    let mut port = port(link_on(lab, &config)?, MN, 0, BYTES, CacheConfig::OFF)?;
    port.connect(LIMIT)?;
    Ok(port)
}

fn asked(question: &str, socket: &Path, more: &[&str]) -> Result<Output, Failed> {
    let mut command = Command::new(program("mn-server")?);
    Ok(command.arg(question).arg("--socket").arg(socket).args(more).output()?)
}

/// Output of the query `question` to the memory node in `folder`.
fn told(question: &str, folder: &Path, more: &[&str]) -> Result<String, Failed> {
    let output = asked(question, &folder.join("mn.sock"), more)?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure(output.status.success(), format!("{question}: {}: {err}", output.status))?;
    ensure(err.is_empty(), err)?;
    Ok(out.into_owned())
}

fn json(question: &str, folder: &Path) -> Result<Value, Failed> {
    Ok(serde_json::from_str(&told(question, folder, &["--json"])?)?)
}

/// Cells of the table rows that begin with `name`.
fn rows<'t>(table: &'t str, name: &str) -> Vec<Vec<&'t str>> {
    let cells = |line: &'t str| -> Vec<&'t str> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    };
    table.lines().map(cells).filter(|row| row.first() == Some(&name)).collect()
}

fn sessions_and_counters() -> Outcome {
    let (lab, folder) = (lab()?, tempfile::tempdir()?);
    let folder = folder.path();
    let node = node(&lab, folder, &[])?;
    let before = told("sessions", folder, &[])?;
    ensure(before.contains("mn1 on mn0") && before.contains("no sessions"), before)?;
    ensure(json("sessions", folder)? == Value::Array(vec![]), "no sessions are an empty array")?;

    let mut port = connected(&lab)?;
    for line in 0..LINES {
        port.write(line * 64, &[line as u8; 64])?;
    }
    for line in 0..LINES {
        ensure(port.read(line * 64)? == [line as u8; 64], "another line than was written")?;
    }
    // The counters are current: they include the last request as soon as its response has arrived.
    let sessions = json("sessions", folder)?;
    let session = &sessions[0];
    ensure(sessions.as_array().is_some_and(|all| all.len() == 1), sessions.to_string())?;
    ensure(session["cn"] == CN.to_string() && session["worker"] == 0, session.to_string())?;
    ensure(session["window"] == 256 && session["waiting"] == 0, session.to_string())?;
    ensure(session["counters"]["executed"] == 2 * LINES, session.to_string())?;
    let table = told("sessions", folder, &[])?;
    let found = rows(&table, &CN.to_string());
    ensure(found.len() == 2 && found[0][4] == "256", table.clone())?;
    ensure(found[1][1] == (2 * LINES).to_string() && found[1].last() == Some(&"0"), table.clone())?;

    let counters = json("counters", folder)?;
    let worker = &counters[0];
    ensure(worker["requests"]["executed"] == 2 * LINES, counters.to_string())?;
    ensure(worker["link"]["rx_frames"].as_u64() >= Some(2 * LINES), counters.to_string())?;
    let translated = worker["tlb_hits"].as_u64().unwrap_or(0) + worker["tlb_misses"].as_u64().unwrap_or(0);
    ensure(translated >= 2 * LINES, counters.to_string())?;
    ensure(worker["age_ns"].as_u64().is_some_and(|age| age < 1_000_000_000), counters.to_string())?;
    let table = told("counters", folder, &[])?;
    ensure(rows(&table, "requests executed") == [["requests executed", &(2 * LINES).to_string()]], table)?;

    port.close()?;
    eventually("the session has ended", || {
        json("sessions", folder).is_ok_and(|sessions| sessions == Value::Array(vec![]))
    })?;
    // The counters still include requests of ended sessions.
    ensure(json("counters", folder)?[0]["requests"]["executed"] == 2 * LINES, "ended, and forgotten")?;
    ensure(node.end()?.success(), "the memory node failed")
}

/// Frames are lost, duplicated and reordered: the node counts each kind, and each request is executed once.
fn losses_are_counted_by_kind() -> Outcome {
    let (lab, folder) = (lab()?, tempfile::tempdir()?);
    let folder = folder.path();
    let node = node(&lab, folder, &["--faults", "drop=3%,dup=3%,corrupt=3%,seed=7"])?;
    let mut port = connected(&lab)?;
    port.set_depth(64);
    let lines: Vec<(u64, [u8; 64])> = (0..1024_u64).map(|i| (i * 64, [i as u8; 64])).collect();
    let mut counters = Value::Null;
    let counted = |c: &Value, name: &str| c[name].as_u64().unwrap_or(0);
    let (mut written, mut failed) = (0, None);
    eventually("every kind has been seen", || {
        if let Err(error) = port.write_batch(&lines) {
            failed = Some(error);
            return true;
        }
        written += lines.len() as u64;
        counters = json("sessions", folder).map_or(Value::Null, |s| s[0]["counters"].clone());
        ["sacks", "early", "duplicates", "dropped_trailer"].iter().all(|name| counted(&counters, name) > 0)
    })?;
    ensure(failed.is_none(), format!("a write failed: {failed:?}"))?;
    ensure(counted(&counters, "executed") == written, format!("{written} written, {counters}"))?;
    let table = told("sessions", folder, &[])?;
    ensure(table.contains("trailer "), table)?;
    port.close()?;
    ensure(node.end()?.success(), "the memory node failed")
}

fn the_socket_is_one_nodes() -> Outcome {
    cxloe_lab::expect_error("another memory node is running and listens on");
    let (lab, folder) = (lab()?, tempfile::tempdir()?);
    let (folder, socket) = (folder.path(), folder.path().join("mn.sock"));
    let first = node(&lab, folder, &[])?;
    let mode = fs::metadata(&socket)?.permissions().mode() & 0o777;
    ensure(mode == 0o600, format!("mode {mode:o}"))?;

    // A second node with the same socket does not start, and does not affect the first node.
    let log = folder.join("second.log");
    let mut command = Command::new(program("mn-server")?);
    command
        .args(["-i", "mn0", "--pool-size", "4M", "--name", "mn2", "--insecure", "--static-map"])
        .arg(folder.join("map.toml"));
    command.arg("--data-dir").arg(folder.join("second")).arg("--socket").arg(&socket);
    Process::log_to(&mut command, &log)?;
    let status = lab.spawn("mn", command)?.wait(LIMIT)?;
    let output_text = fs::read_to_string(&log)?;
    ensure(status.code() == Some(1), format!("{status}: {output_text}"))?;
    ensure(
        output_text.contains("another memory node is running") && output_text.contains("--socket"),
        output_text,
    )?;
    told("sessions", folder, &[])?;

    // A killed node leaves its socket behind; the next node replaces the socket.
    first.kill()?;
    let output = asked("counters", &socket, &[])?;
    ensure(socket.exists() && output.status.code() == Some(3), "a dead node's socket is no node")?;
    let second = node(&lab, folder, &[])?;
    told("counters", folder, &[])?;
    ensure(second.end()?.success(), "the memory node failed")?;
    ensure(!socket.exists(), "the socket goes with its node")
}

fn an_unreachable_daemon_is_named() -> Outcome {
    let folder = tempfile::tempdir()?;
    for question in ["sessions", "counters"] {
        let output = asked(question, &folder.path().join("nowhere.sock"), &[])?;
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure(output.status.code() == Some(3), format!("{}: {output_text}", output.status))?;
        for words in ["no memory node at", "nowhere.sock", "mn-server run", "--socket"] {
            ensure(output_text.contains(words), format!("no `{words}` in: {output_text}"))?;
        }
        ensure(output.stdout.is_empty(), "nothing is shown")?;
    }
    let output = Command::new(program("mn-server")?).args(["sessions", "--pool-size", "4M"]).output()?;
    ensure(output.status.code() == Some(2), "options of a node say nothing about a question")?;
    let output = Command::new(program("mn-server")?).args(["completions", "bash"]).output()?;
    let script = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(output.status.success() && script.contains("sessions") && script.contains("--pool-size"), script)
}
