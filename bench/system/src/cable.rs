//! One cable between two namespaces, the smallest network there is.

use std::process::Command;

use cxloe_lab::{Builder, Lab};

use crate::command::succeeded;
use crate::outcome::Outcome;

/// Two namespaces joined by one cable: `cn` with `cn0`, `mn` with `mn0`.
pub fn cable() -> Builder {
    Lab::builder().namespace("cn").namespace("mn").veth("cn", "cn0", "mn", "mn0")
}

/// Runs `ip` in a namespace of the lab; what it prints.
///
/// # Errors
/// When it fails.
pub fn ip(lab: &Lab, namespace: &str, arguments: &[&str]) -> Outcome<String> {
    let output = lab.enter(namespace, || Command::new("ip").args(arguments).output())??;
    Ok(succeeded(output)
        .map_err(|error| format!("ip {arguments:?}: {}", error.message().unwrap_or_default()))?)
}
