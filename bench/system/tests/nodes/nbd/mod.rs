//! A region as a block device: a real fabric, `cn-agent nbd`, and the usual NBD tools: nbdinfo and nbdcopy of libnbd,
//! qemu-img and qemu-io of QEMU. Data copied into the region is read back. Further tests cover the end of agent and
//! server, and misbehaving clients.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

mod client;
mod rare_requests;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use client::NbdClient;
use cxloe_lab::{Process, program};
use cxloe_system::pair::*;
use cxloe_system::{Test, tests};
use nix::sys::signal::Signal;

/// Bytes of the exported region.
const DISK: u64 = 16 << 20;
/// Error number in NBD for a failed input or output (`EIO`).
const EIO: u32 = 5;

pub fn tests(_: cxloe_lab::LabPrivilege) -> Vec<Test> {
    tests![
        nbdinfo_shows_the_region,
        nbdcopy_copies_in_and_out,
        qemu_img_converts_and_compares,
        rare_requests::nbdsh_asks_for_nothing_and_for_all,
        rare_requests::maps_show_data_everywhere,
        rare_requests::nbdsh_reads_ahead_and_asks_for_fast_zeros,
        fio_verifies_what_it_wrote,
        parts_of_lines_are_written,
        connections_see_each_others_writes,
        two_servers_keep_each_others_bytes,
        failures_are_logged_seldom,
        silent_clients_make_room,
        killed_agent_means_errors_until_it_is_back,
        restarted_agent_is_waited_for,
        reading_only_refuses_writes,
        a_client_beyond_the_limit_gets_the_reason,
        hostile_clients_hurt_only_themselves,
        server_leaves_nothing_behind,
        wrong_arguments_are_told,
    ]
}

/// A fabric with a region `disk`, and a server that exports it. On drop the server ends first.
struct Exported {
    server: Process,
    rig: Pair,
}

impl Exported {
    fn start(arguments: &[&str]) -> Outcome<Exported> {
        let rig = Pair::bare()?;
        rig.start_gmm()?;
        rig.start_mn("file")?;
        rig.start_agent(&[])?;
        rig.gmm(&["create-region", "-s", &DISK.to_string(), "--owner", CN, "disk"])?;
        let hpa = rig.attached("disk", "active")?.hpa;
        let mut port = rig.connect()?;
        eventually("a session is open", || port.read(hpa).ok())?;
        let server = serve(&rig, arguments)?;
        Ok(Exported { server, rig })
    }

