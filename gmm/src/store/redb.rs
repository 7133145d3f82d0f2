//! The store in one file: a redb database with one table for each kind of record, JSON in the values, and the
//! number of the format. A new file is written under another name and renamed when it is complete, so that a
//! process killed at any moment leaves either no store or one that can be opened.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Once;

use nix::sys::statvfs::statvfs;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, Table as RedbTable,
    TableDefinition, TableError, WriteTransaction,
};

use super::record::{FORMAT, Record, Restore, Table};
use super::{Store, StoreError};
use cxloe_fabric::model::human_bytes;
use cxloe_gmm_core::manager::{Change, Contradiction, FabricState, Meta};
use cxloe_private::WideFile;

type Rows<'t> = RedbTable<'t, &'static str, &'static [u8]>;

/// Table with the number of the format, the same in every format.
const FORMAT_TABLE: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("meta");
const FORMAT_KEY: &str = "format";

fn definition(table: Table) -> TableDefinition<'static, &'static str, &'static [u8]> {
    TableDefinition::new(table.name())
}

/// Size of redb's cache in bytes; the state is small and read once.
const CACHE_BYTES: usize = 16 << 20;

/// Free bytes that the file system must have before an unwritable store is tried again.
const ROOM_MIN: u64 = 1 << 20;

/// A store in a redb file, which is locked as long as this value exists.
#[derive(Debug)]
pub struct RedbStore {
    /// The open database; `None` only while an unwritable store is opened again.
    database: Option<Database>,
    path: PathBuf,
}

