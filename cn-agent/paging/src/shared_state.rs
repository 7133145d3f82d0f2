//! State of a space, kept so that it outlives the agent: options, views, members, and the table of every
//! view's pages. It lies in a memory file that the members keep open; an agent's successor gets the file from
//! the first member that rejoins.
//!
//! ```text
//!   byte 0        4096                 + 1024 * 64           page-aligned, one after the other, sparse
//!   | header page | mapping records ... | view 0's entries | view 1's entries | ...
//! ```
//!
//! Members get the state read-only. An agent reopens it for writing, which is permitted to the file's owner, the
//! agent's user. A shared state that a program passes is refused unread, unless an agent created it for this purpose
//! and others could never write it ([`agent_file`](crate::agent_file)). A state of another region, or of an earlier
//! one of the same name, is recognised by its owner and its region's time of creation.

#![expect(unsafe_code, reason = "state shared with the members is mapped, and read as atomic words")]

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

use crate::agent_file::{NotAgentFile, Purpose};
use cxloe_cn_core::mapped::{MappingKind, SpaceOptions};
use cxloe_cn_core::pager::{LIMIT_MIN, MAPPINGS_MAX, PAGE_BYTES, PageTable, VIEWS_MAX};
use cxloe_cn_core::untrusted::Untrusted;

const MAGIC: u64 = u64::from_le_bytes(*b"CXLoElgr");
const VERSION: u64 = 1;
const WORDS_OF_RECORD: usize = 8;
const RECORDS_AT: usize = PAGE_BYTES / 8;
const TABLES_AT: usize = PAGE_BYTES + MAPPINGS_MAX * WORDS_OF_RECORD * 8;
const NAME_AT: usize = 64;
const NAME_WORDS: usize = 32;
/// Number of words of the header, with the region's name at the end.
const HEADER_WORDS: usize = NAME_AT + NAME_WORDS;

#[derive(Debug, thiserror::Error)]
pub enum SharedStateError {
    #[error("the shared state of paged memory cannot be opened: {0}")]
    Io(#[from] io::Error),
    /// The header is not one of this release, or the file's size does not match it.
    #[error("the file is no shared state of this release")]
    OtherRelease,
    /// No agent created the file, so a program may have written to it.
    #[error(transparent)]
    NotAgentFile(#[from] NotAgentFile),
}

/// Record of a process that maps a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub view: u16,
    /// Process id; 0 while unknown.
    pub pid: u32,
    /// Start time of the process, in the kernel's ticks: it distinguishes the process from a later one with its id.
    pub started: u64,
    /// Address of the view's memory in the process.
    pub address: u64,
    /// First word of the random content that the agent wrote to that address to verify the process's files; 0 without
    /// files.
    pub nonce: u64,
}

/// Shared memory, mapped as an array of atomic 64-bit words.
struct Words {
    map: MmapRaw,
    /// Offset of the first word in the mapping, in bytes.
    skip: usize,
    count: usize,
}

impl Deref for Words {
    type Target = [AtomicU64];

    // Inlined into the loops over whole tables of pages in another crate.
    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `Words::map` maps `skip` plus `count` words, from the start of a page; the size of the file is
        // sealed, the memory stays mapped as long as `self` lives, and all processes access it as atomic words.
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().add(self.skip).cast::<AtomicU64>(), self.count)
        }
    }
}

impl Words {
    fn map(file: &File, at: usize, count: usize) -> io::Result<Words> {
        // Not 0, because a mapping cannot be empty.
        let bytes = (count * 8).max(8);
        let map = MmapOptions::new().offset(at as u64).len(bytes).map_raw(file)?;
        Ok(Words { map, skip: 0, count })
    }
}

/// The shared state of one space, open for writing.
pub struct SharedState {
    file: File,
    head: Words,
    pages: u32,
    views: u64,
}

impl std::fmt::Debug for SharedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedState")
            .field("pages", &self.pages)
            .field("views", &self.views)
            .finish_non_exhaustive()
    }
}

