//! `cxloe-bench pattern` as its user runs it: the real program in a lab of its own with small options, as root and as an
//! ordinary user, to the end and interrupted. All patterns over all ways are measured once, and everything that came out
//! is looked at: counts, checked data, JSON, CSV, histograms, and the page in a real browser. Nothing here asks how fast
//! anything was.

#[path = "../common/browser.rs"]
mod browser;
#[path = "../common/mod.rs"]
mod common;
mod page;
mod results;
mod run;

use std::process::ExitCode;

use common::Outcome;
use cxloe_lab::{Standing, become_private_user_namespace};
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let standing = match become_private_user_namespace() {
        Ok(standing) => standing,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(3);
        }
    };
    let standing = *run::STANDING.get_or_init(|| standing);
    let mut tests = vec![
        Trial::test("everything_is_measured_checked_and_drawn", everything),
        Trial::test("rates_lead_up_to_more_than_there_is", run::steps_of_load),
        Trial::test("wrong_usage_is_explained", run::wrong_usage),
        Trial::test("interrupt_in_the_middle_cleans_up", run::interrupted),
    ];
    if standing == Standing::Root {
        tests.push(Trial::test("an_ordinary_user_measures_what_needs_no_rights", run::ordinary_user));
    }
    let mut arguments = Arguments::from_args();
    // Threads that spin on both ends of a link: one test at a time.
    arguments.test_threads.get_or_insert(1);
    cxloe_lab::verdict(libtest_mimic::run(&arguments, tests).exit_code())
}

/// One run of everything, looked at from all sides; in one test, since each test may run in a process of its own.
fn everything() -> Outcome {
    results::all_are_there()?;
    results::forms_agree()?;
    results::curves_agree()?;
    page::is_drawn()?;
    page::is_readable_on_a_phone()
}
