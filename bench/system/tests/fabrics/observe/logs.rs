//! Structured logs: with `--log-format json` every line is a JSON object, and peer, region and cause of an event are
//! fields, not only in the message.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use cxloe_client::client;
use cxloe_lab::{Process, program};
use serde_json::Value;

use super::fabric::rig;
use cxloe_system::pair::*;

pub fn logs_are_json_with_fields() -> Outcome {
    let rig = rig()?;
    let (port, _) = rig.written(3)?;
    drop(port);
    // A memory node logs events of its sessions at intervals of half a second.
    let log = rig.log("mn");
    eventually("the memory node logs its session", || saying(&log, "session started"))?;
    cxloe_lab::expect_error("has not answered within the limit");
    rig.kill("mn")?;
    rig.attached("scratch", "degraded")?;
    rig.stop("agent")?;
    rig.stop("gmm")?;
    let mut lines: Vec<(String, Value)> = Vec::new();
    for entry in std::fs::read_dir(rig.dir.path())? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != "log") {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for line in std::fs::read_to_string(&path)?.lines() {
            let object: Value = serde_json::from_str(line).map_err(|e| format!("{name}: {e}: {line}"))?;
            for field in ["timestamp", "level", "target"] {
                ensure(object[field].is_string(), format!("{name}: no {field}: {line}"))?;
            }
            ensure(object["fields"]["message"].is_string(), format!("{name}: no message: {line}"))?;
            lines.push((name.clone(), object["fields"].clone()));
        }
    }
    for (daemon, message, field, value) in [
        ("agent", "session open", "peer", MN),
        ("agent", "region attached", "region", "scratch"),
        ("mn", "session started", "peer", CN),
        ("gmm", "memory_node_unreachable", "memory_node", "mn0"),
        ("gmm", "region", "region", "scratch"),
    ] {
        let is = |(name, fields): &&(String, Value)| {
            let output_text =
                fields["message"].as_str().is_some_and(|output_text| output_text.contains(message));
            name.starts_with(daemon) && output_text && fields[field] == value
        };
        ensure(
            lines.iter().any(|line| is(&line)),
            format!("{daemon}: no {message} with {field} = {value}: {lines:?}"),
        )?;
    }
    Ok(())
}

/// Daemons, and a program that fails, write no escape sequences for colours into files and pipes.
pub fn logs_in_files_have_no_colours() -> Outcome {
    let rig = Pair::with_region("anon", &[])?;
    rig.stop("agent")?;
    let mut logs = 0;
    for entry in std::fs::read_dir(rig.dir.path())? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "log") {
            let text = std::fs::read(&path)?;
            ensure(!text.is_empty() && !text.contains(&0x1b), String::from_utf8_lossy(&text))?;
            logs += 1;
        }
    }
    ensure(logs == 3, format!("{logs} logs"))?;
    let mut bench = Command::new(program("cxloe-bench")?);
    bench.args(["echo", "-i", "no-such-interface", "--peer", MN]).env("CXLOE_LOG", "trace");
    let output_text = bench.output()?.stderr;
    ensure(!output_text.is_empty() && !output_text.contains(&0x1b), String::from_utf8_lossy(&output_text))
}

/// Starts a manager and an agent whose standard error is redirected to `error`.
fn daemons(rig: &Pair, error: impl Fn() -> Outcome<OwnedFd>) -> Outcome<[Process; 2]> {
    let quiet = |mut command: Command| -> Outcome<Command> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(error()?);
        Ok(command)
    };
    let mut gmm = Command::new(program("gmm")?);
    gmm.args(["serve", "--listen", "127.0.0.1:0", "--node-timeout-ms", "1000", "--store"]);
    gmm.arg(rig.path("gmm.redb")).arg("--socket").arg(rig.path("gmm.sock")).env("CXLOE_LOG", "trace");
    let gmm = rig.lab.spawn("mn", quiet(gmm)?)?;
    eventually("the manager answers", || rig.gmm(&["status"]).ok())?;
    let mut agent = Command::new(program("cn-agent")?);
    agent.args(rig.agent_arguments("agent", &["--log", "trace"]));
    let agent = rig.lab.spawn("cn", quiet(agent)?)?;
    eventually("the agent answers", || client::node(&rig.socket()).ok())?;
    Ok([gmm, agent])
}

/// Checks that the daemons answer, and that they end with status 0 at SIGTERM.
fn end_well(rig: &Pair, daemons: [Process; 2]) -> Outcome {
    for _ in 0..20 {
        rig.gmm(&["list", "-R"])?;
        client::node(&rig.socket())?;
    }
    for mut daemon in daemons.into_iter().rev() {
        let status = daemon.terminate(LIMIT)?;
        ensure(status.success(), format!("ended with {status}"))?;
    }
    Ok(())
}

/// Daemons continue to serve while the disk with their logs is full.
pub fn daemons_outlive_a_full_disk() -> Outcome {
    let rig = Pair::bare()?;
    let full = || Ok(OpenOptions::new().write(true).open("/dev/full")?.into());
    let daemons = daemons(&rig, full)?;
    end_well(&rig, daemons)
}

/// Daemons continue to serve while their log pipe is full and nothing reads it; a later reader gets a line about lost
/// lines.
pub fn daemons_do_not_wait_for_a_reader() -> Outcome {
    let rig = Pair::bare()?;
    let path = rig.path("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU)?;
    let mut reader = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&path)?;
    let mut filler = OpenOptions::new().write(true).custom_flags(nix::libc::O_NONBLOCK).open(&path)?;
    while filler.write(&[b'.'; 4096]).is_ok() {}
    let daemons = daemons(&rig, || Ok(OpenOptions::new().write(true).open(&path)?.into()))?;
    // 8000 connections cause more log lines than the manager can buffer. `room` receives the answers and the log.
    let mut room = vec![0; 1 << 16];
    for _ in 0..8000 {
        let mut manager = UnixStream::connect(rig.path("gmm.sock"))?;
        manager.write_all(b"GET /v1/regions HTTP/1.1\r\nHost: manager\r\n\r\n")?;
        ensure(manager.read(&mut room)? > 0, "the manager has hung up")?;
    }
    let mut text = Vec::new();
    eventually("what is lost is told", || {
        while let Ok(count @ 1..) = reader.read(&mut room) {
            text.extend_from_slice(&room[..count]);
        }
        String::from_utf8_lossy(&text).contains("lines of the log before this one are lost").then_some(())
    })?;
    end_well(&rig, daemons)
}

/// Daemons continue to serve after the reader of their log pipe has closed it.
pub fn daemons_outlive_a_broken_pipe() -> Outcome {
    let rig = Pair::bare()?;
    let daemons = daemons(&rig, || {
        let (reader, writer) = nix::unistd::pipe()?;
        drop(reader);
        Ok(writer)
    })?;
    end_well(&rig, daemons)
}
