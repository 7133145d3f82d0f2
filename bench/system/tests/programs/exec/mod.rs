//! Unmodified programs with remote memory, from end to end: real daemons, real frames over a virtual cable, and
//! Debian's programs. Each program has to give the right result, and at least half of its working set has to be evicted
//! and fetched again. Small C programs cover rare behaviour.
//!
//! Runs as root; an ordinary user's agent may not follow forks, and has to report that. Every wait is bounded.

mod corners;
mod direct;
mod figures;
mod programs;
mod redis;
#[allow(dead_code)]
mod run;
mod supervision;
mod touched;

use cxloe_lab::LabPrivilege;
use cxloe_system::{Test, tests};

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = match standing {
        LabPrivilege::Root => tests![
            programs::python_sorts_a_list,
            programs::sort_sorts_a_file_larger_than_its_memory,
            programs::sqlite_keeps_a_database_in_memory,
            programs::zstd_compresses_with_two_threads,
            programs::memtester_tests_as_much_as_it_was_asked_to,
            programs::programs_of_musl_run_as_children_with_local_memory,
            programs::javas_heap_is_remote,
            programs::python_sorts_a_list_in_a_container,
            programs::php_opens_its_modules,
            redis::a_snapshot_is_what_was_there_at_the_fork,
            corners::forks_keep_their_meaning,
            corners::three_hundred_children_live_at_a_time,
            corners::robust_locks_are_released_wherever_their_page_is,
            corners::forks_beside_threads_that_allocate,
            corners::parts_of_mappings_are_changed,
            corners::bare_system_calls_are_followed,
            corners::the_kernel_reads_and_writes_the_heap,
            corners::programs_say_what_they_will_need,
            corners::programs_start_programs,
            corners::children_of_other_makes_are_followed,
            corners::helpers_give_up_rights_with_their_program,
            corners::a_program_enters_a_user_namespace,
            corners::pages_are_not_merged,
            corners::a_full_region_ends_the_youngest,
            corners::a_region_used_before_is_as_a_new_one,
            corners::a_full_region_grows_where_the_quota_allows,
            corners::descriptors_may_all_be_closed,
            corners::children_have_in_common_what_they_do_not_change,
            corners::programs_end_with_their_last_thread,
            corners::plug_ins_share_the_heap_however_they_are_opened,
            corners::reserved_addresses_become_remote_when_they_are_committed,
            corners::what_stays_in_this_machine_is_told,
            corners::pages_that_are_away_are_not_seen_as_zeros,
            direct::registered_buffers_are_refused,
            direct::registered_buffers_are_safe_when_allowed,
            direct::what_only_looks_like_direct_io_goes_on,
            touched::first_touches_fetch_nothing,
            supervision::what_cannot_be_served_is_refused,
            supervision::programs_with_local_memory_are_named,
            supervision::exit_codes_and_signals_pass_through,
            supervision::signals_that_are_not_permitted_end_nothing,
            supervision::the_limit_changes_while_it_runs,
            supervision::a_killed_agent_is_taken_over_from,
            supervision::another_pid_namespace_is_named,
            supervision::lost_data_is_explained_by_the_programs_last_line,
            supervision::without_a_successor_programs_end,
            supervision::a_child_that_only_a_dead_agent_knew_gets_no_zeros,
        ],
        _ => tests![supervision::an_ordinary_users_agent_says_what_it_lacks],
    };
    if standing == LabPrivilege::Root {
        let figure = Test::new("redis_with_half_its_data_local", figures::redis_with_half_its_data_local);
        tests.push(figure.long("a figure of several minutes"));
    }
    tests
}
