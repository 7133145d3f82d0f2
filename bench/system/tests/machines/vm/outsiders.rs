//! Access to a machine's memory by parties other than the machine's monitor: a process to which the monitor sends the
//! memory's descriptor, a device that pins pages, a program that the monitor starts, and a process that opens the
//! descriptor in `/proc`.

#![expect(unsafe_code, reason = "a mapped file may change behind its mapping")]

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

use cxloe_lab::program;
use memmap2::{MmapMut, MmapOptions};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use cxloe_system::copies::ROLE;
use cxloe_system::pair::*;

const PAGE: usize = 4096;
/// Options by which three quarters of the memory are not resident.
const SIZES: [&str; 4] = ["--size", "16M", "--local", "4M"];
/// Exit code of a monitor that has tried to pass its memory on.
const REFUSED: i32 = 78;
/// `VFIO_IOMMU_MAP_DMA` of `linux/vfio.h`.
const VFIO_IOMMU_MAP_DMA: libc::c_ulong = 0x3B71;

fn map(path: &Path) -> Outcome<(std::fs::File, MmapMut)> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    // SAFETY: any bytes are valid as memory of type `u8`, even if other processes change them.
    let memory = unsafe { MmapOptions::new().map_mut(&file) }?;
    Ok((file, memory))
}

/// Number of pages whose first word is not the page's number, counted from 1.
fn wrong(memory: &[u8]) -> usize {
    let pages = memory.chunks_exact(PAGE).zip(1_u64..);
    pages.filter(|(page, number)| page[..8] != number.to_le_bytes()).count()
}

/// Role: a monitor that writes to all of its memory and then carries out its third argument: `message`,
/// `device`, `program` or another word.
pub fn play() -> ExitCode {
    let act = || -> Outcome {
        let arguments: Vec<String> = std::env::args().collect();
        let (file, mut memory) = map(Path::new(&arguments[1]))?;
        for (page, number) in memory.chunks_exact_mut(PAGE).zip(1_u64..) {
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
        match arguments[2].as_str() {
            "message" => {
                let (ours, _theirs) = UnixStream::pair()?;
                let descriptors = [file.as_raw_fd()];
                let passed = [ControlMessage::ScmRights(&descriptors)];
                sendmsg::<()>(ours.as_raw_fd(), &[IoSlice::new(b"x")], &passed, MsgFlags::empty(), None)?;
                Err("the memory was passed on".into())
            }
            "device" => {
                let map = [32_u64 | 3 << 32, memory.as_ptr() as u64, 0, memory.len() as u64];
                // SAFETY: the argument has the structure that this request reads; the file is no device.
                unsafe { libc::ioctl(file.as_raw_fd(), VFIO_IOMMU_MAP_DMA, map.as_ptr()) };
                Err("the memory was pinned".into())
            }
            "program" => {
                let flags = nix::fcntl::fcntl(file.as_fd(), nix::fcntl::FcntlArg::F_GETFD)?;
                let inherited: i32 = std::env::var("CXLOE_VM_MEMORY")?.parse()?;
                let list =
                    Command::new("ls").args(["-l", "/proc/self/fd"]).env_remove("LD_PRELOAD").output()?;
                let list = String::from_utf8(list.stdout)?;
                let ends = |number: i32| !list.contains(&format!(" {number} -> /memfd"));
                ensure(flags == 1 && ends(file.as_raw_fd()) && ends(inherited), list)
            }
            // Prints the process id and the number of the descriptor, and waits for a byte on standard input.
            _ => {
                println!("{} {}", std::process::id(), file.as_raw_fd());
                std::io::stdin().read_exact(&mut [0])?;
                let bad = wrong(&memory);
                ensure(bad == 0, format!("{bad} pages have other bytes than were written"))
            }
        }
    };
    match act() {
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

fn monitor(rig: &Pair, does: &str) -> Outcome<Command> {
    let mut command = Command::new(program("cn-agent")?);
    command.arg("vm").args(SIZES).arg("--").arg(std::env::current_exe()?);
    command.args(["@memory@", does]).env("CXLOE_AGENT", rig.socket()).env(ROLE, "outsiders");
    Ok(command)
}

/// A monitor that tries to pass its memory to a process or to a device is ended before the call, with a message.
pub fn memory_is_not_passed_on() -> Outcome {
    let rig = fabric()?;
    for (does, names) in [("message", "vhost-user"), ("device", "VFIO")] {
        let ended: Output = monitor(&rig, does)?.output()?;
        failed_with(&ended, REFUSED, &["this virtual machine ends here", names])?;
    }
    Ok(())
}

/// A program that the monitor starts inherits neither the descriptor that the monitor has opened nor the one
/// that `CXLOE_VM_MEMORY` names.
pub fn programs_of_the_monitor_get_no_memory() -> Outcome {
    let rig = fabric()?;
    succeeded(monitor(&rig, "program")?.output()?).map(drop)
}

/// A process that opens the monitor's descriptor reads zeros in place of evicted pages; the machine's content
/// stays.
pub fn a_process_that_looks_into_the_memory_changes_nothing() -> Outcome {
    let rig = fabric()?;
    let mut command = monitor(&rig, "wait")?;
    let mut machine = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut said = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(machine.stdout.take().ok_or("no output")?),
        &mut said,
    )?;
    let (process, descriptor) = said.trim().split_once(' ').ok_or_else(|| format!("it says {said:?}"))?;
    let (_file, memory) = map(Path::new(&format!("/proc/{process}/fd/{descriptor}")))?;
    let away = wrong(&memory);
    machine.stdin.take().ok_or("no input")?.write_all(b"\n")?;
    succeeded(machine.wait_with_output()?)?;
    ensure(away > 2048, format!("only {away} pages were away"))
}
