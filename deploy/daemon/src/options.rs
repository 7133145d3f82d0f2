//! Options of a daemon: flags override a TOML file, which overrides the environment; the result is checked option by
//! option.
//!
//! A daemon has one struct of options, each of them an `Option`, that clap fills from flags and serde from the file.
//! [`read_options`] reads the file, [`over`] and [`OptionSources`](crate::OptionSources) merge the sources; the checks here are for
//! options that several daemons have. A fault is a [`ConfigError`] that names the option.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::{Arg, Args, Command};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Spanned;

use super::{EtherType, is_outside_kernel};
use cxloe_fabric::model::Name;

/// Maximum length of the name of a network interface in bytes: Linux's IFNAMSIZ without the zero at the end.
const INTERFACE_LEN_MAX: usize = 15;
/// Lowest EtherType; below it, the field is a length (IEEE 802.3, 3.2.6).
const ETHERTYPE_MIN: u16 = 0x0600;
/// EtherTypes that switches and hosts give another meaning: 802.1Q tags, 802.1ad tags, and MAC control (PFC frames).
const ETHERTYPES_TAKEN: [u16; 3] = [0x8100, 0x88A8, 0x8808];
/// Maximum 802.1Q priority: the field has 3 bits.
const PRIORITY_MAX: u8 = 7;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}: {source}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not TOML, or has an option that does not exist or a value that cannot be read.
    #[error("configuration file {}: {reason}", .path.display())]
    Syntax {
        path: PathBuf,
        /// Position and cause of the syntax error.
        reason: String,
    },
    /// An option is missing or out of range.
    #[error("option `{field}` (flag --{field}): {reason}")]
    Field {
        field: &'static str,
        /// The fault, and valid values.
        reason: String,
    },
    #[error(
        "this node has neither joined nor a key, so its frames would not be sealed: have it join (`{program} join URL --token \
         TOKEN -i INTERFACE`), name a file for its key by --node-key, or go without by --insecure (in the file: insecure = true)"
    )]
    Unprotected {
        /// Name of the program in the command that the error message suggests.
        program: &'static str,
    },
}

/// Protection of the frames of a node's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Frames are sealed with the node's own key.
    NodeKey,
    /// Frames are sealed with a pre-shared key, the same on all nodes.
    PreShared,
    /// Frames have only a checksum, because `--insecure` is set.
    Checksum,
}

/// Selects the protection of the frames of a node: its own key (`node_key`, unless `insecure`), or else a `pre_shared`
/// key, or else only a checksum. Frames are unsealed only if the operator requests it (`insecure`). The error names
/// `program`.
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

/// Error in the option `field`; `reason` names the fault and valid values.
pub fn wrong(field: &'static str, reason: impl Display) -> ConfigError {
    ConfigError::Field { field, reason: reason.to_string() }
}

/// Variable of the environment with the manager's URL; a flag or a file overrides it.
pub const MANAGER_VARIABLE: &str = "CXLOE_MANAGER";

/// The manager's URL: `named`, from a flag or a file; or else the value of [`MANAGER_VARIABLE`], unless it is empty.
pub fn manager(named: Option<String>) -> Option<String> {
    named.or_else(|| std::env::var(MANAGER_VARIABLE).ok().filter(|url| !url.is_empty()))
}

/// Reads a TOML file into an `S` that flattens no other struct; see [`read_options`] for one that does.
pub fn read<S: DeserializeOwned>(path: &Path) -> Result<S, ConfigError> {
    read_with(path, |text| toml::from_str(text).map_err(|error| error.to_string()))
}

/// Reads options from a TOML file, whose keys are the long names of the flags.
pub fn read_options<S: Args + DeserializeOwned>(path: &Path) -> Result<S, ConfigError> {
    read_with(path, parse_options)
}

fn read_with<S>(path: &Path, parse: impl FnOnce(&str) -> Result<S, String>) -> Result<S, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    parse(&text).map_err(|reason| ConfigError::Syntax { path: path.into(), reason })
}

/// Reads options key by key, because serde ignores unknown keys of a struct that flattens others, and does not report
/// the line of a wrong value in such a struct.
fn parse_options<S: Args + DeserializeOwned>(text: &str) -> Result<S, String> {
    let entries: BTreeMap<Spanned<String>, Spanned<toml::Value>> =
        toml::from_str(text).map_err(|error| error.to_string())?;
    let command = S::augment_args(Command::new("options"));
    let known: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
    let mut options = toml::Table::new();
    for (name, value) in entries {
        let line = text[..name.span().start].matches('\n').count() + 1;
        let (name, value) = (name.into_inner(), value.into_inner());
        let wrong = |reason: String| format!("line {line}, `{name}`: {reason}");
        if !known.contains(&name.as_str()) {
            let nearest = known.iter().min_by_key(|known| strsim::damerau_levenshtein(known, &name));
            let nearest = nearest.expect("a program has options");
            return Err(wrong(format!("no option has this name; the nearest is `{nearest}`")));
        }
        // Each entry is read alone, so that an error names its line.
        let entry = toml::Table::from_iter([(name.clone(), value)]);
        entry.clone().try_into::<S>().map_err(|error| wrong(error.message().to_owned()))?;
        options.extend(entry);
    }
    options.try_into().map_err(|error: toml::de::Error| error.to_string())
}

