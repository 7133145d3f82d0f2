//! Programs that run to their end, and their output. The latest command is recorded, so that a failing test prints it.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use cxloe_lab::program;

use crate::outcome::{Outcome, ensure};

/// Maximum number of characters of a command's output that a failed test prints.
const SHOWN_MAX: usize = 4000;

/// The latest command, its exit status, and its output.
static LATEST: Mutex<Option<String>> = Mutex::new(None);

/// Runs a command to its end; a failing test prints the latest command.
///
/// # Errors
/// Returns an error when the command cannot be started.
pub fn output(command: &mut Command) -> Outcome<Output> {
    let output =
        command.output().map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
    let all = output_text(&output);
    let cut = all.char_indices().nth(SHOWN_MAX).map_or(all.as_str(), |(at, _)| &all[..at]);
    *LATEST.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{command:?}\n{cut}"));
    Ok(output)
}

/// Returns the latest command with its output; `None` if none has run since the last call.
pub(crate) fn latest() -> Option<String> {
    LATEST.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Runs a program of this workspace; `agent` is the socket of the agent that the program uses.
///
/// # Errors
/// Returns an error when the program is missing or cannot be started.
pub fn run(name: &str, arguments: &[&str], agent: Option<&Path>) -> Outcome<Output> {
    let mut command = Command::new(program(name)?);
    command.args(arguments).stdin(Stdio::null());
    if let Some(socket) = agent {
        command.env("CXLOE_AGENT", socket);
    }
    output(&mut command)
}

/// Runs a command that has to succeed; returns its standard output.
///
/// # Errors
/// Returns an error when the command fails.
pub fn printed(command: &mut Command) -> Outcome<String> {
    succeeded(output(command)?)
}

/// Standard output of a command that had to succeed.
///
/// # Errors
/// Returns an error when the command failed.
pub fn succeeded(output: Output) -> Outcome<String> {
    ensure(output.status.success(), output_text(&output))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Checks that a command ended with `code` and printed each of `words` on standard error.
pub fn failed_with(output: &Output, code: i32, words: &[&str]) -> Outcome {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(code), format!("not exit code {code}: {}", output_text(output)))?;
    words.iter().try_for_each(|word| ensure(errors.contains(word), format!("no {word:?} in: {errors}")))
}

/// Checks that a command ended with `code` and that each of `words` is in its output.
pub fn answered(output: &Output, code: i32, words: &[&str]) -> Outcome {
    let all = output_text(output);
    let named = words.iter().all(|word| all.contains(word));
    ensure(output.status.code() == Some(code) && named, format!("{code} and {words:?} expected: {all}"))
}

/// Exit status of a command, and all its output, for error messages.
pub fn output_text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}
