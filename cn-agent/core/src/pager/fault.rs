//! Faults: how a page comes.

use super::page_buffers::Use;
use super::*;
use alloc::vec::Vec;

/// Pages kept in their buffers at most.
const STAGED_MAX: usize = 64;
/// Faults that wait for room before it is given out for several pages at a time.
const CONTENDERS: usize = 4;
/// Pages for which memory is made ready at a time. With more under way there is no time for it: the link has the next one.
pub(super) const AWAITED_MAX: usize = 2;

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
pub(super) enum Wait {
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
    pub(super) fn has_room(&self, view: ViewId) -> bool {
        let least = if self.is_contended() { (self.reserve_pages() / 2).min(ahead::RUN as u32) } else { 1 };
        !self.options.evict || !self.is_droppable(view) || self.claimed() + least <= self.options.limit
    }

    /// Whether so many wait for room that it is given to one of them after the other, for several pages each: given page by page
    /// nothing is read ahead for any, each page is a fault of its own, and it is taken away by an order of its own.
    pub(super) fn is_contended(&self) -> bool {
        self.waiting.len() >= CONTENDERS && !self.is_full()
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
            State::Absent if access == Access::Missing => self.missing(view, entry, fault, io),
            State::Absent => {
                // There all the same: installed by a predecessor in its last moment, or a fault from before it left, or it
                // was about to leave when its process was forked. Where pages cannot leave, the fault itself shows it.
                if !self.is_droppable(view) || io.memory.is_present(view, page) {
                    self.entered(view, page, Known::New);
                    self.set(view, page, entry.to(State::Clean));
                    return self.serve(fault, io);
                }
                io.memory.give_up(view, page);
                io.memory.wake(mapping, page);
                Ok(())
            }
            State::Fetching => {
                self.join(view, entry, fault, io);
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
            // A fetch could overtake the zeros, and these overwrite what is written next.
            State::Zeroing => {
                self.set(view, page, entry.with(Flags::WANTED));
                Err(Wait::Event)
            }
            State::Dropping => {
                (self.wanted_back, self.held_back) = (true, false);
                self.set(view, page, entry.with(Flags::WANTED));
                Err(Wait::Event)
            }
            State::Installing => Err(Wait::Turn),
            State::Lost => self.poison(fault, io),
        }
    }

    /// A page that is nowhere in memory is wanted.
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
            return Err(Wait::Turn);
        }
        let Some(slot) = entry.slot() else {
            self.install_zeros(view, mapping, page, write, io)?;
            self.counters.faults += 1;
            self.counters.zero_fills += 1;
            self.zeros_ahead(view, mapping, page, write, io);
            return Ok(());
        };
        if let Some(buffer) = self.copy(view, page, slot, io) {
            let staged = entry.to(State::Staged).with_buffer(Some(buffer));
            self.set(view, page, staged);
            return self.install_staged(view, staged, fault, io);
        }
        if io.store.room() == 0 {
            return Err(Wait::Turn);
        }
        let purpose = Use::Fetch { view: Some(view), page, mapping: Some(mapping), write };
        let Some(buffer) = self.buffers.take(purpose) else { return Err(Wait::Turn) };
        self.coming += 1;
        self.trim_kept();
        self.counters.faults += 1;
        self.counters.fetched += 1;
        self.set(view, page, entry.to(State::Fetching).with_buffer(Some(buffer)).with(Flags::WANTED));
        io.store.fetch(slot, buffer, Urgency::Demand);
        if io.memory.makes_ready() && self.awaited.len() < AWAITED_MAX {
            self.awaited.push(PageRef { view, page });
        }
        self.read_ahead(view, page, true, io);
        Err(Wait::Event)
    }

    /// Makes memory ready for pages that somebody waits for, now that they have been sent for.
    pub(super) fn make_ready(&mut self, io: &mut Io<'_>) {
        let few = io.store.demands() <= AWAITED_MAX;
        while let Some(PageRef { view, page }) = self.awaited.pop() {
            if few && self.entry(view, page).state() == State::Fetching {
                io.memory.make_ready(view, page);
            }
        }
    }

    /// Another thread wants a page that is on its way.
    pub(super) fn join(&mut self, view: ViewId, entry: Entry, fault: Fault, io: &mut Io<'_>) {
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
            self.set(view, fault.page, entry.with(Flags::WANTED));
            io.store.hurry(buffer);
            // Who is faster than what is read ahead for him wants more of it.
            self.read_ahead(view, fault.page, false, io);
        }
    }

    /// A fetch has ended, its data in the buffer.
    pub fn fetched(&mut self, buffer: BufferId, outcome: Result<(), Lost>, io: &mut Io<'_>) {
        let Use::Fetch { view, page, mapping, write } = self.buffers.purpose(buffer) else { return };
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
                self.set(view, page, entry.to(State::Lost).with_buffer(None));
                self.wake(view, page, io);
            } else {
                self.set(view, page, entry.to(State::Absent).with_buffer(None));
            }
            return;
        }
        match mapping {
            Some(mapping) => {
                if let Err(Wait::Turn) = self.install_buffer(view, entry, mapping, buffer, write, io) {
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
            None => self.arrived_ahead(view, page, entry, buffer),
        }
    }

    /// Keeps a page in its buffer; the oldest kept so is given up for it.
    pub(super) fn hold(&mut self, view: ViewId, page: u32, entry: Entry) {
        self.set(view, page, entry.to(State::Staged));
        self.staged.push_back(PageRef { view, page });
        while self.staged.len() > STAGED_MAX {
            let Some(PageRef { view, page }) = self.staged.pop_front() else { break };
            let entry = self.entry(view, page);
            if let (State::Staged, Some(buffer)) = (entry.state(), entry.buffer())
                && matches!(self.buffers.purpose(buffer), Use::Fetch { .. })
            {
                self.thrown_away(view, page);
                self.buffers.give(buffer);
                self.set(view, page, entry.to(State::Absent).with_buffer(None));
            }
        }
    }
}
