//! Where a daemon's files lie unless told otherwise: in the system's places for root, in the user's own for others, so
//! that a fabric can be tried without privileges.

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// Where a daemon keeps what outlives it: `/var/lib/cxloe` as root, else `cxloe` in `$XDG_STATE_HOME`, which is
/// `~/.local/state` if not set.
pub fn data_dir() -> PathBuf {
    if geteuid().is_root() {
        return PathBuf::from("/var/lib/cxloe");
    }
    let home = || std::env::home_dir().unwrap_or_else(std::env::temp_dir).join(".local/state");
    std::env::var_os("XDG_STATE_HOME").map_or_else(home, PathBuf::from).join("cxloe")
}

/// Where the socket `name` of a daemon is: in `/run/cxloe` as root, else in `cxloe` in `$XDG_RUNTIME_DIR`, or where that
/// is not set in a directory of the user's for temporary files.
pub fn socket(name: impl AsRef<Path>) -> PathBuf {
    if geteuid().is_root() {
        return Path::new("/run/cxloe").join(name);
    }
    let user = || std::env::temp_dir().join(format!("cxloe-{}", geteuid()));
    std::env::var_os("XDG_RUNTIME_DIR").map_or_else(user, |dir| PathBuf::from(dir).join("cxloe")).join(name)
}
