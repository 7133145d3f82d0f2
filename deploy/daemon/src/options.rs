//! Options of a daemon: what flags say is laid over what a TOML file says, and what results is checked one by one.
//!
//! A daemon has one struct of options, each of them an `Option`, that clap fills from flags and serde from the file.
//! [`read`] reads the file, [`over`] lays the flags over it; the checks here are those of options that several daemons
//! have. What is wrong is a [`ConfigError`] that names the option.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::EtherType;
use cxloe_fabric::model::Name;

/// The longest name of a network interface in bytes: Linux's IFNAMSIZ without the zero at the end.
const INTERFACE_LEN_MAX: usize = 15;
/// Below it, the field is a length (IEEE 802.3, 3.2.6).
const ETHERTYPE_MIN: u16 = 0x0600;
/// 802.1Q tags, 802.1ad tags, and MAC control, which PFC frames have.
const ETHERTYPES_TAKEN: [u16; 3] = [0x8100, 0x88A8, 0x8808];
/// The highest 802.1Q priority.
const PRIORITY_MAX: u8 = 7;

/// Why options cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The file is not TOML, or has an option that does not exist or a value that cannot be read.
    #[error("configuration file {}: {reason}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// An option is missing or out of range.
    #[error("option `{field}` (flag --{field}): {reason}")]
    Field {
        /// The option's name.
        field: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The node has no key, and nobody has asked for frames without.
    #[error(
        "this node has neither joined nor a key, so its frames would not be sealed: have it join (`{program} join URL --token \
         TOKEN -i INTERFACE`), name a file for its key by --node-key, or go without by --insecure (in the file: insecure = true)"
    )]
    Unprotected {
        /// The node's program.
        program: &'static str,
    },
}

/// What protects the frames of a node's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// A key of the node's own.
    NodeKey,
    /// A key that all nodes have.
    PreShared,
    /// A checksum, since somebody asked for that.
    Checksum,
}

/// What protects the frames of a node of `program` that has a key of its own, or a `pre_shared` one, and is to speak without
/// its own if it is `insecure`. Nothing is plain unless it is asked for.
///
/// # Errors
/// [`ConfigError::Unprotected`].
pub fn protection(
    program: &'static str,
    node_key: bool,
    pre_shared: bool,
    insecure: bool,
) -> Result<Protection, ConfigError> {
    match (node_key && !insecure, pre_shared) {
        (true, _) => Ok(Protection::NodeKey),
        (false, true) => Ok(Protection::PreShared),
        (false, false) if insecure => Ok(Protection::Checksum),
        (false, false) => Err(ConfigError::Unprotected { program }),
    }
}

/// The option `field` is wrong for this `reason`, which says what would be right.
pub fn wrong(field: &'static str, reason: impl Display) -> ConfigError {
    ConfigError::Field { field, reason: reason.to_string() }
}

/// The variable of the environment that names the manager where neither a flag nor a file does.
pub const MANAGER_VARIABLE: &str = "CXLOE_MANAGER";

/// The manager's URL: `named` by a flag or a file, else by [`MANAGER_VARIABLE`] unless that is empty.
pub fn manager(named: Option<String>) -> Option<String> {
    named.or_else(|| std::env::var(MANAGER_VARIABLE).ok().filter(|url| !url.is_empty()))
}

/// Reads options from a TOML file.
///
/// # Errors
/// [`ConfigError::Read`] and [`ConfigError::Syntax`].
pub fn read<S: DeserializeOwned>(path: &Path) -> Result<S, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    toml::from_str(&text)
        .map_err(|error| ConfigError::Syntax { path: path.into(), reason: error.to_string() })
}

/// The options of `flags`, and those of `file` where `flags` has none.
///
/// # Panics
/// If `S` does not read back what it writes, or writes what TOML has no value for.
pub fn over<S: Serialize + DeserializeOwned>(flags: &S, file: &S) -> S {
    let table = |settings| toml::Table::try_from(settings).expect("options are plain values");
    let mut merged = table(file);
    merged.extend(table(flags));
    merged.try_into().expect("both halves were read by the same rules")
}

/// The options as a TOML file that yields them again.
///
/// # Panics
/// If `S` writes what TOML has no value for.
pub fn to_toml<S: Serialize>(settings: &S) -> String {
    toml::to_string(settings).expect("options are plain values")
}

/// `value`, if it is within `min` and `max`, both of which are possible.
///
/// # Errors
/// [`ConfigError::Field`] that names both.
pub fn in_range<T: PartialOrd + Display>(
    field: &'static str,
    value: T,
    min: T,
    max: T,
) -> Result<T, ConfigError> {
    if value < min || value > max {
        return Err(wrong(field, format!("{value} is out of range; choose {min} to {max}")));
    }
    Ok(value)
}

/// `name`: what a node is called. If there is none, the host name; or `other`, if the host's cannot be a node's.
///
/// # Errors
/// [`ConfigError::Field`] when the name that was given, or `other`, cannot be one.
pub fn node_name(name: Option<String>, other: &str) -> Result<Name, ConfigError> {
    let host = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    match name {
        Some(name) => Name::new(name),
        None => Name::new(host().unwrap_or_default()).or_else(|_| Name::new(other)),
    }
    .map_err(|error| wrong("name", error))
}

