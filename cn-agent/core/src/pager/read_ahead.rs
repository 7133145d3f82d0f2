//! Pages installed before the first touch: pages ahead of a reader, in the stride that the prefetcher
//! detects, and zeros ahead of a program that uses pages for the first time.

use super::page_buffers::BufferUse;
use super::*;

/// Number of transfers and buffers left free for faults while pages are read ahead or evicted.
pub(super) const ROOM_FOR_DEMAND: usize = 16;
/// Maximum number of neighbouring pages installed in one step.
pub(super) const RUN: usize = 16;
/// Divisor of the reserve that gives the part left to faults while pages are read ahead.
const RESERVE_FOR_DEMAND: u32 = 4;
/// Divisor of the resident limit that gives the maximum number of pages evicted for one window. Before a
/// fault's request has been sent, at most `ROOM_BESIDE_DEMAND` pages are evicted.
const ROOM_SHARE: u32 = 8;
const ROOM_BESIDE_DEMAND: u32 = 4;
/// Number of processes with resident pages from which on the room counts as shared by many.
const SHARERS: usize = 5;

impl Pager {
    /// Whether one more page for which no thread waits may be resident.
    pub(super) fn has_room_ahead(&self) -> bool {
        let spared = if self.is_contended() { 0 } else { self.reserve_pages() / RESERVE_FOR_DEMAND };
        !self.options.evict || self.claimed() + spared < self.options.limit
    }

    pub(super) fn look_ahead_proved(&mut self, view: ViewId, page: u32) -> Option<prefetch::Window> {
        if !self.options.prefetch {
            return None;
        }
        let (window, proved) = self.view_mut(view)?.prefetch.on_miss(page);
        self.record_prefetch(proved);
        if self.is_shared_by_many()
            && let Some(passed) = proved.passed
        {
            self.evict_passed(view, passed);
        }
        window
    }

    /// Whether so many processes have pages, and so little room is left, that pages read ahead for one process would
    /// replace pages read ahead for another.
    pub(super) fn is_shared_by_many(&self) -> bool {
        self.claimed() + 2 * self.reserve_pages() >= self.options.limit && self.has_many_sharers()
    }

    /// Whether many processes have pages.
    fn has_many_sharers(&self) -> bool {
        let of = self.views.iter().flatten().filter(|view| view.resident > 0);
        of.take(SHARERS).count() == SHARERS
    }

    /// Maximum number of pages read ahead for one reader. If many processes share the room, each reader gets
    /// room for two windows, the one being read and the next.
    fn window_max(&self) -> u32 {
        if !self.has_many_sharers() {
            return u32::MAX;
        }
        let readers = self.views.iter().flatten().count() as u32;
        let share = (self.options.limit - self.reserve_pages()) / (2 * readers);
        // What is free is given too, but no more: a reader whose passed pages have just left would take the room of
        // others with one large window.
        let free = self.options.limit.saturating_sub(self.claimed() + 2 * self.reserve_pages());
        share.max(free).max(1)
    }

    /// Has the pages evicted next that the reader of `page`, which waits for room, has passed. Its fault shows its
    /// progress now; if that counted only once there is room, pages that other readers have not reached would make it.
    pub(super) fn give_up_passed(&mut self, view: ViewId, page: u32) {
        if !self.options.prefetch || !self.is_shared_by_many() {
            return;
        }
        let passed = self.view_mut(view).and_then(|view| view.prefetch.take_passed(page));
        if let Some(passed) = passed {
            self.evict_passed(view, passed);
        }
    }

    /// Marks pages that a reader has passed to be evicted next: earlier than pages that other readers have not reached,
    /// neighbouring pages together in one order, and without copies.
    fn evict_passed(&mut self, view: ViewId, passed: prefetch::Window) {
        for page in passed.pages(self.options.pages) {
            if matches!(self.entry(view, page).state(), PageState::Clean | PageState::Dirty) {
                self.order.advise_passed(PageRef { view, page });
            }
        }
    }

