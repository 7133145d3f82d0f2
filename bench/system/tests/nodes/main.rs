//! Tests of a memory node and a compute node: reads and writes, restarts, failures of either node, and the interfaces
//! to a region other than mapped memory: command line, exports, C library, Python package, block device, CXL devices.

mod agent;
mod c_library;
mod cxl;
mod environment;
mod errors;
mod export;
mod inspect;
mod keeper;
mod nbd;
mod printing;
mod python;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

fn main() -> ExitCode {
    run(
        &[
            Subject::new("agent", agent::tests),
            Subject::new("inspect", inspect::tests).also_as_nobody(&["mn-server"]),
            Subject::new("keeper", keeper::tests),
            Subject::new("errors", errors::tests).also_as_nobody(&["mn-server", "cn-agent", "gmm"]),
            Subject::new("export", export::tests),
            Subject::new("c_library", c_library::tests),
            Subject::new("cxl", cxl::tests),
            Subject::new("nbd", nbd::tests),
            Subject::new("environment", environment::tests),
            Subject::new("printing", printing::tests),
            Subject::new("python", python::tests),
        ],
        &[],
    )
}
