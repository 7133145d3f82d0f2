//! Inline faults: the thread that touches an absent page fetches it itself.
//!
//! A program that owns a link maps a region so that userfaultfd answers with SIGBUS instead of telling another thread.
//! The handler of that signal drives the pager, the engine and the link from where the program stopped, installs the
//! page and returns: no thread is put to sleep, and none is woken.
//!
//! ```text
//!   thread --SIGBUS--> handler: counter.ask --+                    +--> pager --> transfers --> engine --> link
//!   thread --SIGBUS--> handler: counter.ask --+--> whoever has     |
//!   keeper (eviction, sessions) --------------+    the lock: Core -+--> UFFDIO_COPY, WRITEPROTECT
//! ```
//!
//! Threads that fault at once leave their wishes at the counter (`counter.rs`); one of them has the lock and serves all.
//!
//! # Why the handler may run anywhere
//!
//! * It takes no lock but one of its own, spinning, and whoever has that one never touches mapped memory: all it works
//!   on was allocated before the mapping was made ([`Pager::reserve`]). It runs with every signal blocked, so that no
//!   other handler comes between, and on a stack of its own ([`sigbus`](cxloe_sigbus)), however small the thread's is.
//! * It does not allocate. The test `inline_faults` runs under an allocator that ends the program if it is called
//!   within the handler, and faults while a thread holds the allocator's own lock.
//! * Its system calls are ioctls on the userfaultfd, the copy of a page that leaves, and what the link needs to send and to look: each safe in a signal
//!   handler, and none waits for long. `errno` is put back.
//!
//! # What it cannot serve
//!
//! The kernel's own accesses to absent pages (read(2) into them), and its writes to present protected ones, fail with
//! EFAULT; nobody handles a signal for it. Touch and write such a buffer first, or map the region with
//! `cxloe_client::mapping::Mapping`, whose pages come for everybody. A child after a fork does not inherit the
//! mapping.

mod core;
mod counter;
mod handler;
mod lock;

use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memmap2::{Advice, MmapOptions, MmapRaw};

use self::core::{Core, State};
use crate::port::{Port, PortError};
use cxloe_cn_core::pager::{
    Entry, Hint, NO_SLOT, PAGE_BYTES, PageTable, Pager, PagerCounters, PagerOptions, Slots,
};
use cxloe_member::parent_memory::ParentMemory;
use cxloe_paging::memory::{Anonymous, Mapped};
use cxloe_paging::uffd::{Features, Modes, OpenError, Uffd, UffdError};

/// How a region is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineOptions {
    /// Bytes resident at most; at least 64 KiB.
    pub local: u64,
    /// Whether readers in even steps are served ahead.
    pub prefetch: bool,
    /// The region was never written: pages are zeros without a fetch until they are.
    pub fresh: bool,
    /// How long memory nodes may be away before a page counts as lost.
    pub lost_wait: Duration,
}

impl Default for InlineOptions {
    fn default() -> InlineOptions {
        InlineOptions { local: 64 << 20, prefetch: true, fresh: false, lost_wait: Duration::from_secs(30) }
    }
}

/// Why a region cannot be mapped, or not be written back.
#[derive(Debug, thiserror::Error)]
pub enum InlineError {
    /// Not whole pages, or more than can be counted.
    #[error("a mapping has whole pages of 4096 bytes, up to 16 TiB; {0} bytes are not")]
    Size(u64),
    /// As many as there may be are mapped.
    #[error("{0} regions are mapped with inline faults already, as many as a process can have")]
    Full(usize),
    /// The handler would run on whatever stack the program's threads have.
    #[error("inline faults are for x86_64 and aarch64, not for {0}; map the region through the agent")]
    Architecture(&'static str),
    /// userfaultfd.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// userfaultfd.
    #[error("the mapping cannot be registered: {0}")]
    Register(#[from] UffdError),
    /// Memory, threads, signals.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The mapping is another process's.
    #[error("the region was mapped by the process that this one was forked from, and only that one has it")]
    Inherited,
    /// Memory nodes did not take everything.
    #[error(
        "not everything written could be brought to the memory nodes within {0:?}; it is lost with this mapping"
    )]
    NotWrittenBack(Duration),
}

