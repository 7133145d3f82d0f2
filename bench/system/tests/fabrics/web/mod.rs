//! The manager's web view of a fabric of real daemons, in a real browser: its content at first and after changes,
//! without reload; a notice when the manager does not answer; escaping of text; and use on a phone and by keyboard.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

mod scripted;
mod view;

use cxloe_lab::LabPrivilege;
use cxloe_system::{Test, tests};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        view::the_page_shows_the_fabric_as_it_changes,
        view::a_manager_that_is_gone_is_missed_and_welcomed_back,
        view::text_stays_text_and_many_regions_are_searched,
    ]
}
