//! Virtual machines: those whose memory is remote, and those that are a kernel of its own for a test.

mod guest;
mod vm;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

fn main() -> ExitCode {
    run(
        &[Subject::new("guest", guest::tests), Subject::new("vm", vm::tests)],
        &[("monitor", vm::monitor::play), ("fills", vm::endings::play)],
    )
}
