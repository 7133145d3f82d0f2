//! Network and processes of a trial: two namespaces joined by one cable, and a core for each side.
//!
//! ```text
//!   namespace near, 10.77.0.1                    namespace far, 10.77.0.2
//!     cn0  <------------------ veth ------------------>  mn0
//!     client: this thread or a tool, first core          server: a thread, a daemon or a tool, second core
//! ```
//!
//! A server is started for its trial and ended with it, so that no process of one peer uses CPU or memory while another
//! is measured.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::error::{PeerError, tail};
use super::journal::Journal;
use super::plan::Plan;
use super::site::Site;
use super::store::Content;
use cxloe_lab::{Interrupt, Lab, LabError, Process};

pub const NEAR: &str = "near";
pub const FAR: &str = "far";
/// Namespace in which this process was started and which has the RDMA devices.
pub const HERE: &str = "here";
pub const NEAR_INTERFACE: &str = "cn0";
pub const FAR_INTERFACE: &str = "mn0";
pub(crate) const NEAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const FAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Maximum time for a server to start; sufficient on a busy emulated machine.
const READY: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

/// Network, cores and content that all trials share.
#[derive(Debug)]
pub struct Stage {
    /// Network of the comparison: the namespaces and their cable.
    pub lab: Lab,
    /// Cores of client and server; `None` if the machine has only one.
    pub cores: Option<(usize, usize)>,
    /// Path of the folder for logs and sockets; emptied before each trial.
    pub folder: PathBuf,
    pub site: Site,
    /// Content that peers write to the memory.
    pub content: Content,
    /// Record of the commands that trials start, and of what tools print.
    pub journal: Journal,
    /// Flag that Ctrl-C sets.
    pub interrupt: Interrupt,
}

impl Stage {
    /// Makes the network of a comparison. The calling thread must be in the namespace in which the process was started.
    ///
    /// # Errors
    /// See [`cxloe_lab::Builder::build`].
    pub fn network(mtu: u32) -> Result<Lab, LabError> {
        Lab::builder()
            .here(HERE)
            .namespace(NEAR)
            .namespace(FAR)
            .veth(NEAR, NEAR_INTERFACE, FAR, FAR_INTERFACE)
            .mtu(mtu)
            .address(NEAR_INTERFACE, &format!("{NEAR_ADDRESS}/24"))
            .address(FAR_INTERFACE, &format!("{FAR_ADDRESS}/24"))
            .build()
    }

    /// Core of the client's or the server's side; `None` if the machine has only one.
    pub fn core(&self, namespace_is_near: bool) -> Option<usize> {
        self.cores.map(|(near, far)| if namespace_is_near { near } else { far })
    }

