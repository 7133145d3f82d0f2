//! Virtual machines with remote memory: real daemons and frames, QEMU machines with Debian's kernel, and a virtual
//! machine monitor that passes its memory to the server as Firecracker does.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

pub mod endings;
mod firecracker;
pub mod monitor;
mod moving;
pub mod outsiders;
mod qemu;

use cxloe_lab::LabPrivilege;
use cxloe_system::{Test, tests};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    let mut tests = tests![
        moving::a_machine_moves_with_its_memory,
        moving::a_linux_guest_moves_with_its_disk,
        moving::the_benchmark_reports_each_move,
        moving::what_differs_is_named_and_the_guest_goes_on,
        moving::one_guest_runs_whoever_is_killed,
        firecracker::snapshot_is_served_and_balloon_heeded,
        firecracker::machines_follow_each_other_at_once,
        firecracker::what_is_no_machine_is_left,
        firecracker::machine_goes_on_with_the_next_agent,
        firecracker::machine_ends_when_no_agent_comes,
        firecracker::machine_ends_with_its_server,
        firecracker::machine_ends_when_its_memory_is_lost,
        endings::a_machine_leaves_nothing_behind,
        endings::regions_go_when_the_manager_is_back,
        endings::regions_of_killed_programs_go,
        outsiders::memory_is_not_passed_on,
        outsiders::programs_of_the_monitor_get_no_memory,
        outsiders::a_process_that_looks_into_the_memory_changes_nothing,
        qemu::all_memory_is_remote,
        qemu::second_node_is_remote,
        qemu::private_memory_is_refused,
        qemu::preallocated_memory_leaves_again,
        qemu::wrong_commands_are_told,
    ];
    let many = Test::new("moving::a_machine_moves_fifty_times", moving::a_machine_moves_fifty_times);
    tests.push(many.long("fifty moves"));
    let many = Test::new(
        "moving::one_guest_runs_after_two_hundred_kills",
        moving::one_guest_runs_after_two_hundred_kills,
    );
    tests.push(many.long("two hundred kills"));
    tests
}
