//! The script `deploy/lab/lab`, which runs a fabric on one machine: its operation, its error messages, and the complete
//! removal of a lab.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use cxloe_system::command::{answered, printed};
use cxloe_system::{LIMIT, Outcome, ensure};

use super::deploy;

/// State of a lab: each node's daemon and whether it runs; names of all regions.
type Status = (Vec<(String, bool)>, Vec<String>);

/// A folder for labs, and commands that work on the labs in it.
struct Labs {
    folder: TempDir,
}

impl Drop for Labs {
    fn drop(&mut self) {
        let _ = self.lab(&["down"]);
    }
}

impl Labs {
    fn new() -> Outcome<Labs> {
        // Paths of sockets are limited to about a hundred bytes.
        Ok(Labs { folder: tempfile::Builder::new().prefix("labs").tempdir_in("/tmp")? })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(deploy("lab/lab"));
        command.args(arguments).env("CXLOE_LAB_DIR", self.path()).stdin(Stdio::null());
        // The script uses the program of this build, not another one in the source tree.
        if let Ok(bench) = program("cxloe-bench") {
            command.env("CXLOE_LAB_PROGRAM", bench);
        }
        command
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("all")
    }

    fn lab(&self, arguments: &[&str]) -> Outcome<Output> {
        Ok(self.command(arguments).output()?)
    }

    fn up(&self, nodes: &str) -> Outcome<String> {
        let folder = program("gmm")?;
        let bin = folder.parent().unwrap_or(Path::new("/")).display().to_string();
        printed(&mut self.command(&["up", "-m", nodes, "-c", nodes, "--bin", &bin, "--region", "4M"]))
    }

    fn on(&self, node: &str, command: &[&str]) -> Outcome<String> {
        printed(&mut self.command(&[&["exec", node, "--"], command].concat()))
    }

    fn status(&self) -> Outcome<Status> {
        let status: serde_json::Value =
            serde_json::from_str(&printed(&mut self.command(&["status", "--json"]))?)?;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let nodes = status["nodes"].as_array().ok_or("no nodes")?;
        let regions = status["regions"].as_array().ok_or("no regions")?;
        Ok((
            nodes.iter().map(|node| (text(&node["node"]), node["runs"] == true)).collect(),
            regions.iter().map(|region| text(&region["region"])).collect(),
        ))
    }

    /// Checks that no process and no file of a lab is left.
    fn nothing_is_left(&self) -> Outcome {
        let folder = self.path().display().to_string();
        let deadline = Instant::now() + LIMIT;
        loop {
            let left: Vec<String> = processes_with(&folder)?;
            if left.is_empty() {
                break;
            }
            ensure(Instant::now() < deadline, format!("still there: {left:?}"))?;
            thread::sleep(Duration::from_millis(20));
        }
        ensure(!self.path().exists(), "files are left")
    }
}

/// Command lines of the processes that contain `word`.
fn processes_with(word: &str) -> Outcome<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(word) {
            found.push(line);
        }
    }
    Ok(found)
}

