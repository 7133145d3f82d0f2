//! What people who run a lab are given: the lab on one machine (`deploy/lab`), the settings of interfaces (`deploy/tune`)
//! and the Ansible role (`deploy/ansible`), each run for real in namespaces.
//!
//! Runs as root, or as an ordinary user inside a private user namespace, where the role is left out: it makes users. Every
//! wait is bounded.

mod ansible;
mod lab;
mod nic;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use cxloe_lab::{Standing, become_private_user_namespace};
use libtest_mimic::{Arguments, Failed, Trial};

type Outcome<T = ()> = Result<T, Failed>;

fn main() -> ExitCode {
    let standing = match become_private_user_namespace() {
        Ok(standing) => standing,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(3);
        }
    };
    macro_rules! trials {
        ($($module:ident::$name:ident),* $(,)?) => { vec![$(Trial::test(concat!(stringify!($module), "::", stringify!($name)), $module::$name)),*] };
    }
    let mut tests = trials![
        lab::it_comes_up_serves_and_leaves_nothing,
        lab::hints_name_the_lab,
        lab::what_cannot_be_is_said,
        lab::nothing_outlives_its_keeper,
        nic::an_interface_is_changed_and_put_back,
        nic::a_whole_nic_is_changed_and_put_back,
        nic::what_cannot_be_is_said,
    ];
    if standing == Standing::Root {
        tests.extend(trials![ansible::the_role_brings_up_a_lab_and_changes_nothing_twice]);
    }
    tests.extend(trials![ansible::the_role_is_clean]);
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    cxloe_lab::verdict(libtest_mimic::run(&arguments, tests).exit_code())
}

fn ensure(holds: bool, otherwise: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.into().into()) }
}

/// A file below `deploy`.
fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

/// What a command that has to succeed prints.
fn printed(command: &mut Command) -> Outcome<String> {
    let output = command.output()?;
    ensure(output.status.success(), format!("{command:?}: {}", said(&output)))?;
    Ok(String::from_utf8(output.stdout)?)
}

/// That a command ended with `code` and said each of `words`.
fn refused(output: &Output, code: i32, words: &[&str]) -> Outcome {
    let all = said(output);
    let named = words.iter().all(|word| all.contains(word));
    ensure(output.status.code() == Some(code) && named, format!("{code} and {words:?} expected: {all}"))
}

/// How a command ended, and all it printed.
fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}
