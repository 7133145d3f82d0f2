//! A network and daemons in it: each has a name, a log for each of its starts, and ends with the rig.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use cxloe_lab::{Builder, Lab, Process};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::outcome::{LIMIT, Outcome, ensure, eventually};

/// How long daemons may take to end with their rig.
const END_MAX: Duration = Duration::from_secs(2);

/// Options that say something of the keys of a node.
const OF_KEYS: [&str; 4] = ["--node-key", "--key-file", "--insecure", "--config"];

/// What else a node is told that `options` give no key: a daemon has to be asked for frames that are not sealed.
pub fn plain(options: &[&str]) -> &'static [&'static str] {
    match options.iter().any(|option| OF_KEYS.contains(option)) {
        true => &[],
        false => &["--insecure"],
    }
}

/// Namespaces, a folder, and running daemons. Dropping it ends them, agents first: what they write back needs the memory
/// nodes.
pub struct Rig {
    /// The network.
    pub lab: Lab,
    running: RefCell<BTreeMap<String, Process>>,
    starts: RefCell<BTreeMap<String, usize>>,
    /// Stores, sockets, logs.
    pub dir: TempDir,
}

impl Rig {
    /// This network, and no daemon yet.
    ///
    /// # Errors
    /// When the network cannot be made.
    pub fn on(network: Builder) -> Outcome<Rig> {
        let (lab, dir) = (network.build()?, tempfile::tempdir()?);
        Ok(Rig { lab, running: RefCell::default(), starts: RefCell::default(), dir })
    }

    /// A file in the rig's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where daemons and command lines find the manager.
    pub fn manager_url(&self) -> String {
        format!("unix:{}", self.path("gmm.sock").display())
    }

    /// The command that becomes the next start of a daemon: what it says goes to its log.
    ///
    /// # Errors
    /// When the log cannot be made.
    pub fn logged(&self, name: &str, command: &mut Command) -> Outcome {
        *self.starts.borrow_mut().entry(name.into()).or_default() += 1;
        Ok(Process::log_to(command, &self.log(name))?)
    }

    /// Starts a daemon called `name` in a namespace.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, name: &str, namespace: &str, mut command: Command) -> Outcome {
        self.logged(name, &mut command)?;
        self.adopt(name, self.lab.spawn(namespace, command)?);
        Ok(())
    }

    /// Has a process as the daemon called `name`.
    pub fn adopt(&self, name: &str, process: Process) {
        self.running.borrow_mut().insert(name.into(), process);
    }

    /// The log of the latest start of a daemon.
    pub fn log(&self, name: &str) -> PathBuf {
        let starts = self.starts.borrow().get(name).copied().unwrap_or_default();
        self.path(&format!("{name}.{starts}.log"))
    }

    /// What all starts of a daemon have logged.
    pub fn logs(&self, name: &str) -> String {
        let starts = self.starts.borrow().get(name).copied().unwrap_or_default();
        let logs = (1..=starts).map(|start| self.path(&format!("{name}.{start}.log")));
        logs.filter_map(|log| fs::read_to_string(log).ok()).collect()
    }

    /// Waits until the latest start of a daemon has said `words`.
    ///
    /// # Errors
    /// When it does not, or ends.
    pub fn says(&self, name: &str, words: &str) -> Outcome {
        let log = self.log(name);
        let said = || fs::read_to_string(&log).is_ok_and(|said| said.contains(words));
        let ended =
            || self.running.borrow_mut().get_mut(name).is_some_and(|d| !matches!(d.try_wait(), Ok(None)));
        eventually(&format!("{name} says {words:?}"), || said() || ended())?;
        ensure(said(), format!("{name} ended without saying {words:?}"))
    }

    /// Ends a daemon by `signal`, and waits for its end.
    ///
    /// # Errors
    /// When it does not run, or does not end.
    pub fn end(&self, name: &str, signal: Signal) -> Outcome<ExitStatus> {
        let process = self.running.borrow_mut().remove(name);
        let mut process = process.ok_or_else(|| format!("{name} does not run"))?;
        process.signal(signal)?;
        Ok(process.wait(LIMIT)?)
    }

    /// Ends a daemon by SIGKILL.
    ///
    /// # Errors
    /// As [`Rig::end`].
    pub fn kill(&self, name: &str) -> Outcome {
        self.end(name, Signal::SIGKILL).map(drop)
    }

    /// Ends a daemon by SIGTERM; it has to end well.
    ///
    /// # Errors
    /// As [`Rig::end`], or when it ends with an error.
    pub fn stop(&self, name: &str) -> Outcome {
        let status = self.end(name, Signal::SIGTERM)?;
        ensure(status.success(), format!("{name} ended with {status}"))
    }

    /// Stops a daemon without its knowing, or lets it go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self, name: &str, pause: bool) -> Outcome {
        let running = self.running.borrow();
        let process = running.get(name).ok_or_else(|| format!("{name} does not run"))?;
        if pause {
            process.pause()?
        } else {
            process.resume()?
        }
        Ok(())
    }

    /// The process id of a daemon.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self, name: &str) -> Outcome<u32> {
        Ok(self.running.borrow().get(name).ok_or_else(|| format!("{name} does not run"))?.id())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let running = std::mem::take(self.running.get_mut());
        let (agents, others): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|(name, _)| name == "agent" || name.starts_with("cn"));
        for group in [agents, others] {
            let group: Vec<Process> = group.into_iter().map(|(_, process)| process).collect();
            for process in &group {
                let _ = process.signal(Signal::SIGTERM);
            }
            // What does not end in time is killed when it is dropped.
            for mut process in group {
                let _ = process.wait(END_MAX);
            }
        }
    }
}
