//! Whole fabrics around a manager: regions over several memory nodes, binding, stores; what is observed of them, and the
//! manager's page.

mod doors;
mod fabric;
mod observe;
mod web;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

fn main() -> ExitCode {
    // SAFETY: this process has one thread yet.
    unsafe { std::env::remove_var("NO_COLOR") };
    run(
        &[
            Subject::new("doors", doors::tests),
            Subject::new("fabric", fabric::tests),
            Subject::new("observe", observe::tests),
            Subject::new("web", web::tests),
        ],
        &[("top_panics", observe::top::play)],
    )
}
