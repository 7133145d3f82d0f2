//! The manager's web view of a fabric of real daemons, looked at with a real browser: what it shows at once and what it
//! shows as things happen, without being loaded again; that it says when the manager is gone; that text stays text; and
//! that it can be used on a phone and by keyboard.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

mod scripted;
mod view;

use cxloe_lab::Standing;
use cxloe_system::{Test, tests};

pub fn tests(_: Standing) -> Vec<Test> {
    tests![
        view::the_page_shows_the_fabric_as_it_changes,
        view::a_manager_that_is_gone_is_missed_and_welcomed_back,
        view::text_stays_text_and_many_regions_are_searched,
    ]
}
