//! Mapped regions for Rust programs: memory whose pages come from memory nodes when they are touched.
//!
//! ```no_run
//! use cxloe_client::mapping::{MapOptions, Mapping};
//!
//! let options = MapOptions { limit: 256 << 20, ..MapOptions::default() };
//! let mut memory = Mapping::open(&cxloe_client::places::default_socket(), "scratch", options)?;
//! // SAFETY: no other process writes to the region, and no other thread to these bytes.
//! let bytes = unsafe { memory.as_mut_slice() };
//! bytes[..5].copy_from_slice(b"hello");
//! memory.flush()?;
//! # Ok::<(), cxloe_client::mapping::MapError>(())
//! ```
//!
//! The agent of this machine does the paging. Everything may touch the memory: threads, and system calls on their
//! behalf. Several processes may map one region and then share it. A thread beside watches over the agent: if it dies,
//! touched pages wait for its successor.
//!
//! A child after a fork does not have the mapping; what it needs of the region it maps itself.

mod owner;

use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_member::helper::{Ended, Host, Member};
use cxloe_member::join::{As, JoinError, Place, join};
use cxloe_member::line::Line;
use cxloe_member::parent_memory::ParentMemory;
use cxloe_member::socket::SocketPath;
use cxloe_member::uffd;
use cxloe_member::wire::{self, Pages, RANGE};
use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::client::ClientError;
use crate::message::{MapRequest, PagingView};
use cxloe_cn_core::mapped::{Kind, LOST_WAIT_DEFAULT};
use cxloe_cn_core::pager::PAGE_BYTES;

pub use cxloe_cn_core::pager::Hint;
pub use owner::{NoKernelFaults, Owner};

/// How long to wait for a successor of an agent that has died, unless told otherwise.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// The pause between two attempts to reach it.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// How a region is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapOptions {
    /// Bytes that may be resident. Of processes that map one region, the first one's counts.
    pub limit: u64,
    /// Whether pages are fetched ahead of readers that go through memory in even steps.
    pub prefetch: bool,
    /// Whether the region was never written, so that its pages need not be fetched.
    pub fresh: bool,
    /// How long memory nodes may be away before touching their pages gives SIGBUS.
    pub lost_wait: Duration,
    /// How long to wait for a successor of the agent if it dies.
    pub wait: Duration,
    /// What happens if none comes.
    pub abandoned: Abandoned,
}

/// What happens to a program whose agent has died and has no successor in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Abandoned {
    /// The process ends with a message and SIGABRT: threads may wait for pages for ever otherwise.
    #[default]
    Abort,
    /// The memory goes away: touching any of it gives SIGSEGV.
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
            abandoned: Abandoned::default(),
        }
    }
}

/// Why a region is not mapped, or what was asked of it not done.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The agent.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// It did not take this process for a member.
    #[error("the region's memory cannot be paged: {0}")]
    Join(Box<JoinError>),
    /// The system.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The path of the agent's socket is too long for one.
    #[error("the path of the agent's socket has more than 107 bytes")]
    Path,
    /// Not whole pages of the mapping.
    #[error("bytes {0:?} are not whole pages of the mapping")]
    Range(Range<usize>),
    /// The agent has died, and no other has come.
    #[error("the agent has died and nobody has taken over; the memory is gone")]
    Abandoned,
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> MapError {
    move |source| MapError::System { doing, source }
}

/// A mapped region.
#[derive(Debug)]
pub struct Mapping {
    /// `None` once it is unmapped.
    memory: Option<MmapRaw>,
    /// Children of this process say why they end where they touch it.
    _of_parent: ParentMemory,
    owner: Arc<Mutex<Owner>>,
    line: Arc<Line>,
    helper: Option<JoinHandle<()>>,
    wait: Duration,
    kernel_faults: bool,
}

