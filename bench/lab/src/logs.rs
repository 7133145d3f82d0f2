//! Logs of a lab's daemons, kept until the end of this process: an `ERROR` that no test expected is a defect of the
//! daemon, even if the test itself passed.
//!
//! [`Process::log_to`](crate::Process::log_to) registers each log by an open descriptor, so that the log can be read
//! after its folder was removed. A test that provokes an error announces it with [`expect_error`]; the `main` of a test
//! program ends with [`verdict`]; a [`LogScope`] selects the logs of one test.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// Maximum number of bytes of a log that are searched, counted from the log's beginning.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of unexpected lines that [`verdict`] prints.
const LINES_SHOWN_MAX: usize = 40;

/// A daemon's log; `thread` is that of the test that started the daemon.
struct Log {
    path: PathBuf,
    file: File,
    thread: ThreadId,
}

static LOGS: Mutex<Vec<Log>> = Mutex::new(Vec::new());
/// Texts in error lines that tests provoke on purpose, each with the thread of its test.
static EXPECTED: Mutex<Vec<(String, ThreadId)>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the log file that a program writes, so that its errors count in the verdict of the calling
/// thread's test.
pub(crate) fn register(path: &Path, log: File) {
    locked(&LOGS).push(Log { path: path.to_path_buf(), file: log, thread: thread::current().id() });
}

/// Declares error lines that contain `part` as expected: in the logs of the calling thread's test, and in [`verdict`]
/// in the logs of all tests.
pub fn expect_error(part: &str) {
    locked(&EXPECTED).push((part.to_string(), thread::current().id()));
}

/// Lengths of the lists of logs and expected errors at the beginning of a test. The test owns the entries that its own
/// thread appends to the lists afterwards.
#[derive(Debug)]
pub struct LogScope {
    logs: usize,
    expected: usize,
}

impl LogScope {
    pub fn begin() -> LogScope {
        LogScope { logs: locked(&LOGS).len(), expected: locked(&EXPECTED).len() }
    }

    /// Returns the unexpected lines at level `ERROR` in the test's logs, each preceded by the name of its
    /// log.
    pub fn unexpected_errors(&self) -> Vec<String> {
        let thread = thread::current().id();
        let all = locked(&EXPECTED);
        let expected = all.iter().skip(self.expected).filter(|(_, by)| *by == thread).map(|(part, _)| part);
        let expected: Vec<&str> = expected.map(String::as_str).collect();
        let logs = locked(&LOGS);
        logs.iter()
            .skip(self.logs)
            .filter(|log| log.thread == thread)
            .flat_map(|l| l.errors(&expected))
            .collect()
    }

    /// Returns the last `lines` lines of each non-empty log of the test, below the name of the log.
    pub fn ends(&self, lines: usize) -> String {
        let thread = thread::current().id();
        let logs = locked(&LOGS);
        logs.iter().skip(self.logs).filter(|log| log.thread == thread).map(|log| log.end(lines)).collect()
    }
}

impl Log {
    fn name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }

    fn errors(&self, expected: &[&str]) -> Vec<String> {
        let (name, content) = (self.name(), content(&self.file));
        let unexpected = |line: &&str| is_error(line) && !expected.iter().any(|part| line.contains(part));
        content.lines().filter(unexpected).map(|line| format!("{name}: {line}")).collect()
    }

    fn end(&self, lines: usize) -> String {
        let content = content(&self.file);
        let all: Vec<&str> = content.lines().collect();
        let shown = &all[all.len().saturating_sub(lines)..];
        if shown.is_empty() {
            return String::new();
        }
        format!("\n--- {}: {} of {} lines\n{}", self.name(), shown.len(), all.len(), shown.join("\n"))
    }
}

/// Returns the unexpected lines at level `ERROR` in the logs of all tests, each preceded by the name of its
/// log.
pub fn unexpected_errors() -> Vec<String> {
    let expected = locked(&EXPECTED);
    let expected: Vec<&str> = expected.iter().map(|(part, _)| part.as_str()).collect();
    locked(&LOGS).iter().flat_map(|log| log.errors(&expected)).collect()
}

