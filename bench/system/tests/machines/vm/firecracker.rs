//! `cn-agent serve-uffd`, with a monitor that behaves like Firecracker.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use cxloe_lab::{Process, program};
use nix::sys::signal::Signal;

use super::monitor::{Monitor, PAGE, PAGES, snapshot};
use cxloe_system::pair::*;

/// A fabric with a region, and the server process that has loaded a snapshot into the region.
struct Served {
    server: Process,
    rig: Pair,
}

impl Served {
    fn start(arguments: &[&str]) -> Outcome<Served> {
        let rig = Pair::bare()?;
        rig.start_gmm()?;
        rig.start_mn("anon")?;
        rig.start_agent(&[])?;
        let bytes = (PAGES * PAGE).to_string();
        rig.gmm(&["create-region", "-s", &bytes, "--owner", CN, "snapshot"])?;
        let hpa = rig.attached("snapshot", "active")?.hpa;
        let mut port = rig.connect()?;
        eventually("a session is open", || port.read(hpa).ok())?;
        std::fs::write(rig.path("mem.file"), snapshot())?;
        let server = serve(&rig, &[&["--load", text(&rig.path("mem.file"))], arguments].concat())?;
        Ok(Served { server, rig })
    }

    fn socket(&self) -> PathBuf {
        self.rig.path("vm.uffd")
    }

    fn monitor(&self) -> Outcome<Monitor> {
        let monitor = Monitor::start(&self.rig.lab, &self.socket())?;
        let log = self.rig.path("serve.log");
        eventually("the machine is served", || saying(&log, "serving a machine"))?;
        Ok(monitor)
    }

    /// Checks that the server ends with status 0 after the machine has ended.
    fn ends_with_the_machine(&mut self) -> Outcome {
        let status = self.server.wait(LIMIT)?;
        let log = std::fs::read_to_string(self.rig.path("serve.log"))?;
        ensure(status.success(), format!("the server ended with {status}: {log}"))
    }

    /// Checks that server and machine have ended, the machine by a signal, and that the server has printed this
    /// message.
    fn ended_by_force(mut self, mut monitor: Monitor, code: Option<i32>, output_text: &str) -> Outcome {
        let status = monitor.process().wait(LIMIT)?;
        ensure(!status.success() && status.code().is_none(), format!("the monitor ended with {status}"))?;
        let status = self.server.wait(LIMIT)?;
        ensure(status.code() == code, format!("the server ended with {status}"))?;
        eventually(output_text, || saying(&self.rig.path("serve.log"), output_text))
    }
}

fn serve(rig: &Pair, arguments: &[&str]) -> Outcome<Process> {
    let log = rig.path("serve.log");
    let mut command = Command::new(program("cn-agent")?);
    command.args(["serve-uffd", "--region", "snapshot", "--socket"]).arg(rig.path("vm.uffd"));
    command.arg("--agent").arg(rig.socket()).args(arguments);
    Process::log_to(&mut command, &log)?;
    let server = rig.lab.spawn("cn", command)?;
    eventually("the server waits for a machine", || saying(&log, "waiting for a machine")).map_err(
        |error| {
            let output_text = std::fs::read_to_string(&log).unwrap_or_default();
            format!("{}; its log:\n{output_text}", error.message().unwrap_or_default())
        },
    )?;
    Ok(server)
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("paths of tests are plain text")
}

pub fn snapshot_is_served_and_balloon_heeded() -> Outcome {
    let mut served = Served::start(&[])?;
    let mut machine = served.monitor()?;
    // Several threads read pages of both pieces of memory.
    machine.does("read 1500 1600")?;
    machine.does(&format!("read 0 {PAGES}"))?;
    // Pages removed by the balloon contain zeros afterwards, and can be used like new memory.
    machine.does("remove 100 200")?;
    machine.does("zeros 100 150")?;
    machine.does("write 150 160")?;
    machine.does("written 150 160")?;
    machine.does("zeros 160 200")?;
    machine.does("remove 1540 1541")?;
    machine.does("zeros 1540 1541")?;
    machine.does("read 0 100")?;
    machine.does(&format!("read 1541 {PAGES}"))?;
    machine.send_command("end")?;
    ensure(machine.process().wait(LIMIT)?.success(), "the monitor ends as it likes")?;
    let status = served.server.wait(LIMIT)?;
    ensure(status.success(), format!("the server ended with {status}"))?;
    ensure(!served.socket().exists(), "its socket is gone")?;
    // The region still contains the snapshot, and can be mapped again.
    let expected = snapshot();
    let at = 150 * PAGE;
    let read = eventually("the region is free again", || {
        let read = served.rig.cli(&["read", &format!("snapshot+{at}"), "--lines", "64", "--raw"]).ok()?;
        read.status.success().then_some(read.stdout)
    })?;
    ensure(read == expected[at..at + PAGE], "nothing was written back")
}

