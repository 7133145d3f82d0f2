//! Going on from where a predecessor was killed.
//!
//! Its tables say what it knew, and were written before it acted on them; what it was in the middle of is settled by
//! looking at the pages. Twins are lost with it, so that dirty pages are sent whole. Who waited for it has to be woken
//! by the caller, to fault again.

use super::*;

impl Pager {
    /// A predecessor's views come one after the other, and slots are given out only when all are there.
    pub fn expect_more(&mut self) {
        self.complete = false;
    }

    /// All views of the predecessor are there.
    pub fn complete(&mut self) {
        if !core::mem::replace(&mut self.complete, true) {
            self.slots.adopted();
        }
    }

    /// Makes a view that was added with its predecessor's table fit to go on.
    pub fn take_over(&mut self, view: ViewId, memory: &mut dyn Memory) {
        let Some(pages) = self.view(view).map(|view| view.table.len()) else { return };
        for page in 0..pages {
            let entry = self.entry(view, page);
            let known = entry.slot().filter(|slot| self.slots.adopt(page, *slot));
            let nowhere = known.is_none() && entry.slot().is_some();
            let settled = entry.with_slot(known).with_buffer(None);
            // Where pages are made ready, what is there of one on its way may be half of it. It was protected if it was installed,
            // so that CMem has all of it.
            let half = memory.makes_ready()
                && matches!(entry.state(), State::Fetching | State::Staged)
                && memory.is_present(view, page);
            let stays =
                half && memory.drop_pages(view, core::slice::from_ref(&(page..page + 1))) != Ok(Drop::Done);
            let settled = match entry.state() {
                _ if stays => settled.to(State::Lost),
                // A slot that the page cannot have: its content is not known.
                _ if nowhere => settled.to(State::Lost),
                State::Absent => settled.to(State::Absent),
                State::Fetching | State::Staged | State::Dropping | State::Cleaning
                    if entry.is(Flags::ZAPPED) =>
                {
                    known.into_iter().for_each(|slot| self.slots.give(slot));
                    Entry::absent(NO_SLOT)
                }
                // As in CMem, if it was installed in the last moment, or not taken away.
                State::Fetching | State::Staged | State::Dropping if memory.is_present(view, page) => {
                    settled.to(State::Clean)
                }
                State::Fetching | State::Staged | State::Dropping => settled.to(State::Absent),
                // Without a slot: whether they have arrived is not known.
                State::Zeroing => settled.with_slot(None).to(State::Absent),
                State::Lost => settled.to(State::Lost),
                State::Installing if !memory.is_present(view, page) => settled.to(State::Absent),
                State::Clean => settled.to(State::Clean),
                State::Installing | State::Dirty | State::Cleaning => settled.to(State::Dirty),
            };
            self.set(view, page, settled);
            if settled.state().is_resident() {
                self.entered(view, page, Known::New);
            }
        }
    }
}
