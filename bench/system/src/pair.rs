//! A manager, a memory node and a compute node: the two nodes joined by one virtual cable, the manager reached by a
//! Unix socket. Daemons are called `gmm`, `mn` and `agent`. Every wait is bounded; all daemons end when the [`Pair`] is
//! dropped.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cxloe_client::client::{self, Client, ClientError};
use cxloe_client::message::AttachedRegion;
use cxloe_lab::{Builder, Process, program};

use crate::cable::cable;
pub use crate::command::{failed_with, run, succeeded};
use crate::lines;
pub use crate::lines::line;
pub use crate::outcome::{Failed, LIMIT, Outcome, ensure, eventually};
use crate::rig::{Rig, plain};
pub use crate::text;

/// Session time-out of the daemons: short, so that tests take little time.
pub const SESSION: &str = "1s";
/// MAC address of the compute node, which is also its CN id.
pub const CN: &str = "02:00:00:00:00:01";
/// MAC address of the memory node's interface `mn0`.
pub const MN: &str = "02:00:00:00:00:09";
/// Bytes of a region of [`Pair::create_region`], 128 times the default line cache.
pub const REGION: u64 = 4 << 20;
/// Number of lines written by [`Pair::written`]: 128 KiB, four times the default line cache.
pub const LINES: u64 = 2048;

/// The fabric, and the options with which its daemons start.
pub struct Pair {
    rig: Rig,
    /// Value of the option `--link` of both nodes.
    pub link: &'static str,
    /// Value of the memory node's option `--pool-size`.
    pub pool_size: &'static str,
    /// Set if daemons log JSON and serve metrics, each on a Unix socket named after its program.
    pub observed: bool,
}

impl Deref for Pair {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl Pair {
    /// Makes the network and the folder, and starts no daemon.
    ///
    /// # Errors
    /// Returns an error when the network cannot be made.
    pub fn bare() -> Outcome<Pair> {
        Self::on(cable())
    }

    /// Like [`Pair::bare`], on a network that has an interface `cn0` in a namespace `cn`, and `mn0` in `mn`.
    ///
    /// # Errors
    /// Returns an error when the network cannot be made.
    pub fn on(network: Builder) -> Outcome<Pair> {
        let rig = Rig::on(network.mac("cn0", CN).mac("mn0", MN))?;
        Ok(Pair { rig, link: "packet", pool_size: "32MiB", observed: false })
    }

    /// Makes the network, and starts the daemons and a region like [`Pair::start_all`].
    ///
    /// # Errors
    /// Returns an error when a daemon does not serve.
    pub fn with_region(pool: &str, agent: &[&str]) -> Outcome<Pair> {
        let rig = Pair::bare()?;
        rig.start_all(pool, agent)?;
        Ok(rig)
    }

    /// Starts all three daemons, creates the region `scratch`, and waits until it is attached.
    ///
    /// # Errors
    /// Returns an error when a daemon does not serve.
    pub fn start_all(&self, pool: &str, agent: &[&str]) -> Outcome {
        self.start_gmm()?;
        self.start_mn(pool)?;
        self.start_agent(agent)?;
        self.create_region("scratch")?;
        self.attached("scratch", "active").map(drop)
    }

    /// Path of the agent's socket, which programs connect to.
    pub fn socket(&self) -> PathBuf {
        self.path("agent.sock")
    }

    fn command(&self, program_name: &str, arguments: &[&str]) -> Outcome<Command> {
        let mut command = Command::new(program(program_name)?);
        command.args(arguments);
        if self.observed {
            let metrics = format!("unix:{}", self.path(&format!("{program_name}.metrics")).display());
            command.args(["--metrics", &metrics, "--log-format", "json"]);
        }
        Ok(command)
    }

    /// Starts the manager and waits until it answers.
    ///
    /// # Errors
    /// Returns an error when the manager does not answer.
    pub fn start_gmm(&self) -> Outcome {
        let (store, socket) = (self.path("gmm.redb"), self.path("gmm.sock"));
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--node-timeout-ms", "1000"];
        let places = ["--store", text(&store), "--socket", text(&socket)];
        self.start("gmm", "mn", self.command("gmm", &[&arguments[..], &places].concat())?)?;
        eventually("the manager answers", || self.gmm(&["status"]).ok()).map(drop)
    }

    /// Starts a memory node whose pool is `anon` or `file`, and waits until the manager reports the node as reachable.
    ///
    /// # Errors
    /// Returns an error when the node does not register.
    pub fn start_mn(&self, pool: &str) -> Outcome {
        self.start_mn_with(pool, &[])
    }

    /// Like [`Pair::start_mn`], with further options.
    ///
    /// # Errors
    /// Returns an error when the node does not register.
    pub fn start_mn_with(&self, pool: &str, more: &[&str]) -> Outcome {
        let pool = if pool == "file" { format!("file:{}", self.path("pool").display()) } else { pool.into() };
        let manager = self.manager_url();
        let arguments = ["--name", "mn0", "--link", self.link, "--manager", &manager];
        let interface: &[&str] = if more.contains(&"-i") { &[] } else { &["-i", "mn0"] };
        let sizes = ["--pool", &pool, "--pool-size", self.pool_size, "--data-dir", text(self.dir.path())];
        // Unless the test sets the option, a killed node loses its memory at once.
        let kept: &[&str] = if more.contains(&"--pool-keep") { &[] } else { &["--pool-keep", "0s"] };
        let all = [&arguments[..], interface, &sizes, kept, more, plain(more)].concat();
        self.start("mn", "mn", self.command("mn-server", &all)?)?;
        self.says("mn", "registered with the manager")
    }

