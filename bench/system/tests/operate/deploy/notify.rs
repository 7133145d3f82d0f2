//! Notifications of the daemons to a service manager, on a real notification socket: ready, workers alive, name of a
//! stuck worker, stopping. The test makes a worker stuck by stopping only its thread with ptrace(2).

#![expect(unsafe_code, reason = "ptrace and waitpid take raw pointers")]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use cxloe_lab::{Process, program};
use nix::sys::signal::Signal;

use cxloe_system::pair::{LIMIT, Outcome, Pair, ensure, eventually};

/// Watchdog time-out that the service manager sets.
const WATCHDOG: Duration = Duration::from_millis(900);

/// Notification socket of the service manager.
struct Supervisor(UnixDatagram);

impl Supervisor {
    fn at(path: &Path) -> Outcome<Supervisor> {
        let socket = UnixDatagram::bind(path)?;
        socket.set_read_timeout(Some(LIMIT))?;
        Ok(Supervisor(socket))
    }

    /// Receives the next message, which consists of lines NAME=VALUE.
    fn next(&self) -> Outcome<String> {
        let mut message = [0; 4096];
        let length = loop {
            match self.0.recv(&mut message) {
                // A pause of the whole machine interrupts the call; the wait continues.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received.map_err(|error| format!("nothing more is told: {error}"))?,
            }
        };
        Ok(String::from_utf8_lossy(&message[..length]).into_owned())
    }

    /// Receives messages up to the one that contains `words`.
    fn until(&self, words: &str) -> Outcome<Vec<String>> {
        let (mut told, deadline) = (Vec::new(), Instant::now() + LIMIT);
        loop {
            told.push(self.next()?);
            if told.last().is_some_and(|message| message.contains(words)) {
                return Ok(told);
            }
            ensure(Instant::now() < deadline, format!("{words} is not told, but: {told:?}"))?;
        }
    }
}

/// A thread that ptrace(2) has stopped; dropping this value resumes it.
struct Held(libc::pid_t);

