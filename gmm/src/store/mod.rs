//! Persistence of the state. A [`Store`] is loaded once, and then receives the changes of each command.
//! [`Store::commit`] returns when all of them are on disk; only then may a client be answered.
//!
//! There are three kinds of store: in memory, in a redb file, and in etcd. Their records are the same: those of
//! [`record`].

pub mod backup;
pub mod etcd;
mod lease;
mod memory;
mod place;
pub mod record;
mod redb;

pub use self::etcd::EtcdStore;
pub use self::lease::Lease;
pub(crate) use self::lease::boot_ms;
pub use self::memory::MemoryStore;
pub use self::place::{EtcdAccess, EtcdPlace, StorePlace};
pub use self::record::FORMAT;
pub use self::redb::RedbStore;

use std::path::PathBuf;

use cxloe_private::WideFile;

use cxloe_gmm_core::manager::{Change, Contradiction, FabricState};

/// Durable copy of a [`FabricState`].
pub trait Store: Send {
    /// The state after the last commit; empty if there was none.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read, or contains what this version does not write.
    fn load(&mut self) -> Result<FabricState, StoreError>;

    /// Makes `changes` durable: all, or none.
    ///
    /// # Errors
    /// [`StoreError`]. The store then contains the state before or after the changes, and has to be loaded again before
    /// further use, in this process or another one.
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;

    /// Opens the store again after a commit failed [for want of room](StoreError::is_for_want_of_room), and returns the
    /// state in it.
    ///
    /// # Errors
    /// [`StoreError`]; for want of room if the store still cannot be written.
    fn reopen(&mut self) -> Result<FabricState, StoreError> {
        self.load()
    }

    /// Maximum size of a region's record, in bytes, with room for changes of its state; `None`: no limit.
    fn record_bytes_max(&self) -> Option<u64> {
        None
    }

    /// The error for a state in this store that contradicts itself.
    fn contradicted(&self, source: Contradiction) -> StoreError {
        StoreError::Contradiction { place: "memory".to_owned(), source }
    }
}

/// Reason for which a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder of the store does not exist and cannot be made, or cannot be written.
    #[error("cannot use {path} for the store: {source}; give a writable place with --data-dir or --store")]
    Place { path: PathBuf, source: std::io::Error },
    /// Other users may read the store.
    #[error("the store: {0}")]
    Wide(WideFile),
    #[error(
        "the store {path} is in use by another process; stop that `gmm serve`, or give this one a store of its own"
    )]
    Locked { path: PathBuf },
    #[error(
        "the store {place} has format {found}, and this version reads format {FORMAT}; run the version that wrote it, or start with an empty store"
    )]
    Format {
        /// Location of the store: the path of its file, or its URL.
        place: String,
        found: String,
    },
    #[error(
        "the store {place} is damaged or is no store ({reason}); restore it from a backup, or move it away to start with an empty one"
    )]
    Damaged {
        /// Location of the store: the path of its file, or its URL.
        place: String,
        reason: String,
    },
    #[error(
        "the key {key} of the store {place} is damaged ({reason}); look at it with `{look}`; restore a snapshot of etcd, or empty the store with `{empty}` and restore a backup with `gmm restore`"
    )]
    DamagedKey {
        /// URL of the store, without credentials.
        place: String,
        /// The key, with the prefix of the fabric.
        key: String,
        reason: String,
        /// Command that shows the key.
        look: String,
        /// Command that empties the store.
        empty: String,
    },
    /// Records in etcd contradict each other.
    #[error(
        "the store {place} is not usable: {source}; restore a snapshot of etcd, or empty the store with `{empty}` and restore a backup with `gmm restore`"
    )]
    ContradictionInEtcd {
        /// URL of the store, without credentials.
        place: String,
        /// The violated invariant, and the record that violates it.
        source: Contradiction,
        /// Command that empties the store.
        empty: String,
    },
    /// Records of a store in a file or in memory contradict each other.
    #[error("the store {place} is not usable: {source}; restore it from a backup")]
    Contradiction {
        /// Location of the store: the path of its file, or its URL.
        place: String,
        /// The violated invariant, and the record that violates it.
        source: Contradiction,
    },
    #[error("the store {place} cannot be written ({reason}); look for a full or failing disk")]
    Write {
        /// Location of the store: the path of its file, or its URL.
        place: String,
        /// Error text of the operating system.
        reason: String,
    },
    /// etcd does not answer, or refuses.
    #[error("the store {place} cannot be used: {source}")]
    Etcd {
        /// URL of the store, without credentials.
        place: String,
        source: etcd::EtcdError,
    },
    /// Another manager leads, or this manager could not confirm in time that it still leads.
    #[error(
        "this manager no longer leads the store {place}: its last write was refused, or is no longer permitted"
    )]
    Deposed {
        /// URL of the store, without credentials.
        place: String,
    },
    #[error(
        "record {record} of the store {place} has {bytes} bytes, and {limit} are possible; make regions of fewer pieces, or of smaller size"
    )]
    RecordTooLarge {
        /// Location of the store: the path of its file, or its URL.
        place: String,
        /// Table and key of the record.
        record: String,
        bytes: usize,
        limit: usize,
    },
}

impl StoreError {
    /// True if the store is intact but cannot be written at present: its disk is full, or fails.
    pub fn is_for_want_of_room(&self) -> bool {
        match self {
            Self::Write { .. } => true,
            Self::Etcd { source, .. } => source.is_for_want_of_room(),
            _ => false,
        }
    }

    /// True if the store itself is intact, so that a manager may load it again and continue.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Etcd { .. } | Self::Deposed { .. } | Self::RecordTooLarge { .. } => true,
            Self::Place { .. }
            | Self::Wide(_)
            | Self::Locked { .. }
            | Self::Format { .. }
            | Self::Damaged { .. }
            | Self::DamagedKey { .. }
            | Self::ContradictionInEtcd { .. }
            | Self::Contradiction { .. }
            | Self::Write { .. } => false,
        }
    }
}
