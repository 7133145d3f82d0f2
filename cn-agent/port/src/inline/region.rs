//! A region mapped in this process, whose faults the faulting threads serve.

#![expect(unsafe_code, reason = "the memory is registered with a userfaultfd, and dropped by hand")]

use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
use std::time::Duration;

use memmap2::{Advice, MmapOptions, MmapRaw};

use super::interface::InterfaceShare;
use super::shared::SharedPortRef;
use super::space::{SPACES_MAX, Space};
use super::{InlineError, InlineOptions, handler, interface, system};
use crate::connect::ConnectOptions;
use cxloe_cn_core::pager::{
    Entry, Hint, NO_SLOT, PAGE_BYTES, PageTable, Pager, PagerCounters, PagerOptions, Slots,
};
use cxloe_member::parent_memory::ParentMemory;
use cxloe_paging::memory::{AnonymousPages, Mapped};
use cxloe_paging::uffd::{Features, Modes, Uffd};

/// A region in this process's memory, whose faults are served by the faulting threads.
///
/// All threads share the memory. Remote pages are fetched and evicted; writes have reached the memory nodes after
/// [`flush`](Self::flush) or [`close`](Self::close). Pages that the program discards (`MADV_DONTNEED`) become zeros.
#[derive(Debug)]
pub struct InlineRegion {
    /// Mapped memory; only the process that mapped it may unmap it.
    memory: ManuallyDrop<MmapRaw>,
    /// Makes children of this process report the reason when an access to the memory ends them.
    _of_parent: ParentMemory,
    slot: Option<handler::HandlerSlot>,
    space: ServedSpace,
    lost_wait: Duration,
    /// The region's share in its interface, dropped last.
    held: Option<InterfaceShare>,
}

/// Index of a region in its port, freed when dropped.
#[derive(Debug)]
struct ServedSpace {
    shared: SharedPortRef,
    at: u8,
    has_ended: bool,
}

impl ServedSpace {
    /// Frees the index: from then on the port does not touch the region's memory.
    fn end(&mut self) {
        if self.shared.is_ours() && !std::mem::replace(&mut self.has_ended, true) {
            // Dropped without the lock, whose holder must not free memory.
            drop(self.shared.core.with(|state| state.take(self.at)));
        }
    }
}

impl Drop for ServedSpace {
    fn drop(&mut self) {
        self.end();
    }
}

impl InlineRegion {
    /// Maps a region over an interface of this program. The interface is a compute node from its first region until
    /// its last one ends. At most [`SPACES_MAX`] regions are mapped over one interface at a time, all with the same
    /// link and manager; they can be added and removed in any order, while threads use the others. The whole region
    /// that `connect` names is mapped, or a new one, which is destroyed when the mapping ends.
    ///
    /// # Errors
    /// Any [`InlineError`].
    pub fn open(connect: &ConnectOptions, options: InlineOptions) -> Result<InlineRegion, InlineError> {
        let (shared, held) = interface::take(connect)?;
        let mut region = InlineRegion::over(shared, held.hpa(), held.bytes(), options)?;
        region.held = Some(held);
        Ok(region)
    }

    /// Maps the `bytes` bytes of a region that the port of `shared` reaches from `hpa` on.
    pub(super) fn over(
        shared: SharedPortRef,
        hpa: u64,
        bytes: u64,
        options: InlineOptions,
    ) -> Result<InlineRegion, InlineError> {
        if !shared.is_ours() {
            return Err(InlineError::Inherited);
        }
        let pages = u32::try_from(bytes / PAGE_BYTES as u64).ok().filter(|pages| *pages > 0);
        let pages =
            pages.filter(|_| bytes.is_multiple_of(PAGE_BYTES as u64)).ok_or(InlineError::Size(bytes))?;
        let limit = u32::try_from(options.local / PAGE_BYTES as u64).unwrap_or(u32::MAX).min(pages.max(16));
        let memory = MmapOptions::new().len(bytes as usize).no_reserve_swap().map_anon();
        let memory = MmapRaw::from(memory.map_err(system("map the memory"))?);
        // Pages are fetched and evicted one by one, so huge pages do not fit.
        if let Err(error) = memory.advise(Advice::NoHugePage) {
            tracing::debug!(%error, "the kernel has no huge pages");
        }
        // A merged page loses its write protection.
        if let Err(error) = memory.advise(Advice::Unmergeable) {
            tracing::debug!(%error, "the kernel merges no pages");
        }
        // The kernel's own accesses are never served, so the right to serve faults of user mode is enough.
        let uffd = Uffd::create().or_else(|error| Uffd::create_user_only().map_err(|_| error))?;
        uffd.handshake(Features::SIGBUS | Features::WRITE_PROTECT)?;
        let start = memory.as_ptr() as u64;
        handler::exclude_from_children(start, bytes).map_err(system("keep the memory from children"))?;
        // SAFETY: the memory was mapped a moment ago, and only this mapping refers to it. Its absent pages hold the
        // region's content.
        unsafe { uffd.register(start..start + bytes, Modes::MISSING | Modes::WRITE_PROTECT) }?;

        let slots = Slots::own(pages, options.fresh);
        let prefetch = options.prefetch;
        let mut pager = Pager::new(PagerOptions { pages, limit, prefetch, evict: true }, slots);
        let table = PageTable::local(pages);
        if !options.fresh {
            (0..pages).for_each(|page| table.set(page, Entry::absent(page)));
        }
        debug_assert_ne!(pages, NO_SLOT);
        let full = |full: cxloe_cn_core::pager::PagerFull| InlineError::Full(full.limit);
        let view = pager.add_view(table, true).map_err(full)?;
        let mapping = pager.add_mapping(view).map_err(full)?;
        pager.reserve();
        let anonymous = AnonymousPages::new(Mapped::new(uffd, start, 0, pages, 0, None));
        let anonymous = anonymous.map_err(system("make room for copies"))?;

        let space = Space::new(pager, anonymous, (view, mapping), hpa, options.lost_wait);
        let mut space = Some(Box::new(space));
        let added = shared.core.with(|state| space.take().map(|space| state.add(space)));
        let at = added.and_then(Result::ok).ok_or(InlineError::Full(SPACES_MAX))?;
        let space = ServedSpace { shared, at, has_ended: false };
        let slot = handler::HandlerSlot::take(start..start + bytes, &space.shared.core, at)?;
        let memory = ManuallyDrop::new(memory);
        let _of_parent = ParentMemory::new(start as usize..start as usize + bytes as usize);
        Ok(InlineRegion {
            memory,
            _of_parent,
            slot: Some(slot),
            space,
            lost_wait: options.lost_wait,
            held: None,
        })
    }

