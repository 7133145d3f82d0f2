//! `main` of a test program.
//!
//! [`run`] runs a role if the program was started for one. Otherwise it makes sure that labs can be made, as root or in
//! a private user namespace, and runs the tests of each [`Subject`]. The namespace has to be made before any thread
//! starts; therefore these programs do not use Rust's own harness. A subject's tests may be run once more as the user
//! `nobody`. A test may need a process of its own, which nextest gives to each, and Cargo to none.
//!
//! A failing test prints its reason, the latest command, and the end of each log that its daemons wrote.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};

use cxloe_lab::{LabPrivilege, LogScope, become_private_user_namespace, verdict};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::command;
use crate::copies::{Role, as_nobody, play};
use crate::outcome::{Outcome, ensure};

/// Environment variable with the names of the tests to run; all are run if it is not set.
const ONLY: &str = "CXLOE_TEST_ONLY";
/// Number of lines of each log that a failed test prints.
const LOG_LINES: usize = 15;

pub struct Test {
    name: String,
    run: Box<dyn FnOnce() -> Outcome + Send>,
    /// Set if only `make test-all` runs the test.
    long: bool,
    /// Set if no other test may run in the same process.
    alone: bool,
}

impl Test {
    /// A test that passes when `run` returns `Ok`.
    pub fn new(name: impl Into<String>, run: impl FnOnce() -> Outcome + Send + 'static) -> Test {
        Test { name: name.into(), run: Box::new(run), long: false, alone: false }
    }

    /// Gives the test a process of its own; `why` is a note for readers of the source.
    #[must_use]
    pub fn alone(self, why: &str) -> Test {
        debug_assert!(!why.is_empty());
        Test { alone: true, ..self }
    }

    /// Restricts the test to `make test-all`; `why` is a note for readers of the source.
    #[must_use]
    pub fn long(self, why: &str) -> Test {
        debug_assert!(!why.is_empty());
        Test { long: true, ..self }
    }

    /// The test for the harness; `single` if this process runs no other.
    fn trial(self, subject: &str, single: bool) -> Trial {
        let name = if subject.is_empty() { self.name } else { format!("{subject}::{}", self.name) };
        let run: Box<dyn FnOnce() -> Outcome + Send> = if self.alone && !single {
            let name = name.clone();
            Box::new(move || passes_alone(&name))
        } else {
            self.run
        };
        Trial::test(name, move || watched(run)).with_ignored_flag(self.long)
    }
}

/// Tests by their paths, each named after its function: `tests![a, group::b]`.
#[macro_export]
macro_rules! tests {
    ($($test:path),* $(,)?) => { vec![$($crate::Test::new(stringify!($test).replace(' ', ""), $test)),*] };
}

/// A group of tests, whose names begin with the name of the group.
pub struct Subject {
    name: &'static str,
    tests: fn(LabPrivilege) -> Vec<Test>,
    nobody: Option<&'static [&'static str]>,
    /// Set if only `make test-all` runs the group's tests as `nobody`.
    nobody_is_long: bool,
    /// Names of the tests that `make test` runs as `nobody`; empty for all.
    nobody_runs: &'static [&'static str],
}

impl Subject {
    /// A subject with the tests that `tests` lists for the available rights.
    pub const fn new(name: &'static str, tests: fn(LabPrivilege) -> Vec<Test>) -> Subject {
        Subject { name, tests, nobody: None, nobody_is_long: false, nobody_runs: &[] }
    }

