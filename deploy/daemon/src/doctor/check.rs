//! Single check of a doctor: its subject, its finding, and advice.

use serde::Serialize;

/// Severity of a finding. The worst one in a report decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// The daemon works, but slower or with fewer functions than possible.
    Warn,
    /// The daemon would not start, or would start but not serve.
    Fail,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        }
    }
}

/// Subject of a check, in the order of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// The daemon's options.
    Configuration,
    /// Kernel, clock, CPUs.
    Machine,
    /// Capabilities and limits of this process.
    Permissions,
    /// Memory and storage: the pool, huge pages, folders.
    Memory,
    /// Settings of the network interface.
    Interface,
    /// The running daemon and its state.
    Daemon,
    /// The manager and the other nodes.
    Peers,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Group::Configuration => "configuration",
            Group::Machine => "machine",
            Group::Permissions => "permissions",
            Group::Memory => "memory",
            Group::Interface => "interface",
            Group::Daemon => "daemon",
            Group::Peers => "peers",
        }
    }
}

/// Outcome of one check, a line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub group: Group,
    pub name: String,
    pub level: Level,
    pub found: String,
    /// Advice to the operator; `None` if the check passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    pub fn ok(group: Group, name: impl Into<String>, found: impl Into<String>) -> Check {
        Check { group, name: name.into(), level: Level::Ok, found: found.into(), advice: None }
    }

    /// A warning: the daemon works, but would work better if the operator followed `advice`.
    pub fn warn(
        group: Group,
        name: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check { level: Level::Warn, advice: Some(advice.into()), ..Check::ok(group, name, found) }
    }

    /// A failure; following `advice` removes the cause.
    pub fn fail(
        group: Group,
        name: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check { level: Level::Fail, advice: Some(advice.into()), ..Check::ok(group, name, found) }
    }
}
