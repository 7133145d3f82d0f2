//! `cxloe-bench pattern` from its command line: the real program in a lab of its own with small options, as root and as
//! an ordinary user, to the end and interrupted. All patterns over all ways are measured once, and all output is
//! checked: counts, checked data, JSON, CSV, histograms, and the page in a real browser. The tests assert no speed.

mod page;
mod results;
mod run;

use cxloe_lab::LabPrivilege;
use cxloe_system::Outcome;
use cxloe_system::Test;

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let standing = *run::STANDING.get_or_init(|| standing);
    let mut tests = vec![
        Test::new("everything_is_measured_checked_and_drawn", everything),
        Test::new("rates_lead_up_to_more_than_there_is", run::steps_of_load),
        Test::new("wrong_usage_is_explained", run::wrong_usage),
        Test::new("interrupt_in_the_middle_cleans_up", run::interrupted),
    ];
    if standing == LabPrivilege::Root {
        tests.push(Test::new("an_ordinary_user_measures_what_needs_no_rights", run::ordinary_user));
    }
    tests
}

/// Checks all properties of one run of all patterns in a single test, because each test may run in its own process and
/// would repeat the run.
fn everything() -> Outcome {
    results::all_are_there()?;
    results::forms_agree()?;
    results::curves_agree()?;
    page::is_drawn()?;
    page::is_readable_on_a_phone()
}