    fn is_ours(&self) -> bool {
        self.space.shared.is_ours()
    }

    /// Address of the region's first byte in this process.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// Size of the mapped memory in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Always false: a region has at least a page.
    pub fn is_empty(&self) -> bool {
        self.memory.len() == 0
    }

    /// Counts of the region's pager; zeros in a child of the process that mapped the region.
    pub fn counters(&self) -> PagerCounters {
        self.of_space(|space| space.pager.counters())
    }

    /// Bytes of the region that are in this process's memory now; 0 in a child of the process that mapped the region.
    pub fn resident(&self) -> u64 {
        self.of_space(|space| u64::from(space.pager.resident()) * PAGE_BYTES as u64)
    }

    /// Asks the region's space for a number. In a child, the lock may be one that a thread of the parent had at the
    /// fork.
    fn of_space<R: Default>(&self, ask: impl FnOnce(&mut Space) -> R) -> R {
        if !self.is_ours() {
            return R::default();
        }
        self.space.shared.core.with_space(self.space.at, ask).unwrap_or_default()
    }

    /// Advises the pager of the future use of all pages that `bytes` overlaps. Advice changes when pages are fetched
    /// and evicted, never their content. A range beyond the mapping is cut.
    pub fn hint(&self, bytes: Range<usize>, hint: Hint) {
        if self.is_ours() {
            let pages =
                (bytes.start / PAGE_BYTES) as u32..bytes.end.min(self.len()).div_ceil(PAGE_BYTES) as u32;
            self.space.shared.core.with(|state| state.hint(self.space.at, pages.clone(), hint));
        }
    }

    /// Waits until all earlier writes have arrived at the memory nodes.
    ///
    /// # Errors
    /// [`InlineError::NotWrittenBack`] if that takes longer than the permitted outage; [`InlineError::Inherited`] in
    /// a child of the process that mapped the region.
    pub fn flush(&self) -> Result<(), InlineError> {
        if !self.is_ours() {
            return Err(InlineError::Inherited);
        }
        let clock = cxloe_link::Clock::new();
        let until = clock.now() + self.lost_wait + Duration::from_secs(1);
        let arrived = self.space.shared.core.flush(self.space.at, || clock.now() > until);
        if arrived { Ok(()) } else { Err(InlineError::NotWrittenBack(self.lost_wait)) }
    }

    /// Writes back all dirty pages and unmaps the region. With the last region mapped by [`open`](Self::open) over an
    /// interface, the interface is closed.
    ///
    /// # Errors
    /// [`InlineError::NotWrittenBack`] and [`InlineError::Connect`]; the mapping is removed nevertheless.
    /// [`InlineError::Inherited`] in a child of the process that mapped the region.
    pub fn close(mut self) -> Result<(), InlineError> {
        if !self.is_ours() {
            return Err(InlineError::Inherited);
        }
        let flushed = self.end();
        let held = self.held.take();
        drop(self);
        let ended = held.map_or(Ok(()), InterfaceShare::end);
        flushed.and(ended)
    }

    /// Writes back all dirty pages, then stops serving faults.
    fn end(&mut self) -> Result<(), InlineError> {
        let Some(mut slot) = self.slot.take() else { return Ok(()) };
        let flushed = self.flush();
        slot.leave();
        self.space.end();
        flushed
    }
}

impl Drop for InlineRegion {
    fn drop(&mut self) {
        if !self.is_ours() {
            // A forked child owns neither the memory nor the interface.
            std::mem::forget((self.slot.take(), self.held.take()));
            return;
        }
        if let Err(error) = self.end() {
            tracing::error!(%error, "a mapping ends");
        }
        // SAFETY: `memory` is dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// The region's memory as cells, because other threads and the network change it.
impl Deref for InlineRegion {
    type Target = [std::sync::atomic::AtomicU64];

    fn deref(&self) -> &Self::Target {
        handler::as_words(&self.memory)
    }
}
