//! Virtual machines that move between two compute nodes, back and forth. The guest checks each page of its
//! memory, and runs on one node at most, whichever process is killed in between.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use cxloe_client::client;
use cxloe_fabric::model::RegionState;
use cxloe_lab::{Process, program};
use nix::sys::signal::Signal;
use serde_json::Value;

use cxloe_system::command::{output, output_text};
use cxloe_system::star::*;
use cxloe_system::{source, text};

/// Size of the guest's memory; a quarter of it may be resident.
const MEMORY: u64 = 64 * MIB;
const LOCAL: &str = "16M";
/// Bytes that the guest writes in each pass; firmware uses the last 16 MiB, and keeps tables below them.
const AREA: u64 = 24 * MIB;

/// A fabric of two compute nodes with one machine.
struct Moving {
    rig: Star,
    /// Arguments of QEMU that describe the machine.
    machine: Vec<String>,
    /// Number of monitors started, by which their files are named.
    started: Cell<usize>,
}

/// A process that runs the machine, or waits for it.
struct Monitor {
    process: Process,
    side: usize,
    /// Number of the monitor, by which its files are named.
    number: usize,
}

fn number(monitor: &Monitor, what: &str) -> String {
    format!("{what}{}", monitor.number)
}

impl Moving {
    fn new() -> Outcome<Moving> {
        let rig = Star::whole(1, 2, "160MiB")?;
        rig.create("web", 0, MEMORY, &[0], 4096)?;
        let kernel = rig.path("guest.elf");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/moves");
        let mut compiler = Command::new("cc");
        compiler.args(["-m32", "-march=i686", "-O2", "-ffreestanding", "-fno-pie", "-fno-stack-protector"]);
        compiler.args([
            "-mno-sse",
            "-nostdlib",
            "-static",
            "-Wl,--build-id=none",
            "-Wl,--no-warn-rwx-segments",
        ]);
        compiler.arg(format!("-Wl,-T,{folder}/guest.ld")).arg(format!("-DAREA={AREA}u"));
        compiler.arg("-o").arg(&kernel).arg(format!("{folder}/guest.c"));
        let compiled = output(&mut compiler)?;
        ensure(compiled.status.success(), output_text(&compiled))?;
        let backend = "memory-backend-file,id=ram,share=on,prealloc=off,mem-path=@memory@,size=@size@";
        let machine = ["-machine", "q35,memory-backend=ram", "-m", "64M", "-object", backend, "-kernel"];
        let machine = machine.into_iter().chain([text(&kernel)]).map(String::from).collect();
        Ok(Moving { rig, machine, started: Cell::new(0) })
    }

    /// Like [`Moving::new`], with a Linux guest: one NUMA node is local; the other, without processors, is
    /// the region. The guest has a disk that both sides reach.
    fn linux() -> Outcome<Moving> {
        let rig = Star::whole(1, 2, "160MiB")?;
        rig.create("web", 0, MEMORY, &[0], 4096)?;
        let found = output(&mut Command::new(source("deploy/vm/guest/kernel")))?;
        ensure(found.status.success(), output_text(&found))?;
        let found = String::from_utf8(found.stdout)?;
        let [image, initramfs, modules] = found.lines().collect::<Vec<_>>()[..] else {
            return Err(format!("not three lines: {found}").into());
        };
        // Files in the second archive replace files of the first with the same name, so the guest runs this test's
        // `init`.
        let folder = rig.path("guest");
        fs::create_dir_all(folder.join("modules"))?;
        fs::copy(source("bench/system/tests/machines/vm/linux.sh"), folder.join("init"))?;
        let module = "kernel/drivers/block/virtio_blk.ko";
        fs::copy(PathBuf::from(modules).join(module), folder.join("modules/900-virtio_blk.ko"))?;
        let archive = rig.path("initramfs");
        let pack = format!(
            "cd {} && (cat {initramfs}; find . | cpio --quiet -o -H newc | gzip -1) >{}",
            folder.display(),
            archive.display()
        );
        let packed = output(Command::new("sh").args(["-c", &pack]))?;
        ensure(packed.status.success(), output_text(&packed))?;
        let disk = rig.path("disk");
        fs::File::create(&disk)?.set_len(MIB)?;
        let drive = format!("file={},if=virtio,format=raw", disk.display());
        let machine = [
            "-machine",
            "q35",
            "-smp",
            "1",
            "-m",
            "192M",
            "-object",
            "memory-backend-ram,id=near,size=128M",
            "-numa",
            "node,nodeid=0,cpus=0,memdev=near",
            "-object",
            "memory-backend-file,id=far,share=on,prealloc=off,mem-path=@memory@,size=@size@",
            "-numa",
            "node,nodeid=1,memdev=far",
            "-drive",
            &drive,
            "-append",
            "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off",
            "-initrd",
            text(&archive),
            "-kernel",
            image,
        ];
        let machine = machine.map(String::from).to_vec();
        Ok(Moving { rig, machine, started: Cell::new(0) })
    }

