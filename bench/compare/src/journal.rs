//! Record of a comparison beside its figures: the commands that trials start, the output of tools, and the settings
//! that servers report. It is kept for the archive; a trial only adds to it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Commands, outputs and settings of all trials so far.
#[derive(Debug, Default)]
pub struct Journal(Mutex<JournalEntries>);

#[derive(Debug, Clone, Default)]
pub struct JournalEntries {
    /// Peer and number of the present trial.
    at: (String, u32),
    /// In the order in which they were started.
    pub commands: Vec<RunCommand>,
    pub outputs: Vec<KeptOutput>,
    /// Settings as the server of a peer reports them, by the peer's name: those of its last trial.
    pub settings: BTreeMap<String, String>,
}

/// Command that a trial has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCommand {
    pub peer: String,
    /// Number of the trial, from 1.
    pub trial: u32,
    /// Namespace in which the command runs.
    pub namespace: String,
    /// Variables that are set for the command.
    pub variables: Vec<(String, String)>,
    /// Program and arguments.
    pub words: Vec<String>,
}

/// All that a tool has printed in one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptOutput {
    pub peer: String,
    /// Number of the trial, from 1.
    pub trial: u32,
    /// Name of the tool.
    pub tool: String,
    pub text: String,
}

impl Journal {
    /// Begins a trial of `peer`, to which all entries up to the next call belong. Trials count from 1.
    pub fn begin(&self, peer: &str, trial: u32) {
        self.entries_mut().at = (peer.to_owned(), trial);
    }

    /// Adds a command that is about to be started in `namespace`.
    pub fn command(&self, namespace: &str, command: &Command) {
        let text = |word: &OsStr| word.to_string_lossy().into_owned();
        let variables = command.get_envs().filter_map(|(name, value)| Some((text(name), text(value?))));
        let words = std::iter::once(command.get_program()).chain(command.get_args()).map(text);
        let mut entries = self.entries_mut();
        let (peer, trial) = entries.at.clone();
        entries.commands.push(RunCommand {
            peer,
            trial,
            namespace: namespace.to_owned(),
            variables: variables.collect(),
            words: words.collect(),
        });
    }

    /// Adds what `tool` has printed.
    pub fn output(&self, tool: &str, text: &str) {
        let mut entries = self.entries_mut();
        let (peer, trial) = entries.at.clone();
        entries.outputs.push(KeptOutput { peer, trial, tool: tool.to_owned(), text: text.to_owned() });
    }

    /// Replaces the settings that the server of the present peer has reported.
    pub fn settings(&self, text: String) {
        let mut entries = self.entries_mut();
        let (peer, _) = entries.at.clone();
        entries.settings.insert(peer, text);
    }

    /// Copy of all entries.
    pub fn entries(&self) -> JournalEntries {
        self.entries_mut().clone()
    }

    fn entries_mut(&self) -> MutexGuard<'_, JournalEntries> {
        // An entry is added as a whole, so a panic elsewhere leaves nothing half-made.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_belong_to_the_trial_in_which_they_were_made() {
        let journal = Journal::default();
        journal.begin("redis", 1);
        let mut command = Command::new("/usr/bin/redis-server");
        command.args(["--save", ""]).env("A", "b").env_remove("C");
        journal.command("far", &command);
        journal.settings("save ".into());
        journal.begin("redis", 2);
        journal.settings("save \"\"".into());
        journal.begin("ucx-tcp", 2);
        journal.output("ucx_perftest", "1,2,3");
        let entries = journal.entries();
        let expected = RunCommand {
            peer: "redis".into(),
            trial: 1,
            namespace: "far".into(),
            variables: vec![("A".into(), "b".into())],
            words: ["/usr/bin/redis-server", "--save", ""].map(str::to_owned).to_vec(),
        };
        assert_eq!(entries.commands, [expected]);
        assert_eq!((entries.outputs[0].peer.as_str(), entries.outputs[0].trial), ("ucx-tcp", 2));
        assert_eq!(entries.settings.into_iter().collect::<Vec<_>>(), [("redis".into(), "save \"\"".into())]);
    }
}
