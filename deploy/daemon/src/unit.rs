//! The systemd unit that runs a daemon with a configuration: its name, and the rights and limits that it
//! gives the daemon, which differ from those of a shell.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROPERTIES: &str = "LoadState,User,AmbientCapabilities,CapabilityBoundingSet,LimitMEMLOCKSoft,LimitNOFILE,ControlGroup,CPUQuotaPerSecUSec";

/// A unit that systemd has loaded, with its properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Name of the unit, as in `mn-server@b.service`.
    pub name: String,
    properties: BTreeMap<String, String>,
}

impl Unit {
    /// Asks systemd about the unit that runs `program` with the configuration `config`; `None` if systemd does not run
    /// this machine, or has no such unit.
    pub fn find(program: &str, config: &Path) -> Option<Unit> {
        if !Path::new("/run/systemd/system").exists() {
            return None;
        }
        let name = unit_of(program, config)?;
        let mut show = Command::new("systemctl");
        show.args(["show", "--property", PROPERTIES, &name]).stdin(Stdio::null()).stderr(Stdio::null());
        let shown = show.output().ok()?;
        Unit::parse(&name, &String::from_utf8_lossy(&shown.stdout))
    }

    /// Reads what `systemctl show` has printed; `None` if the unit is not there.
    pub(crate) fn parse(name: &str, shown: &str) -> Option<Unit> {
        let pairs = shown.lines().filter_map(|line| line.split_once('='));
        let properties: BTreeMap<String, String> =
            pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect();
        let loaded = properties.get("LoadState").is_some_and(|state| state == "loaded");
        loaded.then(|| Unit { name: name.to_owned(), properties })
    }

    /// Control group of the unit's processes; `None` while it does not run.
    pub(crate) fn control_group(&self) -> Option<&str> {
        Some(self.property("ControlGroup")).filter(|group| !group.is_empty())
    }

    /// Value of a property; empty if systemd does not report it.
    pub(crate) fn property(&self, key: &str) -> &str {
        self.properties.get(key).map_or("", String::as_str)
    }
}

/// Name of the unit that runs `program` with a configuration: `PROGRAM.service` for `/etc/cxloe/PROGRAM.toml`,
/// `PROGRAM@NAME.service` for `/etc/cxloe/PROGRAM-NAME.toml`; `None` for other files.
pub(crate) fn unit_of(program: &str, config: &Path) -> Option<String> {
    Some(match instance(program, config)?.as_str() {
        "" => format!("{program}.service"),
        name => format!("{program}@{name}.service"),
    })
}

/// Path of the socket that the systemd unit of an instance sets: `/run/cxloe/PROGRAM-NAME.sock` for the configuration
/// `/etc/cxloe/PROGRAM-NAME.toml`; `None` for other files.
pub fn instance_socket(program: &str, config: &Path) -> Option<PathBuf> {
    let name = instance(program, config).filter(|name| !name.is_empty())?;
    Some(Path::new("/run/cxloe").join(format!("{program}-{name}.sock")))
}

/// Name of the instance of `program` that uses a configuration: NAME for `/etc/cxloe/PROGRAM-NAME.toml`, empty for
/// `/etc/cxloe/PROGRAM.toml`; `None` for other files.
fn instance(program: &str, config: &Path) -> Option<String> {
    let path = std::path::absolute(config).ok()?;
    if path.parent() != Some(Path::new("/etc/cxloe")) {
        return None;
    }
    match path.file_name()?.to_str()?.strip_suffix(".toml")?.strip_prefix(program)? {
        "" => Some(String::new()),
        rest => rest.strip_prefix('-').map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: [&str; 4] =
        ["/etc/cxloe/other.toml", "/etc/cxloe/mn-serverb.toml", "/srv/mn-server.toml", "mn-server.toml"];

    #[test]
    fn a_configuration_belongs_to_one_unit() {
        let unit = |config: &str| unit_of("mn-server", Path::new(config));
        assert_eq!(unit("/etc/cxloe/mn-server.toml").as_deref(), Some("mn-server.service"));
        assert_eq!(unit("/etc/cxloe/mn-server-b.toml").as_deref(), Some("mn-server@b.service"));
        for other in OTHERS {
            assert_eq!(unit(other), None, "{other}");
        }
    }

    #[test]
    fn each_instance_has_a_socket_of_its_own() {
        let socket = |config: &str| instance_socket("mn-server", Path::new(config));
        let own = Path::new("/run/cxloe/mn-server-b.sock");
        assert_eq!(socket("/etc/cxloe/mn-server-b.toml").as_deref(), Some(own));
        assert_eq!(socket("/etc/cxloe/mn-server.toml"), None);
        for other in OTHERS {
            assert_eq!(socket(other), None, "{other}");
        }
    }

    #[test]
    fn only_a_loaded_unit_counts() {
        let unit = Unit::parse("x.service", "LoadState=loaded\nUser=cxloe\nLimitNOFILE=65536\n").unwrap();
        assert_eq!((unit.property("User"), unit.property("LimitNOFILE")), ("cxloe", "65536"));
        assert_eq!(unit.property("ControlGroup"), "");
        assert_eq!(Unit::parse("x.service", "LoadState=not-found\n"), None);
        assert_eq!(Unit::parse("x.service", ""), None);
    }
}