    /// Fetches the pages that the reader of `page` is predicted to need next, as far as that delays no fault. If
    /// `waits` is set, the request for the reader's own page is still to be sent.
    pub(super) fn read_ahead(&mut self, view: ViewId, page: u32, waits: bool, io: &mut Io<'_>) {
        let Some(window) = self.look_ahead_proved(view, page) else { return };
        self.make_room_ahead(window.count, waits, io);
        let pages = self.options.pages;
        let (most, mut covered, mut begun) = (self.window_max(), window.count, 0);
        let mut copies = core::mem::take(&mut self.copies);
        for (index, page) in window.pages(pages).enumerate() {
            if index as u32 == most {
                covered = most;
                break;
            }
            let entry = self.entry(view, page);
            let (PageState::Absent, Some(slot)) = (entry.state(), entry.slot()) else { continue };
            if io.store.room() <= ROOM_FOR_DEMAND || !self.has_room_ahead() {
                covered = index as u32;
                break;
            }
            // A page fetched ahead has no mapping; its field `write` then states that the page is the marker of its
            // window (see `arrived_ahead`).
            let purpose = BufferUse::Fetch { view: Some(view), page, mapping: None, write: index == 0 };
            let copy = self.begin_copy(view, page, slot, io);
            let taken = copy.map(|copy| copy.buffer).or_else(|| self.buffers.take(purpose));
            let Some(buffer) = taken else {
                covered = index as u32;
                break;
            };
            self.coming += 1;
            self.trim_kept();
            begun += 1;
            self.set(view, page, entry.to(PageState::Fetching).with_buffer(Some(buffer)));
            match copy {
                Some(copy) => {
                    self.buffers.set_purpose(buffer, purpose);
                    copies.push(copy);
                }
                None => io.store.fetch(slot, buffer, Urgency::Ahead),
            }
        }
        self.end_copies(view, &copies, io);
        copies.clear();
        self.copies = copies;
        self.counters.prefetched += u64::from(begun);
        if let Some(view) = self.view_mut(view) {
            view.prefetch.began(covered, begun);
        }
    }

    /// Has pages of a view arrive whose copies are good, and fetches the others. The kernel's records, which show that,
    /// are read for many pages at a time.
    fn end_copies(&mut self, view: ViewId, copies: &[PageCopy], io: &mut Io<'_>) {
        let mut recent = RecentRecords::default();
        for copy in copies {
            let PageCopy { page, buffer, .. } = *copy;
            let entry = self.entry(view, page);
            if self.is_good(*copy, &mut recent, io) {
                self.coming -= 1;
                self.arrived_ahead(view, page, entry, buffer);
            } else if let Some(slot) = entry.slot().filter(|_| io.store.room() > ROOM_FOR_DEMAND) {
                io.store.fetch(slot, buffer, Urgency::Ahead);
            } else {
                self.coming -= 1;
                self.buffers.give(buffer);
                self.set(view, page, entry.to(PageState::Absent).with_buffer(None));
            }
        }
    }

    /// Makes room for `pages` pages by evicting pages that were read ahead and need no write-back. The oldest are
    /// evicted first, because their reader has usually passed them. Pages on which a thread has faulted are not
    /// evicted.
    fn make_room_ahead(&mut self, pages: u32, waits: bool, io: &mut Io<'_>) {
        let most = if waits { ROOM_BESIDE_DEMAND } else { self.options.limit / ROOM_SHARE };
        let spared = self.reserve_pages() / RESERVE_FOR_DEMAND;
        let short = (self.claimed() + spared + pages).saturating_sub(self.options.limit);
        if self.options.evict && short > 0 && !io.memory.drops_by_order() {
            self.evict_ahead(short.min(most) as usize, io);
        }
    }

    /// Records that a page read ahead is evicted without a touch. If its reader has not yet reached the page, fewer
    /// pages are read ahead for this reader.
    pub(super) fn record_unused(&mut self, view: ViewId, page: u32) {
        if let Some(view) = self.view_mut(view) {
            view.prefetch.record_unused(page);
        }
    }

    /// Handles a page fetched ahead that has arrived. It is installed in the next turn, with its neighbours; a marker
    /// is not installed, as it shows the reader's progress.
    pub(super) fn arrived_ahead(&mut self, view: ViewId, page: u32, entry: Entry, buffer: BufferId) {
        // Markers are fetched with `write` set and without a mapping: see `read_ahead`.
        let marker = matches!(self.buffers.purpose(buffer), BufferUse::Fetch { write: true, .. });
        if marker || self.arrived.len() == self.arrived.capacity() {
            self.hold(view, page, entry);
        } else {
            self.set(view, page, entry.to(PageState::Staged));
            self.arrived.push(PageRef { view, page });
        }
    }

