//! Faults: fetching and installing pages.

use super::page_buffers::BufferUse;
use super::*;
use alloc::vec::Vec;

/// Maximum number of pages fetched ahead that stay in their buffers, mainly one for each reader: the marker, whose
/// first touch shows the reader's progress.
const STAGED_MAX: usize = 256;
/// Number of waiting faults from which on room is granted to each fault for several pages at a time.
const CONTENDERS: usize = 4;
/// Maximum number of pages in flight for which memory is prepared. With more pages in flight there is no time to
/// prepare memory: the link already has the next page.
pub(super) const AWAITED_MAX: usize = 2;

/// Access that stopped a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A thread touched an absent page.
    Missing,
    /// A thread wrote to a write-protected page.
    Protected,
    /// A thread touched a page that is in the shared memory but not mapped in the thread's mapping.
    Unmapped,
}

/// An access of a thread that waits until the pager has served it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Mapping in which the thread accessed the page.
    pub mapping: MappingId,
    /// Number of the page, from the start of the view.
    pub page: u32,
    pub access: Access,
    pub write: bool,
}

/// Reason why a fault is not served yet.
pub(super) enum Wait {
    /// The mapping is changing, or a resource is short: the fault is retried in the next turn.
    Turn,
    /// No more pages may be resident: the fault is retried when there is room again.
    Room,
    /// The fault is served when a pending operation ends.
    Event,
}

impl From<MemoryError> for Wait {
    fn from(_: MemoryError) -> Wait {
        Wait::Turn
    }
}

impl Pager {
    /// Handles the fault of a thread. The thread is woken when it can continue, possibly within this call.
    #[inline]
    pub fn fault(&mut self, fault: Fault, io: &mut Io<'_>) {
        let outcome = if self.is_walking() { Err(Wait::Turn) } else { self.serve(fault, io) };
        if let Err(wait @ (Wait::Turn | Wait::Room)) = outcome {
            self.keep_fault(fault, wait);
        }
    }

    /// Keeps a fault for a later turn, once. A thread that is interrupted by a signal while it waits reports its fault
    /// again.
    pub(super) fn keep_fault(&mut self, fault: Fault, wait: Wait) {
        let same = |other: &Fault| {
            (other.mapping, other.page, other.access) == (fault.mapping, fault.page, fault.access)
        };
        if let Some(known) = self.waiting.iter_mut().find(|other| same(other)) {
            known.write |= fault.write;
            return;
        }
        let for_turn = matches!(wait, Wait::Turn);
        match self.starved.iter().position(same) {
            // The turn that ends a walk looks at all faults that wait.
            Some(at) if self.is_walking() || !for_turn => self.starved[at].write |= fault.write,
            Some(at) => {
                let write = self.starved.remove(at).is_some_and(|known| known.write) || fault.write;
                self.waiting.push_back(Fault { write, ..fault });
            }
            None if for_turn => self.waiting.push_back(fault),
            None => self.starved.push_back(fault),
        }
    }

    /// Serves a fault that was kept, or keeps it on.
    #[inline]
    fn retry(&mut self, fault: Fault, io: &mut Io<'_>) {
        match self.serve(fault, io) {
            Err(Wait::Turn) => self.waiting.push_back(fault),
            Err(Wait::Room) => self.starved.push_back(fault),
            Ok(()) | Err(Wait::Event) => {}
        }
    }

    /// Number of faults that wait for another turn or for room.
    #[inline]
    pub(super) fn waits(&self) -> usize {
        self.waiting.len() + self.starved.len()
    }

    /// Retries faults that could not be served; returns the number of those that wait for room or a turn no longer. While
    /// there is no room, faults that wait for it are only passed over.
    pub(super) fn serve_waiting(&mut self, io: &mut Io<'_>) -> usize {
        let before = self.waits();
        for _ in 0..self.waiting.len() {
            let Some(fault) = self.waiting.pop_front() else { break };
            self.retry(fault, io);
        }
        let mut has_room = self.has_room_for_fault();
        for _ in 0..self.starved.len() {
            let Some(fault) = self.starved.pop_front() else { break };
            if !has_room && self.needs_room(fault) {
                self.starved.push_back(fault);
                continue;
            }
            self.retry(fault, io);
            has_room = self.has_room_for_fault();
        }
        before.saturating_sub(self.waits())
    }