fn system(what: &'static str) -> impl Fn(io::Error) -> InlineError {
    move |source| InlineError::System { what, source }
}

/// A region in this process's memory, its faults served by whoever has them.
///
/// The memory is shared by all threads, and remote pages come and go in it; what is written is at the memory nodes after
/// [`flush`](Self::flush), or [`close`](Self::close). Pages that the program gives back (`MADV_DONTNEED`) are zeros.
#[derive(Debug)]
pub struct InlineRegion {
    /// Unmapped by the process that mapped it.
    memory: ManuallyDrop<MmapRaw>,
    /// Children of this process say why they end where they touch it.
    _of_parent: ParentMemory,
    core: Arc<Core>,
    slot: handler::HandlerSlot,
    stop: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
    lost_wait: Duration,
}

/// How long the keeper rests when nothing is due.
const KEEPER_INTERVAL: Duration = Duration::from_micros(500);

impl InlineRegion {
    /// Maps `bytes` of a region that `port` reaches at `hpa`. The port is the mapping's from here on.
    ///
    /// # Errors
    /// Any [`InlineError`].
    pub fn map(
        port: Port,
        hpa: u64,
        bytes: u64,
        options: InlineOptions,
    ) -> Result<InlineRegion, InlineError> {
        let pages = u32::try_from(bytes / PAGE_BYTES as u64).ok().filter(|pages| *pages > 0);
        let pages =
            pages.filter(|_| bytes.is_multiple_of(PAGE_BYTES as u64)).ok_or(InlineError::Size(bytes))?;
        let limit = u32::try_from(options.local / PAGE_BYTES as u64).unwrap_or(u32::MAX).min(pages.max(16));
        let memory = MmapOptions::new().len(bytes as usize).no_reserve_swap().map_anon();
        let memory = MmapRaw::from(memory.map_err(system("map the memory"))?);
        // Pages come and go one by one.
        if let Err(error) = memory.advise(Advice::NoHugePage) {
            tracing::debug!(%error, "the kernel has no huge pages");
        }
        // What the kernel itself touches is not served in any case, so the lesser right does.
        let uffd = Uffd::create().or_else(|error| Uffd::create_user_only().map_err(|_| error))?;
        uffd.handshake(Features::SIGBUS | Features::WRITE_PROTECT)?;
        let start = memory.as_ptr() as u64;
        handler::alone(start, bytes).map_err(system("keep the memory from children"))?;
        // SAFETY: the memory was made a moment ago, and nobody but this mapping knows of it. Absent pages of it hold what
        // the region has.
        unsafe { uffd.register(start..start + bytes, Modes::MISSING | Modes::WRITE_PROTECT) }?;

        let slots = Slots::own(pages, options.fresh);
        let prefetch = options.prefetch;
        let mut pager = Pager::new(PagerOptions { pages, limit, prefetch, evict: true }, slots);
        let table = PageTable::local(pages);
        if !options.fresh {
            (0..pages).for_each(|page| table.set(page, Entry::absent(page)));
        }
        debug_assert_ne!(pages, NO_SLOT);
        let full = |full: cxloe_cn_core::pager::Full| InlineError::Full(full.limit);
        let view = pager.add_view(table, true).map_err(full)?;
        let mapping = pager.add_mapping(view).map_err(full)?;
        pager.reserve();
        let anonymous = Anonymous::new(Mapped::new(uffd, start, 0, pages, 0, None));
        let anonymous = anonymous.map_err(system("make room for copies"))?;

        let core =
            Arc::new(Core::new(State::new(port, pager, anonymous, view, mapping, hpa, options.lost_wait)));
        let slot = handler::HandlerSlot::take(start..start + bytes, &core)?;
        let stop = Arc::new(AtomicBool::new(false));
        let keeper = {
            let (core, stop) = (Arc::clone(&core), Arc::clone(&stop));
            thread::Builder::new().name("keeper".into()).spawn(move || keep(&core, &stop))
        };
        let keeper = Some(keeper.map_err(system("start the keeper"))?);
        let memory = ManuallyDrop::new(memory);
        let _of_parent = ParentMemory::new(start as usize..start as usize + bytes as usize);
        Ok(InlineRegion { memory, _of_parent, core, slot, stop, keeper, lost_wait: options.lost_wait })
    }

