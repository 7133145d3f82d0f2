//! Pages that are brought before anybody touches them: read ahead of steps that a prefetcher sees, and zeros beside zeros.

use super::page_buffers::Use;
use super::*;

/// Transfers and buffers kept free for faults while pages are read ahead, or leave.
pub(super) const ROOM_FOR_DEMAND: usize = 16;
/// Neighbours put in place in one step.
pub(super) const RUN: usize = 16;
/// The part of the reserve that faults have to themselves while pages are read ahead: one in this many.
const RESERVE_FOR_DEMAND: u32 = 4;
/// Pages that leave for a window at most: one of so many that may be resident, or, before a fault's request has left, this many.
const ROOM_SHARE: u32 = 8;
const ROOM_BESIDE_DEMAND: u32 = 4;

impl Pager {
    /// Whether one more page may be resident that nobody waits for.
    pub(super) fn has_room_ahead(&self) -> bool {
        let spared = if self.is_contended() { 0 } else { self.reserve_pages() / RESERVE_FOR_DEMAND };
        !self.options.evict || self.claimed() + spared < self.options.limit
    }

    pub(super) fn look_ahead_proved(&mut self, view: ViewId, page: u32) -> Option<prefetch::Window> {
        if !self.options.prefetch {
            return None;
        }
        let (window, proved) = self.view_mut(view)?.prefetch.wanted(page);
        self.proved(proved);
        window
    }

