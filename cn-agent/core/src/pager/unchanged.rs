//! Checks by the kernel's records that a page still equals CMem.
//!
//! [`PageState::Clean`] records that a page was equal to CMem and write-protected at one time. The kernel may
//! recreate the page table entry without write protection, as same-page merging does; then a write causes no
//! fault, and the record is wrong. So the pager reads the kernel's records where it matters: before a page is
//! removed, when its content is taken for that of its slot, and when all changes are written back. Only the
//! pager protects pages, so a page that is protected has kept its protection, and its content, since the
//! pager protected it.

use super::*;

/// Number of pages whose records are read at a time.
const GROUP: u32 = u64::BITS;

/// Records read last, with the view and the page of the first.
#[derive(Debug, Default)]
pub(super) struct RecentRecords(Option<(ViewId, u32, PageRecords)>);

impl RecentRecords {
    /// Whether a page is resident, and whether it is protected. The kernel's records of 64 neighbouring pages
    /// are read at once, and kept for the next call.
    pub(super) fn of(&mut self, view: ViewId, page: u32, io: &mut Io<'_>) -> (bool, bool) {
        let first = page / GROUP * GROUP;
        let records = match self.0 {
            Some((of, from, records)) if (of, from) == (view, first) => records,
            _ => io.memory.records(view, first),
        };
        self.0 = Some((view, first, records));
        let is_set = |mask: u64| mask >> (page - first) & 1 == 1;
        (is_set(records.present), is_set(records.protected))
    }
}

impl Pager {
    /// Whether a page that counts as clean still equals CMem. If so, a copy taken before this call equals
    /// CMem too, and so does the page until it is unprotected.
    pub(super) fn is_unchanged(&self, view: ViewId, page: u32, io: &mut Io<'_>) -> bool {
        io.memory.shows_protection() && RecentRecords::default().of(view, page, io) == (true, true)
    }

    /// Whether a page that counts as clean is resident and may have been written to.
    pub(super) fn may_have_changed(
        &self,
        view: ViewId,
        page: u32,
        recent: &mut RecentRecords,
        io: &mut Io<'_>,
    ) -> bool {
        !io.memory.shows_protection() || recent.of(view, page, io) == (true, false)
    }

    /// Whether a page that is about to be removed may still be removed. A page that has been written to
    /// stays, and counts as dirty. A page that is not resident was discarded by its program, and reads as
    /// zeros after the removal.
    pub(super) fn may_leave(
        &mut self,
        view: ViewId,
        page: u32,
        recent: &mut RecentRecords,
        io: &mut Io<'_>,
    ) -> bool {
        let entry = self.entry(view, page);
        // On a kernel that does not show protection, the page has just been sent whole (`evict`).
        if entry.is(Flags::ZAPPED) || !io.memory.shows_protection() {
            return true;
        }
        match recent.of(view, page, io) {
            (true, true) => true,
            (false, _) => {
                self.discarded(view, page..page + 1);
                true
            }
            (true, false) => {
                self.stays_changed(view, page, entry, io);
                false
            }
        }
    }

    /// Keeps a page that has been written to without a fault. Its former content is unknown here: it will be sent whole.
    #[cold]
    fn stays_changed(&mut self, view: ViewId, page: u32, entry: Entry, io: &mut Io<'_>) {
        self.leaving -= 1;
        entry.buffer().into_iter().for_each(|kept| self.buffers.give(kept));
        self.set(view, page, entry.to(PageState::Dirty).with_buffer(None));
        self.order.requeue_spared(PageRef { view, page }, Heat::default());
        self.wake(view, page, io);
    }
}
