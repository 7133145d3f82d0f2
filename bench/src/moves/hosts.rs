//! Two compute nodes and a memory node in namespaces of their own, and the machine that moves between them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use cxloe_client::client;
use cxloe_fabric::Client;
use cxloe_fabric::api::CreateRegion;
use cxloe_fabric::model::{CnId, Health, Name};
use cxloe_lab::{Interrupt, Lab, Process, program};
use serde_json::Value;

use super::{MoveError, MoveOptions};
use crate::eventually::eventually;

/// Maximum wait for a daemon, or for the monitor process (`cn-agent vm`) of a machine.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum wait for an answer from the manager.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Name of the region that is the machine's memory.
const REGION: &str = "moves";

/// A QEMU process that runs the machine, or waits for its arrival.
pub struct Emulator {
    process: Process,
    /// Number of the compute node.
    pub side: usize,
    number: u32,
    /// File with the guest's serial line.
    pub serial: PathBuf,
}

/// Network with a manager, a memory node and two compute nodes.
pub struct Hosts {
    // Fields are dropped in this order: the processes have to end before their network is removed.
    _daemons: BTreeMap<String, Process>,
    lab: Lab,
    folder: PathBuf,
    options: MoveOptions,
    kernel: PathBuf,
    manager: Client,
    runtime: tokio::runtime::Runtime,
    started: u32,
}

impl Hosts {
    /// Starts all daemons and makes the region.
    pub fn start(
        folder: &Path,
        options: &MoveOptions,
        kernel: PathBuf,
        interrupt: &Interrupt,
    ) -> Result<Hosts, MoveError> {
        let lab = Lab::star(1, 2).build()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let manager = Client::new(&format!("unix:{}", folder.join("gmm.sock").display()))?;
        let mut daemons = BTreeMap::new();
        for (name, binary) in [("gmm", "gmm"), ("mn0", "mn-server"), ("cn0", "cn-agent"), ("cn1", "cn-agent")]
        {
            let path = |end: &str| folder.join(format!("{name}{end}"));
            let mut command = Command::new(program(binary)?);
            if binary == "gmm" {
                command.args(["serve", "--listen", "127.0.0.1:0", "--store"]).arg(path(".redb"));
            } else {
                if binary == "cn-agent" {
                    command.arg("run");
                } else {
                    let pool = (options.memory + (64 << 20)).next_multiple_of(2 << 20).to_string();
                    command.args(["--pool-size", &pool]);
                }
                command.args(["--name", name, "-i", name, "--link", "packet", "--manager", manager.url()]);
                command.arg("--data-dir").arg(path(".data")).arg("--node-key").arg(path(".key"));
            }
            command.arg("--socket").arg(path(".sock"));
            Process::log_to(&mut command, &path(".log"))?;
            let namespace = if binary == "gmm" { "switch" } else { name };
            daemons.insert(name.to_owned(), lab.spawn(namespace, command)?);
        }
        let (folder, options) = (folder.to_owned(), options.clone());
        let hosts = Hosts { _daemons: daemons, lab, folder, options, kernel, manager, runtime, started: 0 };
        eventually("the nodes register", LIMIT, interrupt, || hosts.are_registered())?;
        let owner: CnId = cxloe_lab::compute_node_mac(0).parse()?;
        let create = CreateRegion {
            wait_ms: LIMIT.as_millis() as u64,
            ..CreateRegion::new(Name::new(REGION)?, hosts.options.memory, owner)
        };
        hosts.runtime.block_on(hosts.manager.create_region(&create))?;
        eventually("the region is attached", LIMIT, interrupt, || {
            !client::regions(&hosts.agent(0)).unwrap_or_default().is_empty()
        })?;
        Ok(hosts)
    }

    fn agent(&self, side: usize) -> PathBuf {
        self.folder.join(format!("cn{side}.sock"))
    }

    fn are_registered(&self) -> bool {
        let ask = async {
            let memory = self.manager.memory_nodes().await.ok()?;
            let compute = self.manager.compute_nodes().await.ok()?;
            let ready = |health: &Health| *health == Health::Reachable;
            let memory = memory.iter().filter(|status| ready(&status.node.health)).count();
            Some(memory == 1 && compute.iter().filter(|node| ready(&node.health)).count() == 2)
        };
        self.runtime.block_on(async { tokio::time::timeout(ANSWER_MAX, ask).await.ok().flatten() })
            == Some(true)
    }

    fn path(&self, what: &str, number: u32) -> PathBuf {
        self.folder.join(format!("{what}{number}"))
    }

    /// Starts the machine on compute node `side` or, if `incoming`, a process that waits for the machine to arrive.
    pub fn machine(
        &mut self,
        side: usize,
        incoming: bool,
        interrupt: &Interrupt,
    ) -> Result<Emulator, MoveError> {
        self.started += 1;
        let number = self.started;
        let serial = self.path("serial", number);
        let size = |bytes: u64| bytes.to_string();
        let mut command = Command::new(program("cn-agent")?);
        command.args(["vm", "--region", REGION, "--local", &size(self.options.local), "--socket"]);
        command.arg(self.agent(side)).arg("--control").arg(self.path("control", number));
        if incoming {
            command.arg("--incoming").arg(format!("unix:{}", self.path("arrival", number).display()));
            command.arg("--ticket").arg(self.folder.join("ticket"));
        }
        let mebibytes = format!("{}M", self.options.memory >> 20);
        let backend = "memory-backend-file,id=ram,share=on,prealloc=off,mem-path=@memory@,size=@size@";
        command.args(["--", "qemu-system-x86_64", "-machine", "q35,memory-backend=ram", "-m", &mebibytes]);
        command.args(["-accel", "tcg", "-display", "none", "-nodefaults", "-no-user-config"]);
        command.args(["-object", backend, "-serial", &format!("file:{}", serial.display()), "-kernel"]);
        command.arg(&self.kernel);
        std::fs::write(&serial, "")?;
        Process::log_to(&mut command, &self.path("monitor", number))?;
        let process = self.lab.spawn(&format!("cn{side}"), command)?;
        let ready = if incoming { "arrival" } else { "control" };
        let place = self.path(ready, number);
        eventually("the machine's monitor starts", LIMIT, interrupt, || place.exists())?;
        Ok(Emulator { process, side, number, serial })
    }

    /// Starts the command that moves the machine from one process to the other.
    pub fn order(&self, from: &Emulator, to: &Emulator) -> Result<Child, MoveError> {
        let mut command = Command::new(program("cn-agent")?);
        let address = format!("unix:{}", self.path("arrival", to.number).display());
        command.args(["--json", "vm", "move", REGION, "--to", &address, "--ticket"]);
        command.arg(self.folder.join("ticket")).arg("--control").arg(self.path("control", from.number));
        command.args(["--manager", self.manager.url(), "--socket"]).arg(self.agent(from.side));
        Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// Waits for the end of the source's monitor process, after its machine has moved away.
    pub fn ended(&self, mut monitor: Emulator) -> Result<(), MoveError> {
        let status = monitor.process.wait(LIMIT)?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the monitor at the source ended with {status}").into())
        }
    }
}

/// Parses the JSON report of the command that has moved the machine.
pub fn report(output: Output) -> Result<Value, MoveError> {
    let failed = || format!("the move failed: {}", String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(failed().into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
