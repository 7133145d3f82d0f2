//! Kind of memory of a pool, as written after `--pool` or in the TOML file: `anon`, `huge2m`, `file:/path`, ….

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PoolSpec {
    /// `anon`: ordinary memory, with transparent huge pages advised.
    #[default]
    Anon,
    /// `huge2m`: 2 MiB pages from the kernel's reserve.
    Huge2M,
    /// `huge1g`: 1 GiB pages from the kernel's reserve.
    Huge1G,
    /// `file:/path`: a file, created sparse or used again; its content outlives the process.
    File(PathBuf),
    /// `dax:/dev/daxX.Y`: a device-DAX node (CXL or persistent memory), mapped whole.
    Dax(PathBuf),
}

/// Error: the `--pool` value names no kind of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind of pool; use anon, huge2m, huge1g, file:/path or dax:/dev/daxX.Y")]
pub struct PoolSpecError(String);

impl FromStr for PoolSpec {
    type Err = PoolSpecError;

    fn from_str(text: &str) -> Result<Self, PoolSpecError> {
        match text.split_once(':') {
            None => match text {
                "anon" => Some(PoolSpec::Anon),
                "huge2m" => Some(PoolSpec::Huge2M),
                "huge1g" => Some(PoolSpec::Huge1G),
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
            PoolSpec::File(path) => write!(f, "file:{}", path.display()),
            PoolSpec::Dax(path) => write!(f, "dax:{}", path.display()),
        }
    }
}

impl PoolSpec {
    /// Whether the memory has no name in the file system, only a descriptor (memfd). It outlives this process if
    /// another process has the descriptor too.
    pub fn is_memory(&self) -> bool {
        matches!(self, PoolSpec::Anon | PoolSpec::Huge2M | PoolSpec::Huge1G)
    }

    /// Default of `prefault`: whether pages are populated before serving, because a page fault on the data path takes
    /// longer than the request. Files, which may be larger than memory, and devices, whose memory is present already,
    /// are not populated.
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
        for text in ["anon", "huge2m", "huge1g", "file:/var/lib/cxloe/pool", "dax:/dev/dax0.0"] {
            assert_eq!(text.parse::<PoolSpec>().unwrap().to_string(), text);
        }
        assert_eq!("file:a:b".parse(), Ok(PoolSpec::File("a:b".into())));
    }

    #[test]
    fn refuses_the_rest() {
        for text in ["", "Anon", "huge", "memfd", "file", "file:", "dax:", "tape:/dev/st0", "anon:x"] {
            let error = text.parse::<PoolSpec>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("huge2m"), "{error}");
        }
    }
}
