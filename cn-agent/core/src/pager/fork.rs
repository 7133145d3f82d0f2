//! A fork: the child's view begins as its parent's stands.
//!
//! The kernel has shared what is in memory, copy-on-write, protection included. What is in CMem only is shared here: both
//! views refer to the same slots, and whoever writes a page gives it a slot of its own when it leaves. What the parent
//! has in memory and not yet in CMem, the child has in memory too, and sends whole when its turn comes.

use super::*;

impl Pager {
    /// A process has forked. `table` is room for its child's view.
    ///
    /// # Errors
    /// [`Full`]: there are as many views as there may be.
    pub fn forked(&mut self, parent: ViewId, table: PageTable) -> Result<ViewId, Full> {
        let child = self.add_view(table, false)?;
        self.counters.forks += 1;
        let pages = self.view(parent).map_or(0, |view| view.table.len());
        let room = self.view(child).map_or(0, |view| view.table.len());
        for page in 0..pages.min(room) {
            let entry = self.entry(parent, page);
            let slot = entry.slot().filter(|slot| self.slots.share(*slot));
            let shared = slot.is_some() == entry.slot().is_some();
            let inherited = Entry::absent(slot.unwrap_or(NO_SLOT));
            // Discarded while it was on its way: what its slot holds is nobody's. Whether it is still in memory the first
            // access or the first attempt to send it shows.
            let zapped = entry.is(Flags::ZAPPED);
            let inherited = match entry.state() {
                State::Fetching | State::Dropping if zapped => {
                    slot.into_iter().for_each(|slot| self.slots.give(slot));
                    let none = Entry::absent(NO_SLOT);
                    if entry.state() == State::Dropping { none.to(State::Dirty) } else { none }
                }
                State::Zeroing => inherited,
                State::Absent | State::Fetching | State::Staged | State::Dropping if shared => inherited,
                State::Clean if shared => inherited.to(State::Clean),
                State::Lost => inherited.to(State::Lost),
                // More references than can be counted: nothing refers to it from here, and its loss shows.
                State::Absent | State::Fetching | State::Staged | State::Dropping => {
                    inherited.to(State::Lost)
                }
                State::Clean | State::Dirty | State::Cleaning | State::Installing => {
                    slot.into_iter().for_each(|slot| self.slots.give(slot));
                    Entry::absent(NO_SLOT).to(State::Dirty)
                }
            };
            self.set(child, page, inherited);
            if inherited.state().is_resident() {
                self.entered(child, page, Known::of(entry));
            }
        }
        Ok(child)
    }
}