    /// Starts the machine at this side, or a monitor that waits for it.
    fn start(&self, side: usize, incoming: bool) -> Outcome<Monitor> {
        self.start_with(side, incoming, &[])
    }

    fn start_with(&self, side: usize, incoming: bool, more: &[&str]) -> Outcome<Monitor> {
        let number = self.started.replace(self.started.get() + 1);
        let path = |what: &str| self.rig.path(&format!("{what}{number}"));
        let mut command = Command::new(program("cn-agent")?);
        command.args(["vm", "--region", "web", "--local", LOCAL, "--socket"]).arg(self.rig.socket(side));
        command.arg("--control").arg(path("control"));
        if incoming {
            command.arg("--incoming").arg(format!("unix:{}", path("arrival").display()));
            command.arg("--ticket").arg(self.rig.path("ticket"));
        }
        let serial = format!("file:{}", path("serial").display());
        command.args(["--", "qemu-system-x86_64", "-accel", "tcg", "-display", "none", "-nodefaults"]);
        command.args(["-no-user-config", "-serial", &serial]).args(&self.machine).args(more);
        Process::log_to(&mut command, &path("monitor"))?;
        let process = self.rig.lab.spawn(&format!("cn{side}"), command)?;
        let monitor = Monitor { process, side, number };
        if incoming {
            self.says(&monitor, "waiting for the machine")?;
        }
        Ok(monitor)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.rig.path(name)).unwrap_or_default()
    }

    /// Waits until a monitor has printed `words`.
    fn says(&self, monitor: &Monitor, words: &str) -> Outcome {
        let log = number(monitor, "monitor");
        let said = eventually(words, || self.text(&log).contains(words).then_some(()));
        said.map_err(|_| {
            format!("monitor {} does not say {words:?}: {}", monitor.number, self.text(&log)).into()
        })
    }

    /// Number of passes that the guest has completed where this monitor runs it. Fails if a word was wrong.
    fn passes(&self, monitor: &Monitor) -> Outcome<u64> {
        let text = self.text(&number(monitor, "serial"));
        ensure(!text.contains("wrong"), text.clone())?;
        let last = text.lines().rev().find_map(|line| line.strip_prefix("pass ")?.parse().ok());
        Ok(last.unwrap_or(0))
    }

    /// Waits until the guest has completed a few more passes.
    fn goes_on(&self, monitor: &Monitor) -> Outcome<u64> {
        let before = self.passes(monitor)?;
        let until = Instant::now() + LIMIT;
        loop {
            let now = self.passes(monitor)?;
            if now >= before + 2 {
                return Ok(now);
            }
            let log = self.text(&number(monitor, "monitor"));
            ensure(
                Instant::now() < until,
                format!("the guest stands at pass {now} of monitor {}: {log}", monitor.number),
            )?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// True if the guest completes passes where this monitor runs it.
    fn is_running(&self, monitor: &Monitor) -> Outcome<bool> {
        let before = self.passes(monitor)?;
        std::thread::sleep(Duration::from_millis(500));
        Ok(self.passes(monitor)? > before)
    }

    fn command(&self, from: &Monitor, to: &Monitor, ticket: &str, more: &[&str]) -> Outcome<Command> {
        let mut command = Command::new(program("cn-agent")?);
        let address = format!("unix:{}", self.rig.path(&number(to, "arrival")).display());
        command
            .args(["--json", "vm", "move", "web", "--to", &address, "--ticket"])
            .arg(self.rig.path(ticket));
        command.arg("--control").arg(self.rig.path(&number(from, "control")));
        command
            .args(["--manager", self.rig.manager.url(), "--socket"])
            .arg(self.rig.socket(from.side))
            .args(more);
        Ok(command)
    }

    /// Orders a move; returns the output of the command.
    fn order(&self, from: &Monitor, to: &Monitor, more: &[&str]) -> Outcome<Output> {
        let control = self.rig.path(&number(from, "control"));
        eventually("the machine can be reached", || control.exists().then_some(()))?;
        output(&mut self.command(from, to, "ticket", more)?)
    }

    /// Moves the machine. The source's monitor has to end, and the guest to continue at the target; returns
    /// the report.
    fn moves(&self, from: &mut Monitor, to: &Monitor) -> Outcome<Value> {
        let passes = self.passes(from)?;
        let moved = self.order(from, to, &[])?;
        ensure(
            moved.status.success(),
            format!("{}{}", output_text(&moved), self.text(&number(to, "monitor"))),
        )?;
        let report: Value = serde_json::from_slice(&moved.stdout)?;
        ensure(report["outcome"] == "moved", report.to_string())?;
        let status = from.process.wait(LIMIT)?;
        ensure(
            status.success(),
            format!("the source ended with {status}: {}", self.text(&number(from, "monitor"))),
        )?;
        let now = self.goes_on(to)?;
        ensure(now > passes, format!("pass {now} after pass {passes}"))?;
        Ok(report)
    }

    /// Checks that the region belongs to this side, and that the other side has no part of it.
    fn is_at(&self, side: usize) -> Outcome {
        let region = self.rig.region_is("web", RegionState::Active)?;
        ensure(region.owner == cn(side), format!("{region:?}"))?;
        let other = self.rig.socket(1 - side);
        eventually("the other side maps nothing", || {
            client::paging(&other, None).ok()?.is_empty().then_some(())
        })
    }
}

/// A machine moves several times, back and forth, and its memory is right. The longest stop is printed.
fn back_and_forth(times: usize) -> Outcome {
    let rig = Moving::new()?;
    let mut here = rig.start(0, false)?;
    rig.goes_on(&here)?;
    let mut stops = Vec::new();
    for time in 0..times {
        let there = rig.start(1 - here.side, true)?;
        let report = rig.moves(&mut here, &there)?;
        stops.push(report["stopped_ms"].as_f64().ok_or_else(|| report.to_string())?);
        here = there;
        rig.is_at(here.side).map_err(|error| format!("move {time}: {error:?}"))?;
    }
    stops.sort_by(f64::total_cmp);
    println!(
        "guest stopped for {:.0} ms (median), {:.0} ms (longest)",
        stops[stops.len() / 2],
        stops[stops.len() - 1]
    );
    Ok(())
}

pub fn a_machine_moves_with_its_memory() -> Outcome {
    back_and_forth(4)
}

/// A Linux guest with a local and a remote NUMA node and a disk moves there and back.
pub fn a_linux_guest_moves_with_its_disk() -> Outcome {
    let rig = Moving::linux()?;
    let mut here = rig.start(0, false)?;
    rig.goes_on(&here)?;
    for _ in 0..2 {
        let there = rig.start(1 - here.side, true)?;
        rig.moves(&mut here, &there)?;
        here = there;
        rig.is_at(here.side)?;
    }
    Ok(())
}

/// `cxloe-bench move` moves a machine twice and reports the times of both moves.
pub fn the_benchmark_reports_each_move() -> Outcome {
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("move.json");
    let mut command = Command::new(program("cxloe-bench")?);
    command.args([
        "move",
        "--memory",
        "64MiB",
        "--local",
        "24MiB",
        "--working",
        "8MiB",
        "--moves",
        "2",
        "--json",
    ]);
    let done = output(command.arg(&json))?;
    ensure(done.status.success() && output_text(&done).contains("guest stopped (ms)"), output_text(&done))?;
    let results: Value = serde_json::from_slice(&fs::read(&json)?)?;
    let moves = results["moves"].as_array().ok_or("no moves")?;
    let whole = |of: &Value| of["stopped_ms"].as_f64() > Some(0.0) && of["before"].as_f64() > Some(0.0);
    ensure(moves.len() == 2 && moves.iter().all(whole), results.to_string())
}

/// Fifty moves, which take some minutes.
pub fn a_machine_moves_fifty_times() -> Outcome {
    back_and_forth(50)
}

/// A dry run (`--dry-run`) compares the two sides and changes nothing. A move that is impossible is refused with the
/// reason, and the guest continues.
pub fn what_differs_is_named_and_the_guest_goes_on() -> Outcome {
    let rig = Moving::new()?;
    let mut here = rig.start(0, false)?;
    rig.goes_on(&here)?;
    let mut there = rig.start(1, true)?;
    let compared = rig.order(&here, &there, &["--dry-run"])?;
    ensure(compared.status.success(), output_text(&compared))?;
    rig.says(&there, "waiting again")?;
    rig.goes_on(&here)?;

    let other = rig.start_with(1, true, &["-smp", "2"])?;
    let refused = rig.order(&here, &other, &[])?;
    let text = output_text(&refused);
    ensure(
        refused.status.code() == Some(5) && text.contains("the number of vCPUs is 1 here and 2 there"),
        text,
    )?;
    rig.says(&other, "waiting again")?;
    rig.goes_on(&here)?;

    // Three moves are refused: with a wrong ticket, with a ticket file that others can read, and to an address where no
    // monitor waits.
    let wrong = rig.rig.path("wrong");
    fs::write(&wrong, "00".repeat(32))?;
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o600))?;
    let refused = output(&mut rig.command(&here, &there, "wrong", &[])?)?;
    ensure(refused.status.code() == Some(5), output_text(&refused))?;
    rig.says(&there, "the tickets of the two sides differ")?;
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o644))?;
    let refused = output(&mut rig.command(&here, &there, "wrong", &[])?)?;
    ensure(refused.status.code() == Some(1), output_text(&refused))?;
    let nobody = Monitor { number: 99, ..rig.start(1, true)? };
    let refused = rig.order(&here, &nobody, &[])?;
    let text = output_text(&refused);
    ensure(refused.status.code() == Some(5) && text.contains("cannot reach"), text)?;
    rig.is_at(0)?;
    rig.goes_on(&here)?;

    // The monitor that waits has started QEMU for the dry run, and starts another one for the move. A signal ends the
    // second one as well.
    rig.moves(&mut here, &there)?;
    there.process.signal(Signal::SIGTERM)?;
    there.process.wait(LIMIT)?;
    Ok(())
}

