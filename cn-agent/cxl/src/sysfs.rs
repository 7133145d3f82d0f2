//! Files below the root of sysfs, read with limits: for any content and any kind of file, the result is a value or an
//! error with the file's path.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use serde::{Serialize, Serializer};

/// Maximum length of an attribute in bytes: sysfs shows at most a page.
const ATTRIBUTE_MAX: usize = 4096;
/// Maximum number of entries of a folder.
const ENTRIES_MAX: usize = 4096;
/// Maximum number of NUMA nodes, the same as that of Linux.
const NODES_MAX: u32 = 1024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysfsError {
    #[error("cannot read {}: {why}; the agent needs the right to read it", .path.display())]
    Unreadable { path: PathBuf, why: String },
    #[error("{} is missing; a driver may still be starting, or is older than Linux 6.0", .path.display())]
    Missing { path: PathBuf },
    /// The content is not the text of an attribute.
    #[error("{} is no attribute: {why}; nothing of that device is used", .path.display())]
    Strange {
        path: PathBuf,
        /// The part of the content that is wrong.
        why: String,
    },
}

impl Serialize for SysfsError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A tree of sysfs files below a root.
#[derive(Clone, Copy, Debug)]
pub struct Sysfs<'a> {
    root: &'a Path,
}

impl<'a> Sysfs<'a> {
    pub fn at(root: &'a Path) -> Sysfs<'a> {
        Sysfs { root }
    }

    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    pub(crate) fn has_folder(&self, relative: &str) -> bool {
        self.path(relative).is_dir()
    }

    /// Names of the entries in a folder, sorted; none if the folder does not exist.
    ///
    /// # Errors
    /// [`SysfsError`] if the folder cannot be read or has too many entries.
    pub fn names(&self, relative: &str) -> Result<Vec<String>, SysfsError> {
        let path = self.path(relative);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(SysfsError::Unreadable { path, why: error.to_string() }),
        };
        // A name that is not UTF-8 belongs to no device of these kinds.
        let mut names: Vec<String> = entries
            .flatten()
            .take(ENTRIES_MAX + 1)
            .filter_map(|e| e.file_name().into_string().ok())
            .collect();
        if names.len() > ENTRIES_MAX {
            return Err(SysfsError::Strange { path, why: format!("it has more than {ENTRIES_MAX} entries") });
        }
        names.sort();
        Ok(names)
    }

    /// Text of an attribute without white space around it; `None` if the attribute does not exist, or has no value at
    /// present.
    ///
    /// # Errors
    /// [`SysfsError`] if the attribute cannot be read or is no short text.
    pub fn text(&self, relative: &str) -> Result<Option<String>, SysfsError> {
        let path = self.path(relative);
        let strange = |why: String| SysfsError::Strange { path: path.clone(), why };
        let unreadable = |e: io::Error| SysfsError::Unreadable { path: path.clone(), why: e.to_string() };
        let absent = |e: &io::Error| {
            let code = e.raw_os_error().map(Errno::from_raw);
            matches!(code, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ENXIO | Errno::ENODEV))
        };
        // Checked to be a regular file before it is opened, since reading a pipe could block for ever.
        match fs::metadata(&path) {
            Ok(kind) if !kind.is_file() => return Err(strange("it is not a file".into())),
            Ok(_) => {}
            Err(error) if absent(&error) => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        }
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|f| f.take(ATTRIBUTE_MAX as u64 + 1).read_to_end(&mut bytes));
        match read {
            Ok(length) if length > ATTRIBUTE_MAX => {
                Err(strange(format!("it is longer than {ATTRIBUTE_MAX} bytes")))
            }
            Ok(_) => match String::from_utf8(bytes) {
                Ok(text) if !text.trim().chars().any(|c| c.is_control() && !c.is_whitespace()) => {
                    Ok(Some(text.trim().to_owned()))
                }
                _ => Err(strange("it is not text".into())),
            },
            Err(error) if absent(&error) => Ok(None),
            Err(error) => Err(unreadable(error)),
        }
    }

    /// Value of a numeric attribute, decimal or hexadecimal after `0x`; `None` if the attribute does not exist.
    ///
    /// # Errors
    /// [`SysfsError`], also if the text is no number of 64 bits.
    pub fn number(&self, relative: &str) -> Result<Option<u64>, SysfsError> {
        let Some(text) = self.text(relative)? else { return Ok(None) };
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let strange = |_| {
            let shown: String = text.chars().take(32).collect();
            SysfsError::Strange { path: self.path(relative), why: format!("{shown:?} is not a number") }
        };
        parsed.map(Some).map_err(strange)
    }

    /// Value of a numeric attribute that must exist.
    ///
    /// # Errors
    /// [`SysfsError::Missing`], or the errors of [`number`](Self::number).
    pub fn required(&self, relative: &str) -> Result<u64, SysfsError> {
        self.number(relative)?.ok_or_else(|| SysfsError::Missing { path: self.path(relative) })
    }

    /// Numbers of NUMA nodes in an attribute such as `0-1,4`; empty if the attribute does not exist.
    ///
    /// # Errors
    /// [`SysfsError`], also if the text is no such list.
    pub fn nodes(&self, relative: &str) -> Result<Vec<u32>, SysfsError> {
        let text = self.text(relative)?.unwrap_or_default();
        let mut nodes = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse::<u32>(), last.parse::<u32>()) {
                (Ok(first), Ok(last)) if first <= last && last < NODES_MAX => nodes.extend(first..=last),
                _ => {
                    let shown: String = part.chars().take(32).collect();
                    let why = format!("{shown:?} is no range of NUMA nodes");
                    return Err(SysfsError::Strange { path: self.path(relative), why });
                }
            }
        }
        Ok(nodes)
    }

    /// Last component of the target of a symbolic link; `None` if there is no link.
    pub fn link(&self, relative: &str) -> Option<String> {
        let target = fs::read_link(self.path(relative)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}
