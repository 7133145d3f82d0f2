//! A network with daemons in it. Each daemon has a name and a log for each of its starts, and ends when the [`Rig`] is
//! dropped.

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

/// Time within which daemons may end by themselves when the rig is dropped.
const END_MAX: Duration = Duration::from_secs(2);

/// Options by which a daemon gets keys, or is permitted to have none.
const OF_KEYS: [&str; 4] = ["--node-key", "--key-file", "--insecure", "--config"];

/// Options to add if `options` configure no key: unsealed frames have to be requested explicitly.
pub fn plain(options: &[&str]) -> &'static [&'static str] {
    match options.iter().any(|option| OF_KEYS.contains(option)) {
        true => &[],
        false => &["--insecure"],
    }
}

/// Namespaces, a folder, and running daemons. Dropping the rig ends the daemons, agents first: their write-backs need
/// the memory nodes.
pub struct Rig {
    pub lab: Lab,
    running: RefCell<BTreeMap<String, Process>>,
    starts: RefCell<BTreeMap<String, usize>>,
    /// Folder of the daemons' stores, sockets and logs.
    pub dir: TempDir,
}

impl Rig {
    /// A rig on this network, without daemons.
    ///
    /// # Errors
    /// Returns an error when the network cannot be made.
    pub fn on(network: Builder) -> Outcome<Rig> {
        let (lab, dir) = (network.build()?, tempfile::tempdir()?);
        Ok(Rig { lab, running: RefCell::default(), starts: RefCell::default(), dir })
    }

    /// Path of a file in the rig's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// URL of the manager for daemons and command lines.
    pub fn manager_url(&self) -> String {
        format!("unix:{}", self.path("gmm.sock").display())
    }

    /// Redirects the output of `command`, with which the daemon `name` is to be started next, to a new log.
    ///
    /// # Errors
    /// Returns an error when the log cannot be made.
    pub fn logged(&self, name: &str, command: &mut Command) -> Outcome {
        *self.starts.borrow_mut().entry(name.into()).or_default() += 1;
        Ok(Process::log_to(command, &self.log(name))?)
    }

    /// Starts a daemon called `name` in a namespace.
    ///
    /// # Errors
    /// Returns an error when the daemon cannot be started.
    pub fn start(&self, name: &str, namespace: &str, mut command: Command) -> Outcome {
        self.logged(name, &mut command)?;
        self.adopt(name, self.lab.spawn(namespace, command)?);
        Ok(())
    }

    /// Makes a running process the daemon called `name`, which ends with the rig.
    pub fn adopt(&self, name: &str, process: Process) {
        self.running.borrow_mut().insert(name.into(), process);
    }

    /// Path of the log of a daemon's latest start.
    pub fn log(&self, name: &str) -> PathBuf {
        let starts = self.starts.borrow().get(name).copied().unwrap_or_default();
        self.path(&format!("{name}.{starts}.log"))
    }

    /// Content of the logs of all starts of a daemon, joined.
    pub fn logs(&self, name: &str) -> String {
        let starts = self.starts.borrow().get(name).copied().unwrap_or_default();
        let logs = (1..=starts).map(|start| self.path(&format!("{name}.{start}.log")));
        logs.filter_map(|log| fs::read_to_string(log).ok()).collect()
    }

    /// Waits until the latest start of a daemon has logged `words`.
    ///
    /// # Errors
    /// Returns an error when the daemon does not log them, or ends.
    pub fn says(&self, name: &str, words: &str) -> Outcome {
        let log = self.log(name);
        let output_text = || fs::read_to_string(&log).is_ok_and(|output_text| output_text.contains(words));
        let ended =
            || self.running.borrow_mut().get_mut(name).is_some_and(|d| !matches!(d.try_wait(), Ok(None)));
        eventually(&format!("{name} says {words:?}"), || output_text() || ended())?;
        ensure(output_text(), format!("{name} ended without saying {words:?}"))
    }

    /// Ends a daemon by `signal`, and waits for its end.
    ///
    /// # Errors
    /// Returns an error when the daemon does not run, or does not end.
    pub fn end(&self, name: &str, signal: Signal) -> Outcome<ExitStatus> {
        let process = self.running.borrow_mut().remove(name);
        let mut process = process.ok_or_else(|| format!("{name} does not run"))?;
        process.signal(signal)?;
        Ok(process.wait(LIMIT)?)
    }

    /// Kills a daemon with SIGKILL, so that it can neither write back nor deregister, and waits for its end.
    pub fn kill(&self, name: &str) -> Outcome {
        self.end(name, Signal::SIGKILL).map(drop)
    }

    /// Ends a daemon by SIGTERM; its exit status has to be 0.
    ///
    /// # Errors
    /// Returns the errors of [`Rig::end`], and an error when the daemon's exit status is not 0.
    pub fn stop(&self, name: &str) -> Outcome {
        let status = self.end(name, Signal::SIGTERM)?;
        ensure(status.success(), format!("{name} ended with {status}"))
    }

    /// Stops a daemon's process if `pause`, and resumes it otherwise.
    ///
    /// # Errors
    /// Returns an error when the daemon does not run.
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

    /// Process id of the daemon `name`.
    ///
    /// # Errors
    /// Returns an error when the daemon does not run.
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
            // A process that does not end in time is killed on drop.
            for mut process in group {
                let _ = process.wait(END_MAX);
            }
        }
    }
}
