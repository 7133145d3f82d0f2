//! Mapped regions for Rust programs: memory whose pages are fetched from memory nodes on first touch.
//!
//! ```no_run
//! use cxloe_client::mapping::{MapOptions, Mapping};
//!
//! let options = MapOptions { limit: 256 << 20, ..MapOptions::default() };
//! let mut memory = Mapping::open(&cxloe_client::defaults::default_socket(), "scratch", options)?;
//! // SAFETY: no other process writes to the region, and no other thread to these bytes.
//! let bytes = unsafe { memory.as_mut_slice() };
//! bytes[..5].copy_from_slice(b"hello");
//! memory.flush()?;
//! # Ok::<(), cxloe_client::mapping::MapError>(())
//! ```
//!
//! The agent of this machine does the paging. Threads and their system calls may touch the memory. Several processes
//! may map one region and share its content. A thread of this process watches the agent: if the agent dies, faults wait
//! for its successor.
//!
//! A child after a fork does not inherit the mapping; it maps the region itself if it needs it.

mod owner;

use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_member::helper::{HelperEnd, HelperHost, Member};
use cxloe_member::join::{JoinError, JoinKind, MemberMemory, join};
use cxloe_member::line::HelperLine;
use cxloe_member::parent_memory::ParentMemory;
use cxloe_member::socket::SocketPath;
use cxloe_member::uffd;
use cxloe_member::wire::{self, Pages, RANGE};
use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::client::ClientError;
use crate::message::{MapRequest, PagingView};
use cxloe_cn_core::mapped::{LOST_WAIT_DEFAULT, MappingKind};
use cxloe_cn_core::pager::PAGE_BYTES;

pub use cxloe_cn_core::pager::Hint;
pub use owner::{NoKernelFaults, Owner};

/// Default of [`MapOptions::wait`].
pub const WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// Interval of attempts to reach a successor of the agent.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Options of [`Mapping::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapOptions {
    /// Limit of resident bytes. If several processes map one region, the limit of the first one applies.
    pub limit: u64,
    /// Whether pages are fetched ahead for threads that access memory in constant strides.
    pub prefetch: bool,
    /// Whether the region has never been written, so that its pages read as zeros and need not be fetched.
    pub fresh: bool,
    /// Longest outage of memory nodes before an access to their pages raises SIGBUS.
    pub lost_wait: Duration,
    /// Longest wait for a successor of an agent that died.
    pub wait: Duration,
    /// Reaction if no successor comes in time.
    pub abandoned: OrphanReaction,
}

/// Reaction to the death of the agent if no successor comes in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrphanReaction {
    /// The process ends with a message and SIGABRT: its threads might otherwise wait for pages for ever.
    #[default]
    Abort,
    /// The memory is unmapped: a touch gives SIGSEGV.
    Unmap,
}

impl Default for MapOptions {
    fn default() -> Self {
        MapOptions {
            limit: 64 << 20,
            prefetch: true,
            fresh: false,
            lost_wait: LOST_WAIT_DEFAULT,
            wait: WAIT_DEFAULT,
            abandoned: OrphanReaction::default(),
        }
    }
}

