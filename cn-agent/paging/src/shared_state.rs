//! What a space needs to outlive the agent: its options, its views and members, and the table of every view's pages, in
//! memory that the members keep open. Whoever takes over finds it with the first of them that comes.
//!
//! ```text
//!   byte 0        4096                 + 1024 * 64           page-aligned, one after the other, sparse
//!   | header page | mapping records ... | view 0's entries | view 1's entries | ...
//! ```
//!
//! Members get it for reading only. An agent opens it anew for writing, which its owner, the agent's user, may. What a
//! program shows as its predecessor's shared state is therefore either one that an agent made, and nobody else has ever
//! written, or it is not the agent's user's and refused before a byte of it is looked at. An old one of another region, or
//! of another time, is told by whose it was and when its region was created.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::geteuid;

use cxloe_cn_core::mapped::{Kind, PRIVATE_SPARE, SpaceOptions};
use cxloe_cn_core::pager::{LIMIT_MIN, MAPPINGS_MAX, PAGE_BYTES, PageTable, VIEWS_MAX};

const MAGIC: u64 = u64::from_le_bytes(*b"CXLoElgr");
const VERSION: u64 = 1;
const WORDS_OF_RECORD: usize = 8;
const RECORDS_AT: usize = PAGE_BYTES / 8;
const TABLES_AT: usize = PAGE_BYTES + MAPPINGS_MAX * WORDS_OF_RECORD * 8;
const NAME_AT: usize = 64;
const NAME_WORDS: usize = 32;
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// Why a shared state is of no use.
#[derive(Debug, thiserror::Error)]
pub enum SharedStateError {
    /// The system refuses.
    #[error("the shared state of paged memory cannot be opened: {0}")]
    Io(#[from] io::Error),
    /// It is none.
    #[error("what was shown is no shared state of this release")]
    NoLedger,
    /// It is one, and not this agent's: whoever made it may write it.
    #[error("what was shown was made by user {0}, and not by an agent of this one's user")]
    Forged(u32),
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

/// Whether memory that belongs to this user was made by an agent: one of this user, or of root, whom nothing keeps from
/// anything.
pub(crate) fn is_agents(uid: u32) -> bool {
    uid == geteuid().as_raw() || uid == 0
}

fn views_of(kind: Kind) -> usize {
    match kind {
        Kind::Shared | Kind::Foreign => 1,
        Kind::Private => VIEWS_MAX,
    }
}

/// Pages that a view had room for before shared states said so.
fn earlier_view_pages(kind: Kind, pages: u32) -> u32 {
    match kind {
        Kind::Private => pages.saturating_add(PRIVATE_SPARE),
        Kind::Shared | Kind::Foreign => pages,
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
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"cxloe-shared-state", flags)?);
        file.set_permissions(PermissionsExt::from_mode(0o600))?;
        let views = views_of(options.kind);
        file.set_len((TABLES_AT + views * table_bytes(options.view_pages)) as u64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
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
        let sealed = SealFlag::from_bits_truncate(
            fcntl(&shown, FcntlArg::F_GET_SEALS).map_err(|_| SharedStateError::NoLedger)?,
        );
        let metadata = shown.metadata()?;
        let length = metadata.len();
        if !is_agents(metadata.uid()) {
            return Err(SharedStateError::Forged(metadata.uid()));
        }
        if !sealed.contains(SEALS) || length < TABLES_AT as u64 {
            return Err(SharedStateError::NoLedger);
        }
        let place = format!("/proc/self/fd/{}", shown.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(place)?;
        let mut shared_state = SharedState::over(file, 0, 0)?;
        let word = |index: usize| shared_state.head[index].load(Ordering::Relaxed);
        let kind = Kind::of(word(3)).filter(|_| word(0) == MAGIC && word(1) == VERSION);
        let kind = kind.ok_or(SharedStateError::NoLedger)?;
        let pages = u32::try_from(word(4)).map_err(|_| SharedStateError::NoLedger)?;
        // Ledgers of earlier releases do not say: views had no room for reservations.
        let room = if word(10) == 0 { u64::from(earlier_view_pages(kind, pages)) } else { word(10) };
        let room = u32::try_from(room).map_err(|_| SharedStateError::NoLedger)?;
        let views = views_of(kind);
        let name = usize::try_from(word(9)).ok().filter(|length| *length <= NAME_WORDS * 8);
        let name = name.filter(|_| pages < 1 << 31).ok_or(SharedStateError::NoLedger)?;
        let bytes: Vec<u8> = (0..NAME_WORDS).flat_map(|index| word(NAME_AT + index).to_le_bytes()).collect();
        let region = String::from_utf8(bytes[..name].to_vec()).map_err(|_| SharedStateError::NoLedger)?;
        let options = SpaceOptions {
            id: word(2),
            region,
            kind,
            hpa: 0,
            pages,
            view_pages: room,
            limit: word(5) as u32,
            prefetch: word(6) != 0,
            fresh: word(7) != 0,
            lost_wait: Duration::from_millis(word(8)),
            stay: word(11) != 0,
            // Of earlier releases: nobody's.
            owner: word(12).checked_sub(1).and_then(|uid| u32::try_from(uid).ok()),
            created_ms: word(13),
        };
        let has_room = match kind {
            // Of a region that has grown there may be more than a view has room for.
            Kind::Private => true,
            Kind::Shared | Kind::Foreign => options.view_pages == options.pages,
        };
        if !has_room || options.limit < LIMIT_MIN {
            return Err(SharedStateError::NoLedger);
        }
        (shared_state.pages, shared_state.views) = (options.view_pages, views as u64);
        if length != (TABLES_AT + views * table_bytes(shared_state.pages)) as u64 {
            return Err(SharedStateError::NoLedger);
        }
        Ok((shared_state, options))
    }

    /// Notes which file in memory has its pages, where processes share it.
    pub fn set_memory(&self, inode: u64) {
        self.head[14].store(inode, Ordering::Relaxed);
    }

    /// Which file in memory has its pages; 0 where earlier releases did not say.
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
        // Of shared states of earlier releases the room of views would follow from that.
        self.head[10].store(u64::from(self.pages), Ordering::Relaxed);
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
            let words = self.record_at(mapping);
            let word = |index: usize| words[index].load(Ordering::Acquire);
            (word(0) == 1 && word(1) < self.views).then(|| Record {
                view: word(1) as u16,
                pid: word(2) as u32,
                started: word(3),
                address: word(4),
            })
        };
        (0..MAPPINGS_MAX).filter_map(record).collect()
    }
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
    fn a_ledger_of_before_views_had_room_to_reserve_is_taken_over() {
        let options = SpaceOptions { view_pages: 1000 + PRIVATE_SPARE, ..options(Kind::Private) };
        let before = SharedState::create(&options).unwrap();
        before.head[10].store(0, Ordering::Relaxed);
        let (after, found) = SharedState::adopt(before.share().unwrap()).unwrap();
        let room = 1000 + PRIVATE_SPARE;
        assert_eq!((found, after.table(3).unwrap().len()), (options.clone(), room));
        after.set_pages(1500);
        let (later, found) = SharedState::adopt(after.share().unwrap()).unwrap();
        assert_eq!((found.pages, found.view_pages, later.table(3).unwrap().len()), (1500, room, room));
    }

    #[test]
    fn what_is_no_ledger_is_refused() {
        let odd = memfd_create(c"odd", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(matches!(SharedState::adopt(odd), Err(SharedStateError::NoLedger)));
        assert!(SharedState::adopt(File::open("/dev/null").unwrap().into()).is_err());
        let sealed = File::from(memfd_create(c"odd", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        sealed.set_len(1 << 20).unwrap();
        fcntl(&sealed, FcntlArg::F_ADD_SEALS(SEALS)).unwrap();
        assert!(matches!(SharedState::adopt(sealed.into()), Err(SharedStateError::NoLedger)));
    }

    #[test]
    fn processes_are_told_apart_by_their_start() {
        assert!(started(std::process::id()).is_some_and(|ticks| ticks > 0));
        assert_eq!(started(u32::MAX), None);
    }
}
