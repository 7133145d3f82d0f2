//! Results on standard output: tables on a terminal; JSON if asked for (`--json`, or `--cxl` in the form of
//! the CXL tools) or if standard output is no terminal. JSON has sizes and addresses as integers, or with
//! `-u` as human-readable text.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use serde::Serialize;
use serde_json::Value;

use super::humanize::for_people;
use super::{Failure, result_table};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputForm {
    /// Human-readable tables; numbers are formatted for reading.
    Table,
    Json,
    /// JSON in the layout of the CXL tools: an empty array has two lines; results of several kinds are an array with
    /// one object for each kind.
    Cxl,
    /// No form was requested, and standard output is no terminal: like [`OutputForm::Cxl`], for scripts that do not
    /// request that form yet.
    Unasked,
}

/// Form of this process's results, set once.
static FORM: OnceLock<OutputForm> = OnceLock::new();

/// Options that choose the form of results.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct FormArgs {
    /// JSON, where a terminal would get tables
    #[arg(long, global = true, conflicts_with = "cxl")]
    json: bool,
    /// JSON as `cxl` writes it: several kinds of things are an array with one object for each
    #[arg(long, global = true)]
    cxl: bool,
}

impl FormArgs {
    pub fn choose(self) {
        FORM.get_or_init(|| self.form(std::io::stdout().is_terminal()));
    }

    fn form(self, terminal: bool) -> OutputForm {
        match self {
            Self { json: true, .. } => OutputForm::Json,
            Self { cxl: true, .. } => OutputForm::Cxl,
            _ if terminal => OutputForm::Table,
            _ => OutputForm::Unasked,
        }
    }
}

pub fn form() -> OutputForm {
    *FORM.get().unwrap_or(&OutputForm::Unasked)
}

pub fn json_asked() -> bool {
    matches!(form(), OutputForm::Json | OutputForm::Cxl)
}

/// A result as JSON.
///
/// # Errors
/// When JSON cannot represent the result, as a map whose keys are not text.
pub fn value(item: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(item).map_err(|error| Failure::failed(format!("cannot show the answer: {error}")))
}

/// Prints a result. If `human` is set, or the form is a table, numbers are human-readable text. An empty list prints no
/// table: the caller reports on standard error that there is nothing.
///
/// # Errors
/// When standard output is closed.
pub fn print(value: Value, human: bool) -> Result<(), Failure> {
    let empty = value.as_array().is_some_and(Vec::is_empty);
    if form() == OutputForm::Table {
        return match result_table::table(value.clone()) {
            Some(table) => line(&table.to_string()),
            None if empty => Ok(()),
            None => line(&format!("{:#}", for_people(value))),
        };
    }
    let value = if human { for_people(value) } else { value };
    match form() {
        OutputForm::Cxl | OutputForm::Unasked if empty => line("[\n]"),
        _ => line(&format!("{value:#}")),
    }
}

/// Prints one list for each kind of result. As JSON, it is an object with one array for each kind, under the key of the
/// kind, also if there is only one kind. In the form of the CXL tools, a single kind is an array of its own.
///
/// # Errors
/// When standard output is closed.
pub fn print_kinds(kinds: Vec<(&'static str, Vec<Value>)>, human: bool) -> Result<(), Failure> {
    if form() == OutputForm::Json {
        return print(by_kind(kinds), human);
    }
    match (form(), <[_; 1]>::try_from(kinds)) {
        (_, Ok([(_, found)])) => print(Value::Array(found), human),
        (OutputForm::Table, Err(kinds)) => {
            let found: Vec<_> = kinds.into_iter().filter(|(_, found)| !found.is_empty()).collect();
            for (at, (key, found)) in found.into_iter().enumerate() {
                line(&format!("{}{}", if at > 0 { "\n" } else { "" }, key.replace('_', " ")))?;
                print(Value::Array(found), human)?;
            }
            Ok(())
        }
        (form, Err(kinds)) => {
            if form == OutputForm::Unasked {
                crate::to_stderr!(
                    "Warning: several kinds are written as `cxl list` writes them, which the next version does only with \
                     --cxl: give that, or --json for one object"
                );
            }
            let found = kinds.into_iter().filter(|(_, found)| !found.is_empty());
            print(found.map(|(key, found)| serde_json::json!({ key: found })).collect(), human)
        }
    }
}

fn by_kind(kinds: Vec<(&'static str, Vec<Value>)>) -> Value {
    Value::Object(kinds.into_iter().map(|(key, found)| (key.to_owned(), Value::Array(found))).collect())
}

/// Prints one line, with its line break.
///
/// # Errors
/// When standard output is closed.
pub fn line(text: &str) -> Result<(), Failure> {
    write(format!("{text}\n").as_bytes())
}

/// Writes bytes to standard output unchanged.
///
/// # Errors
/// When standard output is closed.
pub fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::failed(format!("cannot write to standard output: {error}")))
}

/// Error of the first [`to_stdout!`](crate::to_stdout) that failed.
static UNWRITTEN: OnceLock<std::io::ErrorKind> = OnceLock::new();

/// Implementation of [`to_stdout!`](crate::to_stdout).
pub fn print_line(line: std::fmt::Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        UNWRITTEN.get_or_init(|| error.kind());
    }
}

/// Implementation of [`to_stderr!`](crate::to_stderr).
pub fn print_error(line: std::fmt::Arguments<'_>) {
    // One write for the whole line, since other processes write to the terminal as well. There is no place to report an
    // error.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Checks at the end of a program that every [`to_stdout!`](crate::to_stdout) succeeded.
///
/// # Errors
/// Error of the first [`to_stdout!`](crate::to_stdout) that failed.
pub fn finish_output() -> Result<(), Failure> {
    match UNWRITTEN.get() {
        None => Ok(()),
        Some(kind) => Err(Failure::failed(format!("cannot write to standard output: {kind}"))),
    }
}

/// `println!` that does not panic when standard output cannot be written: `finish_output` reports that at the end.
#[macro_export]
macro_rules! to_stdout {
    ($($argument:tt)*) => { $crate::command_line::output::print_line(format_args!($($argument)*)) };
}

/// `eprintln!` that does not panic when standard error cannot be written.
#[macro_export]
macro_rules! to_stderr {
    ($($argument:tt)*) => { $crate::command_line::output::print_error(format_args!($($argument)*)) };
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn lists_have_one_shape_however_many_kinds_are_listed() {
        let one = vec![("regions", vec![Value::from(1)])];
        let two = vec![("regions", vec![]), ("memdevs", vec![Value::from(2)])];
        assert_eq!(by_kind(one), serde_json::json!({"regions": [1]}));
        assert_eq!(by_kind(two), serde_json::json!({"regions": [], "memdevs": [2]}));
    }

    #[test]
    fn terminals_get_tables_and_programs_json() {
        let form = |json, cxl, terminal| FormArgs { json, cxl }.form(terminal);
        assert_eq!(
            (form(false, false, true), form(false, false, false)),
            (OutputForm::Table, OutputForm::Unasked)
        );
        assert_eq!((form(true, false, true), form(false, true, true)), (OutputForm::Json, OutputForm::Cxl));
    }
}