/// Options of `flags`, completed by those of `file`.
///
/// # Panics
/// If `S` cannot be read back from its TOML, or has a value that TOML cannot represent.
pub fn over<S: Serialize + DeserializeOwned>(flags: &S, file: &S) -> S {
    let table = |settings| toml::Table::try_from(settings).expect("options are plain values");
    let mut merged = table(file);
    merged.extend(table(flags));
    merged.try_into().expect("both halves were read by the same rules")
}

/// TOML file that yields these options when read.
///
/// # Panics
/// If `S` has a value that TOML cannot represent.
pub fn to_toml<S: Serialize>(settings: &S) -> String {
    toml::to_string(settings).expect("options are plain values")
}

/// Returns `value` if it is from `min` to `max`, both included.
///
/// # Errors
/// [`ConfigError::Field`] that names `min` and `max`.
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

/// Name of the node: the option `name`, else the host name, or `other` if the host name is not valid for a node.
///
/// # Errors
/// [`ConfigError::Field`] when `name` or `other` is not valid.
pub fn node_name(name: Option<String>, other: &str) -> Result<Name, ConfigError> {
    let host = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    match name {
        Some(name) => Name::new(name),
        None => Name::new(host().unwrap_or_default()).or_else(|_| Name::new(other)),
    }
    .map_err(|error| wrong("name", error))
}

/// Network interface of a node: the option `interface`.
///
/// # Errors
/// [`ConfigError::Field`] when it is missing, or neither valid as a name on Linux nor a device of DPDK.
pub fn interface(name: Option<String>) -> Result<String, ConfigError> {
    let name = name.ok_or_else(|| wrong("interface", "say by which interface, as in -i enp3s0f0"))?;
    if name.is_empty() || (name.len() > INTERFACE_LEN_MAX && !is_outside_kernel(&name)) {
        let reason = format!("`{name}` is no interface name (1 to {INTERFACE_LEN_MAX} characters)");
        return Err(wrong("interface", reason));
    }
    Ok(name)
}

/// EtherType of the fabric's frames: the option `ethertype`, else `usual`.
///
/// # Errors
/// [`ConfigError::Field`] when switches and hosts give the value another meaning.
pub fn ethertype(value: Option<EtherType>, usual: u16) -> Result<u16, ConfigError> {
    let EtherType(value) = value.unwrap_or(EtherType(usual));
    if value < ETHERTYPE_MIN || ETHERTYPES_TAKEN.contains(&value) {
        let reason = format!("{} has a meaning of its own; use 0x88B5 or 0x88B6", EtherType(value));
        return Err(wrong("ethertype", reason));
    }
    Ok(value)
}

/// 802.1Q priority of the fabric's frames: the option `priority`; `None`: frames are not tagged.
///
/// # Errors
/// [`ConfigError::Field`] when the priority is above 7.
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

    #[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Flattening {
        #[arg(long)]
        worker_count: Option<u8>,
        #[command(flatten)]
        #[serde(flatten)]
        common: Flattened,
    }

    #[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Flattened {
        #[arg(long)]
        log_format: Option<String>,
        #[arg(long)]
        ethertype: Option<EtherType>,
    }

    #[test]
    fn options_in_common_read_back_and_a_wrong_one_is_named_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_options::<Flattening>(&path)
        };
        let common = Flattened { log_format: Some("json".into()), ethertype: Some(EtherType(0x88B6)) };
        let options = Flattening { worker_count: Some(2), common };
        assert_eq!(read(&to_toml(&options)).unwrap(), options);
        assert_eq!(read("").unwrap(), Flattening::default());
        assert_eq!(to_toml(&Flattening::default()).trim(), "", "what is not given is left out");
        assert_eq!(over(&Flattening::default(), &options), options);
        for (text, said) in [
            (
                "worker-count = 1\nlog-fromat = 'x'\n",
                "line 2, `log-fromat`: no option has this name; the nearest is `log-format`",
            ),
            (
                "\n[worker-count-s]\nx = 1\n",
                "line 2, `worker-count-s`: no option has this name; the nearest is `worker-count`",
            ),
            ("# x\n\nlog-format = 1\n", "line 3, `log-format`: invalid type: integer `1`, expected a string"),
            ("worker-count = 256", "line 1, `worker-count`: invalid value: integer `256`, expected u8"),
            ("worker-count = 1\nethertype = '0x1FFFF'", "line 2, `ethertype`: `0x1FFFF` is not an EtherType"),
            ("worker-count = 1\nworker-count = 2", "line 2"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("node.toml") && error.contains(said), "{text}: {error}");
        }
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
