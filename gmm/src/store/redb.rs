//! The store in one file: a redb database with one table per noun, JSON in the values, and the number of the format. A new
//! file is made under another name and renamed when it is whole, so that a process killed at any moment leaves either no
//! store or one that opens.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use redb::{
    Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, StorageError, Table,
    TableDefinition, TableError, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Store, StoreError};
use crate::manager::{Change, Meta, State};
use crate::model::{CnId, Name};

/// The format this version reads and writes.
pub const FORMAT: u32 = 1;

type ByText = TableDefinition<'static, &'static str, &'static [u8]>;
const META: ByText = TableDefinition::new("meta");
const MEMORY_NODES: ByText = TableDefinition::new("memory_nodes");
const COMPUTE_NODES: ByText = TableDefinition::new("compute_nodes");
const REGIONS: ByText = TableDefinition::new("regions");
const COMMANDS: TableDefinition<'static, (&str, u64), &[u8]> = TableDefinition::new("commands");
const EVENTS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("events");

const FORMAT_KEY: &str = "format";
const COUNTERS_KEY: &str = "counters";

/// Memory for redb's cache in bytes; the state is read once and small.
const CACHE_BYTES: usize = 16 << 20;

/// A store in one file.
#[derive(Debug)]
pub struct RedbStore {
    database: Database,
    path: PathBuf,
}

