//! One thing that was looked at, what was found, and what to do about it.

use serde::Serialize;

/// How a check came out. The worst of a report decides how the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, but slower or with less than it could.
    Warn,
    /// The daemon does not start, or does not serve.
    Fail,
}

impl Level {
    /// As a table has it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        }
    }
}

/// What a check is about; reports are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// The daemon's options.
    Configuration,
    /// Kernel, clock, CPUs.
    Machine,
    /// What this process may do.
    Permissions,
    /// The pool, huge pages, folders.
    Memory,
    /// The network interface.
    Interface,
    /// Whether the daemon runs, and how it is doing.
    Daemon,
    /// The manager and other nodes.
    Peers,
}

impl Group {
    /// As a table has it.
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

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is about.
    pub group: Group,
    /// What was looked at.
    pub name: String,
    /// How it came out.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    /// As it should be.
    pub fn ok(group: Group, name: impl Into<String>, found: impl Into<String>) -> Check {
        Check { group, name: name.into(), level: Level::Ok, found: found.into(), advice: None }
    }

    /// It works, but could work better: by what `advice` says.
    pub fn warn(
        group: Group,
        name: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check { level: Level::Warn, advice: Some(advice.into()), ..Check::ok(group, name, found) }
    }

    /// It does not work; it does after what `advice` says.
    pub fn fail(
        group: Group,
        name: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check { level: Level::Fail, advice: Some(advice.into()), ..Check::ok(group, name, found) }
    }
}
