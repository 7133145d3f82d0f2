//! Mapped regions from end to end: real daemons, real frames over a virtual cable, and programs that access absent
//! pages. Every line that they read has to contain their last write, whatever was evicted, lost, killed or unplugged in
//! between.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded. `CXLOE_PAGING_SECONDS`
//! sets the time for which programs work, a second or two by default.

mod hints;
mod mapped;
mod program;
#[allow(dead_code)]
mod system_calls;
pub mod work;

use cxloe_lab::LabPrivilege;
use cxloe_system::{Test, tests};
use mapped::*;

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        threads_under_the_tightest_limit,
        threads_under_the_tightest_limit_inside_udp,
        what_was_written_is_there_for_the_next_program,
        processes_share_a_region,
        the_kernel_touches_pages_too,
        parts_may_be_discarded_and_unmapped,
        programs_say_what_they_will_need,
        many_threads_fault_at_once,
        frames_may_be_lost,
        a_killed_agent_is_taken_over_from,
        an_agent_that_ends_is_taken_over_from,
        several_workers_serve_several_programs,
        without_a_successor_the_program_ends,
        lost_data_is_a_signal_and_never_zeros,
        the_manager_may_be_gone,
        the_cable_may_be_unplugged,
        mapped_regions_are_not_read_line_by_line,
        limits_change_and_mappings_end,
        hostile_members_hurt_only_themselves,
        an_idle_agent_sleeps_and_wakes,
    ]
}
