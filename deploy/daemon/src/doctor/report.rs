//! All checks of one run: as a human-readable table, as JSON, and as an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use comfy_table::{CellAlignment, ContentArrangement};
use serde::Serialize;

use crate::doctor::{Check, Level};
use crate::table::new_table;

/// Width of a report, in characters.
const WIDTH: u16 = 110;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A table, and the advice below it.
    Table,
    /// One JSON object with all checks.
    Json,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the daemon, as in `mn-server`.
    pub daemon: &'static str,
    pub version: &'static str,
    pub level: Level,
    /// Checks, sorted by group.
    pub checks: Vec<Check>,
}

impl Report {
    /// Makes a report of `checks`, sorted by group.
    pub fn new(daemon: &'static str, version: &'static str, mut checks: Vec<Check>) -> Report {
        checks.sort_by_key(|check| check.group);
        let level = checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
        Report { daemon, version, level, checks }
    }

    fn count(&self, level: Level) -> usize {
        self.checks.iter().filter(|check| check.level == level).count()
    }

    /// Exit code: 0 all passed, 1 a warning, 2 a failure.
    pub fn exit(&self) -> u8 {
        match self.level {
            Level::Ok => 0,
            Level::Warn => 1,
            Level::Fail => 2,
        }
    }

    /// Human-readable report: the findings, then the advice, the worst first.
    pub fn text(&self) -> String {
        let mut table = new_table(["", "verdict", "check", "found"]);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        table.column_iter_mut().for_each(|column| {
            column.set_cell_alignment(CellAlignment::Left);
        });
        let mut last = None;
        for check in &self.checks {
            let group = if last == Some(check.group) { "" } else { check.group.name() };
            last = Some(check.group);
            table.add_row([group, check.level.name(), &check.name, &check.found]);
        }
        let mut text = format!("{table}\n");
        let mut advised: Vec<&Check> = self.checks.iter().filter(|check| check.advice.is_some()).collect();
        advised.sort_by_key(|check| std::cmp::Reverse(check.level));
        if !advised.is_empty() {
            text.push_str("\nWhat to do:\n");
        }
        for check in advised {
            let advice = check.advice.as_deref().unwrap_or_default().replace('\n', "\n        ");
            text.push_str(&format!("  {:<5} {}: {advice}\n", check.level.name(), check.name));
        }
        let (ok, warn, fail) = (self.count(Level::Ok), self.count(Level::Warn), self.count(Level::Fail));
        text.push_str(&format!(
            "\n{} {}: {ok} ok, {warn} warnings, {fail} failures\n",
            self.daemon, self.version
        ));
        text
    }

    pub fn print(&self, output: Output) -> ExitCode {
        let text = match output {
            Output::Table => self.text(),
            Output::Json => format!("{:#}\n", serde_json::json!(self)),
        };
        match io::stdout().lock().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::from(self.exit()),
            Err(error) => {
                // If standard error fails as well, the exit code still shows the failure.
                let _ = writeln!(io::stderr(), "{}: cannot write to standard output: {error}", self.daemon);
                ExitCode::from(2)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Group;

    fn report(checks: Vec<Check>) -> Report {
        Report::new("mn-server", "1.2.3", checks)
    }

    #[test]
    fn the_worst_check_decides() {
        let ok = || Check::ok(Group::Machine, "kernel", "6.1");
        let warn = || Check::warn(Group::Interface, "MTU", "1500", "ip link set x mtu 9000");
        let fail = || Check::fail(Group::Configuration, "file", "missing", "write it");
        assert_eq!((report(vec![]).exit(), report(vec![ok()]).exit()), (0, 0));
        assert_eq!((report(vec![ok(), warn()]).exit(), report(vec![warn(), fail(), ok()]).exit()), (1, 2));
    }

    #[test]
    fn people_read_groups_in_order_and_what_to_do_with_the_worst_first() {
        let text = report(vec![
            Check::warn(Group::Interface, "MTU", "1500", "ip link set x mtu 9000"),
            Check::ok(Group::Machine, "kernel", "6.1"),
            Check::ok(Group::Machine, "clock", "tsc"),
            Check::fail(Group::Peers, "manager", "unreachable", "start it"),
        ])
        .text();
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is missing in\n{text}"));
        assert!(at("kernel") < at("1500") && at("1500") < at("unreachable"));
        assert_eq!(text.matches("machine").count(), 1, "{text}");
        assert!(at("FAIL  manager: start it") < at("warn  MTU: ip link set x mtu 9000"), "{text}");
        assert!(text.ends_with("mn-server 1.2.3: 2 ok, 1 warnings, 1 failures\n"), "{text}");
    }

    #[test]
    fn programs_read_levels_groups_and_advice() {
        let made = report(vec![
            Check::ok(Group::Machine, "kernel", "6.1"),
            Check::warn(Group::Interface, "MTU", "1500", "raise it"),
        ]);
        let value = serde_json::json!(made);
        assert_eq!((&value["level"], &value["daemon"]), (&"warn".into(), &"mn-server".into()));
        assert_eq!(value["checks"][1]["advice"], "raise it");
        assert_eq!(
            (&value["checks"][0]["group"], &value["checks"][0]["level"]),
            (&"machine".into(), &"ok".into())
        );
        assert!(value["checks"][0].get("advice").is_none());
    }
}
