//! Where the state outlives the process. A [`Store`] is loaded once and then fed the changes of each command; it returns
//! from [`Store::commit`] when they are on disk, all or none of them. Only then may anyone be told.

mod memory;
mod redb;

pub use self::memory::MemoryStore;
pub use self::redb::{FORMAT, RedbStore};

use std::path::PathBuf;

use crate::manager::{Change, Contradiction, State};

/// Keeps a [`State`].
pub trait Store: Send {
    /// The state as of the last commit; empty when there was none.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read or is not what this version writes.
    fn load(&mut self) -> Result<State, StoreError>;

    /// Makes `changes` durable, all or none.
    ///
    /// # Errors
    /// [`StoreError`]; what is on disk is then the state before or after, and the process should end and load it again.
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;
}

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder of the store is not there and cannot be made, or cannot be written.
    #[error("cannot use {path} for the store: {source}; give a writable place with --data-dir or --store")]
    Place {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another process has it open.
    #[error(
        "the store {path} is in use by another process; stop that `gmm serve`, or give this one a store of its own"
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// It was written by another version.
    #[error(
        "the store {path} has format {found}, and this version reads format {FORMAT}; run the version that wrote it, or start with an empty store"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// It is no store, or damaged.
    #[error(
        "the store {path} is damaged or is no store ({reason}); restore it from a backup, or move it away to start with an empty one"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Its records contradict each other.
    #[error("the store {path} is not usable: {source}; restore it from a backup")]
    Contradiction {
        /// The file.
        path: PathBuf,
        /// What contradicts what.
        source: Contradiction,
    },
    /// A write failed.
    #[error(
        "writing to the store {path} failed ({reason}); look for a full or failing disk, then start the manager again"
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}
