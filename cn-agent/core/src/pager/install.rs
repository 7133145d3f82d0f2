//! How a page is put in place: copied, mapped, zero-filled, or made writable.

use super::fault::Wait;
use super::*;

impl Pager {
    /// A page that was fetched into its buffer is wanted.
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
            return Err(Wait::Turn);
        }
        let kept = matches!(self.buffers.purpose(buffer), Use::Kept { .. });
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

    /// Puts a fetched page in place; its buffer becomes the twin of a page that is written, or is free.
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
            Use::Fetch { page, .. } => (page, Known::of(entry)),
            Use::Kept { page, heat } => (page, Known::WantedAgain(heat)),
            _ => return Ok(()),
        };
        // Who reads what was written when it was here last most likely writes it next: that would be another fault.
        let write = write || self.will_be_written(view, entry);
        let place = entry.with_buffer(None).forgotten();
        io.memory.fill(view, page, self.buffers.page(buffer));
        self.set(view, page, if write { place.to(State::Installing) } else { entry });
        match io.memory.install(mapping, page, self.buffers.page(buffer), !write) {
            Ok(()) if write && !self.is_droppable(view) => {
                self.set(view, page, place.to(State::Dirty));
                self.buffers.give(buffer);
            }
            Ok(()) if write => {
                self.buffers.set_purpose(buffer, Use::Twin);
                self.set(view, page, place.to(State::Dirty).with_buffer(Some(buffer)));
            }
            Ok(()) => {
                self.set(view, page, place.to(State::Clean));
                self.buffers.give(buffer);
            }
            Err(MemoryError::Exists) => {
                // Whoever put it there knows better; see `install_zeros`.
                self.set(view, page, place.to(State::Absent));
                self.buffers.give(buffer);
                io.memory.wake(mapping, page);
                return Ok(());
            }
            Err(error) => {
                self.set(view, page, entry.to(State::Staged).with_buffer(Some(buffer)));
                return self.refused(error, mapping);
            }
        }
        self.entered(view, page, known);
        Ok(())
    }

    /// Puts zeros in place of a page never written.
    pub(super) fn install_zeros(
        &mut self,
        view: ViewId,
        mapping: MappingId,
        page: u32,
        write: bool,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        const ZEROS: Page = [0; PAGE_BYTES];
        let entry = self.entry(view, page);
        let known = Known::of(entry);
        let place = entry.forgotten();
        if write {
            self.set(view, page, place.to(State::Installing));
        }
        let installed = io.memory.install(mapping, page, &ZEROS, !write);
        match installed {
            Ok(()) => self.set(view, page, place.to(if write { State::Dirty } else { State::Clean })),
            Err(MemoryError::Exists) => {
                // It is about to be discarded, and we have been told so; or the fault is an old one. To take it for the
                // page's content would bring back what is being discarded.
                self.set(view, page, entry);
                io.memory.wake(mapping, page);
                return Ok(());
            }
            Err(error) => {
                self.set(view, page, entry);
                return self.refused(error, mapping);
            }
        }
        self.entered(view, page, known);
        Ok(())
    }

    /// Why the kernel did not do it decides how it goes on.
    #[cold]
    pub(super) fn refused(&mut self, error: MemoryError, mapping: MappingId) -> Result<(), Wait> {
        match error {
            MemoryError::Gone => {
                self.gone(mapping);
                Ok(())
            }
            _ => Err(Wait::Turn),
        }
    }

    /// The first write to a page in memory.
    pub(super) fn first_write(
        &mut self,
        view: ViewId,
        entry: Entry,
        fault: Fault,
        io: &mut Io<'_>,
    ) -> Result<(), Wait> {
        let page = fault.page;
        // A page with no slot of its own is sent whole anyway; one that cannot leave at present may be.
        let worth = self.is_droppable(view) && entry.slot().is_some_and(|slot| !self.slots.is_shared(slot));
        let twin = if worth { self.buffers.take(Use::Twin) } else { None };
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
        self.counters.write_faults += 1;
        self.set(view, page, entry.to(State::Dirty).with_buffer(twin));
        self.grant_write(fault, io)
    }

    /// The page is dirty, so who writes to it may.
    pub(super) fn grant_write(&mut self, fault: Fault, io: &mut Io<'_>) -> Result<(), Wait> {
        let Fault { mapping, page, access, .. } = fault;
        let install = match access {
            Access::Unmapped => io.memory.map(mapping, page, false),
            _ => io.memory.unprotect(mapping, page),
        };
        self.install(install, fault, io)
    }

    /// The page is there, and this mapping is to have it too.
    pub(super) fn map_read_only(&mut self, fault: Fault, protect: bool, io: &mut Io<'_>) -> Result<(), Wait> {
        let mapped = match fault.access {
            Access::Unmapped => io.memory.map(fault.mapping, fault.page, protect),
            // A read of a page that is there: it has been served since.
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

    /// The page's data is lost: whoever touches it is to know.
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
