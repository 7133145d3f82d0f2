//! Tests of programs with remote memory: programs that map regions, and unmodified programs.

mod exec;
mod hostile_users;
mod paging;
mod tenants;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

fn main() -> ExitCode {
    run(
        &[
            Subject::new("paging", paging::tests),
            Subject::new("exec", exec::tests),
            Subject::new("tenants", tenants::tests),
            Subject::new("hostile_users", hostile_users::tests),
        ],
        &[("work", paging::work::play), ("tenant", tenants::play), ("hostile", hostile_users::play)],
    )
}