/// Failure to map a region, or of a request for a mapping.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// A request to the agent failed.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// The agent did not accept this process as a member (a process whose memory it pages).
    #[error("the region's memory cannot be paged: {0}")]
    Join(Box<JoinError>),
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    System {
        /// Purpose of the system call.
        doing: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// The path of the agent's socket is too long for one.
    #[error("the path of the agent's socket has more than 107 bytes")]
    Path,
    /// The region is sealed, and the request would change its content.
    #[error("the region is sealed: it can be read, and never changed again")]
    Sealed,
    /// The range does not consist of whole pages, or is not in the mapping.
    #[error("bytes {0:?} are not whole pages of the mapping")]
    Range(Range<usize>),
    /// The agent has died, and no successor has come in time.
    #[error("the agent has ended and no successor took over; the memory is lost")]
    Abandoned,
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> MapError {
    move |source| MapError::System { doing, source }
}

/// A mapped region, which is unmapped when this is dropped.
#[derive(Debug)]
pub struct Mapping {
    /// The mapping; `None` after it was unmapped, at the end of the drop.
    memory: Option<MmapRaw>,
    /// Registration of this memory as missing in forked children: a child that touches it ends with a message.
    _of_parent: ParentMemory,
    owner: Arc<Mutex<Owner>>,
    line: Arc<HelperLine>,
    helper: Option<JoinHandle<()>>,
    wait: Duration,
    kernel_faults: bool,
    sealed: bool,
}

impl Mapping {
    /// Maps `region` through the agent whose socket is at `socket`.
    ///
    /// # Errors
    /// Any [`MapError`] but [`MapError::Range`] and [`MapError::Abandoned`].
    pub fn open(socket: &Path, region: &str, options: MapOptions) -> Result<Mapping, MapError> {
        let MapOptions { limit, prefetch, fresh, lost_wait, wait, abandoned } = options;
        let agent = SocketPath::new(socket.as_os_str().as_encoded_bytes()).ok_or(MapError::Path)?;
        let request = MapRequest::new(region, MappingKind::Shared, limit, lost_wait);
        let owner = Owner::map(socket, MapRequest { prefetch, fresh, ..request })?;
        let file = owner.memory().ok_or(MapError::System {
            doing: "map the region",
            source: io::Error::other("no memory came with the agent's answer"),
        })?;
        let bytes = owner.pages() as usize * PAGE_BYTES;
        let (map, sealed) = (MmapOptions::new().len(bytes).clone(), owner.is_sealed());
        let memory = if sealed { map.map_raw_read_only(&file) } else { map.map_raw(&file) };
        let memory = memory.map_err(system("map the region"))?;
        // Children do not inherit the memory: in a child, absent pages would read as zeros, and writes would
        // be lost.
        memory.advise(Advice::DontFork).map_err(system("keep the mapping from children"))?;
        let (uffd, kernel_faults) = match uffd::create(owner.device()) {
            Ok(uffd) => (uffd, true),
            // Without the right to serve faults of system calls, the memory works for all other accesses.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                (uffd::create_user_only().map_err(system("handle page faults"))?, false)
            }
            Err(error) => return Err(system("handle page faults")(error)),
        };
        let place = MemberMemory {
            agent,
            space: owner.space(),
            address: memory.as_ptr() as u64,
            bytes: bytes as u64,
            offset: 0,
        };
        let joined = join(&place, JoinKind::New { uffd: uffd.as_fd(), files: None })
            .map_err(|e| MapError::Join(Box::new(e)))?;
        let copy = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(system("keep what a successor of the agent needs"))
        };
        let successor_descriptors = (copy(owner.shared_state())?, copy(file)?);
        let (owner, line) = (Arc::new(Mutex::new(owner)), Arc::new(HelperLine::new()));
        let mut helper = Helper {
            owner: Arc::clone(&owner),
            line: Arc::clone(&line),
            memory: memory.as_mut_ptr() as usize..memory.as_mut_ptr() as usize + bytes,
            abandoned,
            wait,
        };
        // The helper thread must run before `open` returns. Otherwise it would miss a request to leave or to discard
        // that follows at once.
        let ready = Arc::new(std::sync::Barrier::new(2));
        let there = Arc::clone(&ready);
        let body = move || {
            let line = Arc::clone(&helper.line);
            let mut member = Member::new(
                place,
                joined,
                uffd,
                successor_descriptors.0,
                Some(successor_descriptors.1),
                &line,
                wait,
            );
            there.wait();
            if let HelperEnd::Abandoned(error) = member.run(&mut helper) {
                helper.give_up(&error);
            }
        };
        let thread = thread::Builder::new().name("cxloe-member".into()).spawn(body);
        let thread = thread.map_err(system("start the thread that watches over the agent"))?;
        ready.wait();
        let start = memory.as_ptr() as usize;
        let of_parent = ParentMemory::new(start..start + bytes);
        let (memory, helper) = (Some(memory), Some(thread));
        Ok(Mapping { memory, _of_parent: of_parent, owner, line, helper, wait, kernel_faults, sealed })
    }

    fn memory(&self) -> &MmapRaw {
        self.memory.as_ref().expect("it is unmapped by dropping it only")
    }

    /// Address of the first byte of the memory.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory().as_mut_ptr()
    }

    /// Size of the memory in bytes.
    pub fn len(&self) -> usize {
        self.memory().len()
    }

    /// Whether system calls may touch absent pages. If the administrator reserves page faults of the kernel for root
    /// (no `allow-kernel-faults`), such a call fails with EFAULT; then read into another buffer, and copy.
    pub fn serves_kernel_faults(&self) -> bool {
        self.kernel_faults
    }

    /// Whether the region is sealed: the memory can only be read, and a write to it raises SIGSEGV.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Value of the word `index` of the memory: the 8 bytes from byte `8 * index` on. Other threads and processes may
    /// store to the word at the same time.
    ///
    /// # Panics
    /// If the memory has no such word.
    pub fn load(&self, index: usize) -> u64 {
        self.word(index).load(Relaxed)
    }

    /// Stores `value` in the word `index` of the memory: the 8 bytes from byte `8 * index` on. Other threads and
    /// processes may use the word at the same time.
    ///
    /// # Errors
    /// [`MapError::Sealed`].
    ///
    /// # Panics
    /// If the memory has no such word.
    pub fn store(&self, index: usize, value: u64) -> Result<(), MapError> {
        if self.sealed {
            return Err(MapError::Sealed);
        }
        self.word(index).store(value, Relaxed);
        Ok(())
    }

    #[expect(unsafe_code, reason = "the memory is viewed as atomic words")]
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len() / size_of::<AtomicU64>(), "the region has no word {index}");
        // SAFETY: the mapping begins at a page boundary, so the word is aligned; it lies in the mapping (checked above),
        // which stays as long as `self` lives. Accesses are atomic, and none writes to a sealed region; slices of the
        // memory are made by unsafe calls, whose callers ensure that nothing else uses the memory meanwhile.
        unsafe { &*self.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Always false: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Borrows the memory for reading.
    ///
    /// # Safety
    /// While the slice is used, nothing writes to the memory: no thread, and no other process that maps the region.
    #[expect(unsafe_code, reason = "only the caller knows who writes to the memory")]
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is mapped as long as `self` lives; the caller ensures that nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Borrows the memory for writing.
    ///
    /// # Panics
    /// If the region [is sealed](Self::is_sealed).
    ///
    /// # Safety
    /// While the slice is used, nothing else uses the memory: no thread, and no other process that maps the region.
    #[expect(unsafe_code, reason = "only the caller knows who uses the memory")]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(!self.sealed, "the region is sealed: its memory can only be read");
        // SAFETY: the memory is mapped as long as `self` lives; the caller ensures that nothing else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Number of the mapped region at the agent (its space), as `cn-agent paging` prints it.
    pub fn space(&self) -> u64 {
        self.owner().space()
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the agent or, if the agent has just died, to its successor.
    fn ask<T>(&self, mut ask: impl FnMut(&mut Owner) -> Result<T, ClientError>) -> Result<T, MapError> {
        let until = Instant::now() + self.wait;
        loop {
            let outcome = ask(&mut self.owner());
            match outcome {
                Err(ClientError::AgentGone(_)) if Instant::now() < until => thread::sleep(RETRY_INTERVAL),
                other => return Ok(other?),
            }
        }
    }

    /// Changes the limit of resident bytes of the region to `bytes`.
    ///
    /// # Errors
    /// [`MapError::Agent`].
    pub fn set_limit(&self, bytes: u64) -> Result<(), MapError> {
        self.ask(|owner| owner.set_limit(bytes))
    }

    /// State and counters of paging for the region.
    ///
    /// # Errors
    /// [`MapError::Agent`].
    pub fn paging(&self) -> Result<PagingView, MapError> {
        self.ask(Owner::paging)
    }

    /// Waits until all earlier writes are at the memory nodes.
    ///
    /// # Errors
    /// [`MapError::Agent`].
    pub fn flush(&self) -> Result<(), MapError> {
        self.ask(Owner::clean_all)
    }

    /// Announces the future use of all pages that `bytes` touches. A hint changes when pages are fetched and evicted,
    /// never their content, and the call returns at once.
    ///
    /// # Errors
    /// [`MapError::Range`] if the range is not in the mapping.
    pub fn hint(&self, bytes: Range<usize>, hint: Hint) -> Result<(), MapError> {
        if bytes.start > bytes.end || bytes.end > self.len() {
            return Err(MapError::Range(bytes));
        }
        let (first, end) = (bytes.start / PAGE_BYTES, bytes.end.div_ceil(PAGE_BYTES));
        if !bytes.is_empty() {
            let kind = match hint {
                Hint::WillRead => wire::MessageKind::WillRead,
                Hint::WillWrite => wire::MessageKind::WillWrite,
                Hint::Cold => wire::MessageKind::Cold,
                Hint::PageOut => wire::MessageKind::PageOut,
            };
            self.line.hint(kind, Pages { first: first as u32, count: (end - first) as u32 });
        }
        Ok(())
    }

    /// Discards the content of `bytes`, a range of whole pages, for all processes that map the region: the pages read
    /// as zeros.
    ///
    /// # Errors
    /// [`MapError::Range`], [`MapError::Sealed`], [`MapError::Abandoned`], [`MapError::System`].
    #[expect(unsafe_code, reason = "madvise takes a raw pointer")]
    pub fn discard(&self, bytes: Range<usize>) -> Result<(), MapError> {
        if self.sealed {
            return Err(MapError::Sealed);
        }
        let whole = bytes.start.is_multiple_of(PAGE_BYTES) && bytes.end.is_multiple_of(PAGE_BYTES);
        if !whole || bytes.start > bytes.end || bytes.end > self.len() {
            return Err(MapError::Range(bytes));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let pages = Pages {
            first: (bytes.start / PAGE_BYTES) as u32,
            count: ((bytes.end - bytes.start) / PAGE_BYTES) as u32,
        };
        self.line.discard(pages).map_err(|_| MapError::Abandoned)?;
        // SAFETY: the range lies in the mapping. Its content changes to zeros, as the caller asked; as for every write,
        // no slice of the range exists.
        let done =
            unsafe { libc::madvise(self.as_ptr().add(bytes.start).cast(), bytes.len(), libc::MADV_REMOVE) };
        if done == 0 { Ok(()) } else { Err(system("discard pages")(io::Error::last_os_error())) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The memory is unmapped last, after the agent has closed the connection: until then the agent may install
        // pages at these addresses, even if another mapping with its own userfaultfd has taken them.
        self.line.leave();
        if let Some(helper) = self.helper.take() {
            let _ = helper.join();
        }
        self.memory = None;
    }
}

/// State of the helper thread, which watches the agent.
struct Helper {
    owner: Arc<Mutex<Owner>>,
    line: Arc<HelperLine>,
    memory: Range<usize>,
    abandoned: OrphanReaction,
    wait: Duration,
}

impl HelperHost for Helper {
    fn lost(&mut self, pages: Pages) {
        tracing::error!(first = pages.first, count = pages.count, "pages of a mapped region are lost");
    }

    fn why(&mut self, words: &mut dyn Iterator<Item = [u8; RANGE]>) {
        let said: Vec<u8> = words.flatten().collect();
        tracing::error!("{}", String::from_utf8_lossy(&said).trim_end_matches('\0'));
    }

    fn orphaned(&mut self) {
        tracing::warn!("the agent has ended; waiting for its successor");
    }

    fn adopted(&mut self) {
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + self.wait;
        while let Err(error) = owner.resume() {
            if Instant::now() >= until {
                tracing::error!(%error, "the agent's successor serves the memory, but not its owner");
                return;
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }
}

impl Helper {
    #[expect(unsafe_code, reason = "mmap replaces the memory by address")]
    #[cold]
    fn give_up(&self, error: &JoinError) {
        match self.abandoned {
            OrphanReaction::Abort => {
                // One write call for the whole line, because other threads write to standard error as well.
                let last = format!("cxloe: the agent that paged this program's memory has ended: {error}\n");
                let _ = io::stderr().write_all(last.as_bytes());
                std::process::abort();
            }
            OrphanReaction::Unmap => {
                tracing::error!(%error, "the agent that paged this program's memory has ended; it is unmapped");
                let Range { start, end } = self.memory;
                // SAFETY: the range belongs to the mapping, whose owner unmaps it later. From here on an access raises
                // SIGSEGV, as documented; a thread that waits for a page is released when the userfaultfd closes.
                unsafe {
                    let flags =
                        libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                    libc::mmap(start as *mut libc::c_void, end - start, libc::PROT_NONE, flags, -1, 0);
                }
            }
        }
    }
}