fn views_of(kind: MappingKind) -> usize {
    match kind {
        MappingKind::Shared | MappingKind::Foreign => 1,
        MappingKind::Private => VIEWS_MAX,
    }
}

/// Size of a view's table in bytes, rounded up to whole pages.
fn table_bytes(pages: u32) -> usize {
    (pages as usize * 8).next_multiple_of(PAGE_BYTES)
}

impl SharedState {
    /// Creates the file of a shared state, for a space with these options.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(options: &SpaceOptions) -> io::Result<SharedState> {
        let views = views_of(options.kind);
        let bytes = TABLES_AT + views * table_bytes(options.view_pages);
        let file = Purpose::SharedState.create(bytes as u64)?;
        let shared_state = SharedState::over(file, options.view_pages, views)?;
        let name = options.region.as_bytes();
        let words = [
            MAGIC,
            VERSION,
            options.id,
            options.kind as u64,
            u64::from(options.pages),
            u64::from(options.limit),
            u64::from(options.prefetch),
            u64::from(options.fresh),
            options.lost_wait.as_millis() as u64,
            name.len() as u64,
            u64::from(options.view_pages),
            u64::from(options.stay),
            options.owner.map_or(0, |uid| u64::from(uid) + 1),
            options.created_ms,
        ];
        words
            .iter()
            .enumerate()
            .for_each(|(index, word)| shared_state.head[index].store(*word, Ordering::Relaxed));
        for (index, part) in name.chunks(8).take(NAME_WORDS).enumerate() {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            shared_state.head[NAME_AT + index].store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        Ok(shared_state)
    }

    fn over(file: File, pages: u32, views: usize) -> io::Result<SharedState> {
        let head = Words::map(&file, 0, TABLES_AT / 8)?;
        Ok(SharedState { file, head, pages, views: views as u64 })
    }

    /// Opens the shared state of a dead agent. Returns it with the options of its space; `hpa` is 0 in them.
    pub fn adopt(fd: OwnedFd) -> Result<(SharedState, SpaceOptions), SharedStateError> {
        let shown = File::from(fd);
        let length = Purpose::SharedState.check(&shown)?;
        if length < TABLES_AT as u64 {
            return Err(SharedStateError::OtherRelease);
        }
        let place = format!("/proc/self/fd/{}", shown.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(place)?;
        let mut shared_state = SharedState::over(file, 0, 0)?;
        let header: [u64; HEADER_WORDS] = Untrusted::new(&shared_state.head).copy_out();
        let options = options_of(&header).ok_or(SharedStateError::OtherRelease)?;
        let views = views_of(options.kind);
        if length != (TABLES_AT + views * table_bytes(options.view_pages)) as u64 {
            return Err(SharedStateError::OtherRelease);
        }
        (shared_state.pages, shared_state.views) = (options.view_pages, views as u64);
        Ok((shared_state, options))
    }

    /// Stores the inode of the memory file that processes share. A successor accepts no other file as this
    /// space's pages.
    pub(crate) fn set_memory(&self, inode: u64) {
        self.head[14].store(inode, Ordering::Relaxed);
    }

    /// Inode of the memory file with the space's pages; 0 if processes do not share them.
    pub fn memory(&self) -> u64 {
        self.head[14].load(Ordering::Relaxed)
    }

    /// A read-only descriptor of the state, for members to keep.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?.into())
    }

    pub(crate) fn set_pages(&self, pages: u32) {
        self.head[4].store(u64::from(pages), Ordering::Release);
    }

    pub fn set_limit(&self, limit: u32) {
        self.head[5].store(u64::from(limit), Ordering::Relaxed);
    }