/// `interface`: the network interface a node uses.
///
/// # Errors
/// [`ConfigError::Field`] when there is none, or Linux can have none of that name.
pub fn interface(name: Option<String>) -> Result<String, ConfigError> {
    let name = name.ok_or_else(|| wrong("interface", "say by which interface, as in -i enp3s0f0"))?;
    if name.is_empty() || name.len() > INTERFACE_LEN_MAX {
        let reason = format!("`{name}` is no interface name (1 to {INTERFACE_LEN_MAX} characters)");
        return Err(wrong("interface", reason));
    }
    Ok(name)
}

/// `ethertype`: that of the fabric's frames, `usual` if there is none.
///
/// # Errors
/// [`ConfigError::Field`] when switches and hosts take it for something else.
pub fn ethertype(value: Option<EtherType>, usual: u16) -> Result<u16, ConfigError> {
    let EtherType(value) = value.unwrap_or(EtherType(usual));
    if value < ETHERTYPE_MIN || ETHERTYPES_TAKEN.contains(&value) {
        let reason = format!("{} has a meaning of its own; use 0x88B5 or 0x88B6", EtherType(value));
        return Err(wrong("ethertype", reason));
    }
    Ok(value)
}

/// `priority`: the 802.1Q priority of the fabric's frames; `None`: they are not tagged.
///
/// # Errors
/// [`ConfigError::Field`] when it is none.
pub fn priority(value: Option<u8>) -> Result<Option<u8>, ConfigError> {
    match value {
        Some(value) if value > PRIORITY_MAX => Err(wrong("priority", "an 802.1Q priority is 0 to 7")),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct Settings {
        worker_count: Option<u32>,
        log: Option<String>,
        ethertype: Option<EtherType>,
    }

    #[test]
    fn flags_win_and_what_is_written_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.toml");
        std::fs::write(&path, "worker-count = 2\nethertype = '0x88B6'\n").unwrap();
        let file: Settings = read(&path).unwrap();
        let flags = Settings { worker_count: Some(3), log: Some("debug".into()), ethertype: None };
        let merged = over(&flags, &file);
        assert_eq!(merged, Settings { ethertype: Some(EtherType(0x88B6)), ..flags });
        std::fs::write(&path, to_toml(&merged)).unwrap();
        assert_eq!(read::<Settings>(&path).unwrap(), merged);
        assert_eq!(over(&Settings::default(), &file), file);
    }

    #[test]
    fn a_bad_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.toml");
        for (text, said) in [("worker_count = 1", "worker_count"), ("log = [", "line 1"), ("log = 1", "log")]
        {
            std::fs::write(&path, text).unwrap();
            let error = read::<Settings>(&path).unwrap_err();
            assert!(matches!(error, ConfigError::Syntax { .. }), "{error}");
            assert!(error.to_string().contains("node.toml") && error.to_string().contains(said), "{error}");
        }
        let error = read::<Settings>(&dir.path().join("none.toml")).unwrap_err();
        assert!(matches!(&error, ConfigError::Read { path, .. } if path.ends_with("none.toml")), "{error}");
    }

    #[test]
    fn checks_name_the_option_and_what_would_be_right() {
        let said = |error: ConfigError| error.to_string();
        assert_eq!(in_range("workers", 64, 1, 64).unwrap(), 64);
        for value in [0, 65] {
            let error = said(in_range("workers", value, 1, 64).unwrap_err());
            assert!(error.contains("--workers") && error.contains("1 to 64"), "{error}");
        }
        assert_eq!(interface(Some("enp3s0f0".into())).unwrap(), "enp3s0f0");
        assert!(said(interface(None).unwrap_err()).contains("-i enp3s0f0"));
        for name in ["", "sixteen-letters-"] {
            assert!(said(interface(Some(name.into())).unwrap_err()).contains("1 to 15"), "{name}");
        }
        assert_eq!(ethertype(None, 0x88B5).unwrap(), 0x88B5);
        for taken in [0x05FF, 0x8100, 0x8808] {
            assert!(said(ethertype(Some(EtherType(taken)), 0x88B5).unwrap_err()).contains("0x88B5"));
        }
        assert_eq!((priority(None).unwrap(), priority(Some(7)).unwrap()), (None, Some(7)));
        assert!(said(priority(Some(8)).unwrap_err()).contains("0 to 7"));
        assert_eq!(node_name(Some("mn0".into()), "node").unwrap().as_str(), "mn0");
        assert!(said(node_name(Some("a b".into()), "node").unwrap_err()).contains("--name"));
        assert!(!node_name(None, "node").unwrap().as_str().is_empty());
    }

    #[test]
    fn nothing_is_plain_unless_it_is_asked_for() {
        let of = |node_key, pre_shared, insecure| protection("mn-server", node_key, pre_shared, insecure);
        for (has, protected) in [
            ((true, false, false), Protection::NodeKey),
            ((true, true, false), Protection::NodeKey),
            ((false, true, false), Protection::PreShared),
            ((true, true, true), Protection::PreShared),
            ((true, false, true), Protection::Checksum),
            ((false, false, true), Protection::Checksum),
        ] {
            assert_eq!(of(has.0, has.1, has.2).unwrap(), protected, "{has:?}");
        }
        let error = of(false, false, false).unwrap_err().to_string();
        for way in ["mn-server join", "--node-key", "--insecure", "insecure = true"] {
            assert!(error.contains(way), "{error}");
        }
    }
}
