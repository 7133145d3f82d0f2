//! The command line of a virtual machine monitor, in which placeholders are replaced by the region's memory and size.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use cxloe_client::mapping::{NoKernelFaults, Owner};
use cxloe_exec::session::preload;

/// File name of the library that the monitor loads.
pub const LIBRARY: &str = "libcxloe_vm.so";
/// Name of the connection for QEMU's machine protocol (QMP), in QEMU's arguments.
const QMP: &str = "cxloe-qmp";
/// Placeholder for the path of the region's memory.
pub const MEMORY: &str = "@memory@";
/// Placeholder for the size of the region in bytes.
pub const SIZE: &str = "@size@";

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    #[error(
        "no argument of the command has {MEMORY} in it, so none of its memory would be remote; for QEMU say \
         -object memory-backend-file,id=remote,share=on,prealloc=off,mem-path={MEMORY},size={SIZE}"
    )]
    NoMemory,
    #[error("no memory came with the agent's answer; use programs of one release")]
    NoFile,
    /// Page faults inside the kernel cannot be handled, so neither KVM nor the machine's devices could access guest
    /// memory.
    #[error(transparent)]
    NoKernelFaults(#[from] NoKernelFaults),
    /// A system call failed.
    #[error("the region's memory cannot be passed on: {0}")]
    System(#[from] Errno),
}

/// Settings that the library gets from environment variables.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    pub library: &'a Path,
    /// Absolute path of the agent's socket.
    pub agent: &'a Path,
    /// Size of the region in bytes.
    pub bytes: u64,
    /// Longest wait for the successor of an agent that has ended.
    pub wait: Duration,
    /// QEMU's end of a connection for its machine protocol; `None` for other monitors.
    pub qmp: Option<BorrowedFd<'a>>,
    /// Whether QEMU waits for the state of a machine that moves here.
    pub incoming: bool,
}

/// Whether the program of this name is QEMU, so that its machines can move.
pub fn is_qemu(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().map_or(&[][..], |name| name.as_bytes());
    name.starts_with(b"qemu-system-") || name == b"qemu-kvm"
}

/// Builds the command from `words`, the first of which is the program, with the memory that `owner` holds.
pub fn command(words: &[OsString], owner: &Owner, settings: &Settings<'_>) -> Result<Command, LaunchError> {
    let memory = owner.memory().ok_or(LaunchError::NoFile)?;
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let put = |word: &OsString| {
        let word = replace(word, MEMORY, &path);
        replace(&word, SIZE, &settings.bytes.to_string())
    };
    if !words.iter().any(|word| find(word.as_bytes(), MEMORY.as_bytes()).is_some()) {
        return Err(LaunchError::NoMemory);
    }
    let mut words = words.iter().map(put);
    let mut command = Command::new(words.next().unwrap_or_default());
    command
        .args(words)
        .env("LD_PRELOAD", preload(settings.library, std::env::var_os("LD_PRELOAD").as_deref()))
        .env("CXLOE_VM_AGENT", settings.agent)
        .env("CXLOE_VM_SPACE", owner.space().to_string())
        .env("CXLOE_VM_WAIT_MS", settings.wait.as_millis().to_string())
        .env("CXLOE_VM_MEMORY", memory.as_raw_fd().to_string());
    if let Some(qmp) = settings.qmp {
        pass_on(qmp)?;
        let chardev = format!("socket,id={QMP},fd={}", qmp.as_raw_fd());
        command.args(["-chardev", &chardev, "-mon", &format!("chardev={QMP},mode=control")]);
    }
    if settings.incoming {
        // QEMU starts stopped, and waits for the command that names the source of its state.
        command.args(["-incoming", "defer", "-S"]);
    }
    pass_on(memory)?;
    // KVM and devices access guest memory inside the kernel, so the kernel's page faults must be handled, too.
    owner.check_kernel_faults()?;
    if let Some(device) = owner.device() {
        pass_on(device)?;
        command.env("CXLOE_VM_DEVICE", device.as_raw_fd().to_string());
    }
    Ok(command)
}

/// Keeps `fd` open in programs that this process starts.
fn pass_on(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).map(drop)
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn replace(word: &OsStr, what: &str, by: &str) -> OsString {
    let mut rest = word.as_bytes();
    let mut replaced = Vec::with_capacity(rest.len());
    while let Some(at) = find(rest, what.as_bytes()) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(by.as_bytes());
        rest = &rest[at + what.len()..];
    }
    replaced.extend_from_slice(rest);
    OsString::from_vec(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_is_told_by_its_name() {
        for name in ["qemu-system-x86_64", "/usr/bin/qemu-system-aarch64", "/usr/libexec/qemu-kvm"] {
            assert!(is_qemu(OsStr::new(name)), "{name}");
        }
        assert!(!is_qemu(OsStr::new("/bin/sh")) && !is_qemu(OsStr::new("")));
    }

    #[test]
    fn names_are_replaced_wherever_they_stand() {
        let put = |word: &str| replace(OsStr::new(word), MEMORY, "/fd/5").into_string().unwrap();
        assert_eq!(put("mem-path=@memory@,size=@size@"), "mem-path=/fd/5,size=@size@");
        assert_eq!(put("@memory@@memory@"), "/fd/5/fd/5");
        assert_eq!(put("@memory"), "@memory");
        assert_eq!(put(""), "");
    }
}