    fn socket(&self) -> PathBuf {
        self.rig.path("disk.nbd")
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    fn connect(&self) -> Outcome<NbdClient> {
        let client = NbdClient::connect(&self.socket())?;
        ensure(client.size == DISK, format!("an export of {} bytes", client.size))?;
        Ok(client)
    }

    /// Makes a file of random bytes that is as large as the region.
    fn image(&self) -> Outcome<PathBuf> {
        let path = self.rig.path("image");
        let mut bytes = Vec::new();
        std::fs::File::open("/dev/urandom")?.take(DISK).read_to_end(&mut bytes)?;
        std::fs::write(&path, bytes)?;
        Ok(path)
    }
}

fn serve(rig: &Pair, arguments: &[&str]) -> Outcome<Process> {
    let (socket, log) = (rig.path("disk.nbd"), rig.path("nbd.log"));
    let mut command = Command::new(program("cn-agent")?);
    command.args(["nbd", "--region", "disk", "--socket"]).arg(&socket).arg("--agent").arg(rig.socket());
    command.args(arguments);
    Process::log_to(&mut command, &log)?;
    let server = rig.lab.spawn("cn", command)?;
    eventually("the server serves", || saying(&log, "serving")).map_err(|error| {
        let output_text = std::fs::read_to_string(&log).unwrap_or_default();
        format!("{}; its log:\n{output_text}", error.message().unwrap_or_default())
    })?;
    Ok(server)
}

/// Runs a tool for at most a minute; returns its output.
fn tool(name: &str, arguments: &[&str]) -> Outcome<Output> {
    let mut command = Command::new("timeout");
    command.args(["60", name]).args(arguments);
    // Tools of the system require the system's own Python.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/bin:/bin:/usr/sbin:/sbin:{path}"));
    Ok(command.output().map_err(|e| format!("{name}: {e}; deploy/install/need.sh nbd installs it"))?)
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("paths of tests are plain text")
}

fn same(one: &std::path::Path, other: &std::path::Path) -> Outcome {
    ensure(std::fs::read(one)? == std::fs::read(other)?, "what comes out is what went in")
}

fn nbdinfo_shows_the_region() -> Outcome {
    let disk = Exported::start(&[])?;
    for export in ["", "disk"] {
        let info = succeeded(tool("nbdinfo", &["--json", &disk.uri(export)])?)?;
        let info: serde_json::Value = serde_json::from_str(&info)?;
        ensure(info["protocol"] == "newstyle-fixed" && info["structured"] == true, info.to_string())?;
        let export = &info["exports"][0];
        ensure(export["export-size"] == DISK && export["is_read_only"] == false, info.to_string())?;
        for ability in [
            "can_cache",
            "can_df",
            "can_fast_zero",
            "can_flush",
            "can_fua",
            "can_multi_conn",
            "can_trim",
            "can_zero",
        ] {
            ensure(export[ability] == true, format!("{ability}: {info}"))?;
        }
        ensure(export["contexts"] == serde_json::json!(["base:allocation"]), info.to_string())?;
        let sizes = ["block_size_minimum", "block_size_preferred", "block_size_maximum"];
        let expected = [512, 4096, 64 << 20];
        ensure(sizes.iter().zip(expected).all(|(name, size)| export[*name] == size), info.to_string())?;
    }
    let list = succeeded(tool("nbdinfo", &["--list", "--json", &disk.uri("")])?)?;
    ensure(list.contains("\"export-name\": \"disk\"") && list.contains("remote memory"), list)?;
    let other = tool("nbdinfo", &[&disk.uri("other")])?;
    ensure(!other.status.success(), "another export is not there")?;
    let output_text = String::from_utf8_lossy(&other.stderr).into_owned();
    ensure(output_text.contains("for export: other"), output_text)
}

fn nbdcopy_copies_in_and_out() -> Outcome {
    let disk = Exported::start(&[])?;
    let (image, copy) = (disk.image()?, disk.rig.path("copy"));
    succeeded(tool("nbdcopy", &[text(&image), &disk.uri("disk")])?)?;
    // Read with `cn-agent read`, the region contains the bytes of the image in order.
    let raw = disk.rig.cli(&["read", "disk+0x7f0000", "--lines", "2048", "--raw"])?;
    ensure(raw.stdout == std::fs::read(&image)?[0x7f_0000..][..128 << 10], "lines are the image's bytes")?;
    succeeded(tool("nbdcopy", &[&disk.uri("disk"), text(&copy)])?)?;
    same(&image, &copy)?;
    // nbdcopy uses one connection, large requests, and a flush at the end.
    succeeded(tool(
        "nbdcopy",
        &["-C", "1", "--request-size=4194304", "--flush", text(&copy), &disk.uri("")],
    )?)?;
    succeeded(tool("nbdcopy", &[&disk.uri("disk"), text(&copy)])?)?;
    same(&image, &copy)
}

fn qemu_img_converts_and_compares() -> Outcome {
    let disk = Exported::start(&[])?;
    let (image, copy) = (disk.image()?, disk.rig.path("copy.qcow2"));
    // The second half of the image is zeros; a tool writes them or skips them.
    std::fs::OpenOptions::new().write(true).open(&image)?.set_len(DISK / 2)?;
    std::fs::OpenOptions::new().write(true).open(&image)?.set_len(DISK)?;
    let uri = disk.uri("disk");
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", text(&image), &uri];
    succeeded(tool("qemu-img", &convert)?)?;
    succeeded(tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&image), &uri])?)?;
    succeeded(tool("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, text(&copy)])?)?;
    succeeded(tool("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", text(&image), text(&copy)])?)?;
    // qemu-io checks the data that it reads, and its exit code reports differences.
    let checks = [
        "write -P 7 1M 64k",
        "write -z 1028k 4k",
        "discard 2M 64k",
        "flush",
        "read -P 7 1M 4k",
        "read -P 0 1028k 4k",
        "read -P 7 1032k 32k",
    ];
    let commands: Vec<&str> = checks.iter().flat_map(|check| ["-c", check]).collect();
    let output_text = succeeded(tool("qemu-io", &[&["-f", "raw"], &commands[..], &[&uri]].concat())?)?;
    ensure(!output_text.contains("failed"), output_text)?;
    let compared = tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&image), &uri])?;
    ensure(compared.status.code() == Some(1), format!("the difference is seen: {compared:?}"))
}