impl Mapping {
    /// Maps `region` through the agent that listens at `socket`.
    ///
    /// # Errors
    /// Any [`MapError`] but [`MapError::Range`] and [`MapError::Abandoned`].
    pub fn open(socket: &Path, region: &str, options: MapOptions) -> Result<Mapping, MapError> {
        let MapOptions { limit, prefetch, fresh, lost_wait, wait, abandoned } = options;
        let agent = SocketPath::new(socket.as_os_str().as_encoded_bytes()).ok_or(MapError::Path)?;
        let request = MapRequest {
            region: region.into(),
            kind: Kind::Shared,
            limit,
            prefetch,
            fresh,
            lost_wait_ms: lost_wait.as_millis() as u64,
            stay: false,
            keeps: false,
            resume: false,
        };
        let owner = Owner::map(socket, request)?;
        let file = owner.memory().ok_or(MapError::System {
            doing: "map the region",
            source: io::Error::other("no memory came with the agent's answer"),
        })?;
        let bytes = owner.pages() as usize * PAGE_BYTES;
        let memory = MmapOptions::new().len(bytes).map_raw(&file).map_err(system("map the region"))?;
        // Without this a child would fill what is absent with zeros, for all.
        memory.advise(Advice::DontFork).map_err(system("keep the mapping from children"))?;
        let (uffd, kernel_faults) = match uffd::create(owner.device()) {
            Ok(uffd) => (uffd, true),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                (uffd::create_user_only().map_err(system("handle page faults"))?, false)
            }
            Err(error) => return Err(system("handle page faults")(error)),
        };
        let place = Place {
            agent,
            space: owner.space(),
            address: memory.as_ptr() as u64,
            bytes: bytes as u64,
            offset: 0,
        };
        let joined = join(&place, As::New(uffd.as_fd())).map_err(|e| MapError::Join(Box::new(e)))?;
        let copy = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(system("keep what a successor of the agent needs"))
        };
        let keepsakes = (copy(owner.shared_state())?, copy(file)?);
        let (owner, line) = (Arc::new(Mutex::new(owner)), Arc::new(Line::new()));
        let mut helper = Helper {
            owner: Arc::clone(&owner),
            line: Arc::clone(&line),
            memory: memory.as_mut_ptr() as usize..memory.as_mut_ptr() as usize + bytes,
            abandoned,
            wait,
        };
        // Before the thread runs, so that whoever leaves or discards at once is heard.
        let ready = Arc::new(std::sync::Barrier::new(2));
        let there = Arc::clone(&ready);
        let body = move || {
            let line = Arc::clone(&helper.line);
            let mut member = Member::new(place, joined, uffd, keepsakes.0, Some(keepsakes.1), &line, wait);
            there.wait();
            if let Ended::Abandoned(error) = member.run(&mut helper) {
                helper.give_up(&error);
            }
        };
        let thread = thread::Builder::new().name("cxloe-member".into()).spawn(body);
        let thread = thread.map_err(system("start the thread that watches over the agent"))?;
        ready.wait();
        let start = memory.as_ptr() as usize;
        let of_parent = ParentMemory::new(start..start + bytes);
        let (memory, helper) = (Some(memory), Some(thread));
        Ok(Mapping { memory, _of_parent: of_parent, owner, line, helper, wait, kernel_faults })
    }

    fn memory(&self) -> &MmapRaw {
        self.memory.as_ref().expect("it is unmapped by dropping it only")
    }

    /// Where the memory begins.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory().as_mut_ptr()
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.memory().len()
    }

    /// Whether pages that are not here may be given to system calls. Where the administrator leaves page faults of the
    /// kernel to root (no `allow-kernel-faults`), such a call fails with EFAULT: read into a buffer elsewhere, and copy.
    pub fn serves_kernel_faults(&self) -> bool {
        self.kernel_faults
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory, to read.
    ///
    /// # Safety
    /// Nobody writes to it as long as the slice is used: no thread, and no other process that has the region mapped.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: it is mapped as long as `self` lives, and the caller answers for the rest.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The memory, to write.
    ///
    /// # Safety
    /// Nobody else uses it as long as the slice is used: no thread, and no other process that has the region mapped.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// The space's number, as `cn-agent paging` shows it.
    pub fn space(&self) -> u64 {
        self.owner().space()
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the agent, or its successor if it has just died.
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

    /// Changes how many bytes may be resident.
    ///
    /// # Errors
    /// [`MapError::Agent`].
    pub fn set_limit(&self, bytes: u64) -> Result<(), MapError> {
        self.ask(|owner| owner.set_limit(bytes))
    }

    /// How paging stands, with what was counted.
    ///
    /// # Errors
    /// [`MapError::Agent`].
    pub fn paging(&self) -> Result<PagingView, MapError> {
        self.ask(Owner::paging)
    }

    /// Waits until everything that was written before is at the memory nodes.
    ///
    /// # Errors
    /// [`MapError::Agent`].
    pub fn flush(&self) -> Result<(), MapError> {
        self.ask(Owner::clean_all)
    }

    /// Says what will be done with `bytes`, all pages that they touch. Advice: it changes when pages come and go, never what
    /// they hold, and returns at once.
    ///
    /// # Errors
    /// [`MapError::Range`] where the range is not the mapping's.
    pub fn hint(&self, bytes: Range<usize>, hint: Hint) -> Result<(), MapError> {
        if bytes.start > bytes.end || bytes.end > self.len() {
            return Err(MapError::Range(bytes));
        }
        let (first, end) = (bytes.start / PAGE_BYTES, bytes.end.div_ceil(PAGE_BYTES));
        if !bytes.is_empty() {
            let kind = match hint {
                Hint::WillRead => wire::Kind::WillRead,
                Hint::WillWrite => wire::Kind::WillWrite,
                Hint::Cold => wire::Kind::Cold,
                Hint::PageOut => wire::Kind::PageOut,
            };
            self.line.hint(kind, Pages { first: first as u32, count: (end - first) as u32 });
        }
        Ok(())
    }

    /// Gives up the content of `bytes`, whole pages, for all who have the region mapped: it is zeros.
    ///
    /// # Errors
    /// [`MapError::Range`], [`MapError::Abandoned`], [`MapError::System`].
    pub fn discard(&self, bytes: Range<usize>) -> Result<(), MapError> {
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
        // SAFETY: the range lies in the mapping. Its content changes to zeros, which the caller asked for, and which
        // needs what every write needs: that nobody has a slice of it.
        let done =
            unsafe { libc::madvise(self.as_ptr().add(bytes.start).cast(), bytes.len(), libc::MADV_REMOVE) };
        if done == 0 { Ok(()) } else { Err(system("discard pages")(io::Error::last_os_error())) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Unmapped last, when the agent has hung up: until then it may put pages at these addresses, which the kernel lets
        // it do also where another mapping with a userfaultfd of its own lies by now.
        self.line.leave();
        if let Some(helper) = self.helper.take() {
            let _ = helper.join();
        }
        self.memory = None;
    }
}

/// What the thread beside does when the agent has died.
struct Helper {
    owner: Arc<Mutex<Owner>>,
    line: Arc<Line>,
    memory: Range<usize>,
    abandoned: Abandoned,
    wait: Duration,
}

impl Host for Helper {
    fn lost(&mut self, pages: Pages) {
        tracing::error!(first = pages.first, count = pages.count, "pages of a mapped region are lost");
    }

    fn why(&mut self, words: &mut dyn Iterator<Item = [u8; RANGE]>) {
        let said: Vec<u8> = words.flatten().collect();
        tracing::error!("{}", String::from_utf8_lossy(&said).trim_end_matches('\0'));
    }

    fn orphaned(&mut self) {
        tracing::warn!("the agent has died; waiting for its successor");
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
    #[cold]
    fn give_up(&self, error: &JoinError) {
        match self.abandoned {
            Abandoned::Abort => {
                // In one piece, for others write there as well.
                let last = format!("cxloe: the agent that paged this program's memory has died: {error}\n");
                let _ = io::stderr().write_all(last.as_bytes());
                std::process::abort();
            }
            Abandoned::Unmap => {
                tracing::error!(%error, "the agent that paged this program's memory has died; it is unmapped");
                let Range { start, end } = self.memory;
                // SAFETY: the range is the mapping's, which its owner unmaps later. Whoever touches it from here on gets
                // SIGSEGV, as announced; who waits for a page does when the userfaultfd closes.
                unsafe {
                    let flags =
                        libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                    libc::mmap(start as *mut libc::c_void, end - start, libc::PROT_NONE, flags, -1, 0);
                }
            }
        }
    }
}
