//! Memory of a pool that outlives the memory node's process, in a keeper process or in a service manager's descriptor
//! store: after a kill, at an upgrade while a compute node works, and in huge pages. An orderly end of the node frees
//! the memory.

#![expect(unsafe_code, reason = "descriptors are received and passed on as numbers")]

use std::fs;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_lab::{Lab, LabPrivilege, program};
use cxloe_link::{Backend, LinkConfig};
use cxloe_port::port::Port;
use cxloe_system::command::{failed_with, output};
use cxloe_system::lines::line;
use cxloe_system::node::{MemoryNode, link_on, port};
use cxloe_system::{LIMIT, Outcome, Test, cable::cable, ensure, eventually, tests, text};
use cxloe_wire::frame::Mac;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::Pid;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
const BYTES: u64 = 4 << 20;
const LINES: u64 = BYTES / 64;
/// Number of the first descriptor that a service manager passes (sd_listen_fds(3)).
const FIRST_PASSED: RawFd = 3;
/// The kernel's reserve of huge pages of 2 MiB.
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        memory_outlives_a_killed_node,
        memory_in_huge_pages_outlives_a_killed_node,
        a_node_is_replaced_while_it_serves,
        two_nodes_never_serve_one_memory,
        an_orderly_end_frees_the_memory,
        a_keeper_that_is_killed_is_replaced,
        discarded_memory_is_another_pool,
        another_pool_is_refused_while_regions_lie_in_the_former,
        a_service_manager_keeps_the_memory,
    ]
}

/// A cable, and a folder with the node's state and logs.
struct Bench {
    lab: Lab,
    state: tempfile::TempDir,
    logs: tempfile::TempDir,
}

impl Bench {
    fn new() -> Outcome<Bench> {
        let lab = cable().mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?;
        Ok(Bench { lab, state: tempfile::tempdir()?, logs: tempfile::tempdir()? })
    }

    /// Starts process `number` of the node, which writes its own log.
    fn start(&self, number: usize, more: &[&str]) -> Outcome<MemoryNode> {
        self.start_by(Command::new(program("mn-server")?), number, more)
    }

    fn start_by(&self, command: Command, number: usize, more: &[&str]) -> Outcome<MemoryNode> {
        let logs = self.logs.path().join(number.to_string());
        fs::create_dir(&logs)?;
        let socket = self.state.path().join("mn.sock");
        let usual = ["--data-dir", text(self.state.path()), "--socket", text(&socket)];
        let kept: &[&str] = if more.contains(&"--pool-keep") { &[] } else { &["--pool-keep", "20s"] };
        let options = [&usual[..], kept, more].concat();
        MemoryNode::start_by(command, &self.lab, "mn0", Backend::Packet, &[(CN, BYTES)], &logs, &options)
    }

    fn port(&self) -> Outcome<Port> {
        let config = LinkConfig { backend: Backend::Packet, busy_poll: false, ..LinkConfig::new("cn0") };
        let mut port = port(link_on(&self.lab, &config)?, MN, 0, BYTES, CacheConfig::OFF)?;
        port.connect(LIMIT)?;
        Ok(port)
    }
}

fn fill(port: &mut Port, version: u64) -> Outcome {
    let all: Vec<_> = (0..LINES).map(|at| (at * 64, line(at, version))).collect();
    Ok(port.write_batch(&all)?)
}

fn verify(port: &mut Port, version: u64) -> Outcome {
    let addresses: Vec<u64> = (0..LINES).map(|at| at * 64).collect();
    let mut found = vec![[0; 64]; addresses.len()];
    port.read_batch(&addresses, &mut found)?;
    let wrong = (0..LINES).find(|at| found[*at as usize] != line(*at, version));
    ensure(wrong.is_none(), format!("line {wrong:?} is not of version {version}"))
}

