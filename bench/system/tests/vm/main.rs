//! Virtual machines with remote memory: real daemons and frames, QEMU machines with Debian's kernel, and a monitor that
//! hands its memory over as Firecracker does.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

mod endings;
mod firecracker;
#[path = "../guest/rig.rs"]
#[allow(dead_code, reason = "the tests of guests use the rest")]
mod guest;
mod monitor;
mod qemu;
#[path = "../agent/rig.rs"]
#[allow(dead_code, reason = "the tests of the agent use the rest")]
mod rig;

use std::process::ExitCode;

use cxloe_lab::become_private_user_namespace;
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Ok(socket) = std::env::var(monitor::ROLE) {
        return monitor::play(&socket);
    }
    if std::env::var_os(endings::ROLE).is_some() {
        return endings::play();
    }
    if let Err(error) = become_private_user_namespace() {
        eprintln!("{error}");
        return ExitCode::from(3);
    }
    macro_rules! trials {
        ($($name:path),* $(,)?) => { vec![$(Trial::test(stringify!($name), $name)),*] };
    }
    let tests = trials![
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
        qemu::all_memory_is_remote,
        qemu::second_node_is_remote,
        qemu::wrong_commands_are_told,
    ];
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    cxloe_lab::verdict(libtest_mimic::run(&arguments, tests).exit_code())
}