pub fn it_comes_up_serves_and_leaves_nothing() -> Outcome {
    let labs = Labs::new()?;
    let interfaces = printed(Command::new("ip").args(["-br", "link"]))?;
    labs.up("2")?;
    let (nodes, regions) = labs.status()?;
    let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
    ensure(names == ["gmm", "mn0", "mn1", "cn0", "cn1"], format!("{names:?}"))?;
    ensure(nodes.iter().all(|(_, runs)| *runs), format!("{nodes:?}"))?;
    ensure(regions == ["scratch0", "scratch1"], format!("{regions:?}"))?;

    // Programs on a node find the node's agent and the manager by default; each node has its own interface.
    labs.on("cn0", &["cn-agent", "write", "scratch0", "--text", "hello, lab", "--flush"])?;
    let read = labs.on("cn0", &["cn-agent", "read", "scratch0"])?;
    ensure(read.contains("|hello, lab"), read)?;
    labs.on("cn1", &["gmm", "create-region", "--size", "8M", "--ways", "2", "--owner", "cn1", "wide"])?;
    ensure(labs.on("mn1", &["ip", "-br", "link"])?.contains("02:00:00:00:02:01"), "mn1 has its address")?;
    let ports = labs.on("switch", &["ip", "-br", "link", "show", "master", "br0"])?;
    ensure(ports.lines().count() == 4, ports)?;

    // A command on a node runs in its caller's working directory.
    let here = fs::canonicalize(labs.folder.path())?;
    let pwd =
        printed(labs.command(&["exec", "cn0", "--", "sh", "-c", "pwd; echo 1 >written"]).current_dir(&here))?;
    ensure(Path::new(pwd.trim()) == here, format!("{pwd} instead of {}", here.display()))?;
    ensure(here.join("written").exists(), "a file with a relative name is written there")?;

    // A second call changes nothing except that it starts daemons that do not run.
    labs.up("2")?;
    printed(&mut labs.command(&["kill", "mn1", "cn1"]))?;
    let stopped: Vec<String> =
        labs.status()?.0.into_iter().filter(|(_, runs)| !runs).map(|(name, _)| name).collect();
    ensure(stopped == ["mn1", "cn1"], format!("{stopped:?}"))?;
    printed(&mut labs.command(&["start", "cn1"]))?;
    let again = printed(&mut labs.command(&["log", "cn1"]))?;
    ensure(again.matches("--- ").count() == 2, again)?;
    printed(&mut labs.command(&["start", "mn1"]))?;
    ensure(labs.status()?.0.iter().all(|(_, runs)| *runs), "all run again")?;
    printed(&mut labs.command(&["unplug", "mn0"]))?;
    ensure(labs.on("switch", &["ip", "-br", "link", "show", "port-mn0"])?.contains("DOWN"), "unplugged")?;
    printed(&mut labs.command(&["plug", "mn0"]))?;
    ensure(
        labs.on("cn0", &["cn-agent", "read", "scratch0"])?.contains("|hello, lab"),
        "what was written is there",
    )?;

    printed(&mut labs.command(&["down"]))?;
    labs.nothing_is_left()?;
    ensure(
        printed(Command::new("ip").args(["-br", "link"]))? == interfaces,
        "the machine has other interfaces",
    )?;
    let once_more = printed(&mut labs.command(&["down"]))?;
    ensure(once_more.contains("No lab is up"), once_more)
}

/// Commands in hints of a lab with another name than the default refer to that lab.
pub fn hints_name_the_lab() -> Outcome {
    let labs = Labs::new()?;
    let bin = program("gmm")?.parent().unwrap_or(Path::new("/")).display().to_string();
    answered(&labs.lab(&["status", "--name", "second"])?, 3, &["lab --name second up"])?;
    let mut up =
        labs.command(&["up", "--name", "second", "-m", "1", "-c", "1", "--bin", &bin, "--region", "4M"]);
    let told = printed(&mut up)?;
    let hints: Vec<&str> = told.lines().filter(|line| line.contains("exec cn0")).collect();
    ensure(hints.len() == 2 && hints.iter().all(|hint| hint.contains(" --name second exec")), told.clone())?;
    for hint in &hints {
        let typed = hint.trim_start_matches("try").trim();
        printed(
            Command::new("sh")
                .args(["-c", typed])
                .env("CXLOE_LAB_DIR", labs.path())
                .env("CXLOE_LAB_PROGRAM", program("cxloe-bench")?),
        )?;
    }
    printed(&mut labs.command(&["kill", "mn0", "--name", "second"]))?;
    let status = printed(&mut labs.command(&["status", "--name", "second"]))?;
    ensure(status.contains("lab --name second start mn0"), status)?;
    answered(&labs.lab(&["exec", "cn0", "--name", "second"])?, 3, &["lab up"])?;
    printed(&mut labs.command(&["down", "--name", "second"]))?;
    labs.nothing_is_left()
}

