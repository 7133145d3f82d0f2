//! Resources of a machine after its end: all are released, even if daemons were down when the machine ended.

#![expect(unsafe_code, reason = "mmap and madvise take raw addresses")]

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use cxloe_client::client;
use cxloe_lab::{Process, program};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::signal::Signal;

use cxloe_system::copies::ROLE;
use cxloe_system::pair::*;

/// Options that cause the eviction of modified pages: the memory is four times the resident limit.
const SIZES: [&str; 4] = ["--size", "16M", "--local", "4M"];

/// Role: maps the given file, writes to all of it, and checks it.
pub fn play() -> ExitCode {
    let fill = || -> Outcome {
        let arguments: Vec<String> = std::env::args().collect();
        let (path, bytes) = (&arguments[1], arguments[2].parse::<usize>()?);
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        let bytes = NonZeroUsize::new(bytes).ok_or("no bytes")?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: maps new memory at an address that the kernel chooses.
        let memory = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, file.as_fd(), 0) }?;
        // SAFETY: the slice covers the whole mapping, which has no other user.
        let words = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast::<u64>(), bytes.get() / 8) };
        words.iter_mut().zip(1..).for_each(|(word, index)| *word = index);
        // MADV_GUARD_INSTALL (102) has to be refused; advice that drops pages from the page table has to keep
        // their content.
        const GUARD_INSTALL: i32 = 102;
        let advise = |advice| {
            // SAFETY: the range consists of whole pages of the mapping, and no advice changes their content.
            let done = unsafe { libc::madvise(memory.as_ptr(), bytes.get() / 2, advice) };
            if done == 0 { None } else { std::io::Error::last_os_error().raw_os_error() }
        };
        ensure(advise(GUARD_INSTALL) == Some(libc::EINVAL), "guards are refused")?;
        for advice in [libc::MADV_DONTNEED, libc::MADV_DONTNEED_LOCKED] {
            let refused = advise(advice);
            ensure(matches!(refused, None | Some(libc::EINVAL)), format!("{advice}: {refused:?}"))?;
        }
        ensure(words.iter().zip(1..).all(|(word, index)| *word == index), "what was written is there")
    };
    match fill() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.message().unwrap_or("failed"));
            ExitCode::FAILURE
        }
    }
}

fn fabric() -> Outcome<Pair> {
    let mut rig = Pair::bare()?;
    rig.pool_size = "64MiB";
    rig.start_gmm()?;
    rig.start_mn("anon")?;
    rig.start_agent(&[])?;
    Ok(rig)
}

/// Machines that have modified all of their memory end without log messages, and their resident pages are free at once.
pub fn a_machine_leaves_nothing_behind() -> Outcome {
    let rig = fabric()?;
    for _ in 0..3 {
        let mut command = Command::new(program("cn-agent")?);
        command.arg("vm").args(SIZES).arg("--").arg(std::env::current_exe()?);
        command.args(["@memory@", "@size@"]).env("CXLOE_AGENT", rig.socket()).env(ROLE, "fills");
        succeeded(command.output()?)?;
        let spaces = client::paging(&rig.socket(), None)?;
        ensure(spaces.is_empty(), format!("{spaces:?}"))?;
        let regions = rig.gmm(&["list", "-R"])?;
        ensure(!regions.contains("exec-"), regions)?;
    }
    let counters = client::counters(&rig.socket())?.paging;
    let whole = counters.evicted > 3 * 2048 && counters.write_back_failures == 0;
    ensure(whole, format!("{counters:?}"))?;
    rig.stop("agent")?;
    for file in std::fs::read_dir(rig.dir.path())? {
        let path = file?.path();
        let log = path.extension().is_some_and(|extension| extension == "log");
        let output_text = if log { std::fs::read_to_string(&path)? } else { String::new() };
        let bad = output_text.lines().find(|line| line.contains("ERROR") || line.contains("given up"));
        ensure(bad.is_none(), format!("{}: {bad:?}", path.display()))?;
    }
    Ok(())
}

