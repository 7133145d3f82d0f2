//! The manager's web view of a fabric of real daemons, looked at with a real browser: what it shows at once and what it
//! shows as things happen, without being loaded again; that it says when the manager is gone; that text stays text; and
//! that it can be used on a phone and by keyboard.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

#[path = "../common/browser.rs"]
mod browser;
#[path = "../fabric/rig.rs"]
#[allow(dead_code, reason = "the tests of the fabric use the rest")]
mod rig;
mod scripted;
mod view;

use std::process::ExitCode;

use cxloe_lab::become_private_user_namespace;
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Err(error) = become_private_user_namespace() {
        eprintln!("{error}");
        return ExitCode::from(3);
    }
    macro_rules! trials {
        ($($module:ident::$name:ident),* $(,)?) => { vec![$(Trial::test(stringify!($name), $module::$name)),*] };
    }
    let tests = trials![
        view::the_page_shows_the_fabric_as_it_changes,
        view::a_manager_that_is_gone_is_missed_and_welcomed_back,
        view::text_stays_text_and_many_regions_are_searched,
    ];
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    cxloe_lab::verdict(libtest_mimic::run(&arguments, tests).exit_code())
}