/// Returns the tests' `result`, or a failure if a daemon has logged an error that no test expected.
pub fn verdict(result: ExitCode) -> ExitCode {
    let lines = unexpected_errors();
    if lines.is_empty() {
        return result;
    }
    let shown = lines.iter().take(LINES_SHOWN_MAX).map(|line| format!("  {line}\n")).collect::<String>();
    // If standard error is closed, the exit code still reports the failure.
    let _ = writeln!(
        io::stderr(),
        "\nDaemons have logged {} errors that no test expected:\n{shown}\
         A test that provokes an error names it with cxloe_lab::expect_error.",
        lines.len()
    );
    ExitCode::FAILURE
}

/// Returns true for a log line at level `ERROR`, be it JSON or text with or without colours.
fn is_error(line: &str) -> bool {
    if line.starts_with('{') {
        return line.contains(r#""level":"ERROR""#);
    }
    let mut words = line.split_whitespace();
    let has_time = words.next().is_some_and(|time| time.contains('T') && time.contains(':'));
    has_time && words.next().is_some_and(|level| level.contains("ERROR"))
}

/// Reads a log without moving its file offset, which the daemon shares and appends at.
fn content(log: &File) -> String {
    let length = log.metadata().map_or(0, |m| m.len()).min(LOG_BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    let mut filled = 0;
    while let Ok(more @ 1..) = log.read_at(&mut bytes[filled..], filled as u64) {
        filled += more;
    }
    bytes.truncate(filled);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_from_other_lines_in_each_form() {
        assert!(is_error("2026-01-01T00:00:00.000000Z ERROR a page is given up"));
        assert!(is_error("\u{1b}[2m2026-01-01T00:00:00Z\u{1b}[0m \u{1b}[31mERROR\u{1b}[0m a page"));
        assert!(is_error(r#"{"timestamp":"2026-01-01T00:00:00Z","level":"ERROR","fields":{}}"#));
        assert!(!is_error("2026-01-01T00:00:00Z  WARN the message of a peer says ERROR"));
        assert!(!is_error(r#"{"timestamp":"2026-01-01T00:00:00Z","level":"INFO","fields":{"m":"ERROR"}}"#));
        assert!(!is_error("mn-server: ERROR"));
        assert!(!is_error(""));
    }

    #[test]
    fn a_scope_has_its_own_logs_and_expectations() {
        let written = |text: &[u8]| {
            let file = tempfile::tempfile().expect("a temporary file");
            file.write_all_at(text, 0).expect("a temporary file can be written");
            file
        };
        expect_error("of before");
        register(Path::new("/nowhere/earlier.log"), written(b"T01: ERROR earlier\n"));
        let scope = LogScope::begin();
        expect_error("provoked");
        let own = b"one\nT01: ERROR of before\nT01: ERROR provoked\n";
        register(Path::new("/nowhere/agent.1.log"), written(own));
        std::thread::spawn(move || register(Path::new("/nowhere/other.log"), written(b"T01: ERROR other\n")))
            .join()
            .expect("it does not panic");
        assert_eq!(scope.unexpected_errors(), ["agent.1.log: T01: ERROR of before"]);
        assert_eq!(scope.ends(1), "\n--- agent.1.log: 1 of 3 lines\nT01: ERROR provoked");
    }

    #[test]
    fn only_unexpected_errors_are_named() {
        let path = Path::new("/nowhere/daemon.log");
        let file = tempfile::tempfile().expect("a temporary file");
        file.write_all_at(b"T01: ERROR page 7 is given up\nT01: ERROR page 8 is lost\nT01: INFO well\n", 0)
            .expect("a temporary file can be written");
        register(path, file);
        expect_error("is given up");
        let found = unexpected_errors();
        let own: Vec<&String> = found.iter().filter(|line| line.starts_with("daemon.log")).collect();
        assert_eq!(own, ["daemon.log: T01: ERROR page 8 is lost"]);
    }
}
