//! Settings that `cn-agent exec` passes to its programs, in their environment.

#![expect(unsafe_code, reason = "getenv returns a raw pointer")]

use std::ffi::{CStr, c_int};
use std::time::Duration;

use cxloe_member::socket::SocketPath;

#[derive(Debug)]
pub struct PreloadSettings {
    pub agent: SocketPath,
    /// Number of the space that the process's memory belongs to.
    pub space: u64,
    /// Maximum number of bytes of remote memory of the process.
    pub bytes: usize,
    /// Size of the window in bytes: addresses for that memory, and for reservations.
    pub window: usize,
    /// Address of the window, where system calls on it are trapped; `None` for any address.
    pub base: Option<usize>,
    /// Longest wait for the successor of an agent that has ended.
    pub wait: Duration,
    /// Inherited descriptor of `/dev/userfaultfd`.
    pub device: Option<c_int>,
    /// Number of system call filters of a program that has set none of its own; `None` if unknown.
    pub filters: Option<u32>,
    /// Whether the process runs under valgrind, which preloads libraries of its own.
    pub valgrind: bool,
    /// Whether this is the requested program, which must not run without remote memory, and not one that it has
    /// started.
    pub foremost: bool,
}

impl PreloadSettings {
    /// Reads the settings; `None` if this library has nothing to do in the process.
    pub fn read() -> Option<PreloadSettings> {
        // SAFETY: the call has no arguments and cannot fail.
        let parent = unsafe { libc::getppid() } as u64;
        let bytes = number(c"CXLOE_EXEC_BYTES")? as usize;
        Some(PreloadSettings {
            agent: SocketPath::new(variable(c"CXLOE_EXEC_AGENT")?.to_bytes())?,
            space: number(c"CXLOE_EXEC_SPACE")?,
            bytes,
            window: number(c"CXLOE_EXEC_WINDOW").map_or(bytes, |bytes| bytes as usize),
            base: number(c"CXLOE_EXEC_BASE").map(|address| address as usize),
            wait: Duration::from_millis(number(c"CXLOE_EXEC_WAIT_MS")?),
            device: number(c"CXLOE_EXEC_DEVICE").map(|number| number as c_int),
            filters: number(c"CXLOE_EXEC_FILTERS").map(|number| number as u32),
            valgrind: variable(c"LD_PRELOAD")
                .is_some_and(|list| list.to_bytes().windows(9).any(|name| name == b"vgpreload")),
            foremost: number(c"CXLOE_EXEC_SUPERVISOR") == Some(parent),
        })
    }
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is NUL-terminated, and the value stays: no code of the program has run that could change it.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

fn number(name: &CStr) -> Option<u64> {
    variable(name)?.to_str().ok()?.parse().ok()
}
