//! What this compute node has to remember across restarts: its regions and their addresses, so that an agent
//! that starts while the manager is away serves what it served before, at the same addresses.
//!
//! The data directory also holds a lock: two agents with one CN id would take each other's answers.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cxloe_wire::frame::Mac;

use crate::attachments::Attachments;

/// Where attachments are kept; written whole and renamed into place, so that they are never half there.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    _lock: File,
}

/// What can go wrong with the state file.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It cannot be read or written.
    #[error("cannot {what} {}: {source}; choose a directory this user may write with --data-dir", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{} is not a state file of this program ({reason}); remove it, and regions get new addresses", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another agent uses it.
    #[error(
        "another agent with CN id {cn} is running and holds {}; end it, or give one of the two interfaces another MAC address",
        .path.display()
    )]
    Locked {
        /// The CN id of both.
        cn: Mac,
        /// The lock.
        path: PathBuf,
    },
}

impl StateFile {
    /// The state file of the compute node `cn` in `dir`, which is created if need be, locked as long as the
    /// returned value lives.
    ///
    /// # Errors
    /// [`StateError::Io`] and [`StateError::Locked`].
    pub fn lock(dir: &Path, cn: Mac) -> Result<StateFile, StateError> {
        fs::create_dir_all(dir).map_err(failed("create the directory", dir))?;
        let name = format!("cn-{}", cn.to_string().replace(':', "-"));
        let path = dir.join(format!("{name}.lock"));
        let lock = File::create(&path).map_err(failed("open", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(StateFile { path: dir.join(format!("{name}.state")), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StateError::Locked { cn, path }),
            Err(TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
        }
    }

    /// What was kept last; nothing attached if nothing was.
    ///
    /// # Errors
    /// [`StateError::Io`] and [`StateError::Content`].
    pub fn load(&self) -> Result<Attachments, StateError> {
        match fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| StateError::Content { path: self.path.clone(), reason: error.to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Attachments::default()),
            Err(error) => Err(failed("read", &self.path)(error)),
        }
    }

    /// Keeps `attachments`; on disk when this returns.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn store(&self, attachments: &Attachments) -> Result<(), StateError> {
        let new = self.path.with_extension("new");
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            serde_json::to_writer(&mut file, attachments)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty());
            File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(failed("write", &self.path))
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_path_buf();
    move |source| StateError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn one_agent_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateFile::lock(dir.path(), CN).unwrap();
        let error = StateFile::lock(dir.path(), CN).unwrap_err().to_string();
        assert!(error.contains("02:00:00:00:00:01") && error.contains("MAC address"), "{error}");
        StateFile::lock(dir.path(), Mac([2, 0, 0, 0, 0, 2])).unwrap();
        drop(first);
        StateFile::lock(dir.path(), CN).unwrap();
    }

    #[test]
    fn keeps_what_it_is_given_and_names_damage() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::lock(&dir.path().join("deep"), CN).unwrap();
        assert_eq!(file.load().unwrap(), Attachments::default());
        file.store(&Attachments::default()).unwrap();
        assert_eq!(file.load().unwrap(), Attachments::default());
        fs::write(&file.path, "{").unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains(".state") && error.contains("remove it"), "{error}");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = StateFile::lock(Path::new("/proc/cxloe"), CN).unwrap_err().to_string();
        assert!(error.contains("/proc/cxloe") && error.contains("--data-dir"), "{error}");
    }
}
