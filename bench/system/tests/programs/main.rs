//! Tests of programs with remote memory: programs that map regions, and unmodified programs.

mod exec;
mod hostile_users;
mod other_rights;
mod paging;
mod tenants;
mod user_shares;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

fn main() -> ExitCode {
    run(
        &[
            Subject::new("paging", paging::tests),
            Subject::new("exec", exec::tests),
            Subject::new("tenants", tenants::tests),
            Subject::new("hostile_users", hostile_users::tests),
            Subject::new("other_rights", other_rights::tests),
            Subject::new("user_shares", user_shares::tests),
        ],
        &[
            ("work", paging::work::play),
            ("tenant", tenants::play),
            ("hostile", hostile_users::play),
            ("rights", other_rights::play),
            ("shares", user_shares::play),
        ],
    )
}