/// Process id of the keeper that a node has started.
fn keeper_of(node: &MemoryNode) -> Outcome<Pid> {
    let output_text = node.output_text();
    let line =
        output_text.lines().rfind(|line| line.contains("keeps the pool's memory")).ok_or("no keeper")?;
    let pid = line.split_whitespace().find_map(|word| word.strip_prefix("pid=")).ok_or("no pid")?;
    Ok(Pid::from_raw(pid.parse()?))
}

/// Polls the end of a process: `Some` if it has ended or is a zombie.
fn is_over(pid: Pid) -> Option<()> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => {
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')).then_some(())
        }
        Err(_) => Some(()),
    }
}

/// A node is killed and started again: all lines keep their content, in existing sessions and in new ones.
fn survives(bench: &Bench, more: &[&str]) -> Outcome {
    let node = bench.start(1, more)?;
    let mut port = bench.port()?;
    fill(&mut port, 1)?;
    let keeper = keeper_of(&node)?;
    node.kill()?;
    let node = bench.start(2, more)?;
    ensure(node.output_text().contains("kept=true"), node.output_text())?;
    verify(&mut port, 1)?;
    fill(&mut port, 2)?;
    drop(port);
    // Without options for the size, the node uses the size of the kept memory.
    node.kill()?;
    let node = bench.start(3, more)?;
    verify(&mut bench.port()?, 2)?;
    ensure(node.end()?.success(), "an orderly end")?;
    eventually("the keeper ends", || is_over(keeper).is_some())
}

fn memory_outlives_a_killed_node() -> Outcome {
    survives(&Bench::new()?, &[])
}

/// Huge pages added to the kernel's reserve, which is restored on drop.
struct Reserve(u64);

impl Reserve {
    fn add(pages: u64) -> Outcome<Reserve> {
        let before: u64 = fs::read_to_string(HUGE_PAGES)?.trim().parse()?;
        let reserve = Reserve(before);
        fs::write(HUGE_PAGES, (before + pages).to_string())?;
        let now: u64 = fs::read_to_string(HUGE_PAGES)?.trim().parse()?;
        ensure(now >= before + pages, format!("the kernel reserves {now} huge pages of {}", before + pages))?;
        Ok(reserve)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let _ = fs::write(HUGE_PAGES, self.0.to_string());
    }
}

fn memory_in_huge_pages_outlives_a_killed_node() -> Outcome {
    let _reserve = Reserve::add(40)?;
    survives(&Bench::new()?, &["--pool", "huge2m"])
}

fn a_node_is_replaced_while_it_serves() -> Outcome {
    let bench = Bench::new()?;
    let mut old = bench.start(0, &[])?;
    let mut port = bench.port()?;
    for version in 1..=4 {
        fill(&mut port, version)?;
        // While the next process takes the pool over, the port works on its own thread: it writes each line and reads
        // it back at once.
        let next = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                for round in 0..20 {
                    fill(&mut port, version * 100 + round)
                        .map_err(|error| error.message().unwrap_or_default().to_owned())?;
                    verify(&mut port, version * 100 + round)
                        .map_err(|error| error.message().unwrap_or_default().to_owned())?;
                }
                Ok::<_, String>(())
            });
            let next = bench.start(version as usize, &["--take-over"]);
            worker.join().map_err(|_| "the port's thread panicked")??;
            next
        })?;
        ensure(next.output_text().contains("kept=true"), next.output_text())?;
        ensure(old.ended()?.success(), "the process before ended in order")?;
        verify(&mut port, version * 100 + 19)?;
        old = next;
    }
    ensure(old.end()?.success(), "an orderly end")
}

