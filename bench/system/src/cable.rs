//! One cable between two namespaces, the smallest network there is.

use std::fmt;
use std::process::Command;

use cxloe_lab::{Builder, Lab};
use cxloe_link::{Backend, Encap};

use crate::command::succeeded;
use crate::outcome::Outcome;

/// Two namespaces joined by one cable: `cn` with `cn0`, `mn` with `mn0`.
pub fn cable() -> Builder {
    Lab::builder().namespace("cn").namespace("mn").veth("cn", "cn0", "mn", "mn0")
}

/// The outer address of `cn0` over UDP, where the cable has addresses.
pub const CN_AT: &str = "10.77.0.1:63669";
/// The outer address of `mn0`.
pub const MN_AT: &str = "10.77.0.2:63669";

/// The same cable with IP addresses at both ends, for links over UDP.
pub fn with_addresses(cable: Builder) -> Builder {
    cable.address("cn0", "10.77.0.1/24").address("mn0", "10.77.0.2/24")
}

/// What frames go over: a kind of link, and what they travel in where it is a raw one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The implementation.
    pub backend: Backend,
    /// What frames travel in.
    pub encap: Encap,
}

impl Over {
    /// Frames inside UDP, under headers that the link writes.
    pub const fn encap(backend: Backend) -> Over {
        Over { backend, encap: Encap::Udp }
    }

    /// Whether frames travel inside UDP, by whatever link.
    pub fn is_inside_udp(self) -> bool {
        self.backend == Backend::Udp || self.encap == Encap::Udp
    }
}

impl From<Backend> for Over {
    fn from(backend: Backend) -> Over {
        Over { backend, encap: Encap::None }
    }
}

/// As the names of tests begin.
impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.encap {
            Encap::None => write!(f, "{}", self.backend),
            Encap::Udp => write!(f, "encap_{}", self.backend),
        }
    }
}

/// The cable that a link of this kind needs.
pub fn cable_for(over: impl Into<Over>) -> Builder {
    if over.into().is_inside_udp() { with_addresses(cable()) } else { cable() }
}

/// Runs `ip` in a namespace of the lab; what it prints.
///
/// # Errors
/// When it fails.
pub fn ip(lab: &Lab, namespace: &str, arguments: &[&str]) -> Outcome<String> {
    let output = lab.enter(namespace, || Command::new("ip").args(arguments).output())??;
    succeeded(output)
        .map_err(|error| format!("ip {arguments:?}: {}", error.message().unwrap_or_default()).into())
}
