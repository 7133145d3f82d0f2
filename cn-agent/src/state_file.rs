//! Persistent state of this compute node: its regions and their addresses, so that an agent that starts
//! without a manager serves the former regions at the same addresses.
//!
//! The data directory also holds a lock: two agents with one CN id would receive each other's answers.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use cxloe_daemon::NodeState;
use cxloe_wire::frame::Mac;
use serde::{Deserialize, Serialize};

use cxloe_cn_core::attachments::Attachments;
use cxloe_cn_core::leases::Leases;

/// File format of attachments.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct StoredAttachments(Attachments);

impl NodeState for StoredAttachments {
    const REMEDY: &str = "remove it, and regions get new addresses";
}

/// File format of leases.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct StoredLeases(Leases);

impl NodeState for StoredLeases {
    const REMEDY: &str = "remove it, and destroy what is left of temporary regions by `gmm destroy-region`";
}

/// The files of one agent, locked.
#[derive(Debug)]
pub struct StateFile {
    file: cxloe_daemon::StateFile<StoredAttachments>,
    leases: cxloe_daemon::StateFile<StoredLeases>,
    _lock: File,
}

/// Reason why the state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read or written, or has another format.
    #[error(transparent)]
    File(#[from] cxloe_daemon::StateError),
    /// Another agent with the same CN id has locked the files.
    #[error(
        "another agent with CN id {cn} is running and holds {}; end it, or give one of the two interfaces another MAC address",
        .path.display()
    )]
    Locked { cn: Mac, path: PathBuf },
}

impl StateFile {
    /// Opens and locks the state files of the compute node `cn` in `dir`, which is created if need be. The lock is held
    /// as long as the returned value lives.
    pub fn lock(dir: &Path, cn: Mac) -> Result<StateFile, StateError> {
        let io = cxloe_daemon::StateError::io;
        fs::create_dir_all(dir).map_err(io("create the directory", dir))?;
        let name = format!("cn-{}", cn.to_string().replace(':', "-"));
        let path = dir.join(format!("{name}.lock"));
        let mut own = OpenOptions::new();
        own.write(true).create(true).truncate(false);
        let lock = cxloe_private::open(&path, &own).map_err(io("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {
                let file = cxloe_daemon::StateFile::at(dir.join(format!("{name}.state")))?;
                let leases = cxloe_daemon::StateFile::at(dir.join(format!("{name}-leases.state")))?;
                Ok(StateFile { file, leases, _lock: lock })
            }
            Err(TryLockError::WouldBlock) => Err(StateError::Locked { cn, path }),
            Err(TryLockError::Error(source)) => Err(io("lock", &path)(source).into()),
        }
    }

    /// Reads the stored attachments; returns none if none were stored.
    ///
    /// # Errors
    /// The errors of [`cxloe_daemon::StateFile::load`].
    pub fn load(&self) -> Result<Attachments, cxloe_daemon::StateError> {
        self.file.load().map(|StoredAttachments(attachments)| attachments)
    }

    /// Stores `attachments`, which are on disk when this returns.
    ///
    /// # Errors
    /// The errors of [`cxloe_daemon::StateFile::store`].
    pub fn store(&self, attachments: &Attachments) -> Result<(), cxloe_daemon::StateError> {
        self.file.store(&StoredAttachments(attachments.clone()))
    }

    /// Reads the stored leases; returns none if none were stored.
    ///
    /// # Errors
    /// The errors of [`cxloe_daemon::StateFile::load`].
    pub fn load_leases(&self) -> Result<Leases, cxloe_daemon::StateError> {
        self.leases.load().map(|StoredLeases(leases)| leases)
    }

    /// Stores `leases`, which are on disk when this returns.
    ///
    /// # Errors
    /// The errors of [`cxloe_daemon::StateFile::store`].
    pub fn store_leases(&self, leases: &Leases) -> Result<(), cxloe_daemon::StateError> {
        self.leases.store(&StoredLeases(leases.clone()))
    }
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
        let state = dir.path().join("deep/cn-02-00-00-00-00-01.state");
        cxloe_private::write(&state, b"{", cxloe_private::Existing::Replace).unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains(".state") && error.contains("remove it"), "{error}");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = StateFile::lock(Path::new("/proc/cxloe"), CN).unwrap_err().to_string();
        assert!(error.contains("/proc/cxloe") && error.contains("--data-dir"), "{error}");
    }
}