/// Kills `victim` at the time `after` since the start of a move. At most one guest may run afterwards, and
/// the guest has to continue on one side unless its QEMU was killed. Returns the monitor that runs the guest,
/// if that is not `here`.
fn killed(rig: &Moving, here: &mut Monitor, victim: &str, after: Duration) -> Outcome<Option<Monitor>> {
    let mut there = rig.start(1 - here.side, true)?;
    let control = rig.rig.path(&number(here, "control"));
    eventually("the machine can be reached", || control.exists().then_some(()))?;
    let mut mover = rig.command(here, &there, "ticket", &[])?;
    Process::log_to(&mut mover, &rig.rig.path(&number(&there, "mover")))?;
    let mut mover = rig.rig.lab.spawn(&format!("cn{}", here.side), mover)?;
    std::thread::sleep(after);
    let agents = [format!("cn{}", here.side), format!("cn{}", there.side)];
    match victim {
        "mover" => mover.signal(Signal::SIGKILL)?,
        "target" => there.process.signal(Signal::SIGKILL)?,
        "gmm" => rig.rig.kill("gmm")?,
        "source agent" => rig.rig.kill(&agents[0])?,
        "target agent" => rig.rig.kill(&agents[1])?,
        other => return Err(format!("nobody is called {other}").into()),
    }
    // The other processes run without the killed one for this time.
    std::thread::sleep(Duration::from_millis(300));
    match victim {
        "gmm" => rig.rig.start_gmm(&[])?,
        "source agent" => rig.rig.start_agent(here.side, &[])?,
        "target agent" => rig.rig.start_agent(there.side, &[])?,
        _ => {}
    }
    let _ = mover.wait(LIMIT)?;
    if victim == "target" && rig.rig.region_is("web", RegionState::Active)?.owner == cn(there.side) {
        // The machine had already moved to the target when QEMU was killed there, so the guest has ended with it.
        let _ = (here.process.wait(LIMIT)?, there.process.wait(LIMIT)?);
        rig.is_at(there.side)?;
        let again = rig.start(there.side, false)?;
        rig.goes_on(&again)?;
        return Ok(Some(again));
    }
    let both = [here.side, there.side].map(|side| format!("cn{side}"));
    let until = Instant::now() + LIMIT;
    let alive = loop {
        let alive = (rig.is_running(here)?, rig.is_running(&there)?);
        ensure(alive != (true, true), format!("two guests run, on {both:?}"))?;
        if alive != (false, false) || Instant::now() > until {
            break alive;
        }
    };
    if alive.1 {
        let _ = here.process.wait(LIMIT)?;
        rig.goes_on(&there)?;
        rig.is_at(there.side)?;
        return Ok(Some(there));
    }
    rig.goes_on(here).map_err(|error| {
        let mover = rig.text(&number(&there, "mover"));
        let logs = format!(
            "{mover}\n{}\n{}",
            rig.text(&number(here, "monitor")),
            rig.text(&number(&there, "monitor"))
        );
        format!("after the end of {victim} at {after:?}: {error:?}\n{logs}")
    })?;
    rig.is_at(here.side)?;
    let _ = there.process.signal(Signal::SIGKILL);
    let _ = there.process.wait(LIMIT)?;
    Ok(None)
}

fn kills(rounds: usize) -> Outcome {
    // Killed processes cause errors of many kinds in the logs of the others.
    cxloe_lab::expect_error("");
    let rig = Moving::new()?;
    let mut here = rig.start(0, false)?;
    rig.goes_on(&here)?;
    let victims = ["mover", "target", "gmm", "source agent", "target agent"];
    let mut moved = 0;
    for round in 0..rounds {
        let victim = victims[round % victims.len()];
        // The times of the kills are spread over the move, which takes a few hundred milliseconds.
        let after = Duration::from_millis((round as u64 * 97) % 700);
        if let Some(there) = killed(&rig, &mut here, victim, after)? {
            here = there;
            moved += 1;
        }
    }
    println!("{rounds} kills: {moved} moves were finished, the others left the machine where it was");
    Ok(())
}

pub fn one_guest_runs_whoever_is_killed() -> Outcome {
    kills(5)
}

/// Two hundred kills, which take half an hour.
pub fn one_guest_runs_after_two_hundred_kills() -> Outcome {
    kills(200)
}
