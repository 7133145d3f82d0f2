//! Programs that run to their end, and what they have to say. The last of them are kept: a test that fails shows them.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use cxloe_lab::program;

use crate::outcome::{Outcome, ensure};

/// As much of a command's output as a failed test shows, in bytes.
const SHOWN_MAX: usize = 4000;

/// The latest command, how it ended, and what it said.
static LATEST: Mutex<Option<String>> = Mutex::new(None);

/// Runs a command to its end; it is what a failing test shows.
///
/// # Errors
/// When it cannot be started.
pub fn output(command: &mut Command) -> Outcome<Output> {
    let output =
        command.output().map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
    let all = said(&output);
    let cut = all.char_indices().nth(SHOWN_MAX).map_or(all.as_str(), |(at, _)| &all[..at]);
    *LATEST.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{command:?}\n{cut}"));
    Ok(output)
}

/// The latest command with its output, or nothing.
pub(crate) fn latest() -> Option<String> {
    LATEST.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Runs a program of this workspace; `agent` is the socket of the agent it speaks to.
///
/// # Errors
/// When it is not there or cannot be started.
pub fn run(name: &str, arguments: &[&str], agent: Option<&Path>) -> Outcome<Output> {
    let mut command = Command::new(program(name)?);
    command.args(arguments).stdin(Stdio::null());
    if let Some(socket) = agent {
        command.env("CXLOE_AGENT", socket);
    }
    output(&mut command)
}

/// What a command that has to succeed prints.
///
/// # Errors
/// When it does not.
pub fn printed(command: &mut Command) -> Outcome<String> {
    succeeded(output(command)?)
}

/// What a command that had to succeed has printed.
///
/// # Errors
/// When it did not.
pub fn succeeded(output: Output) -> Outcome<String> {
    ensure(output.status.success(), said(&output))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// That a command ended with `code` and each of `words` among what it said as errors.
///
/// # Errors
/// When it did otherwise.
pub fn failed_with(output: &Output, code: i32, words: &[&str]) -> Outcome {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(code), format!("not exit code {code}: {}", said(output)))?;
    words.iter().try_for_each(|word| ensure(errors.contains(word), format!("no {word:?} in: {errors}")))
}

/// That a command ended with `code` and said each of `words`.
///
/// # Errors
/// When it did otherwise.
pub fn answered(output: &Output, code: i32, words: &[&str]) -> Outcome {
    let all = said(output);
    let named = words.iter().all(|word| all.contains(word));
    ensure(output.status.code() == Some(code) && named, format!("{code} and {words:?} expected: {all}"))
}

/// How a command ended, and all it said.
pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}