    /// Whether the page of a fault is neither resident nor in flight, and counts towards the limit once it is.
    #[inline]
    fn needs_room(&self, Fault { mapping, page, .. }: Fault) -> bool {
        let Some(view) = self.view_of(mapping).filter(|view| self.options.evict && self.is_droppable(*view))
        else {
            return false;
        };
        let state = self.entry_of(view, page).map(Entry::state);
        matches!(state, Some(PageState::Absent | PageState::Staged))
    }

    /// Ends faults that wait for room, if pages cannot be evicted because memory nodes were absent too long: the
    /// pages of these faults count as lost, like pages that cannot be fetched.
    #[cold]
    pub(super) fn give_up_waiting(&mut self, io: &mut Io<'_>) {
        let faults: Vec<Fault> = self.starved.drain(..).chain(self.waiting.drain(..)).collect();
        for fault in faults {
            let Some(view) = self.view_of(fault.mapping) else { continue };
            let entry = self.entry(view, fault.page);
            if entry.state() == PageState::Absent && fault.access == Access::Missing && !self.has_room(view) {
                self.counters.lost += 1;
                self.set(view, fault.page, entry.to(PageState::Lost));
            }
            self.retry(fault, io);
        }
    }

    /// Faults that wait because no page can be evicted for lack of a slot in the region. They wait until there is a
    /// slot, or until the caller ends them.
    pub fn waiting_for_slots(&self) -> impl Iterator<Item = Fault> + '_ {
        let waits = |fault: &&Fault| {
            self.is_full()
                && fault.access == Access::Missing
                && self.view_of(fault.mapping).is_some_and(|view| !self.has_room(view))
        };
        self.starved.iter().chain(&self.waiting).filter(waits).copied()
    }

    /// Ends the faults of a mapping that wait for slots with SIGBUS.
    #[cold]
    pub fn give_up_waiting_for_slots(&mut self, mapping: MappingId, io: &mut Io<'_>) {
        let given_up: Vec<Fault> =
            self.waiting_for_slots().filter(|fault| fault.mapping == mapping).collect();
        self.starved.retain(|fault| !given_up.contains(fault));
        self.waiting.retain(|fault| !given_up.contains(fault));
        for fault in given_up {
            // The page itself is intact, but the access cannot be served.
            let _ = io.memory.poison(mapping, fault.page);
        }
    }

    /// Whether one more page of `view` may be resident.
    #[inline]
    pub(super) fn has_room(&self, view: ViewId) -> bool {
        !self.options.evict || !self.is_droppable(view) || self.has_room_for_fault()
    }

    /// Whether one more page that the limit bounds may be resident for a fault.
    #[inline]
    pub(super) fn has_room_for_fault(&self) -> bool {
        let least =
            if self.is_contended() { (self.reserve_pages() / 2).min(read_ahead::RUN as u32) } else { 1 };
        self.claimed() + least <= self.options.limit
    }

    /// Whether so many faults wait for room, or so many processes share it, that room is granted to one fault after
    /// another, for several pages each. If room were granted page by page, there would be no read-ahead: each page
    /// would cause a fault of its own, and would be removed by an order of its own.
    pub(super) fn is_contended(&self) -> bool {
        (self.waits() >= CONTENDERS || self.is_shared_by_many()) && !self.is_full()
    }

    #[inline]
    pub(super) fn serve(&mut self, fault: Fault, io: &mut Io<'_>) -> Result<(), Wait> {
        let Fault { mapping, page, access, write } = fault;
        let Some(view) = self.view_of(mapping) else { return Ok(()) };
        if self.view(view).is_none_or(|view| page >= view.table.len()) {
            return Ok(());
        }
        let entry = self.entry(view, page);
        match entry.state() {
            PageState::Absent if access == Access::Missing => self.missing(view, entry, fault, io),
            PageState::Absent
                if access == Access::Unmapped
                    && self.is_droppable(view)
                    && io.memory.is_present(view, page) =>
            {
                self.replace_outsiders_page(view, entry, fault, io)
            }
            PageState::Absent => {
                // The page may be resident: a predecessor installed it just before it died, the fault is stale, or the
                // page was about to be evicted when its process was forked. Where pages cannot be evicted, this kind of
                // fault alone proves that the page is resident.
                if !self.is_droppable(view) || io.memory.is_present(view, page) {
                    self.record_resident(view, page, PageHistory::New);
                    self.set(view, page, entry.to(PageState::Clean));
                    return self.serve(fault, io);
                }
                io.memory.give_up(view, page);
                io.memory.wake(mapping, page);
                Ok(())
            }
            PageState::Fetching => {
                self.join(view, entry, fault, io);
                Err(Wait::Event)
            }
            PageState::Staged => self.install_staged(view, entry, fault, io),
            PageState::Clean | PageState::Dirty if access == Access::Missing => {
                if !io.memory.is_present(view, page) {
                    // The program itself has removed the page, and expects zeros.
                    self.discarded(view, page..page + 1);
                    return self.serve(fault, io);
                }
                io.memory.wake(mapping, page);
                Ok(())
            }
            PageState::Clean if write => self.first_write(view, entry, fault, io),
            PageState::Clean => self.map_read_only(fault, true, io),
            PageState::Dirty if access == Access::Protected => self.grant_write(fault, io),
            PageState::Dirty => self.map_read_only(fault, false, io),
            // The program itself has removed the page, and expects zeros. The fault waits for the end of the transfer;
            // woken now, the thread would fault again at once.
            PageState::Cleaning if access == Access::Missing && !io.memory.is_present(view, page) => {
                if !entry.is(Flags::ZAPPED) {
                    self.discarded(view, page..page + 1);
                }
                self.set(view, page, entry.with(Flags::ZAPPED).with(Flags::WANTED));
                Err(Wait::Event)
            }
            PageState::Cleaning if write => {
                self.set(view, page, entry.with(Flags::WANTED));
                Err(Wait::Event)
            }
            PageState::Cleaning if access == Access::Unmapped => self.map_read_only(fault, true, io),
            PageState::Cleaning => {
                io.memory.wake(mapping, page);
                Ok(())
            }
            // The fault waits for the zeros: a fetch could overtake them, and they could overwrite later
            // writes.
            PageState::Zeroing => {
                self.set(view, page, entry.with(Flags::WANTED));
                Err(Wait::Event)
            }
            PageState::Dropping => {
                (self.wanted_back, self.held_back) = (true, false);
                self.set(view, page, entry.with(Flags::WANTED));
                Err(Wait::Event)
            }
            PageState::Installing => Err(Wait::Turn),
            PageState::Lost => self.poison(fault, io),
        }
    }

    /// Handles a touch of a page that is not resident.
    pub(super) fn missing(
        &mut self,
        view: ViewId,
        entry: Entry,
        fault: Fault,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        let Fault { mapping, page, write, .. } = fault;
        if !self.has_room(view) {
            self.counters.waits_for_room += 1;
            self.give_up_passed(view, page);
            return Err(Wait::Room);
        }
        let Some(slot) = entry.slot() else {
            self.install_zeros(view, mapping, page, write, false, io)?;
            self.counters.faults += 1;
            self.counters.zero_fills += 1;
            self.zeros_ahead(view, mapping, page, write, io);
            return Ok(());
        };
        if let Some(buffer) = self.copy(view, page, slot, io) {
            let staged = entry.to(PageState::Staged).with_buffer(Some(buffer));
            self.set(view, page, staged);
            return self.install_staged(view, staged, fault, io);
        }
        if io.store.room() == 0 {
            return Err(Wait::Turn);
        }
        let purpose = BufferUse::Fetch { view: Some(view), page, mapping: Some(mapping), write };
        let Some(buffer) = self.buffers.take(purpose) else { return Err(Wait::Turn) };
        self.coming += 1;
        self.trim_kept();
        self.counters.faults += 1;
        self.counters.fetched += 1;
        self.set(view, page, entry.to(PageState::Fetching).with_buffer(Some(buffer)).with(Flags::WANTED));
        io.store.fetch(slot, buffer, Urgency::Demand);
        if io.memory.makes_ready() && self.awaited.len() < AWAITED_MAX {
            self.awaited.push(PageRef { view, page });
        }
        self.read_ahead(view, page, true, io);
        Err(Wait::Event)
    }

    /// Handles a touch of an absent page although the shared memory has a page at this place. A process that maps the
    /// memory, but has not joined the space, has touched the gap, and the kernel has created a page of zeros, which is
    /// not the region's content.
    #[cold]
    fn replace_outsiders_page(
        &mut self,
        view: ViewId,
        entry: Entry,
        fault: Fault,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        if !self.has_room(view) {
            return Err(Wait::Room);
        }
        // The kernel's page is treated as memory prepared for this page: it stays in place and receives the
        // content. If it were removed, a process that polls the address could have the kernel create it again
        // each time, before the content arrives.
        io.memory.make_ready(view, fault.page);
        if io.memory.is_present(view, fault.page) {
            io.memory.drop_pages(view, core::slice::from_ref(&(fault.page..fault.page + 1)))?;
        }
        self.missing(view, entry, Fault { access: Access::Missing, ..fault }, io)
    }

    /// Prepares memory for pages that threads wait for, now that their requests have been sent.
    pub(super) fn make_ready(&mut self, io: &mut Io<'_>) {
        let few = io.store.demands() <= AWAITED_MAX;
        while let Some(PageRef { view, page }) = self.awaited.pop() {
            if few && self.entry(view, page).state() == PageState::Fetching {
                io.memory.make_ready(view, page);
            }
        }
    }

    /// Handles a fault on a page that is in flight for another thread.
    pub(super) fn join(&mut self, view: ViewId, entry: Entry, fault: Fault, io: &mut Io<'_>) {
        let Some(buffer) = entry.buffer() else { return };
        if let BufferUse::Fetch { view: of, page, mapping, write } = self.buffers.purpose(buffer) {
            let (mapping, write) = match mapping {
                None => (fault.mapping, fault.write),
                // The page is installed in the mapping of the first fault. A write through another mapping does not
                // make the page writable: its thread faults again.
                Some(first) => (first, write || (fault.write && first == fault.mapping)),
            };
            self.buffers
                .set_purpose(buffer, BufferUse::Fetch { view: of, page, mapping: Some(mapping), write });
        }
        if !entry.is(Flags::WANTED) {
            self.counters.faults += 1;
            self.set(view, fault.page, entry.with(Flags::WANTED));
            io.store.hurry(buffer);
            // The reader has caught up with the pages read ahead: read more of them.
            self.read_ahead(view, fault.page, false, io);
        }
    }

    /// Handles the end of a fetch, whose data is in `buffer`.
    pub fn fetched(&mut self, buffer: BufferId, outcome: Result<(), Lost>, io: &mut Io<'_>) {
        if self.is_walking() {
            self.walks.held.push_back(HeldInput::Fetched(buffer, outcome));
            return;
        }
        let BufferUse::Fetch { view, page, mapping, write } = self.buffers.purpose(buffer) else { return };
        self.held_back = false;
        let Some(view) = view else {
            self.buffers.give(buffer);
            return;
        };
        let entry = self.entry(view, page);
        self.coming -= 1;
        if mapping.is_none() || outcome.is_err() || entry.is(Flags::ZAPPED) {
            io.memory.give_up(view, page);
        }
        if entry.is(Flags::ZAPPED) {
            self.buffers.give(buffer);
            self.release(view, page, entry);
            self.wake(view, page, io);
            return;
        }
        let wanted = entry.is(Flags::WANTED);
        if outcome.is_err() {
            self.buffers.give(buffer);
            if wanted {
                self.counters.lost += 1;
                self.set(view, page, entry.to(PageState::Lost).with_buffer(None));
                self.wake(view, page, io);
            } else {
                self.set(view, page, entry.to(PageState::Absent).with_buffer(None));
            }
            return;
        }
        match mapping {
            Some(mapping) => {
                if let Err(Wait::Turn) = self.install_buffer(view, entry, mapping, buffer, write, io) {
                    let access = Access::Missing;
                    self.keep_fault(Fault { mapping, page, access, write }, Wait::Turn);
                } else if self.view(view).is_some_and(|view| view.mappings.len() > 1) {
                    self.wake(view, page, io);
                }
            }
            // The first mapping with a waiting thread has ended; threads of other mappings may wait.
            None if wanted => {
                self.hold(view, page, entry);
                self.wake(view, page, io);
            }
            None => self.arrived_ahead(view, page, entry, buffer),
        }
    }

    /// Keeps a page in its buffer without installing it. If too many pages are kept, the one kept longest is freed.
    pub(super) fn hold(&mut self, view: ViewId, page: u32, entry: Entry) {
        self.set(view, page, entry.to(PageState::Staged));
        self.staged.push_back(PageRef { view, page });
        while self.staged.len() > STAGED_MAX {
            let Some(PageRef { view, page }) = self.staged.pop_front() else { break };
            let entry = self.entry(view, page);
            if let (PageState::Staged, Some(buffer)) = (entry.state(), entry.buffer())
                && matches!(self.buffers.purpose(buffer), BufferUse::Fetch { .. })
            {
                self.record_unused(view, page);
                self.buffers.give(buffer);
                self.set(view, page, entry.to(PageState::Absent).with_buffer(None));
            }
        }
    }
}
