//! Named labs that run until they are ended: the daemons of a whole fabric on one machine, for manual experiments.
//!
//! [`NamedLab::up`] starts a keeper, the first process of a PID namespace, in mount and network namespaces of its own
//! (for an ordinary user in a user namespace too). The keeper makes the network of [`Lab::star`](crate::Lab::star) and
//! gives its namespaces names. Every daemon is a process in these namespaces, so when the keeper ends, by whatever
//! signal, the kernel ends the daemons and removes the namespaces. A folder with sockets, logs and settings remains, by
//! which the other commands find the lab; [`NamedLab::down`] removes the folder.
//!
//! | module | content |
//! |---|---|
//! | `settings` | settings of a lab, and names of its nodes |
//! | `keeper` | the process that holds the namespaces, and access to them |
//! | `daemons` | one daemon: its command, its start and its end |
//! | `up` | making a lab |
//! | `error` | errors and exit codes |

mod daemons;
mod error;
mod keeper;
mod settings;
mod up;

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

pub use error::NamedError;
pub use keeper::keep;
pub use settings::{LabSettings, NAMED_NODES_MAX};

use daemons::Daemons;
use keeper::{inside, keeper_pid};
use settings::{SWITCH, address_of, mac_of};

/// Maximum length of a lab's name. Socket paths contain the name, and Unix allows them 107 bytes.
const NAME_MAX: usize = 32;

/// Change of a node's daemon or cable, as users order it by a subcommand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Start the daemon, unless it runs.
    Start,
    /// End the daemon by SIGTERM, and wait for its end.
    Stop,
    /// End the daemon by SIGKILL, as a crash would.
    Kill,
    /// Connect the node's cable, by setting its port at the switch up.
    Plug,
    /// Disconnect the node's cable, by setting its port at the switch down.
    Unplug,
}

impl Change {
    fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::Plug => "plug",
            Self::Unplug => "unplug",
        }
    }
}

/// A lab identified by its name, running or not.
#[derive(Debug)]
pub struct NamedLab {
    name: String,
    /// Folder that contains the folders of all labs.
    root: PathBuf,
    folder: PathBuf,
    /// Command by which users reach labs, such as `cxloe-bench lab`, for messages.
    command: String,
}

