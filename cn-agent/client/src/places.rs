//! Where the agent listens, and where this thread runs.

use std::path::PathBuf;

use nix::unistd::geteuid;

/// The name of the agent's socket in its folder.
const SOCKET: &str = "cn-agent.sock";

/// The CPU this thread runs on, if the kernel says so; without a system call. The C library reads it from its rseq area,
/// where it has one (glibc from 2.35 on), and asks the vDSO else. An rseq area of our own cannot be: a thread has one.
#[inline]
pub fn this_cpu() -> Option<u32> {
    nix::sched::sched_getcpu().ok().map(|cpu| cpu as u32)
}

/// Where the agent listens unless told otherwise: in `/run/cxloe` as root, else in `cxloe` in `$XDG_RUNTIME_DIR`, or where
/// that is not set in a folder of the user's for temporary files.
pub fn default_socket() -> PathBuf {
    if geteuid().is_root() {
        return PathBuf::from("/run/cxloe").join(SOCKET);
    }
    let user = || std::env::temp_dir().join(format!("cxloe-{}", geteuid()));
    std::env::var_os("XDG_RUNTIME_DIR").map_or_else(user, |dir| PathBuf::from(dir).join("cxloe")).join(SOCKET)
}