fn fio_verifies_what_it_wrote() -> Outcome {
    let disk = Exported::start(&[])?;
    let uri = format!("--uri={}", disk.uri("disk"));
    let common = [
        "--name=verify",
        "--ioengine=nbd",
        "--size=16M",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
    ];
    for (how, size) in
        [("--rw=randwrite", "--bs=4k"), ("--rw=randwrite", "--bsrange=512-256k"), ("--rw=write", "--bs=1M")]
    {
        let own = [&uri, how, size, "--iodepth=32", "--bs_unaligned=0"];
        let output_text = tool("fio", &[&common[..], &own].concat())?;
        let complaint = String::from_utf8_lossy(&output_text.stderr).into_owned();
        succeeded(output_text)
            .map_err(|error| format!("{}: {complaint}", error.message().unwrap_or_default()))?;
    }
    Ok(())
}

/// Bytes of each line belong alternately to clients of two servers: neither server may overwrite the other's bytes.
fn two_servers_keep_each_others_bytes() -> Outcome {
    let disk = Exported::start(&[])?;
    let second = disk.rig.path("second.nbd");
    let mut command = Command::new(program("cn-agent")?);
    command.args(["nbd", "--region", "disk", "--socket"]).arg(&second).arg("--agent").arg(disk.rig.socket());
    let _second = disk.rig.lab.spawn("cn", command)?;
    let other = eventually("the second server serves", || NbdClient::connect(&second).ok())?;
    let writers = [(0, disk.connect()?), (1, other)];
    thread::scope(|scope| {
        let work = |(owner, mut nbd): (u64, NbdClient)| {
            scope.spawn(move || {
                for round in 0..8_u8 {
                    for offset in (owner..512).step_by(2) {
                        let answer =
                            nbd.write(offset, &[round * 2 + owner as u8]).map_err(|e| e.to_string())?;
                        answer.map_err(|error| format!("a write failed: {error}"))?;
                    }
                }
                Ok(())
            })
        };
        let threads: Vec<_> = writers.into_iter().map(work).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
    .map_err(|error: String| error)?;
    let expected = Ok((0..512).map(|offset| 14 + offset as u8 % 2).collect());
    ensure(disk.connect()?.read(0, 512)? == expected, "every writer's last bytes are there")
}

fn failures_are_logged_seldom() -> Outcome {
    let disk = Exported::start(&["--wait", "0ms"])?;
    let mut nbd = disk.connect()?;
    ensure(nbd.read(0, 512)?.is_ok(), "reads work")?;
    disk.rig.kill("agent")?;
    for _ in 0..300 {
        ensure(nbd.read(0, 512)? == Err(EIO), "a read fails")?;
    }
    // The log accepts 50 lines from one place at once, then one a second; each read may wait for the next attempt to
    // reach an agent.
    let log = std::fs::read_to_string(disk.rig.path("nbd.log"))?;
    let lines = log.lines().filter(|line| line.contains("a request failed")).count();
    ensure((1..100).contains(&lines), format!("{lines} lines of 300 failures"))
}

fn silent_clients_make_room() -> Outcome {
    let disk = Exported::start(&["--connections", "4", "--idle", "2s"])?;
    let mut used = disk.connect()?;
    ensure(used.write(0, b"in use")?.is_ok(), "a write is done")?;
    let silent: Vec<_> = (0..3).map(|_| UnixStream::connect(disk.socket())).collect::<Result<_, _>>()?;
    let mut later = eventually("a silent one makes room", || disk.connect().ok())?;
    ensure(later.read(0, 6)? == Ok(b"in use".to_vec()), "who comes later is served")?;
    ensure(used.read(0, 6)? == Ok(b"in use".to_vec()), "and who was there")?;
    drop(silent);
    // The server disconnects clients that send no request for two seconds.
    eventually("who is idle is hung up on", || (used.is_hung_up() && later.is_hung_up()).then_some(()))
}

fn parts_of_lines_are_written() -> Outcome {
    let disk = Exported::start(&[])?;
    let mut nbd = disk.connect()?;
    let mut expected = vec![0; 4096];
    for (offset, length, byte) in
        [(0, 4096, 1), (100, 7, 2), (63, 2, 3), (1000, 1000, 4), (4095, 1, 5), (192, 64, 6)]
    {
        expected[offset..offset + length].fill(byte);
        ensure(nbd.write(8192 + offset as u64, &vec![byte; length])?.is_ok(), "a write is done")?;
    }
    expected[70..200].fill(0);
    ensure(nbd.zero(8192 + 70, 130)?.is_ok(), "zeros are written")?;
    ensure(nbd.read(8192, 4096)? == Ok(expected.clone()), "bytes read as they were written")?;
    ensure(nbd.read(8192 + 61, 500)? == Ok(expected[61..561].to_vec()), "parts of lines are read")?;
    ensure(nbd.write(DISK - 1, &[0; 2])? == Err(28), "there is no space beyond the end")?;
    ensure(nbd.read(DISK - 1, 2)? == Err(22), "there is nothing beyond the end")?;
    ensure(nbd.flush()?.is_ok(), "a flush is done")
}

fn connections_see_each_others_writes() -> Outcome {
    let disk = Exported::start(&[])?;
    let mut watcher = disk.connect()?;
    // Each connection writes every fourth byte of the same lines, and may not overwrite bytes of the others.
    let writers = (0..4).map(|_| disk.connect()).collect::<Outcome<Vec<_>>>()?;
    thread::scope(|scope| {
        let work = |(owner, mut nbd): (u64, NbdClient)| {
            scope.spawn(move || {
                for round in 0..3_u8 {
                    for offset in (owner..512).step_by(4) {
                        let answer =
                            nbd.write(offset, &[round * 4 + owner as u8]).map_err(|e| e.to_string())?;
                        answer.map_err(|error| format!("a write failed: {error}"))?;
                    }
                }
                Ok(())
            })
        };
        let threads: Vec<_> = (0..).zip(writers).map(work).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
    .map_err(|error: String| error)?;
    let expected = Ok((0..512).map(|offset| 8 + offset as u8 % 4).collect());
    ensure(watcher.read(0, 512)? == expected, "every writer's last bytes are there")
}

fn killed_agent_means_errors_until_it_is_back() -> Outcome {
    let disk = Exported::start(&["--wait", "100ms"])?;
    let image = disk.image()?;
    let bytes = std::fs::read(&image)?;
    let mut nbd = disk.connect()?;
    let mut written = 0;
    for chunk in bytes[..1 << 20].chunks(64 << 10) {
        ensure(nbd.write(written, chunk)?.is_ok(), "a write is done")?;
        written += chunk.len() as u64;
    }
    // No flush was requested. The writes that were answered are stored nevertheless, and survive the kill of the agent.
    disk.rig.kill("agent")?;
    ensure(nbd.read(0, 4096)? == Err(EIO), "a read fails")?;
    ensure(nbd.write(0, &[9; 4096])? == Err(EIO), "a write fails")?;
    let copying = tool("nbdcopy", &[text(&image), &disk.uri("disk")])?;
    ensure(matches!(copying.status.code(), Some(code) if code != 124), format!("no hang: {copying:?}"))?;
    ensure(!copying.status.success(), "nbdcopy is told")?;

    disk.rig.start_agent(&[])?;
    disk.rig.attached("disk", "active")?;
    let read = eventually("reads work again", || nbd.read(0, 1 << 20).ok()?.ok())?;
    ensure(read == bytes[..1 << 20], "what was written before is there, and nothing of what failed")?;
    succeeded(tool("nbdcopy", &[text(&image), &disk.uri("disk")])?)?;
    let mut nbd = disk.connect()?;
    ensure(nbd.read(DISK - (1 << 20), 1 << 20)? == Ok(bytes[15 << 20..].to_vec()), "new clients are served")
}

fn restarted_agent_is_waited_for() -> Outcome {
    let disk = Exported::start(&["--wait", "60s"])?;
    let mut nbd = disk.connect()?;
    ensure(nbd.write(4096, &[7; 8192])?.is_ok(), "a write is done")?;
    disk.rig.kill("agent")?;
    nbd.send(0, 1, 8192, 4096, &[8; 4096])?;
    disk.rig.start_agent(&[])?;
    ensure(nbd.answer(0)?.is_ok(), "the write was carried out by the agent's successor")?;
    let expected = [[7; 4096], [8; 4096]].concat();
    ensure(nbd.read(4096, 8192)? == Ok(expected), "all is as it was written")
}

fn reading_only_refuses_writes() -> Outcome {
    let disk = Exported::start(&["--read-only"])?;
    let info = succeeded(tool("nbdinfo", &["--json", &disk.uri("disk")])?)?;
    let info: serde_json::Value = serde_json::from_str(&info)?;
    let export = &info["exports"][0];
    ensure(export["is_read_only"] == true && export["can_cache"] == true, info.to_string())?;
    ensure(export["can_zero"] == false && export["can_fast_zero"] == false, info.to_string())?;
    let mut nbd = disk.connect()?;
    for offset in [0, DISK - 512] {
        ensure(nbd.write(offset, &[1; 512])? == Err(1), "a write is refused")?;
        ensure(nbd.zero(offset, 512)? == Err(1), "zeroing is refused")?;
    }
    ensure(nbd.read(0, 512)? == Ok(vec![0; 512]), "reads work")
}

fn a_client_beyond_the_limit_gets_the_reason() -> Outcome {
    let disk = Exported::start(&["--connections", "2"])?;
    let mut served = [disk.connect()?, disk.connect()?];
    for client in &mut served {
        ensure(client.read(0, 512)?.is_ok(), "it is served")?;
    }
    let told = tool("qemu-img", &["info", "-f", "raw", &disk.uri("")])?;
    let output_text = String::from_utf8_lossy(&told.stderr).into_owned();
    ensure(
        !told.status.success() && output_text.contains("2 clients are served already; raise --connections"),
        output_text,
    )?;
    // The served clients continue while further, refused clients do not read their answer.
    let silent: Vec<_> = (0..8).map(|_| UnixStream::connect(disk.socket())).collect::<Result<_, _>>()?;
    ensure(served[1].read(0, 512)?.is_ok(), "those who are there go on")?;
    drop(silent);
    let [left, mut stays] = served;
    drop(left);
    eventually("there is room again", || disk.connect().ok()).map(drop)?;
    ensure(stays.read(0, 512)?.is_ok(), "the other one goes on")
}

fn hostile_clients_hurt_only_themselves() -> Outcome {
    let disk = Exported::start(&["--connections", "4"])?;
    let mut good = disk.connect()?;
    ensure(good.write(0, b"still here")?.is_ok(), "a write is done")?;
    let closed = |what: &str, mut stream: UnixStream, bytes: &[u8]| -> Outcome {
        stream.set_read_timeout(Some(LIMIT))?;
        // The server may close the connection before it has read all bytes.
        let _ = stream.write_all(bytes);
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                Err(format!("not hung up on: {what}").into())
            }
            _ => Ok(()),
        }
    };
    let connect = || UnixStream::connect(disk.socket());
    closed("flags of tomorrow", connect()?, &[0xff; 4])?;
    closed("no option", connect()?, b"\0\0\0\x03GET / HTTP/1.1\r\n\r\n")?;
    closed("an endless name", connect()?, b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff")?;
    closed(
        "options without end",
        connect()?,
        &[&b"\0\0\0\x03"[..], &b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(1000)].concat(),
    )?;
    let chosen = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0";
    closed("no request", connect()?, &[&chosen[..], &[0; 28]].concat())?;
    let endless = [&chosen[..], &[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1], &[0; 16], &[0xff; 4]].concat();
    closed("an endless write", connect()?, &endless)?;

    // Three clients: one sends nothing, one requests a lot and reads nothing, and one disconnects during a write.
    let silent = connect()?;
    let mut greedy = disk.connect()?;
    for _ in 0..4 {
        greedy.send(0, 0, 0, 8 << 20, &[])?;
    }
    let mut leaving = disk.connect()?;
    leaving.send(0, 1, 0, 4096, &[0; 100])?;
    drop(leaving);
    eventually("there is room again", || disk.connect().ok()).map(drop)?;
    // More clients connect than the server permits.
    let further: Vec<_> = (0..8).map(|_| connect()).collect::<Result<_, _>>()?;
    closed("the last of too many", further.last().ok_or("none")?.try_clone()?, &[])?;
    ensure(good.read(0, 10)? == Ok(b"still here".to_vec()), "who was there is served")?;
    drop((silent, greedy, further));
    let mut later = eventually("there is room again", || disk.connect().ok())?;
    ensure(later.read(0, 10)? == Ok(b"still here".to_vec()), "and so is who comes later")
}

fn server_leaves_nothing_behind() -> Outcome {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut disk = Exported::start(&[])?;
        let mut nbd = disk.connect()?;
        // A request that the server received before its end is executed and answered.
        nbd.send(0, 1, 0, 1 << 20, &[5; 1 << 20])?;
        eventually("the write has begun", || {
            disk.rig
                .connect()
                .ok()?
                .read(disk.rig.attached("disk", "active").ok()?.hpa)
                .ok()
                .filter(|line| line[0] == 5)
        })?;
        disk.server.signal(signal)?;
        ensure(nbd.answer(0)?.is_ok(), "what was received is answered")?;
        let status = disk.server.wait(LIMIT)?;
        ensure(status.success(), format!("ended with {status}"))?;
        ensure(!disk.socket().exists(), "the socket is gone")?;
        ensure(nbd.read(0, 512).is_err(), "who was connected is hung up on")?;
        let last = disk.rig.cli(&["read", "disk+0xfffc0", "--raw"])?;
        ensure(last.stdout == [5; 64], "the write was carried out to its end")?;
    }
    Ok(())
}

fn wrong_arguments_are_told() -> Outcome {
    let disk = Exported::start(&[])?;
    let (socket, other) = (disk.socket(), disk.rig.path("other.nbd"));
    let run = |region: &str, socket: &std::path::Path| {
        disk.rig.cli(&["nbd", "--region", region, "--socket", text(socket)])
    };
    failed_with(&run("other", &other)?, 4, &["region other", "cn-agent list"])?;
    failed_with(&run("disk", &socket)?, 1, &["another NBD server", "--socket"])?;
    let mut nbd = disk.connect()?;
    ensure(nbd.read(0, 64)?.is_ok(), "the first server goes on")?;
    disk.rig.stop("agent")?;
    // The option --socket of `cn-agent nbd` names the server's own socket.
    failed_with(&run("disk", &other)?, 3, &["agent.sock", "cn-agent run", "name its socket with --agent"])
}
