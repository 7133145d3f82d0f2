//! Installation of a page: its content is copied in, mapped or filled with zeros, or the page is made writable.

use super::fault::Wait;
use super::*;

impl Pager {
    /// Installs a page whose content is in its buffer already, for a thread that has touched it.
    pub(super) fn install_staged(
        &mut self,
        view: ViewId,
        entry: Entry,
        fault: Fault,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        let Fault { mapping, page, write, .. } = fault;
        let Some(buffer) = entry.buffer() else { return Ok(()) };
        if !self.has_room(view) {
            self.counters.waits_for_room += 1;
            self.give_up_passed(view, page);
            return Err(Wait::Room);
        }
        let kept = matches!(self.buffers.purpose(buffer), BufferUse::Kept { .. });
        self.install_buffer(view, entry, mapping, buffer, write, io)?;
        self.counters.faults += 1;
        if kept {
            self.counters.second_chances += 1;
        } else {
            self.counters.held_hits += 1;
        }
        self.read_ahead(view, page, false, io);
        Ok(())
    }

    /// Installs a fetched page. Its buffer becomes the twin if the page is writable; otherwise the buffer is freed.
    pub(super) fn install_buffer(
        &mut self,
        view: ViewId,
        entry: Entry,
        mapping: MappingId,
        buffer: BufferId,
        write: bool,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        let (page, known) = match self.buffers.purpose(buffer) {
            BufferUse::Fetch { page, .. } => (page, PageHistory::of(entry)),
            BufferUse::Kept { page, heat } => (page, PageHistory::WantedAgain(heat)),
            _ => return Ok(()),
        };
        // A page that was written when last resident will most likely be written after this read too; installing it
        // writable saves that fault.
        let write = write || self.will_be_written(view, entry);
        let place = entry.with_buffer(None).forgotten();
        // The prepared memory is filled while the page still counts as being fetched, so that the agent's successor
        // removes a page that is only partly filled.
        io.memory.fill(view, page, self.buffers.page(buffer));
        self.set(view, page, if write { place.to(PageState::Installing) } else { entry });
        match io.memory.install(mapping, page, self.buffers.page(buffer), !write) {
            Ok(()) if write && !self.is_droppable(view) => {
                self.set(view, page, place.to(PageState::Dirty));
                self.buffers.give(buffer);
            }
            Ok(()) if write => {
                self.buffers.set_purpose(buffer, BufferUse::Twin { view, page });
                self.set(view, page, place.to(PageState::Dirty).with_buffer(Some(buffer)));
            }
            Ok(()) => {
                self.set(view, page, place.to(PageState::Clean));
                self.buffers.give(buffer);
            }
            Err(MemoryError::Exists) => {
                // Another page is in place already, whose content does not count (see `install_zeros`): this page is
                // absent again.
                self.set(view, page, place.to(PageState::Absent));
                self.buffers.give(buffer);
                io.memory.wake(mapping, page);
                return Ok(());
            }
            Err(error) => {
                self.set(view, page, entry.to(PageState::Staged).with_buffer(Some(buffer)));
                return self.refused(error, mapping);
            }
        }
        self.record_resident(view, page, known);
        Ok(())
    }

    /// Installs zeros for a page never written; with `unasked`, before a thread has touched it.
    pub(super) fn install_zeros(
        &mut self,
        view: ViewId,
        mapping: MappingId,
        page: u32,
        write: bool,
        unasked: bool,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        const ZEROS: Page = [0; PAGE_BYTES];
        let entry = self.entry(view, page);
        let known = PageHistory::of(entry);
        let place = entry.forgotten();
        if write {
            self.set(view, page, place.to(PageState::Installing));
        }
        io.memory.fill(view, page, &ZEROS);
        let installed = io.memory.install(mapping, page, &ZEROS, !write);
        match installed {
            Ok(()) => self.set(view, page, place.to(if write { PageState::Dirty } else { PageState::Clean })),
            Err(MemoryError::Exists) => {
                // The page in place is about to be discarded, as its process has announced, or the fault is stale. If
                // its bytes became the page's content, discarded data would be restored.
                self.set(view, page, entry);
                io.memory.wake(mapping, page);
                return Ok(());
            }
            Err(error) => {
                self.set(view, page, entry);
                return self.refused(error, mapping);
            }
        }
        // Zeros that were installed read-only before the first touch may never be written: they are evicted as early as
        // pages read ahead.
        self.add_resident(view, page, if unasked && !write { known.ahead() } else { known }, unasked);
        Ok(())
    }

