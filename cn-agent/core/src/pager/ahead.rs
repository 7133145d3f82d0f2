//! Pages that are brought before anybody touches them: read ahead of steps that a prefetcher sees, and zeros beside zeros.

use super::*;

/// Transfers kept free for faults while pages are read ahead.
const ROOM_FOR_DEMAND: usize = 16;
/// The part of the reserve that faults have to themselves while pages are read ahead: one in this many.
const RESERVE_FOR_DEMAND: u32 = 4;

impl Pager {
    /// Whether one more page may be resident that nobody waits for.
    pub(super) fn has_room_ahead(&self) -> bool {
        let spared = self.reserve_pages() / RESERVE_FOR_DEMAND;
        !self.options.evict || self.bounded() + self.coming + spared < self.options.limit
    }

    pub(super) fn look_ahead_proved(&mut self, view: ViewId, page: u32) -> Option<prefetch::Window> {
        if !self.options.prefetch {
            return None;
        }
        let (window, proved) = self.view_mut(view)?.prefetch.wanted(page);
        self.proved(proved);
        window
    }

    /// Fetches what the reader of `page` will want next, as far as that delays nobody.
    pub(super) fn read_ahead(&mut self, view: ViewId, page: u32, io: &mut Io<'_>) {
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
