//! Whether a page still equals CMem, as the kernel shows it.
//!
//! [`PageState::Clean`] records that a page was equal to CMem and write-protected at one time. The kernel may make the
//! page's entry anew without the protection, as same-page merging does; then a write is no fault, and the record is
//! wrong. So the pager asks when the answer matters: before a page leaves, when its content is taken for that of its slot,
//! and when all changes are written back. Only the pager protects pages, so a page that is protected has kept its
//! protection, and its content, since the pager protected it.

use super::*;

/// Number of pages whose records are read at a time.
const GROUP: u32 = u64::BITS;

/// Records read last, with the view and the page of the first.
#[derive(Debug, Default)]
pub(super) struct RecentRecords(Option<(ViewId, u32, PageRecords)>);

impl RecentRecords {
    /// Whether a page is resident, and whether it is protected. Reads the records of the page's group only if the last
    /// question was about another group.
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
    /// Whether a page that counts as clean equals CMem: its content as copied before this call, and until it is
    /// unprotected.
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

    /// Whether a page that is about to be removed may be. One that has been written to stays, and is dirty; one that is
    /// not there was discarded by its program, and is zeros once its removal is done.
    pub(super) fn may_leave(
        &mut self,
        view: ViewId,
        page: u32,
        recent: &mut RecentRecords,
        io: &mut Io<'_>,
    ) -> bool {
        let entry = self.entry(view, page);
        // Where the kernel shows nothing, the page was sent just now (`evict`).
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