fn two_nodes_never_serve_one_memory() -> Outcome {
    let bench = Bench::new()?;
    let node = bench.start(1, &[])?;
    let mut command = Command::new(program("mn-server")?);
    command.args(["-i", "mn0", "--name", "mn1", "--insecure", "--static-map", "/dev/null"]);
    command.arg("--data-dir").arg(bench.state.path());
    let second = bench.lab.enter("mn", || output(&mut command))??;
    let output_text = String::from_utf8_lossy(&second.stderr).into_owned();
    ensure(second.status.code() == Some(1) && output_text.contains("--take-over"), output_text)?;
    let mut port = bench.port()?;
    fill(&mut port, 1)?;
    verify(&mut port, 1)?;
    ensure(node.end()?.success(), "an orderly end")
}

fn an_orderly_end_frees_the_memory() -> Outcome {
    let bench = Bench::new()?;
    let node = bench.start(1, &[])?;
    let keeper = keeper_of(&node)?;
    ensure(is_over(keeper).is_none(), "it runs")?;
    ensure(node.end()?.success(), "an orderly end")?;
    eventually("the keeper ends", || is_over(keeper).is_some())?;
    let left =
        fs::read_dir(bench.state.path())?.flatten().find(|entry| text(&entry.path()).ends_with(".keeper"));
    ensure(left.is_none(), format!("{left:?} is left"))?;
    let node = bench.start(2, &[])?;
    ensure(node.output_text().contains("kept=false"), node.output_text())?;

    // After a kill, the keeper (the process that keeps the memory) frees it when the time of `--pool-keep` is over.
    let keeper = keeper_of(&node)?;
    node.kill()?;
    let node = bench.start(3, &["--pool-keep", "1s"])?;
    ensure(node.output_text().contains("kept=true"), node.output_text())?;
    ensure(is_over(keeper).is_none(), "the same keeper")?;
    kill(keeper, Signal::SIGKILL)?;
    eventually("another keeper is started", || keeper_of(&node).is_ok_and(|next| next != keeper))?;
    let keeper = keeper_of(&node)?;
    node.kill()?;
    eventually("the keeper ends by itself", || is_over(keeper).is_some())
}

fn a_keeper_that_is_killed_is_replaced() -> Outcome {
    let bench = Bench::new()?;
    let node = bench.start(1, &[])?;
    let mut port = bench.port()?;
    fill(&mut port, 1)?;
    let keeper = keeper_of(&node)?;
    kill(keeper, Signal::SIGKILL)?;
    eventually("another keeper is started", || keeper_of(&node).is_ok_and(|next| next != keeper))?;
    node.kill()?;
    let node = bench.start(2, &[])?;
    verify(&mut port, 1)?;
    ensure(node.end()?.success(), "an orderly end")
}

fn discarded_memory_is_another_pool() -> Outcome {
    let bench = Bench::new()?;
    let node = bench.start(1, &[])?;
    let mut port = bench.port()?;
    fill(&mut port, 1)?;
    drop(port);
    node.kill()?;
    let node = bench.start(2, &["--pool-discard"])?;
    ensure(node.output_text().contains("kept=false"), node.output_text())?;
    let mut line = [[1; 64]];
    bench.port()?.read_batch(&[64], &mut line)?;
    ensure(line[0] == [0; 64], "memory of another pool")?;
    ensure(node.end()?.success(), "an orderly end")
}

/// Checks that the node refuses to start with `--pool pool`, with the exit code after which a service manager
/// does not start it again.
fn refused(bench: &Bench, pool: &str, words: &[&str]) -> Outcome {
    let mut command = Command::new(program("mn-server")?);
    command.args(["-i", "mn0", "--name", "mn1", "--insecure", "--static-map", "/dev/null"]);
    command.arg("--data-dir").arg(bench.state.path()).args(["--pool", pool]);
    let ended = bench.lab.enter("mn", || output(&mut command))??;
    failed_with(&ended, 2, words)
}

