//! Programs that a program with remote memory executes, but that get no remote memory themselves, because the
//! dynamic linker does not load the library into them, because no dynamic linker is involved, or because the library
//! reports from within them that they cannot have any.
//!
//! ```text
//!   sh --execve(path, variables)--> filter --asks--> supervisor: would the dynamic linker load the library?
//!      <------- runs (EPERM with --require-remote) ---------'        no: it is counted, and named at the end
//!   library --execve(path of a report)--> filter --asks--> supervisor: the same
//! ```
//!
//! The calling process may change its memory between this check and the kernel's own read: the check informs
//! the user, and protects nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cxloe_member::local_report::LocalReport;
use libc::seccomp_notif;
use serde::Serialize;

use super::program::{self, ProgramError};
use super::seccomp::ExecutionArguments;

/// Maximum number of distinct programs that are recorded.
const PROGRAMS_MAX: usize = 64;
/// Maximum number of variables read from an environment; a longer environment is assumed to name the library.
const VARIABLES_MAX: u64 = 4096;
/// Maximum number of bytes read from a path or from a variable.
const TEXT_MAX: usize = 4096;
/// Number of filters that a gate adds to a program.
pub(crate) const GATE_FILTERS: u32 = 1;
const WORD: u64 = 8;

/// Reason why an executed program has no remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalReason {
    /// The program is linked statically, so no dynamic linker is involved.
    Static,
    /// The program's dynamic linker is that of musl.
    Musl,
    /// The program is built for another kind of machine.
    Foreign,
    /// The program has other rights than its caller, so the dynamic linker ignores libraries that the caller
    /// names.
    OtherRights,
    /// The program's environment does not name the library.
    Environment,
    /// The program is built with a sanitizer, whose runtime does not work together with the library.
    Sanitized,
    /// The calling process has a system call filter of its own, which the program inherits.
    Filtered,
    /// The program runs under valgrind.
    Valgrind,
    /// The program has too few free addresses.
    Addresses,
    /// The program may not make a userfaultfd.
    Userfaultfd,
    /// The program may not open its own memory, through which the agent pages it.
    OwnMemory,
    /// The program does not reach the agent, or is not served by it.
    Agent,
    /// The library's threads could not be started in the program.
    Threads,
}

impl From<LocalReport> for LocalReason {
    fn from(report: LocalReport) -> LocalReason {
        match report {
            LocalReport::Valgrind => LocalReason::Valgrind,
            LocalReport::Addresses => LocalReason::Addresses,
            LocalReport::Userfaultfd => LocalReason::Userfaultfd,
            LocalReport::OwnMemory => LocalReason::OwnMemory,
            LocalReport::Agent => LocalReason::Agent,
            LocalReport::Threads => LocalReason::Threads,
        }
    }
}

impl fmt::Display for LocalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LocalReason::Static => "it is linked statically",
            LocalReason::Musl => "it is linked against musl",
            LocalReason::Foreign => "it is no 64-bit program",
            LocalReason::OtherRights => "it runs with its owner's rights (set-user-ID or set-group-ID)",
            LocalReason::Environment => {
                "its environment lacks LD_PRELOAD or the variables CXLOE_EXEC_… (env -i, su)"
            }
            LocalReason::Sanitized => {
                "it is built with a sanitizer, which does not work beside the preloaded library"
            }
            LocalReason::Filtered => {
                "a system call filter (seccomp) was set for it, which may not let it have more"
            }
            LocalReason::Valgrind => "it runs under valgrind, which checks memory of its own making",
            LocalReason::Addresses => {
                "there was no room for its addresses; look at `ulimit -v` and vm.overcommit_memory"
            }
            LocalReason::Userfaultfd => {
                "it may not handle page faults (userfaultfd); run it as root, or set vm.unprivileged_userfaultfd=1"
            }
            LocalReason::OwnMemory => {
                "its user may execute it but not read it, and so not open its memory (chmod +r)"
            }
            LocalReason::Agent => {
                "it does not reach the agent, as in some containers, or the agent does not serve its user"
            }
            LocalReason::Threads => "the library's threads could not be started in it; look at `ulimit -u`",
        })
    }
}

/// A program that was executed with memory of this machine alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LocalProgram {
    pub path: String,
    pub reason: LocalReason,
}

impl fmt::Display for LocalProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with memory of this machine alone: {}", self.path, self.reason)
    }
}

/// Programs executed with memory of this machine alone, and the number of executions of each.
#[derive(Debug, Default)]
pub struct Executions {
    counts: BTreeMap<LocalProgram, u64>,
    /// Number of executions of programs that are not recorded by name, because `PROGRAMS_MAX` others are.
    others: u64,
}

impl Executions {
    /// Counts an execution. Once `PROGRAMS_MAX` programs are recorded, further programs are counted without
    /// their names.
    pub fn record(&mut self, program: LocalProgram) {
        if self.counts.len() < PROGRAMS_MAX || self.counts.contains_key(&program) {
            *self.counts.entry(program).or_default() += 1;
        } else {
            self.others += 1;
        }
    }

    pub fn has(&self, program: &LocalProgram) -> bool {
        self.counts.contains_key(program)
    }

    pub fn programs(&self) -> impl Iterator<Item = (&LocalProgram, u64)> {
        self.counts.iter().map(|(program, count)| (program, *count))
    }

    /// Number of executions of further programs, which are not recorded by name.
    pub fn others(&self) -> u64 {
        self.others
    }
}

