//! Observation: Prometheus metrics of daemons, their logs, and the live view of an agent in a real terminal; and
//! dashboard, alerts and documentation, which have to agree with the metrics.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

mod deployed;
mod fabric;
mod logs;
#[allow(dead_code)]
mod scrape;
mod terminal;
pub mod top;

use cxloe_lab::LabPrivilege;
use cxloe_system::{Test, tests};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        deployed::the_documentation_is_that_of_the_code,
        deployed::promtool_takes_alerts_and_configuration,
        deployed::every_panel_is_valid,
        fabric::every_metric_is_served_and_used_as_documented,
        logs::logs_are_json_with_fields,
        logs::logs_in_files_have_no_colours,
        logs::daemons_outlive_a_full_disk,
        logs::daemons_outlive_a_broken_pipe,
        logs::daemons_do_not_wait_for_a_reader,
        top::the_live_view_shows_an_agent_at_work,
        top::the_live_view_outlives_its_agent,
        top::scripts_get_text_and_json,
        top::a_panic_gives_the_terminal_back,
    ]
}
