//! Rights that a lab requires, and the way by which ordinary users get them too.
//!
//! Namespaces, interfaces and raw sockets require CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW. Inside a user namespace
//! of its own an ordinary user has all of them, for the resources of that namespace. Only a single-threaded process may
//! make a user namespace, hence the call at the start of `main`.

#![expect(unsafe_code, reason = "a forked child tries what this process may do")]

use std::fs;
use std::io::{self, Read, Write};

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, getegid, geteuid};

use crate::LabError;

/// CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN as bits of the masks in `/proc/self/status` (capability(7)).
const NEEDED: u64 = 1 << 12 | 1 << 13 | 1 << 21;

/// Source of the rights by which this process can make labs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabPrivilege {
    /// The process has the capabilities for the whole machine, as root has.
    Root,
    /// The process has the rights inside a private user namespace only. XDP programs cannot be loaded there, and locked
    /// memory is limited.
    UserNamespace,
}

/// Makes sure that this process may make labs: unless it already may, moves the process into its own user, network and
/// mount namespaces, where the user is mapped to root. New files still belong to the user.
///
/// Must be called before any thread is started.
///
/// # Errors
/// Returns [`LabError::UserNamespace`], with the setting that forbids it where one is found.
pub fn become_private_user_namespace() -> Result<LabPrivilege, LabError> {
    if effective_capabilities() & NEEDED == NEEDED {
        // In a container, the capabilities may be limited to a user namespace. Only the initial user namespace maps all
        // users.
        let whole = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all_users(&map));
        return Ok(if whole { LabPrivilege::Root } else { LabPrivilege::UserNamespace });
    }
    let (user, group) = (geteuid(), getegid());
    let flags = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    unshare(flags).map_err(|e| failed("unshare", e.into()))?;
    // The kernel accepts a group map from an ordinary user only after setgroups was denied (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny").map_err(|e| failed("/proc/self/setgroups", e))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1")).map_err(|e| failed("/proc/self/gid_map", e))?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1")).map_err(|e| failed("/proc/self/uid_map", e))?;
    Ok(LabPrivilege::UserNamespace)
}

/// Checks that this process can make labs with raw sockets in them. A child process tries, so that this process stays
/// unchanged. Must be called before any thread is started.
///
/// # Errors
/// Returns a description of the hindrance.
pub fn may_make_labs() -> Result<(), String> {
    let words = |step: &'static str| move |error: nix::Error| format!("{step}: {error}");
    let (read, write) = nix::unistd::pipe().map_err(words("pipe"))?;
    // SAFETY: the process has one thread, so the child may call any function.
    match unsafe { fork() }.map_err(words("fork"))? {
        ForkResult::Child => {
            drop(read);
            let tried = become_private_user_namespace().map_err(|error| error.to_string()).and_then(|_| {
                let (family, kind) = (AddressFamily::Packet, SockType::Raw);
                let raw = socket(family, kind, SockFlag::empty(), None);
                raw.map(drop).map_err(|error| format!("raw sockets are not allowed here: {error}"))
            });
            if let Err(reason) = &tried {
                let _ = fs::File::from(write).write_all(reason.as_bytes());
            }
            // SAFETY: ends the child at once, without the exit handlers inherited from this process.
            unsafe { nix::libc::_exit(i32::from(tried.is_err())) }
        }
        ForkResult::Parent { child } => {
            drop(write);
            let mut reason = String::new();
            let _ = fs::File::from(read).read_to_string(&mut reason);
            match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, 0)) => Ok(()),
                Ok(_) => Err(reason),
                Err(error) => Err(words("waitpid")(error)),
            }
        }
    }
}

/// Returns true if a user map (user_namespaces(7)) is that of the initial namespace.
fn maps_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn effective_capabilities() -> u64 {
    status_field("CapEff").and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0)
}

fn status_field(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().into())
}

fn failed(step: &'static str, source: io::Error) -> LabError {
    LabError::UserNamespace { step, source, advice: advice(|path| fs::read_to_string(path).ok()) }
}

/// Returns the remedy for a refused user namespace. `read` returns the content of a file; tests replace it.
fn advice(read: impl Fn(&str) -> Option<String>) -> String {
    let setting = |path: &str| read(path).map(|text| text.trim().to_owned());
    let is = |path: &str, value: &str| setting(path).is_some_and(|found| found == value);
    let reason = if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "the setting kernel.unprivileged_userns_clone=0 forbids it to ordinary users"
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "the setting user.max_user_namespaces=0 forbids it"
    } else if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "the setting kernel.apparmor_restrict_unprivileged_userns=1 (AppArmor) forbids it to ordinary users"
    } else if status_field("Threads").is_some_and(|threads| threads != "1") {
        "it has to happen before the first thread is started"
    } else {
        "a container runtime or security module may forbid it"
    };
    format!("{reason}; run the same command with sudo instead")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_namespace_has_all_users() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        assert!(!maps_all_users("         0      65534          1\n"));
        assert!(!maps_all_users("0 100000 65536\n"));
        assert!(!maps_all_users(""));
    }

    #[test]
    fn advice_names_the_setting_that_forbids_it() {
        for (path, value, expected) in [
            ("/proc/sys/kernel/unprivileged_userns_clone", "0\n", "kernel.unprivileged_userns_clone=0"),
            ("/proc/sys/user/max_user_namespaces", "0\n", "user.max_user_namespaces=0"),
            (
                "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
                "1\n",
                "apparmor_restrict_unprivileged_userns=1",
            ),
        ] {
            let advice = advice(|asked| (asked == path).then(|| value.to_owned()));
            assert!(advice.contains(expected), "{advice}");
            assert!(advice.contains("sudo"), "{advice}");
        }
    }

    #[test]
    fn advice_does_not_blame_a_setting_that_allows_it() {
        let advice = advice(|asked| asked.ends_with("userns_clone").then(|| "1\n".to_owned()));
        assert!(!advice.contains("userns_clone"), "{advice}");
    }
}
