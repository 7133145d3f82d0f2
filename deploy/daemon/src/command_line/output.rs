//! Results on standard output: tables on a terminal; JSON where they are asked for as such (`--json`, or `--cxl` as the CXL
//! tools write it), and where standard output is no terminal. JSON has sizes and addresses as integers, or with `-u` as
//! people read them.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;

use super::{Failure, shown};
use cxloe_fabric::model::human_bytes;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As tables.
    Table,
    /// As JSON.
    Json,
    /// As JSON as the CXL tools write it: an empty array has two lines, several kinds are an array of one object for each.
    Cxl,
    /// Nothing was asked for, and nobody reads along: as [`Form::Cxl`], until programs have had time to ask for it.
    Unasked,
}

/// The form of this run's results.
static FORM: OnceLock<Form> = OnceLock::new();

/// Which form is asked for.
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
    /// Has all results printed so.
    pub fn choose(self) {
        FORM.get_or_init(|| self.form(std::io::stdout().is_terminal()));
    }

    fn form(self, terminal: bool) -> Form {
        match self {
            Self { json: true, .. } => Form::Json,
            Self { cxl: true, .. } => Form::Cxl,
            _ if terminal => Form::Table,
            _ => Form::Unasked,
        }
    }
}

/// How results are printed.
pub fn form() -> Form {
    *FORM.get().unwrap_or(&Form::Unasked)
}

/// Fields that are numbers of bytes.
const SIZES: [&str; 17] = [
    "size",
    "bytes",
    "growing",
    "capacity",
    "reserved",
    "quota",
    "ram_size",
    "pool_bytes",
    "extent_bytes",
    "free_bytes",
    "used_bytes",
    "reserved_bytes",
    "draining_bytes",
    "rx_bytes",
    "tx_bytes",
    "window",
    "beyond_window",
];
/// Fields that are addresses or identities best read in hexadecimal.
const HEXADECIMAL: [&str; 8] =
    ["resource", "serial", "cmem_base", "cmem_next", "hpa", "offset", "incarnation", "aer"];
/// What the names of fields end with that are times in nanoseconds.
const NANOSECONDS: &str = "_ns";
/// Fields that are moments: milliseconds since the Unix epoch.
const MOMENTS: [&str; 2] = ["time_ms", "created_ms"];
/// The last moment that has four digits for the year, which is what RFC 3339 can write.
const MOMENT_MAX_MS: u64 = 253_402_300_799_999;

/// Turns the numbers of a result into text for people, wherever they are in it.
fn humanize(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(humanize),
        Value::Object(fields) => {
            for (key, field) in fields {
                match field.as_u64().and_then(|number| text(key, number)) {
                    Some(text) => *field = text.into(),
                    None => humanize(field),
                }
            }
        }
        _ => {}
    }
}

/// A number as people read it; `None`: as it is.
fn text(key: &str, number: u64) -> Option<String> {
    if SIZES.contains(&key) {
        Some(human_bytes(number))
    } else if HEXADECIMAL.contains(&key) {
        Some(format!("{number:#x}"))
    } else if MOMENTS.contains(&key) {
        let moment = UNIX_EPOCH + Duration::from_millis(number.min(MOMENT_MAX_MS));
        Some(humantime::format_rfc3339_millis(moment).to_string())
    } else {
        key.ends_with(NANOSECONDS).then(|| format!("{:.1} us", number as f64 / 1e3))
    }
}

/// A result with its numbers as people read them.
pub fn for_people(mut value: Value) -> Value {
    humanize(&mut value);
    value
}

/// A result as JSON.
///
/// # Errors
/// When it has no form there, as a map whose keys are not text.
pub fn value(item: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(item).map_err(|error| Failure::failed(format!("cannot show the answer: {error}")))
}

/// Prints a result; `human`: with its numbers as people read them, as in tables anyway. Nothing is no table at all: whoever
/// lists says on standard error that there is nothing.
///
/// # Errors
/// When standard output is closed.
pub fn print(value: Value, human: bool) -> Result<(), Failure> {
    let empty = value.as_array().is_some_and(Vec::is_empty);
    if form() == Form::Table {
        return match shown::table(value.clone()) {
            Some(table) => line(&table.to_string()),
            None if empty => Ok(()),
            None => line(&format!("{:#}", for_people(value))),
        };
    }
    let value = if human { for_people(value) } else { value };
    match form() {
        Form::Cxl | Form::Unasked if empty => line("[\n]"),
        _ => line(&format!("{value:#}")),
    }
}

