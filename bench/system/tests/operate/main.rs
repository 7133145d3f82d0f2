//! Tests of tools for operators: labs, units and packages, settings of interfaces, the Ansible role.

mod deploy;
mod lab;
mod tools;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

fn main() -> ExitCode {
    run(
        &[
            Subject::new("lab", lab::tests).also_as_nobody(&[]),
            Subject::new("tools", tools::tests),
            Subject::new("deploy", deploy::tests),
        ],
        lab::ROLES,
    )
}