impl Held {
    /// Stops the thread called `name` of the process `pid`; other threads continue.
    fn thread(pid: u32, name: &str) -> Outcome<Held> {
        let called = |thread: &fs::DirEntry| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        let threads = fs::read_dir(format!("/proc/{pid}/task"))?;
        let thread = threads.flatten().find(called).ok_or_else(|| format!("no thread {name}"))?;
        let thread: libc::pid_t = thread.file_name().to_string_lossy().parse()?;
        let ptrace = |request: libc::c_uint| -> Outcome {
            let none = std::ptr::null_mut::<libc::c_void>();
            // SAFETY: neither request reads or writes memory of this process.
            let done = unsafe { libc::ptrace(request, thread, none, none) };
            ensure(done == 0, format!("ptrace: {}", std::io::Error::last_os_error()))
        };
        ptrace(libc::PTRACE_SEIZE)?;
        ptrace(libc::PTRACE_INTERRUPT)?;
        let mut status = 0;
        // SAFETY: the kernel writes one status, which outlives the call.
        let stopped = unsafe { libc::waitpid(thread, &mut status, libc::__WALL) };
        ensure(stopped == thread, "the thread did not stop")?;
        Ok(Held(thread))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the request reads and writes no memory of this process.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}

/// Starts a daemon that notifies the socket `socket`.
fn start(rig: &Pair, namespace: &str, daemon: &str, socket: &Path, arguments: &[&str]) -> Outcome<Process> {
    let mut command = Command::new(program(daemon)?);
    command
        .args(arguments)
        .env("NOTIFY_SOCKET", socket)
        .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
    Process::log_to(&mut command, &rig.path(&format!("{daemon}.log")))?;
    Ok(rig.lab.spawn(namespace, command)?)
}

/// Checks a daemon's messages to the service manager from its start to its end. In between, the thread `worker` of the
/// daemon is stopped for a while.
fn life(supervisor: &Supervisor, mut daemon: Process, worker: &str, ready: &str, stuck: &str) -> Outcome {
    let told = supervisor.until("READY=1")?;
    let first = told.last().map_or("", String::as_str);
    ensure(first.contains(&format!("STATUS={ready}")), first)?;
    for _ in 0..2 {
        let alive = supervisor.until("WATCHDOG=1")?;
        ensure(alive.iter().all(|message| !message.contains("STOPPING")), format!("{alive:?}"))?;
    }
    let held = Held::thread(daemon.id(), worker)?;
    supervisor.until(stuck)?;
    // While the worker is stuck, the daemon sends no watchdog message.
    for _ in 0..2 {
        let told = supervisor.until(stuck)?;
        ensure(told.iter().all(|message| !message.contains("WATCHDOG=1")), format!("{told:?}"))?;
    }
    drop(held);
    supervisor.until("WATCHDOG=1")?;
    daemon.signal(Signal::SIGTERM)?;
    let told = supervisor.until("STOPPING=1")?;
    ensure(told.last().is_some_and(|message| message.contains("STATUS=")), format!("{told:?}"))?;
    let status = daemon.wait(LIMIT)?;
    ensure(status.success(), format!("ended with {status}"))
}

pub fn the_manager_tells_its_supervisor() -> Outcome {
    cxloe_lab::expect_error("the watchdog of the service manager ends this daemon");
    let rig = Pair::bare()?;
    let socket = rig.path("notify");
    let supervisor = Supervisor::at(&socket)?;
    let store = rig.path("gmm.redb").display().to_string();
    let gmm = start(&rig, "mn", "gmm", &socket, &["serve", "--listen", "127.0.0.1:0", "--store", &store])?;
    life(&supervisor, gmm, "gmm-core", "serving on 127.0.0.1:", "requests have not been answered")
}

pub fn the_memory_node_tells_its_supervisor() -> Outcome {
    cxloe_lab::expect_error("the watchdog of the service manager ends this daemon");
    let rig = Pair::bare()?;
    rig.start_gmm()?;
    let socket = rig.path("notify");
    let supervisor = Supervisor::at(&socket)?;
    let (manager, data) = (rig.manager_url(), rig.path("data").display().to_string());
    let usual = ["-i", "mn0", "--link", "packet", "--workers", "2", "--pool-size", "32M"];
    let places = ["--manager", &manager, "--data-dir", &data, "--insecure"];
    let mn = start(&rig, "mn", "mn-server", &socket, &[&usual[..], &places].concat())?;
    life(&supervisor, mn, "worker-1", "serving 32", "worker 1 has not completed a round")
}

pub fn the_agent_tells_its_supervisor() -> Outcome {
    cxloe_lab::expect_error("the watchdog of the service manager ends this daemon");
    let rig = Pair::bare()?;
    let socket = rig.path("notify");
    let supervisor = Supervisor::at(&socket)?;
    let arguments = rig.agent_arguments("agent", &["--wait", "sleep"]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let agent = start(&rig, "cn", "cn-agent", &socket, &arguments)?;
    eventually("the agent runs", || fs::read(rig.path("cn-agent.log")).ok())?;
    life(&supervisor, agent, "worker", "serving on cn0", "worker 0 has not completed a round")
}

/// A service whose interface appears late waits for the interface and reports that to the service manager,
/// instead of failing and being restarted repeatedly.
pub fn a_service_waits_for_its_interface() -> Outcome {
    let rig = Pair::bare()?;
    rig.start_gmm()?;
    let socket = rig.path("notify");
    let supervisor = Supervisor::at(&socket)?;
    let (manager, data) = (rig.manager_url(), rig.path("data").display().to_string());
    let usual = ["-i", "late0", "--link", "packet", "--pool-size", "32M"];
    let places = ["--manager", &manager, "--data-dir", &data, "--insecure"];
    let mut mn = start(&rig, "mn", "mn-server", &socket, &[&usual[..], &places].concat())?;
    supervisor.until("waits: there is no interface `late0` yet")?;
    let ip = |words: &str| -> Outcome {
        let mut ip = Command::new("ip");
        ip.args(words.split(' '));
        ensure(rig.lab.spawn("mn", ip)?.wait(LIMIT)?.success(), words)
    };
    ip("link add late0 type veth peer name late1")?;
    supervisor.until("waits: interface `late0` is down")?;
    ip("link set late1 up")?;
    ip("link set late0 up")?;
    supervisor.until("READY=1")?;
    mn.signal(Signal::SIGTERM)?;
    ensure(mn.wait(LIMIT)?.success(), "it ends well")
}

/// Lines for the journal begin with their priorities and contain no time, which the journal adds.
pub fn lines_for_the_journal_have_priorities() -> Outcome {
    let rig = Pair::bare()?;
    let log = rig.path("journal.log");
    let stream = fs::File::create(&log)?.metadata()?;
    let store = rig.path("gmm.redb").display().to_string();
    let mut gmm = Command::new(program("gmm")?);
    gmm.args(["serve", "--insecure", "--listen", "127.0.0.1:0", "--store", &store, "--socket"]);
    gmm.arg(rig.path("journal.sock"));
    gmm.env("JOURNAL_STREAM", format!("{}:{}", stream.dev(), stream.ino()));
    Process::log_to(&mut gmm, &log)?;
    let mut gmm = rig.lab.spawn("mn", gmm)?;
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    eventually("it listens", || lines().contains("listening on").then_some(()))?;
    gmm.signal(Signal::SIGTERM)?;
    gmm.wait(LIMIT)?;
    let lines = lines();
    for line in lines.lines() {
        let priority = line.strip_prefix('<').and_then(|line| line.split_once('>'));
        let (priority, text) = priority.ok_or_else(|| format!("no priority: {line}"))?;
        let level = text.split_whitespace().next().unwrap_or_default();
        ensure([("6", "INFO"), ("4", "WARN")].contains(&(priority, level)), line)?;
    }
    ensure(lines.contains("<4>") && lines.contains("<6>"), lines)
}