    /// Command that runs on the client's core if `near` is true, else on the server's.
    pub fn pinned(&self, near: bool, program: impl AsRef<Path>) -> Command {
        match self.core(near) {
            None => Command::new(program.as_ref()),
            Some(core) => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", &core.to_string()]).arg(program.as_ref());
                command
            }
        }
    }

    /// Starts a program in `namespace`, with its output in a log called `name`.
    pub fn start(&self, namespace: &str, name: &str, mut command: Command) -> Result<Running, PeerError> {
        self.journal.command(namespace, &command);
        let log = self.folder.join(format!("{name}.log"));
        // The output may be quoted in an error message, so it has no colours.
        command.env("NO_COLOR", "1");
        Process::log_to(&mut command, &log)?;
        Ok(Running { process: self.lab.spawn(namespace, command)?, name: name.into(), log })
    }

    /// Runs a tool until it ends, for at most `limit`; returns its output.
    pub fn run(
        &self,
        namespace: &str,
        name: &str,
        command: Command,
        limit: Duration,
    ) -> Result<String, PeerError> {
        let mut running = self.start(namespace, name, command)?;
        let deadline = Instant::now() + limit;
        loop {
            self.interrupt.check()?;
            if let Some(status) = running.process.try_wait()? {
                let said = running.said();
                self.journal.output(name, &said);
                if status.success() {
                    return Ok(said);
                }
                return Err(PeerError::Tool {
                    program: name.into(),
                    status: status.to_string(),
                    said: tail(&said),
                });
            }
            if Instant::now() > deadline {
                let what = format!("the end of {name}");
                return Err(PeerError::Timeout { what, limit, log: tail(&running.said()) });
            }
            thread::sleep(POLL);
        }
    }

    /// Waits until `ready` returns true; fails if `server` ends first.
    pub fn until(
        &self,
        server: &mut Running,
        mut ready: impl FnMut(&Running) -> bool,
    ) -> Result<(), PeerError> {
        let deadline = Instant::now() + READY;
        loop {
            self.interrupt.check()?;
            if ready(server) {
                return Ok(());
            }
            if let Some(status) = server.process.try_wait()? {
                return Err(PeerError::Tool {
                    program: server.name.clone(),
                    status: format!("{status} before it served"),
                    said: tail(&server.said()),
                });
            }
            if Instant::now() > deadline {
                let what = format!("{} being ready", server.name);
                return Err(PeerError::Timeout { what, limit: READY, log: tail(&server.said()) });
            }
            thread::sleep(POLL);
        }
    }

    /// Starts a server and waits until its TCP port in the namespace is open.
    pub fn serve(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
        command: Command,
    ) -> Result<Running, PeerError> {
        let mut running = self.start(namespace, name, command)?;
        self.until(&mut running, |running| is_listening(running.process.id(), port))?;
        Ok(running)
    }
}

/// Running program, ended on drop.
#[derive(Debug)]
pub struct Running {
    pub process: Process,
    name: String,
    log: PathBuf,
}

impl Running {
    /// Output that the program has written so far.
    pub fn said(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Waits at most `limit` for the program to end by itself (a tool's server ends after its client), and then ends
    /// the program.
    pub fn end(mut self, limit: Duration) {
        let _ = self.process.wait(limit);
    }
}

/// True if a TCP port is open in the network namespace of a process. This is read from the kernel's table, because a
/// server that accepts only one client would take a connection attempt for that client.
fn is_listening(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|family| {
        fs::read_to_string(format!("/proc/{pid}/net/{family}")).is_ok_and(|table| has_listener(&table, port))
    })
}

/// Parses `/proc/net/tcp`: slot, local address:port in hexadecimal, remote, state; 0A is LISTEN (proc_net_tcp(5)).
fn has_listener(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.rsplit(':').next());
        let state = fields.nth(1);
        local.and_then(|port| u16::from_str_radix(port, 16).ok()) == Some(port) && state == Some("0A")
    })
}

/// Path of a program, searched in the PATH and in the sbin folders, which an ordinary user's PATH often lacks.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// Number of iterations that fill the plan's time, at `each_us` microseconds each, for a tool that requires this
/// number.
pub fn iterations(plan: &Plan, each_us: f64) -> u64 {
    let fit = plan.each.as_secs_f64() * 1e6 / each_us;
    (fit as u64).clamp(100, plan.operations.max(100))
}

/// Creates the folder of a trial, or empties it.
pub fn emptied(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    fs::create_dir_all(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_told_from_connections() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
            0: 02004D0A:3419 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n   \
            1: 02004D0A:18EB 01004D0A:C001 01 00000000:00000000 00:00000000 00000000     0        0 2 1\n";
        assert!(has_listener(table, 0x3419));
        assert!(!has_listener(table, 0x18EB), "a connection is no listener");
        assert!(!has_listener(table, 0xC001));
        assert!(!has_listener("", 1));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(is_listening(std::process::id(), listener.local_addr().unwrap().port()));
    }

    #[test]
    fn iterations_fit_the_time() {
        let plan = super::super::plan::tests::plan(1 << 20, Duration::from_millis(200));
        assert_eq!(iterations(&plan, 20.0), 10_000);
        assert_eq!(iterations(&plan, 1.0), 20_000);
        assert_eq!(iterations(&plan, 1e6), 100);
    }
}
