//! Faults: how a page comes.

use super::memory::PAGE_BYTES;
use super::page_buffers::Use;
use super::*;
use alloc::vec::Vec;

/// Transfers kept free for faults while pages are read ahead.
const ROOM_FOR_DEMAND: usize = 16;
/// The part of the reserve that faults have to themselves while pages are read ahead: one in this many.
const RESERVE_FOR_DEMAND: u32 = 4;
/// Pages kept in their buffers at most.
const STAGED_MAX: usize = 64;

/// What a thread did that made it stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It touched a page that is not there.
    Missing,
    /// It wrote to a protected page.
    Protected,
    /// It touched a page that shared memory has and its mapping has not.
    Unmapped,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub mapping: MappingId,
    /// The page.
    pub page: u32,
    /// What was done.
    pub access: Access,
    /// Whether it was a write.
    pub write: bool,
}

/// Why a fault is not served yet.
enum Wait {
    /// No more pages may be resident, or the mapping is changing: it is looked at again in the next turn.
    Turn,
    /// Something under way ends it.
    Event,
}

impl From<MemoryError> for Wait {
    fn from(_: MemoryError) -> Wait {
        Wait::Turn
    }
}

impl Pager {
    /// A thread has stopped at a page. It is woken when it can go on; that may be within this call.
    #[inline]
    pub fn fault(&mut self, fault: Fault, io: &mut Io<'_>) {
        if let Err(Wait::Turn) = self.serve(fault, io) {
            self.waiting.push_back(fault);
        }
    }

    /// Looks again at faults that could not be served. How many were.
    pub(super) fn serve_waiting(&mut self, io: &mut Io<'_>) -> usize {
        let mut served = 0;
        for _ in 0..self.waiting.len() {
            let Some(fault) = self.waiting.pop_front() else { break };
            match self.serve(fault, io) {
                Err(Wait::Turn) => self.waiting.push_back(fault),
                _ => served += 1,
            }
        }
        served
    }

    /// Pages cannot leave because memory nodes were away too long. Who waits for room would wait for ever: their pages
    /// count as lost, like those that cannot be fetched.
    #[cold]
    pub(super) fn give_up_waiting(&mut self, io: &mut Io<'_>) {
        for _ in 0..self.waiting.len() {
            let Some(fault) = self.waiting.pop_front() else { break };
            let Some(view) = self.view_of(fault.mapping) else { continue };
            let entry = self.entry(view, fault.page);
            if entry.state() == State::Absent && fault.access == Access::Missing && !self.has_room(view) {
                self.counters.lost += 1;
                self.set(view, fault.page, entry.to(State::Lost));
            }
            self.fault(fault, io);
        }
    }

