//! What `cn-agent exec` tells the programs below it, by their environment.

use std::ffi::{CStr, c_int};
use std::time::Duration;

use cxloe_member::socket::SocketPath;

/// The settings of a process.
#[derive(Debug)]
pub struct Settings {
    /// The agent's socket.
    pub agent: SocketPath,
    /// The space that its memory is a part of.
    pub space: u64,
    /// Bytes of memory that it can have.
    pub bytes: usize,
    /// Bytes of its window: addresses for that memory, and for what is reserved.
    pub window: usize,
    /// How long to wait for an agent that has ended.
    pub wait: Duration,
    /// An inherited descriptor of `/dev/userfaultfd`.
    pub device: Option<c_int>,
    /// Whether this is the program that was asked for and not one that it has started: it must not run without remote
    /// memory.
    pub foremost: bool,
}

impl Settings {
    /// Those of this process; `None`: it runs as it would without us.
    pub fn read() -> Option<Settings> {
        // SAFETY: cannot fail.
        let parent = unsafe { libc::getppid() } as u64;
        let bytes = number(c"CXLOE_EXEC_BYTES")? as usize;
        Some(Settings {
            agent: SocketPath::new(variable(c"CXLOE_EXEC_AGENT")?.to_bytes())?,
            space: number(c"CXLOE_EXEC_SPACE")?,
            bytes,
            window: number(c"CXLOE_EXEC_WINDOW").map_or(bytes, |bytes| bytes as usize),
            wait: Duration::from_millis(number(c"CXLOE_EXEC_WAIT_MS")?),
            device: number(c"CXLOE_EXEC_DEVICE").map(|number| number as c_int),
            foremost: number(c"CXLOE_EXEC_SUPERVISOR") == Some(parent),
        })
    }
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a name that ends, and a value that stays: nothing of the program has run that could change it.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

fn number(name: &CStr) -> Option<u64> {
    variable(name)?.to_str().ok()?.parse().ok()
}