/// A new machine reads the unchanged snapshot immediately after the previous machine, which has written to its memory
/// and was ended by itself or together with its server.
pub fn machines_follow_each_other_at_once() -> Outcome {
    let mut served = Served::start(&[])?;
    for round in 0..4 {
        let mut machine = served.monitor()?;
        machine.does(&format!("read 0 {PAGES}"))?;
        machine.does("write 300 600")?;
        machine.does("remove 1000 1100")?;
        if round % 2 == 0 {
            machine.send_command("end")?;
            served.ends_with_the_machine()?;
        } else {
            nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(served.server.id().cast_signed()),
                Signal::SIGTERM,
            )?;
            served.server.wait(LIMIT)?;
        }
        served.server = serve(&served.rig, &[])?;
    }
    let mut machine = served.monitor()?;
    machine.does(&format!("read 0 {PAGES}"))?;
    // A second server for the same region at the same time is refused with a reason.
    let second = served.rig.cli(&["serve-uffd", "--region", "snapshot", "--socket", "second.uffd"])?;
    failed_with(&second, 5, &["snapshot", "mapped already"])?;
    machine.does("read 0 100")
}

pub fn what_is_no_machine_is_left() -> Outcome {
    use std::io::Write;
    let served = Served::start(&[])?;
    let log = served.rig.path("serve.log");
    let mut nonsense = UnixStream::connect(served.socket())?;
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    eventually("nonsense is told", || saying(&log, "something other than a list of memory"))?;
    let mut bare = UnixStream::connect(served.socket())?;
    bare.write_all(br#"[{"base_host_virt_addr":4096,"size":4096,"offset":0,"page_size":4096}]"#)?;
    drop(bare);
    eventually("what is missing is told", || saying(&log, "a userfaultfd"))?;
    let mut machine = served.monitor()?;
    machine.does("read 0 10")
}

pub fn machine_goes_on_with_the_next_agent() -> Outcome {
    let mut served = Served::start(&["--wait", "60s"])?;
    let mut machine = served.monitor()?;
    machine.does("read 0 100")?;
    machine.does("remove 50 60")?;
    served.rig.kill("agent")?;
    machine.send_command("read 100 300")?;
    served.rig.start_agent(&[])?;
    ensure(machine.answer()? == "ok", "what was touched meanwhile is there")?;
    machine.does("zeros 50 60")?;
    machine.does(&format!("read 60 {PAGES}"))?;
    machine.does("remove 300 310")?;
    machine.does("zeros 300 310")?;
    machine.send_command("end")?;
    served.ends_with_the_machine()
}

pub fn machine_ends_when_no_agent_comes() -> Outcome {
    cxloe_lab::expect_error("the machine's memory is no longer served");
    let served = Served::start(&["--wait", "500ms"])?;
    let mut machine = served.monitor()?;
    machine.does("read 0 10")?;
    served.rig.kill("agent")?;
    machine.send_command("read 10 20")?;
    served.ended_by_force(machine, Some(75), "the machine's memory is no longer served")
}

pub fn machine_ends_with_its_server() -> Outcome {
    for (signal, code, output_text) in [
        (Signal::SIGKILL, None, "serve-uffd has died"),
        (Signal::SIGTERM, Some(75), "asked to stop; the machine is ended"),
    ] {
        let served = Served::start(&[])?;
        let mut machine = served.monitor()?;
        machine.does("read 0 10")?;
        // Only the server is signalled; the process that supervises the machine continues.
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(served.server.id().cast_signed()), signal)?;
        machine.send_command("read 10 20")?;
        served.ended_by_force(machine, code, output_text)?;
    }
    Ok(())
}

pub fn machine_ends_when_its_memory_is_lost() -> Outcome {
    cxloe_lab::expect_error("pages of the machine's memory are lost");
    cxloe_lab::expect_error("has not answered within the limit");
    cxloe_lab::expect_error("a page is given up");
    let served = Served::start(&["--lost-wait", "1s"])?;
    let mut machine = served.monitor()?;
    machine.does("read 0 10")?;
    served.rig.kill("mn")?;
    machine.send_command("read 1000 1010")?;
    served.ended_by_force(machine, Some(75), "are lost; the machine is ended")
}
