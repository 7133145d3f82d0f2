//! Withdrawal of a view: its pages are written back to memory nodes and removed, so that the region can move
//! to another compute node while processes still map it. What only this node has recorded of the pages moves
//! with the region: which pages are zeros, and which will be used soon.

use alloc::vec;
use alloc::vec::Vec;

use super::*;

impl Pager {
    /// Numbers of resident pages of a view, at most `most`, starting with those most likely to be used soon.
    pub fn hot_pages(&self, view: ViewId, most: usize) -> Vec<u32> {
        let Some(table) = self.view(view).map(|view| &view.table) else { return Vec::new() };
        let is_resident = |of: &PageRef| {
            of.view == view && of.page < table.len() && table.get(of.page).state().is_resident()
        };
        let mut hot = Vec::new();
        // A page may have more than one entry.
        let mut seen = vec![0_u64; (table.len() as usize).div_ceil(64)];
        for of in self.order.hottest_first().filter(is_resident) {
            let (word, bit) = (&mut seen[of.page as usize / 64], 1 << (of.page % 64));
            if hot.len() < most && *word & bit == 0 {
                *word |= bit;
                hot.push(of.page);
            }
        }
        hot
    }

    /// Runs of pages that are zeros, whatever CMem holds, in ascending order.
    pub fn zero_runs(&self, view: ViewId) -> Vec<Range<u32>> {
        let Some(table) = self.view(view).map(|view| &view.table) else { return Vec::new() };
        let mut runs: Vec<Range<u32>> = Vec::new();
        let is_zero = |page: &u32| {
            let entry = table.get(*page);
            entry.slot().is_none() && matches!(entry.state(), PageState::Absent | PageState::Clean)
        };
        for page in (0..table.len()).filter(is_zero) {
            match runs.last_mut() {
                Some(last) if last.end == page => last.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        runs
    }

    /// Marks absent pages as zeros, whatever CMem holds.
    pub fn set_zeros(&mut self, view: ViewId, pages: Range<u32>) {
        let Some(end) = self.view(view).map(|view| view.table.len()) else { return };
        for page in pages.start..pages.end.min(end) {
            let entry = self.entry(view, page);
            if entry.state() == PageState::Absent {
                self.release(view, page, entry);
            }
        }
    }

    /// Removes all resident pages of a view of shared memory at once, and returns `true`, provided that
    /// memory nodes have the content of each page that is not all zeros. Returns `false`, with all pages in
    /// place, if some are dirty or in flight: have them cleaned ([`clean_from`](Self::clean_from)), and call
    /// this again.
    pub fn withdraw(&mut self, view: ViewId, io: &mut Io<'_>) -> bool {
        let Some(pages) = self.view(view).map(|view| view.table.len()) else { return true };
        if self.is_walking() {
            return false;
        }
        let (mut recent, shows) = (RecentRecords::default(), io.memory.shows_protection());
        for page in 0..pages {
            let entry = self.entry(view, page);
            match entry.state() {
                PageState::Absent | PageState::Staged | PageState::Lost => {}
                PageState::Clean if !shows => {}
                PageState::Clean => match recent.of(view, page, io) {
                    (true, true) => {}
                    (true, false) => {
                        self.set(view, page, entry.to(PageState::Dirty));
                        return false;
                    }
                    (false, _) => self.discarded(view, page..page + 1),
                },
                _ => return false,
            }
        }
        if io.memory.drop_pages(view, core::slice::from_ref(&(0..pages))) != Ok(Drop::Done) {
            return false;
        }
        for page in 0..pages {
            let entry = self.entry(view, page);
            match (entry.state(), entry.buffer()) {
                (PageState::Clean, _) => {
                    self.record_evicted(view);
                    self.counters.evicted += 1;
                    self.set(view, page, entry.forgotten().to(PageState::Absent));
                }
                // Another compute node may write to the region from now on, so a copy made before the withdrawal is no
                // longer valid.
                (PageState::Staged, Some(buffer)) => {
                    self.buffers.give(buffer);
                    self.set(view, page, entry.with_buffer(None).forgotten().to(PageState::Absent));
                }
                _ => {}
            }
        }
        true
    }

    /// Adds pages that will be read soon, in the order in which they are to be fetched ahead, as far as there is room.
    pub fn will_read(&mut self, view: ViewId, pages: &[u32]) {
        let Some(end) = self.view(view).map(|view| view.table.len()) else { return };
        let room = (self.options.limit as usize).saturating_sub(self.wanted_soon.len());
        let known = pages.iter().filter(|page| **page < end).take(room);
        self.wanted_soon.extend(known.map(|page| PageRef { view, page: *page }));
    }
}