impl RedbStore {
    /// Opens the store at `path`, or makes one there, folders included. The file stays locked until this is dropped.
    ///
    /// # Errors
    /// [`StoreError::Place`], [`StoreError::Locked`], [`StoreError::Damaged`] or [`StoreError::Format`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let place = |source| StoreError::Place { path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(place)?;
        if !path.try_exists().map_err(place)? {
            create(path, folder)?;
        }
        let database = guarded(path, || {
            let mut database = builder().open(path).map_err(|error| open_error(path, error))?;
            database.check_integrity().map_err(|error| open_error(path, error))?;
            Ok(database)
        })?;
        let store = Self { database, path: path.to_owned() };
        guarded(path, || store.check_format())?;
        Ok(store)
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let read = self.database.begin_read().map_err(|error| self.damaged(error))?;
        let meta = read.open_table(META).map_err(|error| self.damaged(error))?;
        let value = meta.get(FORMAT_KEY).map_err(|error| self.damaged(error))?;
        let found = value.map(|value| String::from_utf8_lossy(value.value()).into_owned());
        match found {
            Some(found) if found == FORMAT.to_string() => Ok(()),
            found => Err(StoreError::Format {
                path: self.path.clone(),
                found: found.unwrap_or_else(|| "unknown".into()),
            }),
        }
    }

    fn damaged(&self, error: impl std::fmt::Display) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), reason: error.to_string() }
    }

    fn parse<T: DeserializeOwned>(&self, what: &str, bytes: &[u8]) -> Result<T, StoreError> {
        serde_json::from_slice(bytes).map_err(|error| self.damaged(format!("{what}: {error}")))
    }

    /// Every value of a table of nouns.
    fn all<T: DeserializeOwned>(&self, read: &ReadTransaction, table: ByText) -> Result<Vec<T>, StoreError> {
        let rows = read.open_table(table).map_err(|error| self.damaged(error))?;
        let mut all = Vec::new();
        for row in rows.iter().map_err(|error| self.damaged(error))? {
            let (key, value) = row.map_err(|error| self.damaged(error))?;
            all.push(self.parse(key.value(), value.value())?);
        }
        Ok(all)
    }

    fn read_all(&self) -> Result<State, StoreError> {
        let read = self.database.begin_read().map_err(|error| self.damaged(error))?;
        let mut state = State::default();
        let meta = read.open_table(META).map_err(|error| self.damaged(error))?;
        if let Some(counters) = meta.get(COUNTERS_KEY).map_err(|error| self.damaged(error))? {
            state.apply(Change::Meta(self.parse(COUNTERS_KEY, counters.value())?));
        }
        let nodes = self.all(&read, MEMORY_NODES)?.into_iter().map(Change::MemoryNode);
        let nodes = nodes.chain(self.all(&read, COMPUTE_NODES)?.into_iter().map(Change::ComputeNode));
        let regions = self.all(&read, REGIONS)?.into_iter().map(Change::Region);
        nodes.chain(regions).for_each(|change| state.apply(change));

        let commands = read.open_table(COMMANDS).map_err(|error| self.damaged(error))?;
        for row in commands.iter().map_err(|error| self.damaged(error))? {
            let (key, value) = row.map_err(|error| self.damaged(error))?;
            let node = Name::new(key.value().0).map_err(|error| self.damaged(error))?;
            state.apply(Change::CommandIssued(node, self.parse("command", value.value())?));
        }
        let events = read.open_table(EVENTS).map_err(|error| self.damaged(error))?;
        for row in events.iter().map_err(|error| self.damaged(error))? {
            let (_, value) = row.map_err(|error| self.damaged(error))?;
            state.apply(Change::Event(self.parse("event", value.value())?));
        }
        let contradiction = |source| StoreError::Contradiction { path: self.path.clone(), source };
        state.verify().map_err(contradiction)?;
        Ok(state)
    }

    fn write(&self, changes: &[Change]) -> Result<(), Box<dyn std::error::Error>> {
        let transaction = self.database.begin_write()?;
        {
            let mut tables = Tables::open(&transaction)?;
            for change in changes {
                tables.write(change)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

impl Store for RedbStore {
    fn load(&mut self) -> Result<State, StoreError> {
        guarded(&self.path, || self.read_all())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.write(changes)
            .map_err(|error| StoreError::Write { path: self.path.clone(), reason: error.to_string() })
    }
}

/// The tables of one write transaction.
struct Tables<'t> {
    meta: Table<'t, &'static str, &'static [u8]>,
    memory_nodes: Table<'t, &'static str, &'static [u8]>,
    compute_nodes: Table<'t, &'static str, &'static [u8]>,
    regions: Table<'t, &'static str, &'static [u8]>,
    commands: Table<'t, (&'static str, u64), &'static [u8]>,
    events: Table<'t, u64, &'static [u8]>,
}

impl<'t> Tables<'t> {
    fn open(transaction: &'t WriteTransaction) -> Result<Self, TableError> {
        Ok(Self {
            meta: transaction.open_table(META)?,
            memory_nodes: transaction.open_table(MEMORY_NODES)?,
            compute_nodes: transaction.open_table(COMPUTE_NODES)?,
            regions: transaction.open_table(REGIONS)?,
            commands: transaction.open_table(COMMANDS)?,
            events: transaction.open_table(EVENTS)?,
        })
    }

    fn write(&mut self, change: &Change) -> Result<(), Box<dyn std::error::Error>> {
        match change {
            Change::Meta(meta) => insert(&mut self.meta, COUNTERS_KEY, meta)?,
            Change::MemoryNode(node) => insert(&mut self.memory_nodes, node.name.as_str(), node)?,
            Change::ComputeNode(node) => insert(&mut self.compute_nodes, &cn_key(node.cn_id), node)?,
            Change::Region(region) => insert(&mut self.regions, region.name.as_str(), region)?,
            Change::RegionGone(name) => drop(self.regions.remove(name.as_str())?),
            Change::CommandIssued(node, command) => {
                let value = serde_json::to_vec(command)?;
                self.commands.insert((node.as_str(), command.seq), value.as_slice())?;
            }
            Change::CommandAnswered(node, seq) => drop(self.commands.remove((node.as_str(), *seq))?),
            Change::Event(event) => {
                let value = serde_json::to_vec(event)?;
                self.events.insert(event.seq, value.as_slice())?;
            }
            Change::EventsForgotten(before) => self.events.retain_in(..*before, |_, _| false)?,
        }
        Ok(())
    }
}

fn cn_key(cn: CnId) -> String {
    cn.to_string()
}

fn insert(
    table: &mut Table<'_, &'static str, &'static [u8]>,
    key: &str,
    value: &impl Serialize,
) -> Result<(), Box<dyn std::error::Error>> {
    let value = serde_json::to_vec(value)?;
    table.insert(key, value.as_slice())?;
    Ok(())
}

fn builder() -> redb::Builder {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Makes an empty store and puts it at `path` when it is whole and on disk.
fn create(path: &Path, folder: &Path) -> Result<(), StoreError> {
    let place = |source| StoreError::Place { path: path.to_owned(), source };
    let write = |reason: String| StoreError::Write { path: path.to_owned(), reason };
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".new-{}", std::process::id()));
    let draft = PathBuf::from(draft);
    if draft.try_exists().map_err(place)? {
        fs::remove_file(&draft).map_err(place)?;
    }
    let database = builder().create(&draft).map_err(|error| open_error(path, error))?;
    let fresh = RedbStore { database, path: path.to_owned() };
    fresh.write(&[Change::Meta(Meta::default())]).map_err(|error| write(error.to_string()))?;
    fresh.write_format().map_err(|error| write(error.to_string()))?;
    drop(fresh);
    // A link fails if another process was faster; its store is then the one to open.
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft).map_err(place)?;
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(place(error)),
        _ => {}
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(place)
}

impl RedbStore {
    fn write_format(&self) -> Result<(), Box<dyn std::error::Error>> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(META)?.insert(FORMAT_KEY, FORMAT.to_string().as_bytes())?;
        transaction.commit()?;
        Ok(())
    }
}

/// Runs what reads a file nobody has vouched for. redb checks the pages of its trees but believes its own book-keeping: on
/// some kinds of damage it panics, and then this is an error like any other.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(StoreError::Damaged { path: path.to_owned(), reason: "its page tables make no sense".to_owned() })
    })
}

fn open_error(path: &Path, error: DatabaseError) -> StoreError {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path },
        DatabaseError::UpgradeRequired(found) => StoreError::Format { path, found: format!("redb {found}") },
        DatabaseError::Storage(StorageError::Io(source))
            if source.kind() != std::io::ErrorKind::InvalidData =>
        {
            StoreError::Place { path, source }
        }
        other => StoreError::Damaged { path, reason: other.to_string() },
    }
}