/// Prints several kinds of things, each with its key.
///
/// # Errors
/// When standard output is closed.
pub fn print_kinds(kinds: Vec<(&'static str, Vec<Value>)>, human: bool) -> Result<(), Failure> {
    match (form(), <[_; 1]>::try_from(kinds)) {
        (_, Ok([(_, found)])) => print(Value::Array(found), human),
        (Form::Table, Err(kinds)) => {
            let found: Vec<_> = kinds.into_iter().filter(|(_, found)| !found.is_empty()).collect();
            for (at, (key, found)) in found.into_iter().enumerate() {
                line(&format!("{}{}", if at > 0 { "\n" } else { "" }, key.replace('_', " ")))?;
                print(Value::Array(found), human)?;
            }
            Ok(())
        }
        (Form::Json, Err(kinds)) => {
            let all = kinds.into_iter().map(|(key, found)| (key.to_owned(), Value::Array(found)));
            print(Value::Object(all.collect()), human)
        }
        (form, Err(kinds)) => {
            if form == Form::Unasked {
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

/// Prints one line.
///
/// # Errors
/// When standard output is closed.
pub fn line(text: &str) -> Result<(), Failure> {
    write(format!("{text}\n").as_bytes())
}

/// Writes bytes as they are.
///
/// # Errors
/// When standard output is closed.
pub fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::failed(format!("cannot write to standard output: {error}")))
}

/// The first error of standard output that [`to_stdout!`](crate::to_stdout) met.
static UNWRITTEN: OnceLock<std::io::ErrorKind> = OnceLock::new();

/// What is behind [`to_stdout!`](crate::to_stdout).
pub fn say(line: std::fmt::Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        UNWRITTEN.get_or_init(|| error.kind());
    }
}

/// What is behind [`to_stderr!`](crate::to_stderr).
pub fn complain(line: std::fmt::Arguments<'_>) {
    // In one piece, for others write there as well. If it fails, there is nobody left to tell.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Whether all that was said with [`to_stdout!`](crate::to_stdout) was written: for the end of a program.
///
/// # Errors
/// When something was not.
pub fn all_said() -> Result<(), Failure> {
    match UNWRITTEN.get() {
        None => Ok(()),
        Some(kind) => Err(Failure::failed(format!("cannot write to standard output: {kind}"))),
    }
}

/// `println!` that does not end the process when standard output cannot be written:
/// `all_said` tells at the end.
#[macro_export]
macro_rules! to_stdout {
    ($($argument:tt)*) => { $crate::command_line::output::say(format_args!($($argument)*)) };
}

/// `eprintln!` that does not end the process when standard error cannot be written.
#[macro_export]
macro_rules! to_stderr {
    ($($argument:tt)*) => { $crate::command_line::output::complain(format_args!($($argument)*)) };
}

/// Prints what `shell` needs to complete the arguments of `command`.
///
/// # Errors
/// When standard output is closed.
pub fn completions(shell: clap_complete::Shell, mut command: clap::Command) -> Result<(), Failure> {
    let (name, mut text) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(shell, &mut command, name, &mut text);
    write(&text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn terminals_get_tables_and_programs_json() {
        let form = |json, cxl, terminal| FormArgs { json, cxl }.form(terminal);
        assert_eq!((form(false, false, true), form(false, false, false)), (Form::Table, Form::Unasked));
        assert_eq!((form(true, false, true), form(false, true, true)), (Form::Json, Form::Cxl));
    }

    #[test]
    fn numbers_are_turned_where_they_mean_bytes_addresses_or_times() {
        let mut value = json!([
            {"size": 536_870_912_u64, "ways": 1, "legs": [{"cmem_base": 2_097_152, "bytes": 4096}]},
            {"hpa": 1_u64 << 40, "size": 4096, "streams": 4, "rtt_ns": 12_340},
            {"time_ms": 86_400_001, "created_ms": u64::MAX, "serial": 255, "quota": null},
        ]);
        humanize(&mut value);
        let expected = json!([
            {"size": "512.00 MiB (536.87 MB)", "ways": 1,
             "legs": [{"cmem_base": "0x200000", "bytes": "4.00 KiB (4.10 KB)"}]},
            {"hpa": "0x10000000000", "size": "4.00 KiB (4.10 KB)", "streams": 4, "rtt_ns": "12.3 us"},
            {"time_ms": "1970-01-02T00:00:00.001Z", "created_ms": "9999-12-31T23:59:59.999Z", "serial": "0xff",
             "quota": null},
        ]);
        assert_eq!(value, expected);
    }
}
