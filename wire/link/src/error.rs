//! Why a link could not be opened or has stopped working.

/// Why a link could not be opened or has stopped working. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// There is no such interface in this network namespace.
    #[error(
        "no network interface named `{0}` here; `ip link` lists them (names differ between network namespaces)"
    )]
    NoSuchInterface(String),
    /// The interface exists but is not up.
    #[error("interface `{0}` is down; bring it up with `ip link set {0} up`")]
    Down(String),
    /// Opening raw sockets was refused.
    #[error("no permission to {what} on `{interface}`: {needs}")]
    Permission {
        /// What was tried.
        what: &'static str,
        /// On which interface.
        interface: String,
        /// Which capability is missing and how to give it.
        needs: &'static str,
    },
    /// The MTU does not even carry a single line.
    #[error(
        "MTU {mtu} of `{interface}` is too small: at least {needed} bytes are needed; raise it with `ip link set {interface} mtu 1500` (9000 is best where every hop allows it)"
    )]
    MtuTooSmall {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: usize,
        /// What a line with its header and trailer takes.
        needed: usize,
    },
    /// This kernel or interface lacks what the backend needs.
    #[error("{backend} does not work on `{interface}`: {why}")]
    Unsupported {
        /// The backend asked for.
        backend: &'static str,
        /// The interface.
        interface: String,
        /// What is missing.
        why: String,
    },
    /// Any other failure of a system call.
    #[error("{what} on `{interface}`: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which interface.
        interface: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
}