fn another_pool_is_refused_while_regions_lie_in_the_former() -> Outcome {
    let bench = Bench::new()?;
    let [one, other] =
        ["one", "other"].map(|name| format!("file:{}", bench.logs.path().join(name).display()));
    // The node is killed, so its keeper (a process of its own) still has the memory of the pool.
    let node = bench.start(1, &[])?;
    let mut port = bench.port()?;
    fill(&mut port, 1)?;
    node.kill()?;
    refused(&bench, &one, &["4MiB of regions lie in anon", "--pool-discard"])?;
    let node = bench.start(2, &[])?;
    verify(&mut port, 1)?;
    drop(port);
    ensure(node.end()?.success(), "an orderly end")?;

    // An orderly end has freed the memory, so no data is lost if the node uses another pool.
    let node = bench.start(3, &["--pool", &one])?;
    let mut port = bench.port()?;
    fill(&mut port, 2)?;
    ensure(node.end()?.success(), "an orderly end")?;
    for pool in ["anon", &other] {
        refused(&bench, pool, &[&format!("4MiB of regions lie in {one}"), &format!("--pool {pool}")])?;
    }
    let node = bench.start(4, &["--pool", &one])?;
    verify(&mut port, 2)?;
    drop(port);
    ensure(node.end()?.success(), "an orderly end")?;
    let node = bench.start(5, &["--pool", &other, "--pool-discard"])?;
    ensure(node.end()?.success(), "an orderly end")
}

/// Descriptor of the pool's memory that a node asks the service manager at `socket` to store.
fn stored(socket: &UnixDatagram) -> Outcome<OwnedFd> {
    socket.set_read_timeout(Some(LIMIT))?;
    for _ in 0..1000 {
        let mut bytes = [0; 4096];
        let mut space = nix::cmsg_space!([RawFd; 4]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message =
            recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
        let mut passed = None;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(descriptors) = control {
                // SAFETY: the kernel has just made these descriptors for this call; nothing else owns them.
                passed = descriptors.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).next();
            }
        }
        let length = message.bytes;
        let output_text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if let Some(passed) = passed {
            ensure(
                output_text.contains("FDSTORE=1") && output_text.contains("FDNAME=cxloe-pool"),
                output_text,
            )?;
            return Ok(passed);
        }
    }
    Err("nothing is stored".into())
}

/// Command line of a node under a service manager that passes it the descriptor `memory`.
fn supervised(notify: &Path, memory: Option<OwnedFd>) -> Outcome<Command> {
    let passing = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=cxloe-pool exec \"$@\"";
    let mut command = match &memory {
        Some(_) => Command::new("sh"),
        None => Command::new(program("mn-server")?),
    };
    if let Some(memory) = memory {
        command.args(["-c", passing, "sh"]).arg(program("mn-server")?);
        // SAFETY: between fork and exec this makes one system call, which may be made there, and allocates nothing.
        unsafe {
            command.pre_exec(move || match libc::dup2(memory.as_raw_fd(), FIRST_PASSED) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        };
    }
    command.env("NOTIFY_SOCKET", notify);
    Ok(command)
}

fn a_service_manager_keeps_the_memory() -> Outcome {
    let bench = Bench::new()?;
    let notify = bench.state.path().join("notify");
    let socket = UnixDatagram::bind(&notify)?;
    let node = bench.start_by(supervised(&notify, None)?, 1, &[])?;
    let memory = stored(&socket)?;
    ensure(keeper_of(&node).is_err(), "no process of its own keeps the memory")?;
    let mut port = bench.port()?;
    fill(&mut port, 1)?;
    // A restart by the service manager ends the node in order, and does not free memory that the service manager has
    // stored.
    ensure(node.end()?.success(), "an orderly end")?;
    let node = bench.start_by(supervised(&notify, Some(memory.try_clone()?))?, 2, &[])?;
    ensure(node.output_text().contains("kept=true"), node.output_text())?;
    verify(&mut port, 1)?;
    node.kill()?;
    let node = bench.start_by(supervised(&notify, Some(memory))?, 3, &[])?;
    verify(&mut port, 1)?;
    ensure(node.end()?.success(), "an orderly end")
}
