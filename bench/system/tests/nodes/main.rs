//! A memory node and a compute node: reads and writes, restarts, what is left when one of them goes, and the ways into a
//! region besides mapped memory: command line, C library, block device, CXL devices.

mod agent;
mod c_library;
mod cxl;
mod errors;
mod inspect;
mod nbd;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

fn main() -> ExitCode {
    run(
        &[
            Subject::new("agent", agent::tests),
            Subject::new("inspect", inspect::tests).also_as_nobody(&["mn-server"]),
            Subject::new("errors", errors::tests).also_as_nobody(&["mn-server", "cn-agent", "gmm"]),
            Subject::new("c_library", c_library::tests),
            Subject::new("cxl", cxl::tests),
            Subject::new("nbd", nbd::tests),
        ],
        &[],
    )
}
