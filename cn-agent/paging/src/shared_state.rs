//! What a space needs to outlive the agent: its options, its views and members, and the table of every view's pages, in
//! memory that the members keep open. Whoever takes over finds it with the first of them that comes.
//!
//! ```text
//!   byte 0        4096                 + 1024 * 64           page-aligned, one after the other, sparse
//!   | header page | mapping records ... | view 0's entries | view 1's entries | ...
//! ```
//!
//! Members get it for reading only. An agent opens it anew for writing, which its owner, the agent's user, may. What a
//! program shows as its predecessor's shared state is either one that an agent made for this, and nobody else has ever
//! written, or it is refused before a byte of it is looked at ([`agent_file`](crate::agent_file)). An old one of another
//! region, or of another time, is told by whose it was and when its region was created.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

use crate::agent_file::{NotAgentFile, Purpose};
use cxloe_cn_core::mapped::{Kind, SpaceOptions};
use cxloe_cn_core::pager::{LIMIT_MIN, MAPPINGS_MAX, PAGE_BYTES, PageTable, VIEWS_MAX};
use cxloe_cn_core::untrusted::Untrusted;

const MAGIC: u64 = u64::from_le_bytes(*b"CXLoElgr");
const VERSION: u64 = 1;
const WORDS_OF_RECORD: usize = 8;
const RECORDS_AT: usize = PAGE_BYTES / 8;
const TABLES_AT: usize = PAGE_BYTES + MAPPINGS_MAX * WORDS_OF_RECORD * 8;
const NAME_AT: usize = 64;
const NAME_WORDS: usize = 32;
/// Words of the header, with the region's name at its end.
const HEADER_WORDS: usize = NAME_AT + NAME_WORDS;

/// Why a shared state is of no use.
#[derive(Debug, thiserror::Error)]
pub enum SharedStateError {
    /// The system refuses.
    #[error("the shared state of paged memory cannot be opened: {0}")]
    Io(#[from] io::Error),
    /// An agent made it, and another release or for another region.
    #[error("what was shown is no shared state of this release")]
    OtherRelease,
    /// No agent made it: a program may have written it.
    #[error(transparent)]
    NotAgentFile(#[from] NotAgentFile),
}

/// A process that has mapped a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its view.
    pub view: u16,
    /// The process; 0 while it is not known.
    pub pid: u32,
    /// When it was started, in the kernel's ticks, so that another of the same number is not taken for it.
    pub started: u64,
    /// Where its memory begins.
    pub address: u64,
}

/// Words of shared memory, as many as there are.
struct Words {
    map: MmapRaw,
    /// Bytes before the first.
    skip: usize,
    count: usize,
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is as long as `skip` and `count` words, made so in `Words::map`, and begins at a page;
        // its size is sealed, it is mapped as long as `self` lives, and everybody accesses it as atomic words.
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().add(self.skip).cast::<AtomicU64>(), self.count)
        }
    }
}

impl Words {
    fn map(file: &File, at: usize, count: usize) -> io::Result<Words> {
        // An empty mapping cannot be.
        let bytes = (count * 8).max(8);
        let map = MmapOptions::new().offset(at as u64).len(bytes).map_raw(file)?;
        Ok(Words { map, skip: 0, count })
    }
}

/// The shared state of one space.
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

fn views_of(kind: Kind) -> usize {
    match kind {
        Kind::Shared | Kind::Foreign => 1,
        Kind::Private => VIEWS_MAX,
    }
}

/// Bytes of a view's table, whole pages.
fn table_bytes(pages: u32) -> usize {
    (pages as usize * 8).next_multiple_of(PAGE_BYTES)
}

impl SharedState {
    /// A new shared state with these options.
    ///
    /// # Errors
    /// What the kernel says.
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

    /// A predecessor's shared state, and what it says of the space; `hpa` is 0 in that.
    ///
    /// # Errors
    /// [`SharedStateError`].
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

    /// Notes which file in memory has its pages, where processes share it.
    pub fn set_memory(&self, inode: u64) {
        self.head[14].store(inode, Ordering::Relaxed);
    }

    /// The inode of the file in memory that has its pages; 0 where processes do not share them.
    pub fn memory(&self) -> u64 {
        self.head[14].load(Ordering::Relaxed)
    }