    /// If run as root, runs all of the subject's tests once more, in one test, as the user `nobody`; `others` names the
    /// programs that they start.
    #[must_use]
    pub const fn also_as_nobody(self, others: &'static [&'static str]) -> Subject {
        Subject { nobody: Some(others), ..self }
    }

    /// Restricts the run as `nobody` to `make test-all`; `why` is a note for readers of the source.
    #[must_use]
    pub const fn long(self, why: &str) -> Subject {
        debug_assert!(!why.is_empty());
        Subject { nobody_is_long: true, ..self }
    }

    /// Limits the run as `nobody` in `make test` to `names`: tests for which the user's rights make a difference.
    #[must_use]
    pub const fn only(self, names: &'static [&'static str]) -> Subject {
        Subject { nobody_runs: names, ..self }
    }

    fn trials(&self, standing: LabPrivilege, single: bool) -> Vec<Trial> {
        let mut tests = (self.tests)(standing);
        if let Ok(only) = std::env::var(ONLY) {
            tests.retain(|test| only.split(',').any(|name| name == test.name));
        }
        if let (LabPrivilege::Root, Some(others)) = (standing, self.nobody) {
            let (name, tests_of, only) = (self.name, self.tests, self.nobody_runs);
            let passes = move || {
                // As `nobody`, the copy makes its labs in a user namespace and lists its tests accordingly.
                let (all, tests) = (all_are_run(), tests_of(LabPrivilege::UserNamespace));
                let only = if all { &[] } else { only };
                let taken = tests.iter().filter(|test| all || !test.long);
                let expected = taken.filter(|t| only.is_empty() || only.contains(&t.name.as_str())).count();
                ordinary_user_passes(name, expected, only, others)
            };
            let test = Test::new("ordinary_user_passes_too", passes);
            tests.push(Test { long: self.nobody_is_long, ..test });
        }
        tests.into_iter().map(|test| test.trial(self.name, single)).collect()
    }
}

/// Runs the tests of these subjects, or the role that this process was started for.
pub fn run(subjects: &[Subject], roles: &[Role]) -> ExitCode {
    if let Some(code) = play(roles) {
        return code;
    }
    let standing = match become_private_user_namespace() {
        Ok(standing) => standing,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(3);
        }
    };
    let mut arguments = Arguments::from_args();
    let single = arguments.exact && arguments.filter.is_some();
    let trials = subjects.iter().flat_map(|subject| subject.trials(standing, single)).collect();
    // One test at a time by default, because daemons spin on their CPUs.
    arguments.test_threads.get_or_insert(1);
    verdict(libtest_mimic::run(&arguments, trials).exit_code())
}

/// Runs a test; adds the latest command and the daemons' logs to its failure.
fn watched(run: Box<dyn FnOnce() -> Outcome + Send>) -> Outcome {
    let scope = LogScope::begin();
    let reason = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => match scope.unexpected_errors() {
            errors if errors.is_empty() => return Ok(()),
            errors => format!("daemons have logged errors that it did not expect:\n{}", errors.join("\n")),
        },
        Ok(Err(failed)) => failed.message().unwrap_or("it failed").to_owned(),
        Err(panic) => panic_message(panic.as_ref()),
    };
    let command = command::latest().map(|latest| format!("\n--- the latest command\n{latest}"));
    Err(Failed::from(format!("{reason}{}{}", command.unwrap_or_default(), scope.ends(LOG_LINES))))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it panicked: {}", text.as_deref().unwrap_or("without a message"))
}

/// True if long tests are run as well, according to nextest or the command line.
pub fn all_are_run() -> bool {
    std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "all")
        || std::env::args().any(|argument| argument == "--include-ignored")
}

/// Runs the test with this name in a copy of the program, which runs no other.
fn passes_alone(name: &str) -> Outcome {
    let mut copy = Command::new(std::env::current_exe()?);
    let output = copy.args(["--exact", name, "--include-ignored"]).output()?;
    let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    ensure(output.status.success() && passed, command::output_text(&output))
}

fn ordinary_user_passes(subject: &str, tests: usize, only: &[&str], others: &[&str]) -> Outcome {
    ensure(tests > 0, "no test for an ordinary user")?;
    let folder = tempfile::tempdir()?;
    let mut command = as_nobody(folder.path(), &std::env::current_exe()?, others)?;
    if !subject.is_empty() {
        command.arg(format!("{subject}::"));
    }
    if all_are_run() {
        command.arg("--include-ignored");
    }
    if !only.is_empty() {
        command.env(ONLY, only.join(","));
    }
    let output = command.output()?;
    ensure(output.status.success(), command::output_text(&output))?;
    // The number of passed tests shows that the copy skipped none.
    let text = String::from_utf8_lossy(&output.stdout);
    ensure(text.contains(&format!("{tests} passed")), text)
}
