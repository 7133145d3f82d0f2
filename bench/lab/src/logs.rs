//! What daemons of a lab have logged, kept until the end of this process: an `ERROR` that no test expected is a fault
//! of the daemon, even where the test itself saw nothing of it.
//!
//! [`Process::log_to`](crate::Process::log_to) registers each log by an open descriptor, so that one is read to its end after its folder has gone.
//! A test that provokes an error says so with [`expect_error`]; the `main` of a test program ends with [`verdict`].

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The longest log that is looked through; of a longer one, the beginning.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// As many unexpected lines as a verdict prints.
const LINES_SHOWN_MAX: usize = 40;

static LOGS: Mutex<Vec<(PathBuf, File)>> = Mutex::new(Vec::new());
static EXPECTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps `log`, which a program writes and which was made at `path`.
pub(crate) fn register(path: &Path, log: File) {
    locked(&LOGS).push((path.to_path_buf(), log));
}

/// From here on, lines of errors that contain `part` are what a test of this process provokes.
pub fn expect_error(part: &str) {
    locked(&EXPECTED).push(part.to_string());
}

/// The lines at level `ERROR` that no test expected, each after the name of its log.
pub fn unexpected_errors() -> Vec<String> {
    let expected = locked(&EXPECTED);
    let mut found = Vec::new();
    for (path, log) in locked(&LOGS).iter() {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let unexpected =
            |line: &&str| is_error(line) && !expected.iter().any(|part| line.contains(part.as_str()));
        found.extend(content(log).lines().filter(unexpected).map(|line| format!("{name}: {line}")));
    }
    found
}

/// `result` of the tests, or a failure when a daemon has logged an error that none of them expected.
pub fn verdict(result: ExitCode) -> ExitCode {
    let lines = unexpected_errors();
    if lines.is_empty() {
        return result;
    }
    let shown = lines.iter().take(LINES_SHOWN_MAX).map(|line| format!("  {line}\n")).collect::<String>();
    // Without anybody to tell, the exit code says it.
    let _ = writeln!(
        io::stderr(),
        "\nDaemons have logged {} errors that no test expected:\n{shown}\
         A test that provokes an error names it with cxloe_lab::expect_error.",
        lines.len()
    );
    ExitCode::FAILURE
}

/// Whether a line of a log, as text (colours or not) or as JSON, is at level `ERROR`.
fn is_error(line: &str) -> bool {
    if line.starts_with('{') {
        return line.contains(r#""level":"ERROR""#);
    }
    let mut words = line.split_whitespace();
    let has_time = words.next().is_some_and(|time| time.contains('T') && time.contains(':'));
    has_time && words.next().is_some_and(|level| level.contains("ERROR"))
}

/// What is in the file, wherever its writers stand.
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
    fn only_what_nobody_expects_is_named() {
        let path = Path::new("/nowhere/daemon.log");
        let file = tempfile::tempfile().expect("a temporary file");
        file.write_all_at(b"T01: ERROR page 7 is given up\nT01: ERROR page 8 is lost\nT01: INFO well\n", 0)
            .expect("a temporary file can be written");
        register(path, file);
        expect_error("is given up");
        assert_eq!(unexpected_errors(), ["daemon.log: T01: ERROR page 8 is lost"]);
    }
}