    /// Where it begins.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it has none; it always has.
    pub fn is_empty(&self) -> bool {
        self.memory.len() == 0
    }

    /// What its pager has counted.
    pub fn counters(&self) -> PagerCounters {
        self.core.with(|state| state.pager.counters())
    }

    /// Bytes resident at this moment.
    pub fn resident(&self) -> u64 {
        self.core.with(|state| u64::from(state.pager.resident())) * PAGE_BYTES as u64
    }

    /// Says what will be done with `bytes`, all pages that they touch. Advice: it changes when pages come and go, never what
    /// they hold. A range that is not the mapping's is cut to what is.
    pub fn hint(&self, bytes: Range<usize>, hint: Hint) {
        if self.slot.is_ours() {
            let pages =
                (bytes.start / PAGE_BYTES) as u32..bytes.end.min(self.len()).div_ceil(PAGE_BYTES) as u32;
            self.core.with(|state| state.hint(pages.clone(), hint));
        }
    }

    /// Waits until everything written before is at the memory nodes.
    ///
    /// # Errors
    /// [`InlineError::NotWrittenBack`] when they do not take it within the time that they may be away;
    /// [`InlineError::Inherited`] in a child of the process that mapped it.
    pub fn flush(&self) -> Result<(), InlineError> {
        if !self.slot.is_ours() {
            return Err(InlineError::Inherited);
        }
        let clock = cxloe_link::Clock::new();
        let until = clock.now() + self.lost_wait + Duration::from_secs(1);
        let arrived = self.core.flush(|| clock.now() > until);
        if arrived { Ok(()) } else { Err(InlineError::NotWrittenBack(self.lost_wait)) }
    }

    /// Writes everything back, unmaps the region and gives the port back.
    ///
    /// # Errors
    /// [`InlineError::NotWrittenBack`]; the mapping is gone all the same. [`InlineError::Inherited`].
    pub fn close(mut self) -> Result<Port, InlineError> {
        if !self.slot.is_ours() {
            return Err(InlineError::Inherited);
        }
        let flushed = self.flush();
        self.end();
        let port = self.core.with(State::give_back);
        flushed.map(|()| port.expect("nobody has taken it before"))
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        self.slot.leave();
    }
}

impl Drop for InlineRegion {
    fn drop(&mut self) {
        if !self.slot.is_ours() {
            // A child has neither the memory nor the keeper, and the link is the parent's.
            std::mem::forget(self.keeper.take());
            std::mem::forget(Arc::clone(&self.core));
            return;
        }
        if self.keeper.is_some() {
            if let Err(error) = self.flush() {
                tracing::error!(%error, "a mapping ends");
            }
            self.end();
        }
        // SAFETY: nobody uses it after this.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// The region's memory as cells: other threads, and the network, change it.
impl Deref for InlineRegion {
    type Target = [std::sync::atomic::AtomicU64];

    fn deref(&self) -> &Self::Target {
        handler::as_words(&self.memory)
    }
}

/// Keeps sessions alive, evicts ahead of need and takes what was read ahead, while nobody faults.
fn keep(core: &Core, stop: &AtomicBool) {
    handler::block_signals();
    let mut idle = 0_u32;
    while !stop.load(Ordering::Acquire) {
        // Beside a thread that waits for its fault there is nothing to do, and a core to be had.
        let worked = !core.is_wanted() && core.with(State::round_of_keeper);
        // Computed without the lock, for which threads wait that fault.
        while let Some((session, job)) = core.with(State::handshake) {
            let mut done = Some(job.run());
            core.with(|state| done.take().into_iter().for_each(|done| state.handshake_done(session, done)));
        }
        while let Some(event) = core.with(State::event) {
            cxloe_cn_core::events::log(&event);
        }
        idle = if worked { 0 } else { idle.saturating_add(1) };
        if idle > 64 {
            thread::sleep(KEEPER_INTERVAL);
        } else if idle > 8 {
            thread::yield_now();
        }
    }
}