    /// Maps the table of a view: one entry for each page, which a later agent takes over from this one.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::InvalidInput`] if there is no such view.
    pub fn table(&self, view: u16) -> io::Result<PageTable> {
        if u64::from(view) >= self.views {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = TABLES_AT + usize::from(view) * table_bytes(self.pages);
        Ok(PageTable::new(Words::map(&self.file, at, self.pages as usize)?))
    }

    fn record_at(&self, mapping: usize) -> &[AtomicU64] {
        let at = RECORDS_AT + mapping * WORDS_OF_RECORD;
        &self.head[at..at + WORDS_OF_RECORD]
    }

    /// Stores the record of a mapping; `None` removes it.
    pub(crate) fn set_record(&self, mapping: u16, record: Option<Record>) {
        let words = self.record_at(usize::from(mapping));
        // Marked unused first: an agent that is killed here leaves no mixture of two records.
        words[0].store(0, Ordering::Release);
        if let Some(Record { view, pid, started, address, nonce }) = record {
            let values = [u64::from(view), u64::from(pid), started, address, nonce];
            values.iter().zip(&words[1..]).for_each(|(value, word)| word.store(*value, Ordering::Relaxed));
            words[0].store(1, Ordering::Release);
        }
    }

    /// Records that are in use and name an existing view.
    pub fn records(&self) -> Vec<Record> {
        let record = |mapping| {
            let [used, view, pid, started, address, nonce] =
                Untrusted::new(self.record_at(mapping)).acquire();
            (used == 1 && view < self.views).then_some(Record {
                view: view as u16,
                pid: pid as u32,
                started,
                address,
                nonce,
            })
        };
        (0..MAPPINGS_MAX).filter_map(record).collect()
    }
}

/// Options of the space in a shared state's header; `None` if the header is invalid or of another release.
fn options_of(header: &[u64; HEADER_WORDS]) -> Option<SpaceOptions> {
    let [
        magic,
        version,
        id,
        kind,
        pages,
        limit,
        prefetch,
        fresh,
        lost_wait,
        name,
        room,
        stay,
        owner,
        created,
        ..,
    ] = *header;
    let kind = MappingKind::of(kind).filter(|_| (magic, version) == (MAGIC, VERSION))?;
    let pages = u32::try_from(pages).ok().filter(|pages| *pages < 1 << 31)?;
    let view_pages = u32::try_from(room).ok()?;
    let limit = u32::try_from(limit).ok().filter(|limit| *limit >= LIMIT_MIN)?;
    let bytes: Vec<u8> = header[NAME_AT..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let region = String::from_utf8(bytes.get(..usize::try_from(name).ok()?)?.to_vec()).ok()?;
    let has_room = match kind {
        // A region of private memory that has grown may have more pages than a view, whose size is fixed.
        MappingKind::Private => true,
        MappingKind::Shared | MappingKind::Foreign => view_pages == pages,
    };
    has_room.then_some(SpaceOptions {
        id,
        region,
        kind,
        hpa: 0,
        pages,
        view_pages,
        limit,
        prefetch: prefetch != 0,
        fresh: fresh != 0,
        lost_wait: Duration::from_millis(lost_wait),
        stay: stay != 0,
        owner: match owner.checked_sub(1) {
            Some(uid) => Some(u32::try_from(uid).ok()?),
            None => None,
        },
        created_ms: created,
        user: None,
    })
}

/// Views recorded in a shared state, each with a flag: true if the view's process is known. The process of a
/// forked child is unknown until it joins. Only read access to the file is needed.
///
/// # Errors
/// The kernel's error.
pub fn joined(shared_state: BorrowedFd<'_>) -> io::Result<Vec<(u16, bool)>> {
    let file = File::from(shared_state.try_clone_to_owned()?);
    let mut bytes = vec![0; MAPPINGS_MAX * WORDS_OF_RECORD * 8];
    file.read_exact_at(&mut bytes, (RECORDS_AT * 8) as u64)?;
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let used = words.chunks_exact(WORDS_OF_RECORD).filter(|record| record[0] == 1);
    Ok(used.map(|record| (record[1] as u16, record[2] != 0)).collect())
}

/// Start time of the process `pid`, in ticks since boot; `None` if there is no such process.
pub fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything. The state is the first field after the name, the start
    // time the 20th.
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
    if rest.next()? == "Z" { None } else { rest.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use cxloe_cn_core::pager::{Entry, PageState};

    fn options(kind: MappingKind) -> SpaceOptions {
        SpaceOptions {
            id: 0xFEED_0000_0000_0001,
            region: "a-region".into(),
            kind,
            hpa: 0,
            pages: 1000,
            view_pages: cxloe_cn_core::mapped::view_pages(kind, 1000),
            limit: 64,
            prefetch: true,
            fresh: false,
            lost_wait: Duration::from_millis(1234),
            stay: true,
            owner: Some(0),
            created_ms: 1_763_000_000_123,
            user: None,
        }
    }

    #[test]
    fn a_successor_finds_what_was_noted() {
        let before = SharedState::create(&options(MappingKind::Private)).unwrap();
        let record = Record { view: 3, pid: 77, started: 5, address: 0x7000_0000, nonce: 6 };
        before.set_record(9, Some(record));
        before.set_record(10, Some(record));
        before.set_record(10, None);
        before.set_limit(99);
        before.set_pages(1500);
        before.table(3).unwrap().set(999, Entry::absent(17).to(PageState::Dirty));
        let shown = before.share().unwrap();
        assert!(MmapOptions::new().map_raw(&File::from(shown.try_clone().unwrap())).is_err(), "read-only");
        drop(before);
        let (after, found) = SharedState::adopt(shown).unwrap();
        assert_eq!(found, SpaceOptions { limit: 99, pages: 1500, ..options(MappingKind::Private) });
        assert_eq!(after.records(), [record]);
        after.set_record(2, Some(Record { view: 7, pid: 0, started: 0, address: 0, nonce: 0 }));
        assert_eq!(joined(after.share().unwrap().as_fd()).unwrap(), [(7, false), (3, true)]);
        let entry = after.table(3).unwrap().get(999);
        assert_eq!((entry.state(), entry.slot()), (PageState::Dirty, Some(17)));
        assert!(after.table(VIEWS_MAX as u16).is_err());
    }

    #[test]
    fn what_no_agent_made_for_this_is_refused() {
        let not_one = |fd: OwnedFd| {
            matches!(SharedState::adopt(fd), Err(SharedStateError::NotAgentFile(NotAgentFile::Other)))
        };
        assert!(not_one(File::open("/dev/null").unwrap().into()));
        // The file has the right size, the right seals and a valid header, but was created as a file that
        // programs may write to.
        let true_one = SharedState::create(&options(MappingKind::Shared)).unwrap();
        let bytes = true_one.file.metadata().unwrap().len();
        let region = Purpose::Region.create(bytes).unwrap();
        for (index, word) in true_one.head.iter().enumerate() {
            let word = word.load(Ordering::Relaxed).to_le_bytes();
            region.write_all_at(&word, index as u64 * 8).unwrap();
        }
        assert!(not_one(region.into()));
    }

    #[test]
    fn a_header_that_makes_no_sense_is_of_another_release() {
        let spoilt = |index: usize, value: u64| {
            let made = SharedState::create(&options(MappingKind::Shared)).unwrap();
            made.head[index].store(value, Ordering::Relaxed);
            matches!(SharedState::adopt(made.share().unwrap()), Err(SharedStateError::OtherRelease))
        };
        assert!(!spoilt(15, 0), "nothing is there");
        for (index, value) in [
            (0, 0),
            (1, 2),
            (3, 9),
            (4, 999),
            (4, 1 << 31),
            (5, 1),
            (5, 1 << 40),
            (9, 257),
            (10, 1001),
            (12, 1 << 40),
        ] {
            assert!(spoilt(index, value), "word {index} is {value}");
        }
    }

    #[test]
    fn processes_are_distinguished_by_their_start() {
        assert!(started(std::process::id()).is_some_and(|ticks| ticks > 0));
        assert_eq!(started(u32::MAX), None);
    }
}
