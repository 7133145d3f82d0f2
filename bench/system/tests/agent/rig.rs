//! A fabric of three real daemons for one test: a compute node and a memory node joined by a virtual cable, and a
//! manager both reach by a Unix socket. Every wait is bounded; everything ends with the rig.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::client::{self, Client, ClientError};
use cxloe_client::message::AttachedRegion;
use cxloe_lab::{Builder, Lab, Process, program};
use libtest_mimic::Failed;
use nix::sys::signal::Signal;
use tempfile::TempDir;

pub type Outcome<T = ()> = Result<T, Failed>;

/// Bound of every wait for something that should happen.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Silence that ends a session: short, so that tests are.
pub const SESSION: &str = "1s";
/// The compute node's address, and so its CN id.
pub const CN: &str = "02:00:00:00:00:01";
pub const MN: &str = "02:00:00:00:00:09";
/// Bytes of the usual region: 2048 times the line cache.
pub const REGION: u64 = 4 << 20;

pub fn ensure(holds: bool, otherwise: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.into().into()) }
}

/// Waits until `probe` gives something, at most [`LIMIT`].
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> Outcome<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = probe() {
            return Ok(found);
        }
        ensure(Instant::now() < deadline, format!("did not happen: {what}"))?;
        thread::sleep(Duration::from_millis(10));
    }
}

/// Dropped in this order: an agent that ends writes back first, for which it needs its memory node.
pub struct Rig {
    pub agent: RefCell<Option<Process>>,
    pub mn: RefCell<Option<Process>>,
    pub gmm: RefCell<Option<Process>>,
    pub lab: Lab,
    logs: Cell<u32>,
    /// The link of both nodes.
    pub link: &'static str,
    /// Bytes that a memory node lends.
    pub pool_size: &'static str,
    /// Whether daemons serve metrics, each at a socket called after it, and log JSON.
    pub observed: bool,
    pub dir: TempDir,
}

impl Rig {
    /// The network and the folder, no daemon yet.
    pub fn bare() -> Outcome<Rig> {
        Self::on(Lab::builder().namespace("cn").namespace("mn").veth("cn", "cn0", "mn", "mn0"))
    }

    pub fn on(network: Builder) -> Outcome<Rig> {
        let none = || RefCell::new(None);
        Ok(Rig {
            lab: network.mac("cn0", CN).mac("mn0", MN).build()?,
            gmm: none(),
            mn: none(),
            agent: none(),
            logs: Cell::new(0),
            link: "packet",
            pool_size: "32MiB",
            observed: false,
            dir: tempfile::tempdir()?,
        })
    }

    /// All three daemons and the region `scratch`, attached.
    pub fn with_region(pool: &str, agent: &[&str]) -> Outcome<Rig> {
        let rig = Rig::bare()?;
        rig.start_all(pool, agent)?;
        Ok(rig)
    }

    pub fn start_all(&self, pool: &str, agent: &[&str]) -> Outcome {
        self.start_gmm()?;
        self.start_mn(pool)?;
        self.start_agent(agent)?;
        self.create_region("scratch")?;
        self.attached("scratch", "active").map(drop)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("agent.sock")
    }

    pub fn manager(&self) -> String {
        format!("unix:{}", self.path("gmm.sock").display())
    }

    fn start(&self, namespace: &str, name: &str, arguments: &[&str]) -> Outcome<(Process, PathBuf)> {
        let mut command = Command::new(program(name)?);
        command.args(arguments);
        if self.observed {
            let metrics = format!("unix:{}", self.path(&format!("{name}.metrics")).display());
            command.args(["--metrics", &metrics, "--log-format", "json"]);
        }
        self.logs.set(self.logs.get() + 1);
        let log = self.path(&format!("{name}.{}.log", self.logs.get()));
        Process::log_to(&mut command, &log)?;
        Ok((self.lab.spawn(namespace, command)?, log))
    }

    pub fn start_gmm(&self) -> Outcome {
        let (store, socket) = (self.path("gmm.redb"), self.path("gmm.sock"));
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--node-timeout-ms", "1000"];
        let places = ["--store", text(&store), "--socket", text(&socket)];
        let (process, log) = self.start("mn", "gmm", &[&arguments[..], &places].concat())?;
        *self.gmm.borrow_mut() = Some(process);
        eventually("the manager answers", || self.gmm(&["status"]).ok()).map_err(|e| with_log(e, &log))?;
        Ok(())
    }

    /// Starts a memory node whose pool is `anon` or `file`, and waits until the manager reaches it.
    pub fn start_mn(&self, pool: &str) -> Outcome {
        let pool = if pool == "file" { format!("file:{}", self.path("pool").display()) } else { pool.into() };
        let manager = self.manager();
        let arguments = ["--name", "mn0", "-i", "mn0", "--link", self.link, "--manager", &manager];
        let sizes = ["--pool", &pool, "--pool-size", self.pool_size, "--data-dir", text(self.dir.path())];
        let (process, log) = self.start("mn", "mn-server", &[&arguments[..], &sizes].concat())?;
        *self.mn.borrow_mut() = Some(process);
        eventually("the memory node serves", || saying(&log, "registered with the manager"))
            .map_err(|e| with_log(e, &log))
    }

    /// Arguments of an agent on cn0, with its socket and data called `name`.
    pub fn agent_arguments(&self, name: &str, more: &[&str]) -> Vec<String> {
        let (socket, data) = (self.path(&format!("{name}.sock")), self.path(&format!("{name}.data")));
        let manager = self.manager();
        let usual = ["run", "--name", name, "--link", self.link, "--manager", &manager];
        let places = ["--socket", text(&socket), "--data-dir", text(&data), "--session-timeout", SESSION];
        let interface: &[&str] = if more.contains(&"-i") { &[] } else { &["-i", "cn0"] };
        [&usual[..], &places, interface, more].concat().into_iter().map(Into::into).collect()
    }