    /// A descriptor for members, to read and to keep.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?.into())
    }

    /// Notes that the region has grown.
    pub fn set_pages(&self, pages: u32) {
        self.head[4].store(u64::from(pages), Ordering::Release);
    }

    /// Notes another limit of resident pages.
    pub fn set_limit(&self, limit: u32) {
        self.head[5].store(u64::from(limit), Ordering::Relaxed);
    }

    /// The table of a view, as it is.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::InvalidInput`] when there is no such view.
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

    /// Notes who has mapped what; `None`: nobody any more.
    pub fn set_record(&self, mapping: u16, record: Option<Record>) {
        let words = self.record_at(usize::from(mapping));
        words[0].store(0, Ordering::Release);
        if let Some(Record { view, pid, started, address }) = record {
            let values = [u64::from(view), u64::from(pid), started, address];
            values.iter().zip(&words[1..]).for_each(|(value, word)| word.store(*value, Ordering::Relaxed));
            words[0].store(1, Ordering::Release);
        }
    }

    /// Everybody who has mapped a view.
    pub fn records(&self) -> Vec<Record> {
        let record = |mapping| {
            let [used, view, pid, started, address] = Untrusted::new(self.record_at(mapping)).acquire();
            (used == 1 && view < self.views).then_some(Record {
                view: view as u16,
                pid: pid as u32,
                started,
                address,
            })
        };
        (0..MAPPINGS_MAX).filter_map(record).collect()
    }
}

/// What the header of a shared state says of its space; `None` if it is of another release, or makes no sense.
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
    let kind = Kind::of(kind).filter(|_| (magic, version) == (MAGIC, VERSION))?;
    let pages = u32::try_from(pages).ok().filter(|pages| *pages < 1 << 31)?;
    let view_pages = u32::try_from(room).ok()?;
    let limit = u32::try_from(limit).ok().filter(|limit| *limit >= LIMIT_MIN)?;
    let bytes: Vec<u8> = header[NAME_AT..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let region = String::from_utf8(bytes.get(..usize::try_from(name).ok()?)?.to_vec()).ok()?;
    let has_room = match kind {
        // Of a region that has grown there may be more than a view has room for.
        Kind::Private => true,
        Kind::Shared | Kind::Foreign => view_pages == pages,
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
    })
}

/// Which views a shared state has, as somebody sees it who may only read it, and whether their process is known: that of a
/// forked child is not before it has joined.
///
/// # Errors
/// What the kernel says.
pub fn joined(shared_state: BorrowedFd<'_>) -> io::Result<Vec<(u16, bool)>> {
    let file = File::from(shared_state.try_clone_to_owned()?);
    let mut bytes = vec![0; MAPPINGS_MAX * WORDS_OF_RECORD * 8];
    file.read_exact_at(&mut bytes, (RECORDS_AT * 8) as u64)?;
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let used = words.chunks_exact(WORDS_OF_RECORD).filter(|record| record[0] == 1);
    Ok(used.map(|record| (record[1] as u16, record[2] != 0)).collect())
}

/// When a process was started, in ticks since the machine was; `None` if there is none of that number.
pub fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the state follows it, and the time is the 20th field from there.
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
    if rest.next()? == "Z" { None } else { rest.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use cxloe_cn_core::pager::{Entry, State};

    fn options(kind: Kind) -> SpaceOptions {
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
        }
    }

    #[test]
    fn a_successor_finds_what_was_noted() {
        let before = SharedState::create(&options(Kind::Private)).unwrap();
        let record = Record { view: 3, pid: 77, started: 5, address: 0x7000_0000 };
        before.set_record(9, Some(record));
        before.set_record(10, Some(record));
        before.set_record(10, None);
        before.set_limit(99);
        before.set_pages(1500);
        before.table(3).unwrap().set(999, Entry::absent(17).to(State::Dirty));
        let shown = before.share().unwrap();
        assert!(MmapOptions::new().map_raw(&File::from(shown.try_clone().unwrap())).is_err(), "read-only");
        drop(before);
        let (after, found) = SharedState::adopt(shown).unwrap();
        assert_eq!(found, SpaceOptions { limit: 99, pages: 1500, ..options(Kind::Private) });
        assert_eq!(after.records(), [record]);
        after.set_record(2, Some(Record { view: 7, pid: 0, started: 0, address: 0 }));
        assert_eq!(joined(after.share().unwrap().as_fd()).unwrap(), [(7, false), (3, true)]);
        let entry = after.table(3).unwrap().get(999);
        assert_eq!((entry.state(), entry.slot()), (State::Dirty, Some(17)));
        assert!(after.table(VIEWS_MAX as u16).is_err());
    }

    #[test]
    fn what_no_agent_made_for_this_is_refused() {
        let not_one = |fd: OwnedFd| {
            matches!(SharedState::adopt(fd), Err(SharedStateError::NotAgentFile(NotAgentFile::Other)))
        };
        assert!(not_one(File::open("/dev/null").unwrap().into()));
        // Of the right size, with the right seals, and a true header: and made for something that programs write.
        let true_one = SharedState::create(&options(Kind::Shared)).unwrap();
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
            let made = SharedState::create(&options(Kind::Shared)).unwrap();
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
    fn processes_are_told_apart_by_their_start() {
        assert!(started(std::process::id()).is_some_and(|ticks| ticks > 0));
        assert_eq!(started(u32::MAX), None);
    }
}