    /// Installs arrived pages that were fetched ahead, neighbours in one step; returns the number of steps.
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
                // The page was touched or discarded after its arrival, or there is no room: it stays in its buffer as
                // long as possible.
                self.keep(view, page);
                left = rest;
                continue;
            };
            steps += 1;
            let write = self.will_be_written(view, self.entry(view, page));
            if write {
                (page..page + run as u32).for_each(|page| self.set_state(view, page, PageState::Installing));
            }
            let installed = io.memory.install_run(mapping, page, &self.landing[..run], !write);
            let done = installed.unwrap_or(0);
            if write {
                (page + done as u32..page + run as u32)
                    .for_each(|page| self.set_state(view, page, PageState::Staged));
            }
            match installed {
                Ok(done) if done > 0 => {
                    (page..page + done as u32).for_each(|page| self.record_prefetched(view, page, write));
                    left = &left[done..];
                }
                Err(MemoryError::Exists) => {
                    // Another page is in place already, whose content does not count (see `install_zeros`): this page
                    // is absent again.
                    let entry = self.entry(view, page);
                    entry.buffer().into_iter().for_each(|buffer| self.buffers.give(buffer));
                    self.set(view, page, entry.to(PageState::Absent).with_buffer(None));
                    io.memory.wake(mapping, page);
                    left = rest;
                }
                other => {
                    if other == Err(MemoryError::Gone) {
                        self.mapping_ended(mapping);
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

    /// Copies the first neighbours of `arrived` to `landing`, as far as there is room and they are installed
    /// the same way. Returns their number.
    fn gather(&mut self, arrived: &[PageRef]) -> usize {
        let mut run = 0;
        let room = (self.options.limit as usize).saturating_sub(self.bounded() as usize).min(RUN);
        for (index, of) in arrived.iter().take(room).enumerate() {
            let entry = self.entry(of.view, of.page);
            let first = arrived[0];
            let follows = of.view == first.view && of.page == first.page + index as u32;
            let alike = self.will_be_written(first.view, entry)
                == self.will_be_written(first.view, self.entry(first.view, first.page));
            let (PageState::Staged, Some(buffer), true) = (entry.state(), entry.buffer(), follows && alike)
            else {
                break;
            };
            self.landing[index].copy_from_slice(self.buffers.page(buffer));
            run += 1;
        }
        run
    }

    /// Whether a page is installed writable, which saves a write fault: it was written when last resident
    /// ([`Entry::was_written`]), or enough of the recently evicted pages were.
    pub(super) fn will_be_written(&self, view: ViewId, entry: Entry) -> bool {
        self.view(view)
            .is_some_and(|view| view.droppable && (entry.was_written() || view.written.is_likely()))
    }

    fn set_state(&self, view: ViewId, page: u32, state: PageState) {
        self.set(view, page, self.entry(view, page).to(state));
    }

    /// Records that a page fetched ahead is installed; with `write`, writable.
    fn record_prefetched(&mut self, view: ViewId, page: u32, write: bool) {
        let entry = self.entry(view, page);
        let place = entry.forgotten();
        match entry.buffer() {
            Some(buffer) if write => {
                self.buffers.set_purpose(buffer, BufferUse::Twin { view, page });
                self.set(view, page, place.to(PageState::Dirty));
            }
            buffer => {
                buffer.into_iter().for_each(|buffer| self.buffers.give(buffer));
                self.set(view, page, place.to(PageState::Clean).with_buffer(None));
            }
        }
        let known = PageHistory::of(entry);
        self.add_resident(view, page, known.ahead(), true);
    }

    /// Keeps a page that was fetched ahead and cannot be installed in its buffer.
    fn keep(&mut self, view: ViewId, page: u32) {
        let entry = self.entry(view, page);
        if entry.state() == PageState::Staged {
            self.hold(view, page, entry);
        }
    }

    /// Installs zeros ahead of a program that writes page after page for the first time, which saves most of its
    /// faults.
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
        // The first page is the marker, left absent: its fault triggers the next window.
        for page in window.pages(pages).skip(1) {
            let entry = self.entry(view, page);
            let fits = self.has_room_ahead();
            if entry.state() != PageState::Absent || entry.slot().is_some() || !fits {
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
            if self.install_zeros(view, mapping, page, write, true, io).is_err() {
                return;
            }
        }
    }
}