/// The program that the calling process is about to execute, if it will have memory of this machine alone; `None` also
/// where that cannot be known, as when the caller's memory cannot be read.
pub(crate) fn local_program(question: &seccomp_notif, at: ExecutionArguments) -> Option<LocalProgram> {
    let (pid, arguments) = (question.pid, &question.data.args);
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let path = text(&memory, arguments[at.path])?;
    if let Some(report) = LocalReport::in_path(&path) {
        let executed = std::fs::read_link(format!("/proc/{pid}/exe"));
        let path = executed.map_or_else(|_| format!("process {pid}"), |path| path.display().to_string());
        return Some(LocalProgram { path, reason: report.into() });
    }
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let file = match at.folder.map(|index| arguments[index] as i32) {
        _ if path.starts_with('/') => root.join(path.trim_start_matches('/')),
        Some(folder) if folder >= 0 => {
            let folder = PathBuf::from(format!("/proc/{pid}/fd/{folder}"));
            // The program itself is named by the descriptor (AT_EMPTY_PATH).
            if path.is_empty() { folder } else { folder.join(&path) }
        }
        _ => Path::new(&format!("/proc/{pid}/cwd")).join(&path),
    };
    let reason = match program::examine_below(&root, &file) {
        Ok(()) if names_library(&memory, arguments[at.environment])? => {
            match filters(&pid.to_string()).zip(filters("self")) {
                Some((program, own)) if program > own + GATE_FILTERS => LocalReason::Filtered,
                _ => return None,
            }
        }
        Ok(()) => LocalReason::Environment,
        Err(ProgramError::Static(_)) => LocalReason::Static,
        Err(ProgramError::Musl { .. }) => LocalReason::Musl,
        Err(ProgramError::Sanitized { .. }) => LocalReason::Sanitized,
        // The kernel ignores set-user-ID and set-group-ID bits after `no_new_privs`.
        Err(ProgramError::OtherRights(_)) if has_no_new_privileges(pid) => return None,
        Err(ProgramError::OtherRights(_)) => LocalReason::OtherRights,
        Err(ProgramError::Foreign { what: program::FOREIGN_ELF, .. }) => LocalReason::Foreign,
        Err(ProgramError::Unusable { path, .. }) if program::is_executable_only(&path) => {
            LocalReason::OwnMemory
        }
        // The kernel will refuse to execute this file.
        Err(_) => return None,
    };
    let path = if path.is_empty() { file.display().to_string() } else { path };
    Some(LocalProgram { path, reason })
}

/// Number of system call filters of a process; `None` on kernels before 5.9, which do not show it.
pub(crate) fn filters(process: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?.trim().parse().ok()
}

/// Whether an environment, a null-terminated array of addresses, names the library and the space. `None` if it cannot
/// be read.
fn names_library(memory: &File, array: u64) -> Option<bool> {
    // The kernel takes the null address for an environment without variables.
    if array == 0 {
        return Some(false);
    }
    let (mut library, mut space) = (false, false);
    for index in 0..VARIABLES_MAX {
        let mut word = [0; WORD as usize];
        memory.read_exact_at(&mut word, array.checked_add(index * WORD)?).ok()?;
        let address = u64::from_ne_bytes(word);
        if address == 0 {
            return Some(library && space);
        }
        let variable = text(memory, address)?;
        library |= variable.starts_with("LD_PRELOAD=") && variable.contains(super::library::FILE);
        space |= variable.starts_with("CXLOE_EXEC_SPACE=");
        if library && space {
            return Some(true);
        }
    }
    Some(true)
}

/// Reads a null-terminated text; a longer one is cut after [`TEXT_MAX`] bytes.
fn text(memory: &File, address: u64) -> Option<String> {
    let mut bytes = [0; TEXT_MAX];
    // The text may end just before memory that cannot be read, so each page is read by a call of its own.
    let first = TEXT_MAX - (address % TEXT_MAX as u64) as usize;
    let mut length = memory.read_at(&mut bytes[..first], address).ok()?;
    if length == first && !bytes[..length].contains(&0) {
        length += memory.read_at(&mut bytes[first..], address.checked_add(first as u64)?).unwrap_or(0);
    }
    let end = bytes[..length].iter().position(|byte| *byte == 0).unwrap_or(length);
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

fn has_no_new_privileges(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("NoNewPrivs:").is_some_and(|value| value.trim() == "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_counted_up_to_a_limit() {
        let mut executions = Executions::default();
        let program = |index: usize| LocalProgram { path: format!("/{index}"), reason: LocalReason::Static };
        (0..PROGRAMS_MAX + 3).for_each(|index| executions.record(program(index)));
        executions.record(program(0));
        assert_eq!((executions.programs().count(), executions.others()), (PROGRAMS_MAX, 3));
        assert_eq!(executions.programs().map(|(_, count)| count).max(), Some(2));
    }

    #[test]
    fn environments_are_read_from_memory() {
        let memory = File::open("/proc/self/mem").unwrap();
        let texts = [c"A=1", c"LD_PRELOAD=$ORIGIN/../lib/libcxloe_preload.so", c"CXLOE_EXEC_SPACE=7"];
        let addresses = texts.map(|text| text.as_ptr() as u64);
        let named = |array: &[u64]| names_library(&memory, array.as_ptr() as u64);
        assert_eq!(named(&[addresses[0], addresses[1], addresses[2], 0]), Some(true));
        assert_eq!(named(&[addresses[0], addresses[1], 0]), Some(false));
        assert_eq!(named(&[0]), Some(false));
        assert_eq!(names_library(&memory, 0), Some(false), "no environment at all");
        assert_eq!(named(&[8, 0]), None, "nothing is mapped there");
        let long = vec![b'x'; 2 * TEXT_MAX];
        assert_eq!(text(&memory, long.as_ptr() as u64).map(|text| text.len()), Some(TEXT_MAX));
    }
}