/// Runs a script under `cn-agent vm` or `cn-agent exec`, selected by `what`, until the file `WHAT.stop`
/// exists.
fn running(rig: &Pair, what: &str) -> Outcome<Process> {
    let script = format!("echo > {0}.runs; while ! test -e {0}.stop; do sleep 0.05; done", what);
    let mut command = Command::new(program("cn-agent")?);
    command.arg(what).args(SIZES).args(["--", "/bin/sh", "-c", &script]);
    if what == "vm" {
        command.arg("@memory@");
    }
    command.env("CXLOE_AGENT", rig.socket()).current_dir(rig.dir.path()).stdin(Stdio::null());
    Process::log_to(&mut command, &rig.path(&format!("{what}.log")))?;
    let process = rig.lab.spawn("cn", command)?;
    let runs = rig.path(&format!("{what}.runs"));
    eventually("it runs", || runs.exists().then_some(()))?;
    Ok(process)
}

fn end(rig: &Pair, what: &str, process: &mut Process) -> Outcome {
    std::fs::write(rig.path(&format!("{what}.stop")), "")?;
    let status = process.wait(LIMIT)?;
    let output_text = std::fs::read_to_string(rig.path(&format!("{what}.log")))?;
    ensure(
        status.success() && output_text.contains("is not destroyed yet"),
        format!("{status}: {output_text}"),
    )
}

fn no_region_is_left(rig: &Pair) -> Outcome {
    eventually("no region is left", || {
        let regions = rig.gmm(&["list", "-R"]).ok()?;
        (!regions.contains("exec-")).then_some(())
    })?;
    let kept = |path: &Path| path.to_string_lossy().ends_with("-leases.state");
    let mut files = std::fs::read_dir(rig.path("agent.data"))?.filter_map(|file| Some(file.ok()?.path()));
    let leases = files.find(|path| kept(path)).ok_or("there is a file of leases")?;
    eventually("nothing is kept in mind", || {
        (std::fs::read_to_string(&leases).ok()?.trim() == "{}").then_some(())
    })
}

/// The manager is down when a program and a machine end. After the manager has restarted, the agent destroys their
/// regions, even if the agent was restarted too.
pub fn regions_go_when_the_manager_is_back() -> Outcome {
    let rig = fabric()?;
    let (mut machine, mut program) = (running(&rig, "vm")?, running(&rig, "exec")?);
    let regions = rig.gmm(&["list", "-R"])?;
    ensure(regions.matches("exec-").count() >= 2, regions)?;
    rig.kill("gmm")?;
    end(&rig, "vm", &mut machine)?;
    end(&rig, "exec", &mut program)?;
    rig.kill("agent")?;
    rig.start_agent(&[])?;
    rig.start_gmm()?;
    no_region_is_left(&rig)
}

/// The process that holds a region is killed: first the program that it started ends, then the region is destroyed.
pub fn regions_of_killed_programs_go() -> Outcome {
    let rig = fabric()?;
    for what in ["vm", "exec"] {
        let mut process = running(&rig, what)?;
        // Only `cn-agent` is killed: the kernel then signals the program that it has started.
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(process.id().cast_signed()), Signal::SIGKILL)?;
        process.wait(LIMIT)?;
        no_region_is_left(&rig)?;
    }
    // A region that a user has created can neither be destroyed nor be grown as if it were a program's region.
    rig.create_region("scratch")?;
    rig.attached("scratch", "active")?;
    let name = cxloe_fabric::model::Name::new("scratch")?;
    for refused in [client::destroy(&rig.socket(), name.clone()), client::grow(&rig.socket(), name, 1 << 30)]
    {
        let refused = refused.map_or_else(|error| error.to_string(), |()| "done".into());
        ensure(refused.contains("was not created for a program of this user"), refused)?;
    }
    rig.attached("scratch", "active").map(drop)
}
