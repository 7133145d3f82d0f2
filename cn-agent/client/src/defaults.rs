//! Default path of the agent's socket, and the CPU of the calling thread.

use std::path::PathBuf;

use nix::unistd::geteuid;

/// File name of the agent's socket in its folder.
const SOCKET: &str = "cn-agent.sock";

/// CPU on which this thread runs, without a system call; `None` if the kernel does not report it. glibc from 2.35 on
/// reads the CPU from the thread's rseq area, older versions from the vDSO. A thread can have only one rseq area, so
/// this crate cannot register its own.
#[inline]
pub fn this_cpu() -> Option<u32> {
    nix::sched::sched_getcpu().ok().map(|cpu| cpu as u32)
}

/// Default path of the agent's socket: in `/run/cxloe` as root, otherwise in `cxloe` in `$XDG_RUNTIME_DIR`, or, without
/// that variable, in a per-user folder for temporary files.
pub fn default_socket() -> PathBuf {
    if geteuid().is_root() {
        return PathBuf::from("/run/cxloe").join(SOCKET);
    }
    let user = || std::env::temp_dir().join(format!("cxloe-{}", geteuid()));
    std::env::var_os("XDG_RUNTIME_DIR").map_or_else(user, |dir| PathBuf::from(dir).join("cxloe")).join(SOCKET)
}
