//! Whole fabrics around a manager: interleaved regions, binding, stores; regions that nobody uses; metrics and logs, the
//! manager's web view, and a compute node of an independent implementation.

mod access;
mod chaos;
mod fabric;
mod mirror;
mod observe;
mod protocol;
mod unattached;
mod web;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

#[expect(unsafe_code, reason = "the environment may change while there is only one thread")]
fn main() -> ExitCode {
    // SAFETY: this process still has one thread.
    unsafe { std::env::remove_var("NO_COLOR") };
    run(
        &[
            Subject::new("access", access::tests),
            Subject::new("chaos", chaos::tests),
            Subject::new("fabric", fabric::tests),
            Subject::new("mirror", mirror::tests),
            Subject::new("observe", observe::tests),
            Subject::new("protocol", protocol::tests),
            Subject::new("unattached", unattached::tests),
            Subject::new("web", web::tests),
        ],
        &[("top_panics", observe::top::play)],
    )
}
