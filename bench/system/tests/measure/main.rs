//! Tests of the measuring program `cxloe-bench` through its command line.

mod compare;
mod fault;
mod interrupt;
mod nic;
mod paper;
mod pattern;
mod programs;
mod quickstart;
mod survival;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

/// Programs that copies run as `nobody` need: the daemons and the bench.
const ALL: &[&str] = &["gmm", "mn-server", "cn-agent", "cxloe-bench"];

fn main() -> ExitCode {
    run(
        &[
            Subject::new("quickstart", quickstart::tests)
                .also_as_nobody(ALL)
                .only(&["runs_to_the_end_and_cleans_up"]),
            Subject::new("interrupt", interrupt::tests),
            Subject::new("nic", nic::tests)
                .also_as_nobody(&["gmm", "mn-server", "cxloe-bench"])
                .only(&["each_link_is_timed_to_an_echo"]),
            Subject::new("fault", fault::tests).also_as_nobody(ALL).long("all ways once more"),
            Subject::new("pattern", pattern::tests),
            Subject::new("survival", survival::tests),
            Subject::new("compare", compare::tests)
                .also_as_nobody(&["gmm", "mn-server", "cxloe-bench"])
                .long("all peers once more"),
            Subject::new("programs", programs::tests)
                .also_as_nobody(ALL)
                .only(&["without_rights_only_local_memory_is_measured"]),
            Subject::new("paper", paper::tests)
                .also_as_nobody(&["cxloe-bench"])
                .long("all sections once more"),
        ],
        &[],
    )
}
