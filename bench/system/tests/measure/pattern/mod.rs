//! `cxloe-bench pattern` as its user runs it: the real program in a lab of its own with small options, as root and as an
//! ordinary user, to the end and interrupted. All patterns over all ways are measured once, and everything that came out
//! is looked at: counts, checked data, JSON, CSV, histograms, and the page in a real browser. Nothing here asks how fast
//! anything was.

mod page;
mod results;
mod run;

use cxloe_lab::Standing;
use cxloe_system::Outcome;
use cxloe_system::Test;

pub fn tests(standing: Standing) -> Vec<Test> {
    let standing = *run::STANDING.get_or_init(|| standing);
    let mut tests = vec![
        Test::new("everything_is_measured_checked_and_drawn", everything),
        Test::new("rates_lead_up_to_more_than_there_is", run::steps_of_load),
        Test::new("wrong_usage_is_explained", run::wrong_usage),
        Test::new("interrupt_in_the_middle_cleans_up", run::interrupted),
    ];
    if standing == Standing::Root {
        tests.push(Test::new("an_ordinary_user_measures_what_needs_no_rights", run::ordinary_user));
    }
    tests
}

/// One run of everything, looked at from all sides; in one test, since each test may run in a process of its own.
fn everything() -> Outcome {
    results::all_are_there()?;
    results::forms_agree()?;
    results::curves_agree()?;
    page::is_drawn()?;
    page::is_readable_on_a_phone()
}
