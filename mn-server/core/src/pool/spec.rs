//! What a pool is made of, as written after `--pool` or in the TOML file: `anon`, `huge2m`, `file:/path`, ….

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The kind of memory behind a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PoolSpec {
    /// `anon`: ordinary anonymous memory, with transparent huge pages advised.
    #[default]
    Anon,
    /// `huge2m`: 2 MiB pages from the kernel's reserve.
    Huge2M,
    /// `huge1g`: 1 GiB pages from the kernel's reserve.
    Huge1G,
    /// `memfd`: memory behind a file descriptor, which a successor process can take over with its content.
    Memfd,
    /// `file:/path`: a file, created sparse or used again; its content outlives the process.
    File(PathBuf),
    /// `dax:/dev/daxX.Y`: a device-DAX node (CXL or persistent memory), mapped whole.
    Dax(PathBuf),
}

/// A `--pool` value that names no kind of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind of pool; use anon, huge2m, huge1g, memfd, file:/path or dax:/dev/daxX.Y")]
pub struct PoolSpecError(String);

impl FromStr for PoolSpec {
    type Err = PoolSpecError;

    fn from_str(text: &str) -> Result<Self, PoolSpecError> {
        match text.split_once(':') {
            None => match text {
                "anon" => Some(PoolSpec::Anon),
                "huge2m" => Some(PoolSpec::Huge2M),
                "huge1g" => Some(PoolSpec::Huge1G),
                "memfd" => Some(PoolSpec::Memfd),
                _ => None,
            },
            Some((_, "")) => None,
            Some(("file", path)) => Some(PoolSpec::File(path.into())),
            Some(("dax", path)) => Some(PoolSpec::Dax(path.into())),
            Some(_) => None,
        }
        .ok_or_else(|| PoolSpecError(text.to_string()))
    }
}

impl fmt::Display for PoolSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolSpec::Anon => f.write_str("anon"),
            PoolSpec::Huge2M => f.write_str("huge2m"),
            PoolSpec::Huge1G => f.write_str("huge1g"),
            PoolSpec::Memfd => f.write_str("memfd"),
            PoolSpec::File(path) => write!(f, "file:{}", path.display()),
            PoolSpec::Dax(path) => write!(f, "dax:{}", path.display()),
        }
    }
}

impl PoolSpec {
    /// Whether the pages are brought in before serving unless an option says otherwise: a fault on the data
    /// path costs more than the line it is for. Not for files, which may be larger than memory, nor for
    /// devices, whose memory is there already.
    pub fn prefaults_by_default(&self) -> bool {
        !matches!(self, PoolSpec::File(_) | PoolSpec::Dax(_))
    }
}

impl Serialize for PoolSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PoolSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_back() {
        for text in ["anon", "huge2m", "huge1g", "memfd", "file:/var/lib/cxloe/pool", "dax:/dev/dax0.0"] {
            assert_eq!(text.parse::<PoolSpec>().unwrap().to_string(), text);
        }
        assert_eq!("file:a:b".parse(), Ok(PoolSpec::File("a:b".into())));
    }

    #[test]
    fn refuses_the_rest() {
        for text in ["", "Anon", "huge", "file", "file:", "dax:", "tape:/dev/st0", "anon:x"] {
            let error = text.parse::<PoolSpec>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("huge2m"), "{error}");
        }
    }
}
