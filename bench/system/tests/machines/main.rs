//! Tests with virtual machines: machines that use remote memory, and machines that give a test its own kernel.

mod guest;
mod vm;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

fn main() -> ExitCode {
    run(
        &[Subject::new("guest", guest::tests), Subject::new("vm", vm::tests)],
        &[("monitor", vm::monitor::play), ("fills", vm::endings::play), ("outsiders", vm::outsiders::play)],
    )
}