    /// Faults that wait because no page can leave: the region has no slot left for one that would have to. They wait for as
    /// long as that is so; whoever has waited enough may give them up.
    pub fn waiting_for_slots(&self) -> impl Iterator<Item = Fault> + '_ {
        let waits = |fault: &&Fault| {
            self.is_full()
                && fault.access == Access::Missing
                && self.view_of(fault.mapping).is_some_and(|view| !self.has_room(view))
        };
        self.waiting.iter().filter(waits).copied()
    }

    /// Has those of a mapping that wait for slots end with SIGBUS.
    #[cold]
    pub fn give_up_waiting_for_slots(&mut self, mapping: MappingId, io: &mut Io<'_>) {
        let given_up: Vec<Fault> =
            self.waiting_for_slots().filter(|fault| fault.mapping == mapping).collect();
        self.waiting.retain(|fault| !given_up.contains(fault));
        for fault in given_up {
            // What it wanted is where it was; it cannot have it.
            let _ = io.memory.poison(mapping, fault.page);
        }
    }

    /// Whether one more page may be resident.
    fn has_room(&self, view: ViewId) -> bool {
        !self.options.evict || !self.is_droppable(view) || self.bounded() + self.coming < self.options.limit
    }

    /// Whether one more page may be resident that nobody waits for.
    fn has_room_ahead(&self) -> bool {
        let spared = self.reserve_pages() / RESERVE_FOR_DEMAND;
        !self.options.evict || self.bounded() + self.coming + spared < self.options.limit
    }

    #[inline]
    fn serve(&mut self, fault: Fault, io: &mut Io<'_>) -> Result<(), Wait> {
        let Fault { mapping, page, access, write } = fault;
        let Some(view) = self.view_of(mapping) else { return Ok(()) };
        if self.view(view).is_none_or(|view| page >= view.table.len()) {
            return Ok(());
        }
        let entry = self.entry(view, page);
        match entry.state() {
            State::Absent if access == Access::Missing => self.missing(view, entry, fault, io),
            State::Absent => {
                // There all the same: installed by a predecessor in its last moment, or a fault from before it left, or it
                // was about to leave when its process was forked. Where pages cannot leave, the fault itself shows it.
                if !self.is_droppable(view) || io.memory.is_present(view, page) {
                    self.entered(view, page, false);
                    self.set(view, page, entry.to(State::Clean));
                    return self.serve(fault, io);
                }
                io.memory.wake(mapping, page);
                Ok(())
            }
            State::Fetching => {
                self.join(view, entry, fault);
                Err(Wait::Event)
            }
            State::Staged => self.install_staged(view, entry, fault, io),
            State::Clean | State::Dirty if access == Access::Missing => {
                if !io.memory.is_present(view, page) {
                    // Taken away behind our back: whoever did that wants zeros.
                    self.discarded(view, page..page + 1);
                    return self.serve(fault, io);
                }
                io.memory.wake(mapping, page);
                Ok(())
            }
            State::Clean if write => self.first_write(view, entry, fault, io),
            State::Clean => self.map_read_only(fault, true, io),
            State::Dirty if access == Access::Protected => self.grant_write(fault, io),
            State::Dirty => self.map_read_only(fault, false, io),
            State::Cleaning if write => {
                self.set(view, page, entry.with(Flags::WANTED));
                Err(Wait::Event)
            }
            State::Cleaning if access == Access::Unmapped => self.map_read_only(fault, true, io),
            State::Cleaning => {
                io.memory.wake(mapping, page);
                Ok(())
            }
            State::Dropping => {
                self.set(view, page, entry.with(Flags::WANTED));
                Err(Wait::Event)
            }
            State::Installing => Err(Wait::Turn),
            State::Lost => self.poison(fault, io),
        }
    }

    /// A page that is nowhere in memory is wanted.
    fn missing(&mut self, view: ViewId, entry: Entry, fault: Fault, io: &mut Io<'_>) -> Result<(), Wait> {
        let Fault { mapping, page, write, .. } = fault;
        if !self.has_room(view) {
            self.counters.waits_for_room += 1;
            return Err(Wait::Turn);
        }
        let Some(slot) = entry.slot() else {
            self.install_zeros(view, mapping, page, write, io)?;
            self.counters.faults += 1;
            self.counters.zero_fills += 1;
            self.zeros_ahead(view, mapping, page, write, io);
            return Ok(());
        };
        if io.store.room() == 0 {
            return Err(Wait::Turn);
        }
        let purpose = Use::Fetch { view: Some(view), page, mapping: Some(mapping), write };
        let Some(buffer) = self.buffers.take(purpose) else { return Err(Wait::Turn) };
        self.coming += 1;
        self.counters.faults += 1;
        self.counters.fetched += 1;
        self.set(view, page, entry.to(State::Fetching).with_buffer(Some(buffer)).with(Flags::WANTED));
        io.store.fetch(slot, buffer, Urgency::Demand);
        self.read_ahead(view, page, io);
        Err(Wait::Event)
    }

    /// Another thread wants a page that is on its way.
    fn join(&mut self, view: ViewId, entry: Entry, fault: Fault) {
        let Some(buffer) = entry.buffer() else { return };
        if let Use::Fetch { view: of, page, mapping, write } = self.buffers.purpose(buffer) {
            let (mapping, write) = match mapping {
                None => (fault.mapping, fault.write),
                // A write through another mapping faults again there.
                Some(first) => (first, write || (fault.write && first == fault.mapping)),
            };
            self.buffers.set_purpose(buffer, Use::Fetch { view: of, page, mapping: Some(mapping), write });
        }
        if !entry.is(Flags::WANTED) {
            self.counters.faults += 1;
            self.look_ahead_proved(view, fault.page);
        }
        self.set(view, fault.page, entry.with(Flags::WANTED));
    }

    /// A page that was fetched into its buffer is wanted.
    fn install_staged(
        &mut self,
        view: ViewId,
        entry: Entry,
        fault: Fault,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        let Fault { mapping, page, write, .. } = fault;
        let Some(buffer) = entry.buffer() else { return Ok(()) };
        if !self.has_room(view) {
            self.counters.waits_for_room += 1;
            return Err(Wait::Turn);
        }
        self.install_frame(view, entry, mapping, buffer, write, io)?;
        self.counters.faults += 1;
        self.counters.held_hits += 1;
        self.read_ahead(view, page, io);
        Ok(())
    }

    /// Puts a fetched page in place; its buffer becomes the twin of a page that is written, or is free.
    fn install_frame(
        &mut self,
        view: ViewId,
        entry: Entry,
        mapping: MappingId,
        buffer: BufferId,
        write: bool,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        let Use::Fetch { page, .. } = self.buffers.purpose(buffer) else { return Ok(()) };
        let recent = entry.is(Flags::RECENT);
        let place = entry.with_buffer(None).without(Flags::RECENT);
        self.set(view, page, if write { place.to(State::Installing) } else { entry });
        match io.memory.install(mapping, page, self.buffers.page(buffer), !write) {
            Ok(()) if write && !self.is_droppable(view) => {
                self.set(view, page, place.to(State::Dirty));
                self.buffers.give(buffer);
            }
            Ok(()) if write => {
                self.buffers.set_purpose(buffer, Use::Twin);
                self.set(view, page, place.to(State::Dirty).with_buffer(Some(buffer)));
            }
            Ok(()) => {
                self.set(view, page, place.to(State::Clean));
                self.buffers.give(buffer);
            }
            Err(MemoryError::Exists) => {
                // Whoever put it there knows better; see `install_zeros`.
                self.set(view, page, place.to(State::Absent));
                self.buffers.give(buffer);
                io.memory.wake(mapping, page);
                return Ok(());
            }
            Err(error) => {
                self.set(view, page, entry.to(State::Staged).with_buffer(Some(buffer)));
                return self.refused(error, mapping);
            }
        }
        self.entered(view, page, recent);
        Ok(())
    }

    /// Puts zeros in place of a page never written.
    fn install_zeros(
        &mut self,
        view: ViewId,
        mapping: MappingId,
        page: u32,
        write: bool,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        const ZEROS: Page = [0; PAGE_BYTES];
        let entry = self.entry(view, page);
        let recent = entry.is(Flags::RECENT);
        let place = entry.without(Flags::RECENT);
        if write {
            self.set(view, page, place.to(State::Installing));
        }
        let installed = io.memory.install(mapping, page, &ZEROS, !write);
        match installed {
            Ok(()) => self.set(view, page, place.to(if write { State::Dirty } else { State::Clean })),
            Err(MemoryError::Exists) => {
                // It is about to be discarded, and we have been told so; or the fault is an old one. To take it for the
                // page's content would bring back what is being discarded.
                self.set(view, page, entry);
                io.memory.wake(mapping, page);
                return Ok(());
            }
            Err(error) => {
                self.set(view, page, entry);
                return self.refused(error, mapping);
            }
        }
        self.entered(view, page, recent);
        Ok(())
    }

    /// Why the kernel did not do it decides how it goes on.
    #[cold]
    fn refused(&mut self, error: MemoryError, mapping: MappingId) -> Result<(), Wait> {
        match error {
            MemoryError::Gone => {
                self.gone(mapping);
                Ok(())
            }
            _ => Err(Wait::Turn),
        }
    }

    /// The first write to a page in memory.
    fn first_write(&mut self, view: ViewId, entry: Entry, fault: Fault, io: &mut Io<'_>) -> Result<(), Wait> {
        let page = fault.page;
        // A page with no slot of its own is sent whole anyway; one that cannot leave at present may be.
        let worth = self.is_droppable(view) && entry.slot().is_some_and(|slot| !self.slots.is_shared(slot));
        let twin = if worth { self.buffers.take(Use::Twin) } else { None };
        if let Some(twin) = twin
            && let Err(error) = io.memory.snapshot(view, page, self.buffers.page_mut(twin))
        {
            self.buffers.give(twin);
            if error == MemoryError::Absent {
                self.discarded(view, page..page + 1);
                io.memory.wake(fault.mapping, page);
                return Ok(());
            }
            return self.refused(error, fault.mapping);
        }
        self.counters.write_faults += 1;
        self.set(view, page, entry.to(State::Dirty).with_buffer(twin));
        self.grant_write(fault, io)
    }

    /// The page is dirty, so who writes to it may.
    fn grant_write(&mut self, fault: Fault, io: &mut Io<'_>) -> Result<(), Wait> {
        let Fault { mapping, page, access, .. } = fault;
        let install = match access {
            Access::Unmapped => io.memory.map(mapping, page, false),
            _ => io.memory.unprotect(mapping, page),
        };
        self.install(install, fault, io)
    }

    /// The page is there, and this mapping is to have it too.
    fn map_read_only(&mut self, fault: Fault, protect: bool, io: &mut Io<'_>) -> Result<(), Wait> {
        let mapped = match fault.access {
            Access::Unmapped => io.memory.map(fault.mapping, fault.page, protect),
            // A read of a page that is there: it has been served since.
            _ => Err(MemoryError::Exists),
        };
        self.install(mapped, fault, io)
    }

    fn install(&mut self, done: Result<(), MemoryError>, fault: Fault, io: &mut Io<'_>) -> Result<(), Wait> {
        match done {
            Ok(()) => Ok(()),
            Err(MemoryError::Exists | MemoryError::Absent) => {
                io.memory.wake(fault.mapping, fault.page);
                Ok(())
            }
            Err(error) => self.refused(error, fault.mapping),
        }
    }

    /// The page's data is lost: whoever touches it is to know.
    #[cold]
    fn poison(&mut self, fault: Fault, io: &mut Io<'_>) -> Result<(), Wait> {
        match io.memory.poison(fault.mapping, fault.page) {
            Ok(()) => Ok(()),
            Err(MemoryError::Exists) => {
                io.memory.wake(fault.mapping, fault.page);
                Ok(())
            }
            Err(error) => self.refused(error, fault.mapping),
        }
    }

    /// A fetch has ended, its data in the buffer.
    pub fn fetched(&mut self, buffer: BufferId, outcome: Result<(), Lost>, io: &mut Io<'_>) {
        let Use::Fetch { view, page, mapping, write } = self.buffers.purpose(buffer) else { return };
        let Some(view) = view else {
            self.buffers.give(buffer);
            return;
        };
        let entry = self.entry(view, page);
        self.coming -= 1;
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
                self.set(view, page, entry.to(State::Lost).with_buffer(None));
                self.wake(view, page, io);
            } else {
                self.set(view, page, entry.to(State::Absent).with_buffer(None));
            }
            return;
        }
        match mapping {
            Some(mapping) => {
                if let Err(Wait::Turn) = self.install_frame(view, entry, mapping, buffer, write, io) {
                    let access = Access::Missing;
                    self.waiting.push_back(Fault { mapping, page, access, write });
                } else if self.view(view).is_some_and(|view| view.mappings.len() > 1) {
                    self.wake(view, page, io);
                }
            }
            // Who wanted it first has gone; others may wait.
            None if wanted => {
                self.hold(view, page, entry);
                self.wake(view, page, io);
            }
            None => self.place_ahead(view, page, entry, buffer, io),
        }
    }

    /// Pages fetched ahead are put in place, but for markers, which show how far a reader has got.
    fn place_ahead(&mut self, view: ViewId, page: u32, entry: Entry, buffer: BufferId, io: &mut Io<'_>) {
        let mapping = self.mappings_of(view).next();
        // A marker was requested as a write nobody makes: see `read_ahead`.
        let marker = matches!(self.buffers.purpose(buffer), Use::Fetch { write: true, .. });
        match mapping {
            Some(mapping) if !marker && self.bounded() < self.options.limit => {
                if let Err(Wait::Turn) = self.install_frame(view, entry, mapping, buffer, false, io) {
                    self.hold(view, page, self.entry(view, page));
                }
            }
            _ => self.hold(view, page, entry),
        }
    }

    /// Keeps a page in its buffer; the oldest kept so is given up for it.
    fn hold(&mut self, view: ViewId, page: u32, entry: Entry) {
        self.set(view, page, entry.to(State::Staged));
        self.staged.push_back(PageRef { view, page });
        while self.staged.len() > STAGED_MAX {
            let Some(PageRef { view, page }) = self.staged.pop_front() else { break };
            let entry = self.entry(view, page);
            if let (State::Staged, Some(buffer)) = (entry.state(), entry.buffer()) {
                self.buffers.give(buffer);
                self.set(view, page, entry.to(State::Absent).with_buffer(None));
            }
        }
    }

    fn look_ahead_proved(&mut self, view: ViewId, page: u32) -> Option<prefetch::Window> {
        if !self.options.prefetch {
            return None;
        }
        let (window, proved) = self.view_mut(view)?.prefetch.wanted(page);
        self.proved(proved);
        window
    }

    /// Fetches what the reader of `page` will want next, as far as that delays nobody.
    fn read_ahead(&mut self, view: ViewId, page: u32, io: &mut Io<'_>) {
        let Some(window) = self.look_ahead_proved(view, page) else { return };
        let pages = self.options.pages;
        let (mut covered, mut begun) = (window.count, 0);
        for (index, page) in window.pages(pages).enumerate() {
            let entry = self.entry(view, page);
            let (State::Absent, Some(slot)) = (entry.state(), entry.slot()) else { continue };
            if io.store.room() <= ROOM_FOR_DEMAND || !self.has_room_ahead() {
                covered = index as u32;
                break;
            }
            let purpose = Use::Fetch { view: Some(view), page, mapping: None, write: index == 0 };
            let Some(buffer) = self.buffers.take(purpose) else {
                covered = index as u32;
                break;
            };
            self.coming += 1;
            begun += 1;
            self.set(view, page, entry.to(State::Fetching).with_buffer(Some(buffer)));
            io.store.fetch(slot, buffer, Urgency::Ahead);
        }
        self.counters.prefetched += u64::from(begun);
        if let Some(view) = self.view_mut(view) {
            view.prefetch.began(covered, begun);
        }
    }

    /// Whoever writes page after page for the first time is spared most of these faults.
    fn zeros_ahead(&mut self, view: ViewId, mapping: MappingId, page: u32, write: bool, io: &mut Io<'_>) {
        let Some(window) = self.look_ahead_proved(view, page) else { return };
        let pages = self.options.pages;
        let mut looked: Option<(u32, u64)> = None;
        // The first is the marker, left for the fault that calls for the next window.
        for page in window.pages(pages).skip(1) {
            let entry = self.entry(view, page);
            let fits = self.has_room_ahead();
            if entry.state() != State::Absent || entry.slot().is_some() || !fits {
                continue;
            }
            let group = page / u64::BITS * u64::BITS;
            let occupied = match looked {
                Some((of, occupied)) if of == group => occupied,
                _ => io.memory.occupied(view, group),
            };
            looked = Some((group, occupied));
            if occupied >> (page - group) & 1 == 1 {
                continue;
            }
            if self.install_zeros(view, mapping, page, write, io).is_err() {
                return;
            }
        }
    }
}