    /// Handles the kernel's error: returns whether and when the fault is retried.
    #[cold]
    pub(super) fn refused(&mut self, error: MemoryError, mapping: MappingId) -> Result<(), Wait> {
        match error {
            MemoryError::Gone => {
                self.mapping_ended(mapping);
                Ok(())
            }
            _ => Err(Wait::Turn),
        }
    }

    /// Handles the first write to a resident page.
    pub(super) fn first_write(
        &mut self,
        view: ViewId,
        entry: Entry,
        fault: Fault,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        let page = fault.page;
        // A page without a slot of its own is sent whole anyway, so it needs no twin; nor does a page that cannot be
        // evicted now.
        let worth = self.is_droppable(view) && entry.slot().is_some_and(|slot| !self.slots.is_shared(slot));
        let twin = worth.then(|| self.buffers.take(BufferUse::Twin { view, page })).flatten();
        if let Some(twin) = twin
            && let Err(error) = io.memory.snapshot(view, page, self.buffers.page_mut(twin))
        {
            self.buffers.give(twin);
            if error == MemoryError::Absent {
                self.discarded(view, page..page + 1);
                io.memory.wake(fault.mapping, page);
                return Ok(());
            }
            return self.refused(error, fault.mapping);
        }
        // If the page was written to before it was copied, the copy differs from the content of CMem and cannot serve
        // as the twin.
        let twin = twin.filter(|twin| {
            let is_twin = self.is_unchanged(view, page, io);
            if !is_twin {
                self.buffers.give(*twin);
            }
            is_twin
        });
        self.counters.write_faults += 1;
        self.set(view, page, entry.to(PageState::Dirty).with_buffer(twin));
        self.grant_write(fault, io)
    }

    /// Unprotects a page for the thread that writes to it; the page is marked dirty.
    pub(super) fn grant_write(&mut self, fault: Fault, io: &mut Io<'_>) -> Result<(), Wait> {
        let Fault { mapping, page, access, .. } = fault;
        let install = match access {
            Access::Unmapped => io.memory.map(mapping, page, false),
            _ => io.memory.unprotect(mapping, page),
        };
        self.install(install, fault, io)
    }

    /// Maps a page that is already in the shared memory in another mapping of it.
    pub(super) fn map_read_only(&mut self, fault: Fault, protect: bool, io: &mut Io<'_>) -> Result<(), Wait> {
        let mapped = match fault.access {
            Access::Unmapped => io.memory.map(fault.mapping, fault.page, protect),
            // The fault was a read of a resident page, which has been served in the meantime.
            _ => Err(MemoryError::Exists),
        };
        self.install(mapped, fault, io)
    }

    pub(super) fn install(
        &mut self,
        done: Result<(), MemoryError>,
        fault: Fault,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        match done {
            Ok(()) => Ok(()),
            Err(MemoryError::Exists | MemoryError::Absent) => {
                io.memory.wake(fault.mapping, fault.page);
                Ok(())
            }
            Err(error) => self.refused(error, fault.mapping),
        }
    }

    /// Poisons a page whose data is lost: an access to it raises SIGBUS.
    #[cold]
    pub(super) fn poison(&mut self, fault: Fault, io: &mut Io<'_>) -> Result<(), Wait> {
        match io.memory.poison(fault.mapping, fault.page) {
            Ok(()) => Ok(()),
            Err(MemoryError::Exists) => {
                io.memory.wake(fault.mapping, fault.page);
                Ok(())
            }
            Err(error) => self.refused(error, fault.mapping),
        }
    }
}