impl NamedLab {
    /// Returns the lab `name` among those with folders in `root`. `command` is what users type for a lab
    /// command; messages contain it.
    ///
    /// # Errors
    /// Fails on an invalid name.
    pub fn new(name: &str, root: &Path, command: &str) -> Result<NamedLab, NamedError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
            return Err(NamedError::usage(format!(
                "`{name}` is no name for a lab: it has 1 to {NAME_MAX} characters, each a lower-case letter (a to z), a \
                 digit or -"
            )));
        }
        let (name, root) = (name.to_owned(), root.to_path_buf());
        Ok(NamedLab { folder: root.join(&name), name, root, command: command.into() })
    }

    /// Returns the beginning of a command on this lab, as a user would type it.
    fn typed(&self) -> String {
        let name = if self.name == "lab" { String::new() } else { format!(" --name {}", self.name) };
        format!("{}{name}", self.command)
    }

    fn not_up(&self) -> NamedError {
        NamedError::missing(format!("no lab is up by the name {}: {} up", self.name, self.typed()))
    }

    fn settings(&self) -> Result<LabSettings, NamedError> {
        keeper_pid(&self.folder).ok_or_else(|| self.not_up())?;
        LabSettings::load(&self.folder, &self.typed())
    }

    fn no_node(node: &str, there: &[String]) -> NamedError {
        NamedError::usage(format!("there is no node {node}; there are: {}", there.join(" ")))
    }

    /// Returns a human-readable text: a line for each daemon, running or not, and for each region.
    ///
    /// # Errors
    /// Fails when no lab is up.
    pub fn status(&self) -> Result<String, NamedError> {
        let settings = self.settings()?;
        let daemons = Daemons { settings: &settings, folder: &self.folder };
        let mut text = String::new();
        for node in settings.daemons() {
            let runs = match daemons.pid(&node) {
                Some(pid) => format!("runs (pid {pid} in the lab)"),
                None => format!("does not run: {} start {node}", self.typed()),
            };
            text += &format!("{node:<6} {:<18} {:<12} {runs}\n", mac_of(&node), address_of(&node));
        }
        match daemons.manager_lists(&["-R", "-u"]) {
            Some(regions) => {
                for region in regions.as_array().into_iter().flatten() {
                    let of = |key: &str| region[key].as_str().unwrap_or_default();
                    let (name, owner) = (of("region"), of("owner_name"));
                    text += &format!("region {name} of {owner}: {}, {}\n", of("size"), of("state"));
                }
            }
            None => text += &format!("the manager does not answer: {} start gmm\n", self.typed()),
        }
        Ok(text)
    }

    /// Returns all daemons and regions as one JSON object.
    ///
    /// # Errors
    /// Fails when no lab is up.
    pub fn status_json(&self) -> Result<String, NamedError> {
        let settings = self.settings()?;
        let daemons = Daemons { settings: &settings, folder: &self.folder };
        let row = |node: &String| {
            serde_json::json!({
                "node": node,
                "mac": mac_of(node),
                "address": address_of(node),
                "runs": daemons.pid(node).is_some(),
                "log": daemons.log(node),
            })
        };
        let nodes: Vec<_> = settings.daemons().iter().map(row).collect();
        let regions = daemons.manager_lists(&["-R"]);
        let all = serde_json::json!({
            "name": self.name, "folder": self.folder, "nodes": nodes, "regions": regions,
        });
        Ok(all.to_string())
    }

    /// Replaces this process by `command` on a node, in the caller's working directory; returns only on
    /// failure.
    pub fn exec(&self, node: &str, command: &[OsString]) -> NamedError {
        match self.command_on(node, command) {
            Ok(mut command) => NamedError::failed(format!("nsenter: {}", command.exec())),
            Err(error) => error,
        }
    }

    fn command_on(&self, node: &str, command: &[OsString]) -> Result<Command, NamedError> {
        let settings = self.settings()?;
        if command.is_empty() {
            return Err(NamedError::usage(format!(
                "exec needs a command: {} exec {node} -- COMMAND",
                self.typed()
            )));
        }
        let there: Vec<String> = std::iter::once(SWITCH.to_owned()).chain(settings.nodes()).collect();
        if !there.iter().any(|known| known == node) {
            return Err(Self::no_node(node, &there));
        }
        let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
        let mut entered = inside(&self.folder).ok_or_else(|| self.not_up())?;
        entered.args(["ip", "netns", "exec", node, "env"]);
        entered.args(Daemons { settings: &settings, folder: &self.folder }.environment(node));
        // Entering a mount namespace changes the working directory to the namespace's root, so the script
        // changes back to the caller's.
        entered.args(["sh", "-c", BACK]).arg(here).args(command);
        Ok(entered)
    }

    /// Replaces this process by `tail` on a daemon's log; returns only on failure.
    pub fn show_log(&self, node: &str, follow: bool) -> NamedError {
        let log = self.settings().and_then(|settings| {
            let there = settings.daemons();
            if there.iter().any(|known| known == node) {
                Ok(Daemons { settings: &settings, folder: &self.folder }.log(node))
            } else {
                Err(Self::no_node(node, &there))
            }
        });
        match log {
            Ok(log) => {
                let mut tail = Command::new("tail");
                tail.args(["-n", "+1"]).args(follow.then_some("-f")).arg(log);
                NamedError::failed(format!("tail: {}", tail.exec()))
            }
            Err(error) => error,
        }
    }

    /// Applies the change to each of the nodes, one after the other, and stops at the first failure.
    ///
    /// # Errors
    /// Fails when no lab is up, a node does not exist, or a change fails.
    pub fn change(&self, change: Change, nodes: &[String]) -> Result<(), NamedError> {
        if nodes.is_empty() {
            let (word, lab) = (change.word(), self.typed());
            return Err(NamedError::usage(format!("{word} needs the names of nodes: {lab} {word} mn0")));
        }
        let settings = self.settings()?;
        let daemons = Daemons { settings: &settings, folder: &self.folder };
        let cable = matches!(change, Change::Plug | Change::Unplug);
        let there = if cable { settings.nodes() } else { settings.daemons() };
        for node in nodes {
            if !there.contains(node) {
                return Err(Self::no_node(node, &there));
            }
            match change {
                Change::Start => {
                    daemons.start(node)?;
                    if node == "gmm" {
                        daemons.wait(
                            "the manager's answer",
                            node,
                            || daemons.manager_answers(),
                            || Ok(()),
                        )?;
                    }
                }
                Change::Stop => daemons.end("TERM", std::slice::from_ref(node)),
                Change::Kill => daemons.end("KILL", std::slice::from_ref(node)),
                Change::Plug | Change::Unplug => {
                    let state = if change == Change::Plug { "up" } else { "down" };
                    let mut ip = inside(&self.folder).ok_or_else(|| self.not_up())?;
                    ip.args(["ip", "-n", SWITCH, "link", "set", &format!("port-{node}"), state]);
                    daemons::succeed(&mut ip)?;
                }
            }
        }
        Ok(())
    }

    /// Ends the daemons and the keeper, and removes the lab's folder; returns true if the lab was up.
    pub fn down(&self) -> bool {
        let keeper = keeper_pid(&self.folder);
        if let Some(keeper) = keeper {
            if let (Ok(settings), true) =
                (LabSettings::load(&self.folder, &self.typed()), keeper::is_ready(&self.folder))
            {
                let daemons = Daemons { settings: &settings, folder: &self.folder };
                // Agents end first: their write-backs require the memory nodes.
                let mut all = settings.daemons();
                all.reverse();
                daemons.end("TERM", &all);
            }
            keeper::end(keeper);
            for _ in 0..daemons::END_POLLS {
                if keeper_pid(&self.folder).is_none() {
                    break;
                }
                thread::sleep(daemons::POLL);
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
        // The removal fails, as intended, while the folder still contains other labs.
        let _ = fs::remove_dir(&self.root);
        keeper.is_some()
    }
}

/// Script of the inner shell: changes to the caller's working directory, `$0`, and executes the command.
const BACK: &str = r#"cd "$0" 2>/dev/null || printf 'lab: there is no %s in the lab: the command runs in %s\n' "$0" "$PWD" >&2
exec "$@""#;