    /// Fetches what the reader of `page` will want next, as far as that delays nobody: `waits` says that the reader's own page
    /// is still to be sent for.
    pub(super) fn read_ahead(&mut self, view: ViewId, page: u32, waits: bool, io: &mut Io<'_>) {
        let Some(window) = self.look_ahead_proved(view, page) else { return };
        self.make_room_ahead(window.count, waits, io);
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
            if let Some(buffer) = self.copy(view, page, slot, io) {
                begun += 1;
                self.buffers.set_purpose(buffer, purpose);
                self.arrived_ahead(view, page, entry.with_buffer(Some(buffer)), buffer);
                continue;
            }
            let Some(buffer) = self.buffers.take(purpose) else {
                covered = index as u32;
                break;
            };
            self.coming += 1;
            self.trim_kept();
            begun += 1;
            self.set(view, page, entry.to(State::Fetching).with_buffer(Some(buffer)));
            io.store.fetch(slot, buffer, Urgency::Ahead);
        }
        self.counters.prefetched += u64::from(begun);
        if let Some(view) = self.view_mut(view) {
            view.prefetch.began(covered, begun);
        }
    }

    /// Has so many pages that were read ahead leave for others that are to be, as far as that takes no more than taking them away:
    /// those that their reader has passed, where it leaves eviction no time. Of pages that somebody has asked for none leaves.
    fn make_room_ahead(&mut self, pages: u32, waits: bool, io: &mut Io<'_>) {
        let most = if waits { ROOM_BESIDE_DEMAND } else { self.options.limit / ROOM_SHARE };
        let spared = self.reserve_pages() / RESERVE_FOR_DEMAND;
        let short = (self.claimed() + spared + pages).saturating_sub(self.options.limit);
        if self.options.evict && short > 0 && !io.memory.drops_by_order() {
            self.evict_ahead(short.min(most) as usize, io);
        }
    }

    /// A page that was read ahead leaves, and nobody has asked for it. Where its reader has not got there, less is read ahead.
    pub(super) fn thrown_away(&mut self, view: ViewId, page: u32) {
        if let Some(view) = self.view_mut(view) {
            view.prefetch.thrown_away(page);
        }
    }

    /// A page fetched ahead is here. In the next turn it is put in place, with its neighbours; but markers are kept, which
    /// show how far a reader has got.
    pub(super) fn arrived_ahead(&mut self, view: ViewId, page: u32, entry: Entry, buffer: BufferId) {
        // A marker was requested as a write nobody makes: see `read_ahead`.
        let marker = matches!(self.buffers.purpose(buffer), Use::Fetch { write: true, .. });
        if marker || self.arrived.len() == self.arrived.capacity() {
            self.hold(view, page, entry);
        } else {
            self.set(view, page, entry.to(State::Staged));
            self.arrived.push(PageRef { view, page });
        }
    }

    /// Puts in place what was fetched ahead, neighbours in one step; how many steps.
    pub(super) fn place_arrived(&mut self, io: &mut Io<'_>) -> usize {
        if self.arrived.is_empty() {
            return 0;
        }
        let mut arrived = core::mem::take(&mut self.arrived);
        arrived.sort_unstable_by_key(|page| (page.view, page.page));
        let (mut steps, mut left) = (0, &arrived[..]);
        while let Some((&PageRef { view, page }, rest)) = left.split_first() {
            let run = self.gather(left);
            let Some(mapping) = self.mappings_of(view).next().filter(|_| run > 0) else {
                // Wanted or discarded meanwhile, or there is no room: it stays in its buffer as long as may be.
                self.keep(view, page);
                left = rest;
                continue;
            };
            steps += 1;
            let write = self.will_be_written(view, self.entry(view, page));
            if write {
                (page..page + run as u32).for_each(|page| self.set_state(view, page, State::Installing));
            }
            let installed = io.memory.install_run(mapping, page, &self.landing[..run], !write);
            let done = installed.unwrap_or(0);
            if write {
                (page + done as u32..page + run as u32)
                    .for_each(|page| self.set_state(view, page, State::Staged));
            }
            match installed {
                Ok(done) if done > 0 => {
                    (page..page + done as u32).for_each(|page| self.landed(view, page, write));
                    left = &left[done..];
                }
                Err(MemoryError::Exists) => {
                    // Whoever put it there knows better; see `install_zeros`.
                    let entry = self.entry(view, page);
                    entry.buffer().into_iter().for_each(|buffer| self.buffers.give(buffer));
                    self.set(view, page, entry.to(State::Absent).with_buffer(None));
                    io.memory.wake(mapping, page);
                    left = rest;
                }
                other => {
                    if other == Err(MemoryError::Gone) {
                        self.gone(mapping);
                    }
                    self.keep(view, page);
                    left = rest;
                }
            }
        }
        arrived.clear();
        self.arrived = arrived;
        steps
    }

    /// Copies the pages at the head of `arrived` that are neighbours, and for which there is room, to where one step takes them
    /// from; how many.
    fn gather(&mut self, arrived: &[PageRef]) -> usize {
        let mut run = 0;
        let room = (self.options.limit as usize).saturating_sub(self.bounded() as usize).min(RUN);
        for (index, of) in arrived.iter().take(room).enumerate() {
            let entry = self.entry(of.view, of.page);
            let first = arrived[0];
            let follows = of.view == first.view && of.page == first.page + index as u32;
            let alike = self.will_be_written(first.view, entry)
                == self.will_be_written(first.view, self.entry(first.view, first.page));
            let (State::Staged, Some(buffer), true) = (entry.state(), entry.buffer(), follows && alike)
            else {
                break;
            };
            self.landing[index].copy_from_slice(self.buffers.page(buffer));
            run += 1;
        }
        run
    }

    /// Whether a page that comes is installed writable though nobody writes to it yet: it was written when it was here last
    /// ([`Entry::was_written`]), or enough of those are that have left lately.
    pub(super) fn will_be_written(&self, view: ViewId, entry: Entry) -> bool {
        self.view(view)
            .is_some_and(|view| view.droppable && (entry.was_written() || view.written.is_likely()))
    }

    fn set_state(&self, view: ViewId, page: u32, state: State) {
        self.set(view, page, self.entry(view, page).to(state));
    }

    /// A page that was fetched ahead is in memory; `write`: writable.
    fn landed(&mut self, view: ViewId, page: u32, write: bool) {
        let entry = self.entry(view, page);
        let place = entry.forgotten();
        match entry.buffer() {
            Some(buffer) if write => {
                self.buffers.set_purpose(buffer, Use::Twin);
                self.set(view, page, place.to(State::Dirty));
            }
            buffer => {
                buffer.into_iter().for_each(|buffer| self.buffers.give(buffer));
                self.set(view, page, place.to(State::Clean).with_buffer(None));
            }
        }
        let known = Known::of(entry);
        self.entered(view, page, if known == Known::New { Known::Ahead } else { known });
    }

    /// A page that was fetched ahead cannot be put in place.
    fn keep(&mut self, view: ViewId, page: u32) {
        let entry = self.entry(view, page);
        if entry.state() == State::Staged {
            self.hold(view, page, entry);
        }
    }

    /// Whoever writes page after page for the first time is spared most of these faults.
    pub(super) fn zeros_ahead(
        &mut self,
        view: ViewId,
        mapping: MappingId,
        page: u32,
        write: bool,
        io: &mut Io<'_>,
    ) {
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