pub fn what_cannot_be_is_said() -> Outcome {
    let labs = Labs::new()?;
    answered(&labs.lab(&["status"])?, 3, &["no lab is up", "lab up"])?;
    answered(&labs.lab(&["exec", "cn0", "--", "true"])?, 3, &["no lab is up"])?;
    // Messages suggest the command that the user has called: the script, or the program itself.
    let mut direct = Command::new(program("cxloe-bench")?);
    let direct = direct.env("CXLOE_LAB_DIR", labs.path()).env_remove("CXLOE_LAB_COMMAND");
    answered(&direct.args(["lab", "status"]).output()?, 3, &["by the name lab: cxloe-bench lab up"])?;
    answered(&labs.lab(&["status"])?, 3, &["deploy/lab/lab up"])?;
    answered(&labs.lab(&["status", "--name", "Second"])?, 2, &["`Second`", "lower-case"])?;
    answered(&labs.lab(&["up", "--nodes", "3"])?, 2, &["--nodes", "--help"])?;
    answered(&labs.lab(&["up", "-m", "many"])?, 2, &["many"])?;
    answered(&labs.lab(&["up", "--bin", "/nowhere"])?, 3, &["/nowhere", "make build"])?;
    answered(&labs.lab(&["swing"])?, 2, &["swing", "--help"])?;
    ensure(printed(&mut labs.command(&["--help"]))?.contains("Examples"), "help teaches")?;
    labs.up("1")?;
    answered(&labs.lab(&["up", "-m", "2"])?, 1, &["1 memory nodes", "lab down"])?;
    answered(&labs.lab(&["exec", "cn7", "--", "true"])?, 2, &["cn7", "cn0"])?;
    answered(&labs.lab(&["exec", "cn0"])?, 2, &["command"])?;
    answered(&labs.lab(&["kill", "mn1"])?, 2, &["mn1", "mn0"])?;
    ensure(labs.lab(&["exec", "cn0", "--", "sh", "-c", "exit 7"])?.status.code() == Some(7), "its own code")?;
    printed(&mut labs.command(&["down"]))?;

    // Ctrl-C interrupts the start of a lab.
    let bin = program("gmm")?.parent().unwrap_or(Path::new("/")).display().to_string();
    let log = labs.folder.path().join("up.log");
    let mut up = labs.command(&["up", "--bin", &bin]);
    let child = up.stdout(fs::File::create(&log)?).spawn()?;
    let deadline = Instant::now() + LIMIT;
    while !fs::read_to_string(&log)?.contains("network") {
        ensure(Instant::now() < deadline, "the network is not made")?;
        thread::sleep(Duration::from_millis(5));
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT)?;
    let ended = child.wait_with_output()?;
    ensure(ended.status.code() == Some(130), format!("{ended:?}"))?;
    labs.nothing_is_left()
}

/// The keeper (the process that holds the lab's namespaces) is killed: the kernel ends all processes of the lab, and
/// the remaining folder has no effect.
pub fn nothing_outlives_its_keeper() -> Outcome {
    let labs = Labs::new()?;
    labs.up("1")?;
    let keeper: i32 = fs::read_to_string(labs.path().join("lab/keeper"))?.trim().parse()?;
    kill(Pid::from_raw(keeper), Signal::SIGKILL)?;
    let deadline = Instant::now() + LIMIT;
    let folder = labs.path().display().to_string();
    while !processes_with(&folder)?.is_empty() {
        ensure(Instant::now() < deadline, "something outlives its keeper")?;
        thread::sleep(Duration::from_millis(20));
    }
    answered(&labs.lab(&["status"])?, 3, &["no lab is up"])?;
    labs.up("1")?;
    printed(&mut labs.command(&["down"]))?;
    labs.nothing_is_left()
}