    /// Arguments of an agent on `cn0`, with a socket and a data folder named after `name`.
    pub fn agent_arguments(&self, name: &str, more: &[&str]) -> Vec<String> {
        let (socket, data) = (self.path(&format!("{name}.sock")), self.path(&format!("{name}.data")));
        let manager = self.manager_url();
        let usual = ["run", "--name", name, "--link", self.link, "--manager", &manager];
        let places = ["--socket", text(&socket), "--data-dir", text(&data), "--session-timeout", SESSION];
        let interface: &[&str] = if more.contains(&"-i") { &[] } else { &["-i", "cn0"] };
        [&usual[..], &places, interface, more, plain(more)].concat().into_iter().map(Into::into).collect()
    }

    /// Starts the agent and waits until it serves.
    ///
    /// # Errors
    /// Returns an error when the agent does not serve.
    pub fn start_agent(&self, more: &[&str]) -> Outcome {
        let process = self.start_agent_called("agent", more)?;
        self.adopt("agent", process);
        self.says("agent", "serving")
    }

    /// Starts an agent with a log, a socket and a data folder named after `name`.
    ///
    /// # Errors
    /// Returns an error when the agent cannot be started.
    pub fn start_agent_called(&self, name: &str, more: &[&str]) -> Outcome<Process> {
        let arguments = self.agent_arguments(name, more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = self.command("cn-agent", &arguments)?;
        self.logged(name, &mut command)?;
        Ok(self.lab.spawn("cn", command)?)
    }

    /// Runs `gmm`; returns its standard output.
    ///
    /// # Errors
    /// Returns an error when the command fails.
    pub fn gmm(&self, arguments: &[&str]) -> Outcome<String> {
        let manager = self.manager_url();
        succeeded(run("gmm", &[&["--manager", &manager], arguments].concat(), None)?)
    }

    /// Runs a command of `cn-agent` that uses the agent's socket.
    ///
    /// # Errors
    /// Returns an error when the command cannot be started.
    pub fn cli(&self, arguments: &[&str]) -> Outcome<Output> {
        run("cn-agent", arguments, Some(&self.socket()))
    }

    /// Creates a region of [`REGION`] bytes.
    pub fn create_region(&self, name: &str) -> Outcome<String> {
        let size = REGION.to_string();
        self.gmm(&["create-region", "-s", &size, "--owner", CN, name])
    }

    /// Waits until the agent lists the region in this state.
    ///
    /// # Errors
    /// Returns an error when the region does not reach the state in time.
    pub fn attached(&self, name: &str, state: &str) -> Outcome<AttachedRegion> {
        eventually(&format!("region {name} is {state}"), || {
            let regions = client::regions(&self.socket()).ok()?;
            regions.into_iter().find(|region| region.region == name && region.state == state)
        })
    }

    /// Opens a port of the agent.
    ///
    /// # Errors
    /// Returns an error when the agent refuses.
    pub fn connect(&self) -> Outcome<Client> {
        Ok(Client::connect(&self.socket())?)
    }

    /// Opens a port, writes [`LINES`] lines of `scratch` and flushes them to the memory node. Returns the port and the
    /// HPA of the lines.
    pub fn written(&self, seed: u64) -> Outcome<(Client, u64)> {
        let hpa = self.attached("scratch", "active")?.hpa;
        let mut port = self.connect()?;
        eventually("a session is open", || port.read(hpa).ok())?;
        port.write_batch(&written_lines(hpa, seed))?;
        port.flush()?;
        Ok((port, hpa))
    }
}

/// Addresses and content of the lines that [`Pair::written`] writes.
pub fn written_lines(hpa: u64, seed: u64) -> Vec<(u64, [u8; 64])> {
    (0..LINES).map(|i| hpa + i * 64).map(|hpa| (hpa, line(hpa, seed))).collect()
}

/// Reads the lines of [`Pair::written`] back and compares every one.
///
/// # Errors
/// Returns errors of the agent, or the first line that differs.
pub fn verify(port: &mut Client, hpa: u64, seed: u64) -> Outcome {
    lines::verify(port, hpa, LINES * 64, seed)
}

/// Repeats a read until it succeeds again; returns the line.
///
/// # Errors
/// Returns the last error when no read succeeds.
pub fn recovered(port: &mut Client, hpa: u64) -> Outcome<[u8; 64]> {
    let mut last = None;
    eventually("operations resume", || port.read(hpa).map_err(|e| last = Some(e)).ok())
        .map_err(|e| format!("{}; last: {last:?}", e.message().unwrap_or_default()).into())
}

/// Reads until a read fails; returns its error.
///
/// # Errors
/// Returns an error when no read fails.
pub fn failure(port: &mut Client, hpa: u64) -> Outcome<ClientError> {
    eventually("operations fail", || port.read(hpa).err())
}

/// Polls a log: `Some` if it contains these words.
pub fn saying(log: &Path, words: &str) -> Option<()> {
    std::fs::read_to_string(log).ok()?.contains(words).then_some(())
}
