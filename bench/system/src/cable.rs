//! One cable between two namespaces, the smallest network.

use std::fmt;
use std::process::Command;

use cxloe_lab::{Builder, Lab};
use cxloe_link::{Backend, Encap};

use crate::command::succeeded;
use crate::outcome::Outcome;

/// Two namespaces joined by one cable: `cn` with the interface `cn0`, `mn` with the interface `mn0`.
pub fn cable() -> Builder {
    Lab::builder().namespace("cn").namespace("mn").veth("cn", "cn0", "mn", "mn0")
}

/// Address and port of `cn0` for frames inside UDP, if the cable has IP addresses.
pub const CN_AT: &str = "10.77.0.1:63669";
/// Address and port of `mn0` for frames inside UDP.
pub const MN_AT: &str = "10.77.0.2:63669";

/// Adds IP addresses at both ends of the cable, for links over UDP.
pub fn with_addresses(cable: Builder) -> Builder {
    cable.address("cn0", "10.77.0.1/24").address("mn0", "10.77.0.2/24")
}

/// Kind of link that a test uses, and the headers that it puts around frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkKind {
    pub backend: Backend,
    /// Headers that a raw link itself puts around frames. A UDP link also has `Encap::None`, because the kernel writes
    /// its headers.
    pub encap: Encap,
}

impl LinkKind {
    /// A device of DPDK, which is a link of its own and leaves nothing to choose.
    pub const DPDK: LinkKind = LinkKind { backend: Backend::Auto, encap: Encap::None };

    pub fn is_dpdk(self) -> bool {
        self == LinkKind::DPDK
    }

    /// A raw link with `backend` that itself writes the headers of frames inside UDP.
    pub const fn encap(backend: Backend) -> LinkKind {
        LinkKind { backend, encap: Encap::Udp }
    }

    /// True if frames are inside UDP, whatever the link.
    pub fn is_inside_udp(self) -> bool {
        self.backend == Backend::Udp || self.encap == Encap::Udp
    }
}

impl From<Backend> for LinkKind {
    fn from(backend: Backend) -> LinkKind {
        LinkKind { backend, encap: Encap::None }
    }
}

/// Displays the kind as the prefix of test names.
impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.encap {
            Encap::None if self.is_dpdk() => f.write_str("dpdk"),
            Encap::None => write!(f, "{}", self.backend),
            Encap::Udp => write!(f, "encap_{}", self.backend),
        }
    }
}

/// The cable that a link of this kind requires.
pub fn cable_for(over: impl Into<LinkKind>) -> Builder {
    if over.into().is_inside_udp() { with_addresses(cable()) } else { cable() }
}

/// Runs `ip` in a namespace of the lab; returns its output.
///
/// # Errors
/// Returns an error when `ip` fails.
pub fn ip(lab: &Lab, namespace: &str, arguments: &[&str]) -> Outcome<String> {
    let output = lab.enter(namespace, || Command::new("ip").args(arguments).output())??;
    succeeded(output)
        .map_err(|error| format!("ip {arguments:?}: {}", error.message().unwrap_or_default()).into())
}