impl RedbStore {
    /// Opens the store at `path`, or makes one there, with its folders. The file stays locked until the store is
    /// dropped.
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
        // A process that can read the store can attack the hashes of tokens, and a process that can open the file can
        // lock it.
        if let Err(error) = cxloe_private::open(path, OpenOptions::new().read(true)) {
            return Err(error.downcast::<WideFile>().map_or_else(place, StoreError::Wide));
        }
        let store = Self { database: Some(open_database(path)?), path: path.to_owned() };
        guarded(path, || store.check_format())?;
        Ok(store)
    }

    fn database(&self) -> Result<&Database, StoreError> {
        let closed = || StoreError::Write { place: self.place(), reason: "it is not open".to_owned() };
        self.database.as_ref().ok_or_else(closed)
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let read = self.database()?.begin_read().map_err(|error| self.damaged_error(error))?;
        let meta = read.open_table(FORMAT_TABLE).map_err(|error| self.damaged_error(error))?;
        let value = meta.get(FORMAT_KEY).map_err(|error| self.damaged_error(error))?;
        let found = value.map(|value| String::from_utf8_lossy(value.value()).into_owned());
        match found {
            Some(found) if found == FORMAT.to_string() => Ok(()),
            found => Err(StoreError::Format {
                place: self.place(),
                found: found.unwrap_or_else(|| "unknown".into()),
            }),
        }
    }

    fn damaged_error(&self, error: impl std::fmt::Display) -> StoreError {
        StoreError::Damaged { place: self.place(), reason: error.to_string() }
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn read_all(&self) -> Result<FabricState, StoreError> {
        let read = self.database()?.begin_read().map_err(|error| self.damaged_error(error))?;
        let mut restore = Restore::default();
        for table in Table::ALL {
            let rows = read.open_table(definition(table)).map_err(|error| self.damaged_error(error))?;
            for row in rows.iter().map_err(|error| self.damaged_error(error))? {
                let (key, value) = row.map_err(|error| self.damaged_error(error))?;
                if (table, key.value()) != (Table::Meta, FORMAT_KEY) {
                    restore
                        .add(table, key.value(), value.value())
                        .map_err(|error| self.damaged_error(error))?;
                }
            }
        }
        restore.finish().map_err(|source| self.contradicted(source))
    }

    fn write(&self, changes: &[Change]) -> Result<(), Box<dyn std::error::Error>> {
        let transaction = self.database()?.begin_write()?;
        {
            let mut tables = Tables::open(&transaction)?;
            for record in Record::all_of(changes)? {
                tables.write(record)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

impl Store for RedbStore {
    fn load(&mut self) -> Result<FabricState, StoreError> {
        guarded(&self.path, || self.read_all())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        guarded(&self.path, || {
            self.write(changes)
                .map_err(|error| StoreError::Write { place: self.place(), reason: error.to_string() })
        })
    }

    fn reopen(&mut self) -> Result<FabricState, StoreError> {
        // With less free space, the next commits would fail again at once.
        let free = statvfs(&self.path).map(|fs| fs.blocks_available().saturating_mul(fs.fragment_size()));
        if let Ok(free) = free
            && free < ROOM_MIN
        {
            let reason = format!(
                "its file system has {} free, and needs {}",
                human_bytes(free),
                human_bytes(ROOM_MIN)
            );
            return Err(StoreError::Write { place: self.place(), reason });
        }
        // redb refuses further use of a file after a failed write. The file is closed first, to release its lock.
        if let Some(database) = self.database.take() {
            guarded(&self.path, || {
                drop(database);
                Ok(())
            })?;
        }
        let opened = open_database(&self.path).map_err(|error| match error {
            // Opening the file can require a write, so this error can also mean that the store still cannot be written.
            StoreError::Place { source, .. } => {
                StoreError::Write { place: self.place(), reason: source.to_string() }
            }
            other => other,
        });
        self.database = Some(opened?);
        self.load()
    }

    fn contradicted(&self, source: Contradiction) -> StoreError {
        StoreError::Contradiction { place: self.place(), source }
    }
}

/// The tables of one write transaction, in the order of [`Table::ALL`].
struct Tables<'t>(Vec<Rows<'t>>);

impl<'t> Tables<'t> {
    fn open(transaction: &'t WriteTransaction) -> Result<Self, TableError> {
        let mut rows = Vec::with_capacity(Table::ALL.len());
        for table in Table::ALL {
            rows.push(transaction.open_table(definition(table))?);
        }
        Ok(Self(rows))
    }

    fn rows(&mut self, table: Table) -> &mut Rows<'t> {
        &mut self.0[table as usize]
    }

    fn write(&mut self, record: Record) -> Result<(), StorageError> {
        match record {
            Record::Put(table, key, value) => {
                drop(self.rows(table).insert(key.as_str(), value.as_bytes())?);
            }
            Record::Delete(table, key) => drop(self.rows(table).remove(key.as_str())?),
            Record::DeleteBelow(table, key) => self.rows(table).retain_in(..key.as_str(), |_, _| false)?,
        }
        Ok(())
    }
}

/// Opens an existing store, and checks its integrity.
fn open_database(path: &Path) -> Result<Database, StoreError> {
    guarded(path, || {
        let mut database = builder().open(path).map_err(|error| open_error(path, error))?;
        database.check_integrity().map_err(|error| open_error(path, error))?;
        Ok(database)
    })
}

fn builder() -> redb::Builder {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Makes an empty store in a temporary file, and links it to `path` once it is complete and on disk.
fn create(path: &Path, folder: &Path) -> Result<(), StoreError> {
    let place = |source| StoreError::Place { path: path.to_owned(), source };
    let write = |reason: String| StoreError::Write { place: path.display().to_string(), reason };
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".new-{}", std::process::id()));
    let draft = PathBuf::from(draft);
    // An earlier process with the same id may have been killed before it removed its temporary file.
    if draft.try_exists().map_err(place)? {
        fs::remove_file(&draft).map_err(place)?;
    }
    let mut own = OpenOptions::new();
    own.read(true).write(true).create_new(true);
    let file = cxloe_private::open(&draft, &own).map_err(place)?;
    let database = builder().create_file(file).map_err(|error| open_error(path, error))?;
    let fresh = RedbStore { database: Some(database), path: path.to_owned() };
    fresh.write(&[Change::Meta(Meta::default())]).map_err(|error| write(error.to_string()))?;
    fresh.write_format().map_err(|error| write(error.to_string()))?;
    drop(fresh);
    // The link fails if another process has made a store at the same time; that store is then opened.
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft).map_err(place)?;
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(place(error)),
        _ => {}
    }
    // The new link is durable only once its folder is synchronised.
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(place)
}

impl RedbStore {
    fn write_format(&self) -> Result<(), Box<dyn std::error::Error>> {
        let transaction = self.database()?.begin_write()?;
        transaction.open_table(FORMAT_TABLE)?.insert(FORMAT_KEY, FORMAT.to_string().as_bytes())?;
        transaction.commit()?;
        Ok(())
    }
}

thread_local! {
    /// True while [`guarded`] catches panics of this thread.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that reads an untrusted file. redb verifies the pages of its trees but not its metadata: some kinds of
/// damage make it panic, and the panic is returned as an error.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    // The panic hook does not report a panic that is caught here: the caller gets an error.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                usual(panic);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    GUARDED.set(outer);
    result.unwrap_or_else(|_| {
        Err(StoreError::Damaged {
            place: path.display().to_string(),
            reason: "its page tables make no sense".to_owned(),
        })
    })
}

fn open_error(path: &Path, error: DatabaseError) -> StoreError {
    let (path, place) = (path.to_owned(), path.display().to_string());
    match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path },
        DatabaseError::UpgradeRequired(found) => StoreError::Format { place, found: format!("redb {found}") },
        DatabaseError::Storage(StorageError::Io(source))
            if source.kind() != std::io::ErrorKind::InvalidData =>
        {
            StoreError::Place { path, source }
        }
        other => StoreError::Damaged { place, reason: other.to_string() },
    }
}
