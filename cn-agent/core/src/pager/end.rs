//! The end of mappings and views.
//!
//! A view ends in a walk ([`walk`]), and its number is free only after it. Transfers of the view continue
//! to their ends, which are ignored.

use super::page_buffers::BufferUse;
use super::*;

impl Pager {
    /// Removes a mapping; its view stays.
    pub fn end_mapping(&mut self, mapping: MappingId) {
        self.remove_mapping(mapping);
        let chunks = self.buffers.chunks();
        for purpose in self.buffers.uses_mut(0..chunks) {
            match purpose {
                BufferUse::Fetch { mapping: of, .. } if *of == Some(mapping) => *of = None,
                _ => {}
            }
        }
    }

    /// Removes a mapping, to which pages in flight may still refer.
    fn remove_mapping(&mut self, mapping: MappingId) {
        let Some(view) = self.mappings.get_mut(usize::from(mapping.0)).and_then(Option::take) else { return };
        if let Some(view) = self.view_mut(view) {
            view.mappings.retain(|other| *other != mapping);
        }
        self.waiting.retain(|fault| fault.mapping != mapping);
        self.starved.retain(|fault| fault.mapping != mapping);
        // Removed from the list, because the number of the mapping may be reused soon.
        self.ended.retain(|other| *other != mapping);
    }

    /// Removes a view and its mappings. Its pages are dropped, and the slots that only they referred to are freed, over
    /// the next turns if they are many; the view has its number until then.
    /// Pages of shared memory must have been written back before ([`clean_all`](Self::clean_all)).
    pub fn end_view(&mut self, id: ViewId) {
        while let Some(mapping) = self.view(id).and_then(|view| view.mappings.last().copied()) {
            self.remove_mapping(mapping);
        }
        let Some(pages) = self.view(id).map(|view| view.table.len()) else { return };
        if self.walks.is_ending(id) {
            return;
        }
        let end = self.walks.give_up_copy(id).unwrap_or(pages);
        // Without a buffer in use, no transfer has to be parted from the view.
        let chunk = if self.buffers.used() == 0 { self.buffers.chunks() } else { 0 };
        self.begin_walk(Walk::End { view: id, chunk, next: 0, end });
    }

    /// Parts transfers from an ending view: those whose buffers are in `chunks`.
    pub(super) fn part_transfers(&mut self, id: ViewId, chunks: Range<usize>) {
        for purpose in self.buffers.uses_mut(chunks) {
            match purpose {
                BufferUse::Fetch { view: of, .. } | BufferUse::Write { view: of, .. } if *of == Some(id) => {
                    *of = None
                }
                _ => {}
            }
        }
    }

    /// Releases some pages of an ending view, from page `next` on; only entries before page `end` are valid. Returns
    /// the page at which to continue; `None` once the view is removed.
    pub(super) fn release_some(&mut self, id: ViewId, next: u32, end: u32) -> Option<u32> {
        let Pager { views, buffers, slots, walks, coming, leaving, .. } = self;
        let of = views.get(usize::from(id.0)).and_then(Option::as_ref)?;
        let until = end.min(next.saturating_add(walks.step));
        let nowhere = Entry::absent(NO_SLOT);
        for word in of.table.words(next..until) {
            let entry = word.get();
            if entry == nowhere {
                continue;
            }
            let state = entry.state();
            match (state, entry.buffer()) {
                // The end of the transfer will be ignored.
                (PageState::Fetching, Some(_)) => *coming -= 1,
                (
                    PageState::Staged | PageState::Dirty | PageState::Cleaning | PageState::Dropping,
                    Some(buffer),
                ) => {
                    buffers.give(buffer);
                }
                _ => {}
            }
            *leaving -= u32::from(
                state == PageState::Dropping || (state == PageState::Cleaning && entry.is(Flags::LEAVING)),
            );
            // A transfer to a slot continues to its end even if its view ends; until then its buffer refers to the
            // slot.
            match entry.slot() {
                Some(slot) if state != PageState::Cleaning => slots.give(slot),
                _ => {}
            }
            word.set(nowhere);
        }
        if until < end {
            return Some(until);
        }
        self.remove_view(id);
        None
    }

    /// Removes a view all of whose pages are released.
    fn remove_view(&mut self, id: ViewId) {
        let Some(view) = self.views.get_mut(usize::from(id.0)).and_then(Option::take) else { return };
        self.resident -= view.resident;
        self.fixed -= if view.droppable { 0 } else { view.resident };
        let wasted = { view }.prefetch.clear();
        self.counters.prefetch_wasted += u64::from(wasted);
        self.order.end_view(id);
        self.to_drop.retain(|page| page.view != id);
        self.staged.retain(|page| page.view != id);
        self.awaited.retain(|page| page.view != id);
        self.arrived.retain(|page| page.view != id);
        // The entries of `kept` stay, because they may be many. If another view gets the number, they have pages of it
        // given up a little earlier than others.
        self.hints.retain(|hinted| hinted.view != id);
        self.wanted_soon.retain(|page| page.view != id);
        let is_of_view = |held: &HeldInput| matches!(held, HeldInput::Dropped(view, _) if *view == id);
        self.walks.held.retain(|held| !is_of_view(held));
    }
}
