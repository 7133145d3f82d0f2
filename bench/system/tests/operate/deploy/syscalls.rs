//! System calls that the daemons make, recorded by strace; the filters of their systemd units have to permit them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use cxloe_lab::{Lab, Process, program};
use nix::sys::signal::Signal;

use super::unit::Unit;
use cxloe_system::pair::{CN, LIMIT, MN, Outcome, ensure, eventually, failed_with, run, saying, succeeded};

/// System calls that a unit permits.
fn allowed(unit: &Unit) -> Outcome<BTreeSet<String>> {
    let mut allowed = BTreeSet::new();
    for line in unit.values("SystemCallFilter") {
        let (denies, groups) = line.strip_prefix('~').map_or((false, line), |rest| (true, rest));
        let mut named = BTreeSet::new();
        for name in groups.split_whitespace() {
            members(name, &mut named)?;
        }
        if denies {
            allowed.retain(|call| !named.contains(call));
        } else {
            allowed.extend(named);
        }
    }
    // System calls that systemd never filters, because the daemon could not be executed without them.
    members("@default", &mut allowed)?;
    allowed.extend(
        ["execve", "exit", "exit_group", "getrlimit", "rt_sigreturn", "sigreturn"].map(str::to_owned),
    );
    ensure(allowed.len() > 100 && !allowed.contains("mount"), "the filter is not read as it is meant")?;
    Ok(allowed)
}

/// Adds the system call `name`, or the system calls of the group `name` and of the groups in it.
fn members(name: &str, into: &mut BTreeSet<String>) -> Outcome {
    if !name.starts_with('@') {
        into.insert(name.to_owned());
        return Ok(());
    }
    let output = Command::new("systemd-analyze").args(["syscall-filter", "--no-pager", name]).output()?;
    let listed = succeeded(output)?;
    for line in listed.lines().map(str::trim).filter(|line| !line.starts_with('#')).skip(1) {
        if line != name && !line.is_empty() {
            members(line, into)?;
        }
    }
    Ok(())
}

/// Names of the system calls in a trace of strace.
fn made(trace: &Path) -> Outcome<BTreeSet<String>> {
    let text = fs::read_to_string(trace)?;
    // Lines of a trace have the form "PID call(arguments…".
    let call = |line: &str| {
        let rest = line.split_once(' ')?.1.trim_start();
        let end = rest.find('(')?;
        let name = &rest[..end];
        (!name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
            .then(|| name.to_owned())
    };
    Ok(text.lines().filter_map(call).collect())
}

pub fn units_allow_the_system_calls_that_are_made() -> Outcome {
    let lab = Lab::builder().namespace("cn").namespace("mn").veth("cn", "cn0", "mn", "mn0");
    let lab = lab.mac("cn0", CN).mac("mn0", MN).build()?;
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let manager = format!("unix:{}", path("gmm.sock"));
    let traced = |namespace: &str, daemon: &str, arguments: &[&str]| -> Outcome<Process> {
        let mut command = Command::new("strace");
        command
            .args(["-f", "-qq", "-o", &path(&format!("{daemon}.trace"))])
            .arg(program(daemon)?)
            .args(arguments);
        Process::log_to(&mut command, Path::new(&path(&format!("{daemon}.log"))))?;
        Ok(lab.spawn(namespace, command)?)
    };
    let log = |daemon: &str| fs::read_to_string(path(&format!("{daemon}.log"))).unwrap_or_default();
    let serve =
        ["serve", "--listen", "127.0.0.1:0", "--store", &path("gmm.redb"), "--socket", &path("gmm.sock")];
    let gmm = traced("mn", "gmm", &serve)?;
    let ask =
        |arguments: &[&str]| succeeded(run("gmm", &[&["--manager", &manager], arguments].concat(), None)?);
    eventually("the manager answers", || ask(&["status"]).ok())?;
    let usual = ["--wait", "sleep", "--manager", &manager, "--data-dir", &path("data"), "--insecure"];
    let node = ["-i", "mn0", "--name", "mn0", "--pool-size", "32M", "--socket", &path("mn.sock")];
    let mn = traced("mn", "mn-server", &[&node[..], &usual].concat())?;
    eventually("the memory node registers", || saying(Path::new(&path("mn-server.log")), "registered"))
        .map_err(|_| log("mn-server"))?;
    let socket = path("agent.sock");
    let own = ["run", "-i", "cn0", "--name", "cn0", "--session-timeout", "5s", "--socket", &socket];
    let agent = traced("cn", "cn-agent", &[&own[..], &usual].concat())?;
    eventually("the agent serves", || saying(Path::new(&path("cn-agent.log")), "serving"))
        .map_err(|_| log("cn-agent"))?;
    ask(&["create-region", "-s", "4M", "--owner", CN, "scratch"])?;
    let cli = |arguments: &[&str]| run("cn-agent", arguments, Some(Path::new(&socket)));
    eventually("a line is written", || {
        cli(&["write", "scratch", "--text", "hello", "--flush"]).ok().filter(|output| output.status.success())
    })
    .map_err(|_| log("cn-agent"))?;
    succeeded(run("mn-server", &["sessions", "--socket", &path("mn.sock")], None)?)?;
    // Requests that fail are covered as well.
    failed_with(&cli(&["read", "no-such-region"])?, 4, &["no-such-region"])?;
    for mut daemon in [agent, mn, gmm] {
        daemon.signal(Signal::SIGTERM)?;
        daemon.wait(LIMIT)?;
    }
    for daemon in ["gmm", "mn-server", "cn-agent"] {
        let (allowed, made) =
            (allowed(&Unit::read(daemon)?)?, made(Path::new(&path(&format!("{daemon}.trace"))))?);
        ensure(made.contains("socket") && made.len() > 20, format!("{daemon} was not traced: {made:?}"))?;
        let denied: Vec<&String> = made.difference(&allowed).collect();
        ensure(denied.is_empty(), format!("{daemon} makes system calls that its unit denies: {denied:?}"))?;
    }
    Ok(())
}
