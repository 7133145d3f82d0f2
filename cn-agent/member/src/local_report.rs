//! Report of a process to `cn-agent exec`: it has memory of this machine alone, although the preloaded library was loaded
//! into it.
//!
//! ```text
//!   process --execve(path of the report)--> filter of `cn-agent exec` --asks--> supervisor: counts it, names it at
//!           <------ ENOTDIR (EPERM with --require-remote) --------------------- the end
//! ```
//!
//! The process executes a file that cannot exist, since the filter asks about each execution: so a report needs neither
//! a connection nor a descriptor. Without the filter, the call fails as well, and nobody sees the report.

use std::ffi::CStr;

/// Reason why a process has no remote memory, which only the process itself finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalReport {
    /// It runs under valgrind.
    Valgrind,
    /// There are too few free addresses.
    Addresses,
    /// It may not make a userfaultfd.
    Userfaultfd,
    /// It may not open its own memory.
    OwnMemory,
    /// No agent answers it, or the agent does not serve it.
    Agent,
    /// Its helper threads could not be started.
    Threads,
}

impl LocalReport {
    const ALL: [LocalReport; 6] = [
        LocalReport::Valgrind,
        LocalReport::Addresses,
        LocalReport::Userfaultfd,
        LocalReport::OwnMemory,
        LocalReport::Agent,
        LocalReport::Threads,
    ];

    /// Path that the process executes. A device has no files in it.
    pub fn path(self) -> &'static CStr {
        match self {
            LocalReport::Valgrind => c"/dev/null/cxloe-local/valgrind",
            LocalReport::Addresses => c"/dev/null/cxloe-local/addresses",
            LocalReport::Userfaultfd => c"/dev/null/cxloe-local/userfaultfd",
            LocalReport::OwnMemory => c"/dev/null/cxloe-local/own-memory",
            LocalReport::Agent => c"/dev/null/cxloe-local/agent",
            LocalReport::Threads => c"/dev/null/cxloe-local/threads",
        }
    }

    /// The report whose path a process executes; `None` for the path of a program.
    pub fn in_path(path: &str) -> Option<LocalReport> {
        Self::ALL.into_iter().find(|report| report.path().to_bytes() == path.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_from_its_path_and_from_no_other() {
        for report in LocalReport::ALL {
            let path = report.path().to_str().unwrap();
            assert_eq!(LocalReport::in_path(path), Some(report));
            assert!(std::fs::metadata(path).is_err(), "{path} cannot be executed");
        }
        assert_eq!(LocalReport::in_path("/bin/true"), None);
    }
}
