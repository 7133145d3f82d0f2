//! Default places of a daemon's files: the system's folders for root, the user's own for others, so that a fabric can
//! be tried without privileges.

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// Folder of a daemon's persistent files: `/var/lib/cxloe` as root, else `cxloe` in `$XDG_STATE_HOME`, which is
/// `~/.local/state` if not set.
pub fn data_dir() -> PathBuf {
    if geteuid().is_root() {
        return PathBuf::from("/var/lib/cxloe");
    }
    let home = || std::env::home_dir().unwrap_or_else(std::env::temp_dir).join(".local/state");
    std::env::var_os("XDG_STATE_HOME").map_or_else(home, PathBuf::from).join("cxloe")
}

/// Path of a daemon's socket `name`: in `/run/cxloe` for root, else in `cxloe` in `$XDG_RUNTIME_DIR`, or in a temporary
/// directory of the user if that variable is not set.
pub fn socket(name: impl AsRef<Path>) -> PathBuf {
    if geteuid().is_root() {
        return Path::new("/run/cxloe").join(name);
    }
    let user = || std::env::temp_dir().join(format!("cxloe-{}", geteuid()));
    std::env::var_os("XDG_RUNTIME_DIR").map_or_else(user, |dir| PathBuf::from(dir).join("cxloe")).join(name)
}
