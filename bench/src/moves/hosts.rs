//! Two compute nodes and a memory node in namespaces of their own, and the machine that moves between them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use cxloe_fabric::model::Protection;
use cxloe_lab::{Interrupt, Process, program};
use serde_json::Value;

use super::{MoveError, MoveOptions};
use crate::eventually::eventually;
use crate::star::{LIMIT, Star};

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
    star: Star,
    options: MoveOptions,
    kernel: PathBuf,
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
        let mut star = Star::new(folder, 1, 2)?;
        let pool = (options.memory + (64 << 20)).next_multiple_of(2 << 20).to_string();
        star.start("gmm", &[])?;
        star.start("mn0", &["--link", "packet", "--pool-size", &pool])?;
        star.start("cn0", &["--link", "packet"])?;
        star.start("cn1", &["--link", "packet"])?;
        star.wait_reachable(interrupt)?;
        star.create(REGION, options.memory, Protection::None, interrupt)?;
        Ok(Hosts { star, options: options.clone(), kernel, started: 0 })
    }

    fn path(&self, what: &str, number: u32) -> PathBuf {
        self.star.folder.join(format!("{what}{number}"))
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
        command.arg(self.star.socket(side)).arg("--control").arg(self.path("control", number));
        if incoming {
            command.arg("--incoming").arg(format!("unix:{}", self.path("arrival", number).display()));
            command.arg("--ticket").arg(self.star.folder.join("ticket"));
        }
        let mebibytes = format!("{}M", self.options.memory >> 20);
        let backend = "memory-backend-file,id=ram,share=on,prealloc=off,mem-path=@memory@,size=@size@";
        command.args(["--", "qemu-system-x86_64", "-machine", "q35,memory-backend=ram", "-m", &mebibytes]);
        command.args(["-accel", "tcg", "-display", "none", "-nodefaults", "-no-user-config"]);
        command.args(["-object", backend, "-serial", &format!("file:{}", serial.display()), "-kernel"]);
        command.arg(&self.kernel);
        std::fs::write(&serial, "")?;
        Process::log_to(&mut command, &self.path("monitor", number))?;
        let process = self.star.lab.spawn(&format!("cn{side}"), command)?;
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
        command.arg(self.star.folder.join("ticket")).arg("--control").arg(self.path("control", from.number));
        command.args(["--manager", self.star.manager.url(), "--socket"]).arg(self.star.socket(from.side));
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
