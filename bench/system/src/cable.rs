//! One cable between two namespaces, the smallest network there is.

use std::process::Command;

use cxloe_lab::{Builder, Lab};
use cxloe_link::Backend;

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

/// The cable that a link of this kind needs.
pub fn cable_for(backend: Backend) -> Builder {
    if backend == Backend::Udp { with_addresses(cable()) } else { cable() }
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
