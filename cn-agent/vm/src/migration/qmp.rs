//! Connection to QEMU's machine protocol (QMP): commands with time limits, and the events of a migration.
//!
//! A thread reads QEMU's lines. While QEMU's main loop waits for a page of guest memory, it answers no
//! command. So each command has a time limit, and a later answer is dropped.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_member::socket::send_some;
use serde::Deserialize;
use serde_json::{Value, json};

/// Time limit of commands that QEMU answers at once.
pub const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Reason why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QmpError {
    /// QEMU has ended, or closed the connection.
    #[error("QEMU has ended")]
    Gone,
    #[error("QEMU has not answered `{0}` in time")]
    Silent(String),
    #[error("QEMU refused `{command}`: {reason}")]
    Refused {
        command: String,
        /// QEMU's description.
        reason: String,
    },
}

/// Status of a migration, as QEMU names it in its events.
pub type MigrationStatus = String;

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Event {
        event: String,
        #[serde(default)]
        data: Value,
    },
    Return {
        r#return: Value,
        id: u64,
    },
    Error {
        error: ErrorLine,
        id: u64,
    },
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct ErrorLine {
    desc: String,
}

type Answer = (u64, Result<Value, String>);

#[derive(Debug)]
pub struct Qmp {
    socket: UnixStream,
    answers: Receiver<Answer>,
    statuses: Receiver<MigrationStatus>,
    next_id: u64,
    /// Time limit of each command.
    pub(super) limit: Duration,
}

impl Qmp {
    /// Starts the protocol on `socket`, and a thread that reads QEMU's lines.
    pub fn begin(socket: UnixStream) -> Result<Qmp, QmpError> {
        let reading = socket.try_clone().map_err(|_| QmpError::Gone)?;
        let (answer, answers) = channel();
        let (status, statuses) = channel();
        let body = move || read(reading, &answer, &status);
        thread::Builder::new().name("qmp".into()).spawn(body).map_err(|_| QmpError::Gone)?;
        let mut qmp = Qmp { socket, answers, statuses, next_id: 0, limit: ANSWER_MAX };
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command, with the time limit of this connection.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        self.send(command, &arguments, None)
    }

    /// Passes a descriptor to QEMU; later commands refer to the descriptor as `name`.
    pub fn give(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.send("getfd", &json!({ "fdname": name }), Some(descriptor)).map(drop)
    }

    fn send(
        &mut self,
        command: &str,
        arguments: &Value,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Value, QmpError> {
        self.next_id += 1;
        let id = self.next_id;
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments, "id": id }));
        let sent = match descriptor {
            Some(descriptor) => send_some(self.socket.as_fd(), line.as_bytes(), &[descriptor], 0)
                .and_then(|first| self.socket.write_all(&line.as_bytes()[first..])),
            None => self.socket.write_all(line.as_bytes()),
        };
        sent.map_err(|_| QmpError::Gone)?;
        let until = Instant::now() + self.limit;
        loop {
            match self.answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((of, answer)) if of == id => {
                    return answer
                        .map_err(|reason| QmpError::Refused { command: command.to_owned(), reason });
                }
                // The late answer of a command that has timed out.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(QmpError::Silent(command.to_owned())),
                Err(RecvTimeoutError::Disconnected) => return Err(QmpError::Gone),
            }
        }
    }

    /// The next status of a migration; `None` if QEMU reports none within `limit`.
    ///
    /// # Errors
    /// [`QmpError::Gone`].
    pub fn next_status(&self, limit: Duration) -> Result<Option<MigrationStatus>, QmpError> {
        match self.statuses.recv_timeout(limit) {
            Ok(status) => Ok(Some(status)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(QmpError::Gone),
        }
    }

    /// Drops statuses of an earlier migration.
    pub fn forget_statuses(&self) {
        while self.statuses.try_recv().is_ok() {}
    }

    /// Asks QEMU whether the guest runs.
    pub fn is_running(&mut self) -> Result<bool, QmpError> {
        let status = self.execute("query-status", json!({}))?;
        Ok(status["running"].as_bool().unwrap_or(false))
    }

    /// Switches capabilities of migrations.
    pub fn set_capabilities(&mut self, capabilities: &[(&str, bool)]) -> Result<(), QmpError> {
        let list: Vec<Value> = capabilities
            .iter()
            .map(|(capability, state)| json!({ "capability": capability, "state": state }))
            .collect();
        self.execute("migrate-set-capabilities", json!({ "capabilities": list })).map(drop)
    }
}

/// Reads lines until the connection ends.
fn read(socket: UnixStream, answer: &Sender<Answer>, status: &Sender<MigrationStatus>) {
    for line in BufReader::new(socket).lines().map_while(io::Result::ok) {
        let heard = match serde_json::from_str(&line) {
            Ok(Line::Event { event, data }) if event == "MIGRATION" => {
                data["status"].as_str().is_none_or(|of| status.send(of.to_owned()).is_ok())
            }
            Ok(Line::Return { r#return, id }) => answer.send((id, Ok(r#return))).is_ok(),
            Ok(Line::Error { error, id }) => answer.send((id, Err(error.desc))).is_ok(),
            // Other lines are skipped: QEMU reports more than a move needs.
            Ok(Line::Event { .. } | Line::Other(_)) | Err(_) => true,
        };
        if !heard {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next command at QEMU's end, and its id.
    fn command(qemu: &mut BufReader<UnixStream>) -> (String, Value) {
        let mut line = String::new();
        qemu.read_line(&mut line).unwrap();
        let value: Value = serde_json::from_str(&line).unwrap();
        (value["execute"].as_str().unwrap().to_owned(), value["id"].clone())
    }

    #[test]
    fn answers_belong_to_commands_and_statuses_are_kept() {
        let (here, there) = UnixStream::pair().unwrap();
        let qemu = thread::spawn(move || {
            let mut said = there.try_clone().unwrap();
            let mut qemu = BufReader::new(there);
            writeln!(said, r#"{{"QMP": {{"version": {{}}, "capabilities": []}}}}"#).unwrap();
            let (name, id) = command(&mut qemu);
            assert_eq!(name, "qmp_capabilities");
            writeln!(said, r#"{{"return": {{}}, "id": {id}}}"#).unwrap();
            let (_, id) = command(&mut qemu);
            writeln!(said, r#"{{"event": "STOP"}}"#).unwrap();
            writeln!(said, r#"{{"event": "MIGRATION", "data": {{"status": "setup"}}}}"#).unwrap();
            writeln!(said, r#"{{"return": {{"running": true}}, "id": {id}}}"#).unwrap();
            let (_, id) = command(&mut qemu);
            writeln!(said, r#"{{"error": {{"class": "GenericError", "desc": "no"}}, "id": {id}}}"#).unwrap();
        });
        let mut qmp = Qmp::begin(here).unwrap();
        assert_eq!(qmp.is_running(), Ok(true));
        assert_eq!(qmp.next_status(ANSWER_MAX), Ok(Some("setup".to_owned())));
        let refused = qmp.execute("cont", json!({})).unwrap_err();
        assert_eq!(refused.to_string(), "QEMU refused `cont`: no");
        qemu.join().unwrap();
        assert_eq!(qmp.execute("cont", json!({})), Err(QmpError::Gone));
        assert_eq!(qmp.next_status(ANSWER_MAX), Err(QmpError::Gone));
    }
}
