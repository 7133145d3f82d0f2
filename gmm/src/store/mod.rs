//! Where the state outlives the process. A [`Store`] is loaded once and then fed the changes of each command; it returns
//! from [`Store::commit`] when they are on disk, all or none of them. Only then may anyone be told.
//!
//! There are three: in memory, in a file of redb's, and in etcd. What they keep is the same, and is said in [`record`].

pub mod backup;
pub mod etcd;
mod lease;
mod memory;
mod place;
pub mod record;
mod redb;

pub use self::etcd::EtcdStore;
pub use self::lease::Lease;
pub use self::memory::MemoryStore;
pub use self::place::{EtcdAccess, EtcdPlace, StorePlace};
pub use self::record::{FORMAT, FORMAT_BEFORE};
pub use self::redb::RedbStore;

use std::path::PathBuf;

use cxloe_private::WideFile;

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
    /// [`StoreError`]; what is on disk is then the state before or after. Whoever goes on, this process or another one, has
    /// to load it again.
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;

    /// Opens the store anew after a commit failed [for want of room](StoreError::is_for_want_of_room), and returns what it
    /// holds.
    ///
    /// # Errors
    /// [`StoreError`]; for want of room when it is as before.
    fn revive(&mut self) -> Result<State, StoreError> {
        self.load()
    }

    /// What it means that a state of this store contradicts itself.
    fn contradicted(&self, source: Contradiction) -> StoreError {
        StoreError::Contradiction { place: "memory".to_owned(), source }
    }
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
    /// Others may read it.
    #[error("the store: {0}")]
    Wide(WideFile),
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
        "the store {place} has format {found}, and this version reads formats {FORMAT_BEFORE} to {FORMAT}; run the version that wrote it, or start with an empty store"
    )]
    Format {
        /// Which store: its file, or its URL.
        place: String,
        /// What it says.
        found: String,
    },
    /// It is no store, or damaged.
    #[error(
        "the store {place} is damaged or is no store ({reason}); restore it from a backup, or move it away to start with an empty one"
    )]
    Damaged {
        /// Which store: its file, or its URL.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// Its records contradict each other.
    #[error("the store {place} is not usable: {source}; restore it from a backup")]
    Contradiction {
        /// Which store: its file, or its URL.
        place: String,
        /// What contradicts what.
        source: Contradiction,
    },
    /// A write failed.
    #[error("the store {place} cannot be written ({reason}); look for a full or failing disk")]
    Write {
        /// Which store: its file, or its URL.
        place: String,
        /// What the system said.
        reason: String,
    },
    /// etcd cannot be asked, or refuses.
    #[error("the store {place} cannot be used: {source}")]
    Etcd {
        /// Its URL.
        place: String,
        /// What happened.
        source: etcd::EtcdError,
    },
    /// Another manager leads, or this one could not show in time that it does.
    #[error(
        "this manager no longer leads the store {place}: what it wanted to write was refused, or may not be written any more"
    )]
    Deposed {
        /// Its URL.
        place: String,
    },
    /// A record is larger than the store takes.
    #[error(
        "record {record} of the store {place} has {bytes} bytes, and {limit} are possible; make regions of fewer pieces, or of smaller size"
    )]
    RecordTooLarge {
        /// Which store.
        place: String,
        /// Which record.
        record: String,
        /// Its bytes.
        bytes: usize,
        /// Bytes possible.
        limit: usize,
    },
}

impl StoreError {
    /// Whether the store is sound and only cannot be written at present: its disk is full, or fails.
    pub fn is_for_want_of_room(&self) -> bool {
        match self {
            Self::Write { .. } => true,
            Self::Etcd { source, .. } => source.is_for_want_of_room(),
            _ => false,
        }
    }

    /// Whether the store itself is sound, so that a manager may load it again and go on.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Etcd { source, .. } => source.is_passing(),
            Self::Deposed { .. } | Self::RecordTooLarge { .. } => true,
            Self::Place { .. }
            | Self::Wide(_)
            | Self::Locked { .. }
            | Self::Format { .. }
            | Self::Damaged { .. }
            | Self::Contradiction { .. }
            | Self::Write { .. } => false,
        }
    }
}
