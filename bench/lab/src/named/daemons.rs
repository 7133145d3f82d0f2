//! One daemon of a lab: its command, start and end. The daemon runs in the lab's namespaces, independent of the command
//! that started it; its process id and logs are in the lab's folder.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::NamedError;
use super::keeper::inside;
use super::settings::{LabSettings, MANAGER_ADDRESS, SWITCH};

/// Interval between two checks of a daemon; the limits [`END_POLLS`] and [`START_POLLS`] count such intervals.
pub(super) const POLL: Duration = Duration::from_millis(50);
/// Number of polls within which a daemon has to end, 10 s in all.
pub(super) const END_POLLS: u32 = 200;
/// Number of polls within which a daemon has to be ready, 60 s in all.
pub(super) const START_POLLS: u32 = 1200;
/// Number of log lines shown for a daemon that does not become ready.
const LINES_SHOWN: usize = 15;

/// A lab's settings and folder, from which the functions below derive commands, sockets and process ids.
pub(super) struct Daemons<'a> {
    pub(super) settings: &'a LabSettings,
    pub(super) folder: &'a Path,
}

impl Daemons<'_> {
    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn program(&self, name: &str) -> String {
        self.settings.programs.join(name).display().to_string()
    }

    pub(super) fn log(&self, node: &str) -> PathBuf {
        self.folder.join(format!("{node}.log"))
    }

    pub(super) fn manager_url(&self) -> String {
        format!("unix:{}", self.file("gmm.sock"))
    }

    /// Returns the environment variables by which programs on a node find the node's daemon and the manager.
    pub(super) fn environment(&self, node: &str) -> Vec<String> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut all = vec![
            format!("PATH={}:{path}", self.settings.programs.display()),
            format!("CXLOE_MANAGER={}", self.manager_url()),
            format!("CXLOE_LAB_NODE={node}"),
        ];
        let socket = self.file(&format!("{node}.sock"));
        match node.get(..2) {
            Some("cn") => all.push(format!("CXLOE_AGENT={socket}")),
            Some("mn") => all.push(format!("CXLOE_MN={socket}")),
            _ => {}
        }
        all
    }

    /// Returns the program and the arguments of the daemon on `node`.
    fn command(&self, node: &str) -> Vec<String> {
        let (settings, data) = (self.settings, self.file(node));
        let (manager, socket) = (self.manager_url(), self.file(&format!("{node}.sock")));
        let config = self.file(&format!("{node}.toml"));
        // At its first start, a node registers through the manager's socket, where root is an administrator. Later
        // starts use the node's own identity, which its configuration file contains.
        let has_joined = Path::new(&config).exists();
        let usual = |program: &str| {
            let mut all = vec![self.program(program)];
            match has_joined {
                true => all.extend(["run", "--config", &config].map(str::to_owned)),
                false => all.extend(["join", &manager, "--run", "--config", &config].map(str::to_owned)),
            }
            let options = [
                ("--name", node),
                ("-i", node),
                ("--link", &settings.link),
                ("--wait", &settings.wait),
                ("--data-dir", &data),
                ("--socket", &socket),
            ];
            all.extend(
                options.iter().flat_map(|(option, value)| [(*option).to_owned(), (*value).to_owned()]),
            );
            all
        };
        match node.get(..2) {
            Some("mn") => {
                let mut all = usual("mn-server");
                all.extend(["--pool-size".to_owned(), settings.pool.clone()]);
                if settings.kept {
                    all.extend(["--pool".to_owned(), format!("file:{}", self.file(&format!("{node}.pool")))]);
                }
                all
            }
            Some("cn") => usual("cn-agent"),
            _ => {
                let listen = format!("{MANAGER_ADDRESS}:7440");
                let words = ["serve", "--listen", &listen, "--socket", &socket, "--data-dir", &data];
                std::iter::once(self.program("gmm")).chain(words.map(str::to_owned)).collect()
            }
        }
    }

    /// Returns the process id of a daemon in the lab's PID namespace; `None` if the daemon does not run.
    pub(super) fn pid(&self, node: &str) -> Option<u32> {
        let pid: u32 =
            fs::read_to_string(self.folder.join(format!("{node}.pid"))).ok()?.trim().parse().ok()?;
        self.signal("0", pid).then_some(pid)
    }

    fn signal(&self, signal: &str, pid: u32) -> bool {
        let Some(mut kill) = inside(self.folder) else { return false };
        // The process id counts in the lab's PID namespace, so `kill` runs inside that namespace.
        kill.args(["kill", &format!("-{signal}"), &pid.to_string()]);
        quiet(&mut kill)
    }

    /// Starts the daemon of a node, unless it runs already; returns once its process id is known.
    pub(super) fn start(&self, node: &str) -> Result<(), NamedError> {
        if self.pid(node).is_some() {
            return Ok(());
        }
        let command = self.command(node);
        let failed = |error: std::io::Error| NamedError::failed(format!("starting {node}: {error}"));
        fs::create_dir_all(self.folder.join(node)).map_err(failed)?;
        let mut log = File::options().append(true).create(true).open(self.log(node)).map_err(failed)?;
        writeln!(log, "--- {}", command.join(" ")).map_err(failed)?;
        let place = if node == "gmm" { SWITCH } else { node };
        let gone = || NamedError::missing("the lab has gone");
        let pid_file = self.folder.join(format!("{node}.pid"));
        // A process id of the daemon's last run would end the wait below at once; it is absent at the first
        // start.
        let _ = fs::remove_file(&pid_file);
        let mut start = inside(self.folder).ok_or_else(gone)?;
        // The daemon leads a session of its own, so that Ctrl-C in the terminal does not end it.
        start.args(["setsid", "--fork", "sh", "-c", r#"echo $$ >"$0"; exec "$@""#]);
        start.arg(&pid_file);
        start.args(["ip", "netns", "exec", place, "env", "NO_COLOR=1"]).args(command);
        start.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        start.status().map_err(failed)?;
        // The inner shell writes the process id shortly after its start.
        for _ in 0..END_POLLS {
            if fs::read_to_string(&pid_file).is_ok_and(|text| text.ends_with('\n')) {
                return Ok(());
            }
            thread::sleep(POLL / 10);
        }
        Err(NamedError::failed(format!("{node} does not start: see {}", self.log(node).display())))
    }

    /// Ends daemons by a signal and waits up to 10 s for all of them; then kills those that still run.
    pub(super) fn end(&self, signal: &str, nodes: &[String]) {
        let left: Vec<(&String, u32)> =
            nodes.iter().filter_map(|node| Some((node, self.pid(node)?))).collect();
        for (_, pid) in &left {
            self.signal(signal, *pid);
        }
        let mut polls = 0;
        for (node, pid) in left {
            while self.signal("0", pid) && polls < END_POLLS {
                polls += 1;
                thread::sleep(POLL);
            }
            self.signal("KILL", pid);
            let _ = fs::remove_file(self.folder.join(format!("{node}.pid")));
        }
    }

    /// Returns the output of `gmm list` with these options; `None` if the manager does not answer.
    pub(super) fn manager_lists(&self, options: &[&str]) -> Option<serde_json::Value> {
        let mut list = self.gmm();
        let output = list.arg("list").args(options).stderr(Stdio::null()).output().ok()?;
        serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
    }

    pub(super) fn gmm(&self) -> Command {
        let mut gmm = Command::new(self.program("gmm"));
        gmm.args(["--manager", &self.manager_url()]).stdin(Stdio::null());
        gmm
    }

    pub(super) fn manager_answers(&self) -> bool {
        quiet(self.gmm().arg("status"))
    }

    /// Returns true if the manager lists the node, which it does only while it has contact with the node.
    pub(super) fn manager_knows(&self, node: &str) -> bool {
        let kind = if node.starts_with("mn") { "-M" } else { "-C" };
        self.manager_lists(&[kind]).is_some_and(|list| list.to_string().contains(&format!("\"{node}\"")))
    }

    /// Returns true if `cn-agent read` on the node succeeds, so that the region is attached and its memory
    /// nodes answer.
    pub(super) fn can_read(&self, node: &str, region: &str) -> bool {
        let mut read = Command::new(self.program("cn-agent"));
        read.args(["read", "--socket", &self.file(&format!("{node}.sock")), region]).stdin(Stdio::null());
        quiet(&mut read)
    }

    /// Waits until `holds` returns true. Fails if the daemon of `node` ends, `checked` returns an error, or the time
    /// limit passes; `what` names the awaited event in the error.
    pub(super) fn wait(
        &self,
        what: &str,
        node: &str,
        holds: impl Fn() -> bool,
        checked: impl Fn() -> Result<(), NamedError>,
    ) -> Result<(), NamedError> {
        for _ in 0..START_POLLS {
            if holds() {
                return Ok(());
            }
            checked()?;
            if self.pid(node).is_none() {
                break;
            }
            thread::sleep(POLL);
        }
        let log = fs::read_to_string(self.log(node)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n");
        Err(NamedError::failed(format!("{what} does not happen; the end of {node}.log:\n{end}")))
    }
}

/// Returns true if a command succeeds; discards the command's output.
fn quiet(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Runs a command to its end; a failure becomes an error with the command's error output.
pub(super) fn succeed(command: &mut Command) -> Result<(), NamedError> {
    let output = command.output().map_err(|error| NamedError::failed(format!("{command:?}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(NamedError::failed(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