    pub fn start_agent(&self, more: &[&str]) -> Outcome {
        let (process, log) = self.start_agent_called("agent", more)?;
        *self.agent.borrow_mut() = Some(process);
        eventually("the agent serves", || saying(&log, "serving")).map_err(|e| with_log(e, &log))
    }

    pub fn start_agent_called(&self, name: &str, more: &[&str]) -> Outcome<(Process, PathBuf)> {
        let arguments = self.agent_arguments(name, more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.start("cn", "cn-agent", &arguments)
    }

    pub fn kill(&self, which: &RefCell<Option<Process>>) -> Outcome {
        let mut process = which.borrow_mut().take().ok_or("it does not run")?;
        process.signal(Signal::SIGKILL)?;
        process.wait(LIMIT)?;
        Ok(())
    }

    /// Ends a daemon by SIGTERM; it has to end well.
    pub fn stop(&self, which: &RefCell<Option<Process>>) -> Outcome {
        let mut process = which.borrow_mut().take().ok_or("it does not run")?;
        process.signal(Signal::SIGTERM)?;
        let status = process.wait(LIMIT)?;
        ensure(status.success(), format!("ended with {status}"))
    }

    /// Runs `gmm`; its standard output if it succeeds.
    pub fn gmm(&self, arguments: &[&str]) -> Outcome<String> {
        let manager = self.manager();
        succeeded(run("gmm", &[&["--manager", &manager], arguments].concat(), None)?)
    }

    /// Runs `cn-agent` against the agent.
    pub fn cli(&self, arguments: &[&str]) -> Outcome<Output> {
        run("cn-agent", arguments, Some(&self.socket()))
    }

    pub fn create_region(&self, name: &str) -> Outcome<String> {
        let size = REGION.to_string();
        self.gmm(&["create-region", "-s", &size, "--owner", CN, name])
    }

    /// Waits until the agent has the region in this state.
    pub fn attached(&self, name: &str, state: &str) -> Outcome<AttachedRegion> {
        eventually(&format!("region {name} is {state}"), || {
            let regions = client::regions(&self.socket()).ok()?;
            regions.into_iter().find(|region| region.region == name && region.state == state)
        })
    }

    pub fn connect(&self) -> Outcome<Client> {
        Ok(Client::connect(&self.socket())?)
    }

    /// A port, and lines of `scratch` written and at the memory node; they start at the HPA returned.
    pub fn written(&self, seed: u64) -> Outcome<(Client, u64)> {
        let hpa = self.attached("scratch", "active")?.hpa;
        let mut port = self.connect()?;
        eventually("a session is open", || port.read(hpa).ok())?;
        port.write_batch(&lines(hpa, seed))?;
        port.flush()?;
        Ok((port, hpa))
    }
}

/// Lines written by [`Rig::written`]: 128 KiB, four times the cache.
pub const LINES: u64 = 2048;

/// A line that says where it belongs and who wrote it.
pub fn line(hpa: u64, seed: u64) -> [u8; 64] {
    let mut line = [0; 64];
    for (i, word) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mixed = (hpa ^ seed.rotate_left(32)).wrapping_add(i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        *word = (mixed | 1).to_le_bytes();
    }
    line
}

pub fn lines(hpa: u64, seed: u64) -> Vec<(u64, [u8; 64])> {
    (0..LINES).map(|i| hpa + i * 64).map(|hpa| (hpa, line(hpa, seed))).collect()
}

/// Reads the lines back; every one has to be right.
pub fn verify(port: &mut Client, hpa: u64, seed: u64) -> Outcome {
    let expected = lines(hpa, seed);
    let hpas: Vec<u64> = expected.iter().map(|(hpa, _)| *hpa).collect();
    let mut read = vec![[0; 64]; hpas.len()];
    port.read_batch(&hpas, &mut read)?;
    let wrong = expected.iter().zip(&read).find(|((_, expected), read)| expected != *read);
    ensure(wrong.is_none(), format!("another line than was written: {wrong:x?}"))
}

/// Reads until it succeeds again.
pub fn recovered(port: &mut Client, hpa: u64) -> Outcome<[u8; 64]> {
    let mut last = None;
    eventually("operations resume", || port.read(hpa).map_err(|e| last = Some(e)).ok())
        .map_err(|e| format!("{}; last: {last:?}", e.message().unwrap_or_default()).into())
}

/// Reads until it fails.
pub fn failure(port: &mut Client, hpa: u64) -> Outcome<ClientError> {
    eventually("operations fail", || port.read(hpa).err())
}

pub fn run(name: &str, arguments: &[&str], socket: Option<&Path>) -> Outcome<Output> {
    let mut command = Command::new(program(name)?);
    command.args(arguments).stdin(Stdio::null());
    if let Some(socket) = socket {
        command.env("CXLOE_AGENT", socket);
    }
    Ok(command.output()?)
}

pub fn succeeded(output: Output) -> Outcome<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.success(), format!("{}: {said}", output.status))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Checks how a command failed: its exit code, and words of its message.
pub fn failed_with(output: &Output, code: i32, words: &[&str]) -> Outcome {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(code), format!("{}, not {code}: {said}", output.status))?;
    words.iter().try_for_each(|word| ensure(said.contains(word), format!("no {word:?} in: {said}")))
}

pub fn saying(log: &Path, words: &str) -> Option<()> {
    std::fs::read_to_string(log).ok()?.contains(words).then_some(())
}

fn with_log(error: Failed, log: &Path) -> Failed {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    format!("{}; its log:\n{said}", error.message().unwrap_or_default()).into()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are plain text")
}
