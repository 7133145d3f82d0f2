//! Programs whose memory is remote: regions that they map, and programs that know nothing of it.

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
