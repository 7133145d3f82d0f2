//! Kernel events of a mapping: faults, forks, discarded memory.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use cxloe_cn_core::mapped::MappingKind;
use cxloe_cn_core::pager::{Fault, MappingId, PAGE_BYTES, Page, PageTable, PagerFull, VIEWS_MAX, ViewId};
use cxloe_cn_core::transfers::Transfers;
use cxloe_member::socket::send_some;
use cxloe_member::wire::{PROBE_BYTES, ProbePage};
use nix::errno::Errno;

use super::children::PendingChild;
use super::{ONLY, Space};
use crate::member::ForkedChild;
use crate::memory::{KernelMemory, Mapped, access};
use crate::spare_files::{NO_FILE_LEFT, ReservedFile, is_spare};
use crate::uffd::{Access, EVENTS_MAX, EventBuffer, Uffd, UffdError, UffdEvent};
use cxloe_closer::{ClosedElsewhere, dispose};

/// Maximum number of reads of one userfaultfd in one round.
const READS_MAX: usize = 8;

/// Resources for reading events, common to all spaces.
#[derive(Debug)]
pub(crate) struct EventReader {
    buffer: EventBuffer,
    /// Gives way to the descriptor in the event of a fork.
    pub(crate) reserve: ReservedFile,
}

impl EventReader {
    pub(crate) fn new() -> EventReader {
        EventReader { buffer: EventBuffer::new(), reserve: ReservedFile::open() }
    }
}

/// A forked child that cannot be served. When this is dropped, the child's absent memory is poisoned, except for the
/// probe page, and its userfaultfd is closed: the child gets SIGBUS where it would otherwise read zeros, and detects by
/// the zeros of the probe page that it is not served. Until then its faults wait.
///
/// Poisoning takes as long as the memory is large, so that a thread that serves nobody has to drop this.
#[derive(Debug)]
struct DeniedChild {
    uffd: Uffd,
    memory: Range<u64>,
}

impl Drop for DeniedChild {
    fn drop(&mut self) {
        let DeniedChild { uffd, memory } = self;
        let mut at = memory.start + PAGE_BYTES as u64;
        while at < memory.end {
            match uffd.poison(at..memory.end) {
                Ok(bytes) => at += bytes as u64,
                Err(UffdError::Exists) => at += PAGE_BYTES as u64,
                // The child has ended.
                Err(UffdError::Gone) => return,
                Err(error) => {
                    tracing::error!(%error, "a process that is not followed may read zeros where it had data");
                    return;
                }
            }
        }
    }
}

impl Space {
    /// Reads the events of a mapping; returns their number.
    #[inline]
    pub(crate) fn read_events(
        &mut self,
        id: MappingId,
        reader: &mut EventReader,
        transfers: &mut Transfers,
    ) -> usize {
        let mut count = 0;
        if self.suspension.is_some() || self.is_walking {
            return count;
        }
        for _ in 0..READS_MAX {
            let Some(mapped) = self.memory.mappings().get(id) else { return count };
            let before = count;
            let error = match mapped.uffd.events(&mut reader.buffer) {
                Ok(events) => {
                    events.for_each(|event| {
                        count += 1;
                        self.handle_event(id, event, transfers);
                    });
                    None
                }
                Err(error) => Some(error),
            };
            match error {
                None => {}
                // The event of a fork stays unread, and with it the thread that forks waits, and no page can be
                // installed.
                Some(UffdError::Os {
                    errno: errno @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM),
                    ..
                }) => {
                    return count + self.refuse_children(id, errno, reader, transfers);
                }
                Some(error) => {
                    tracing::error!(%error, region = self.options.region, "a process's faults cannot be read");
                    self.end(id);
                    return count;
                }
            }
            // A read that did not fill the buffer has emptied the queue. Another read would only delay the handling of
            // these faults.
            if count - before < EVENTS_MAX {
                return count;
            }
        }
        count
    }

    /// Reads events although no descriptor is left for those of forked children: one gives way, and the child that gets
    /// it is refused. The parent goes on. Returns the number of events.
    #[cold]
    fn refuse_children(
        &mut self,
        id: MappingId,
        errno: Errno,
        reader: &mut EventReader,
        transfers: &mut Transfers,
    ) -> usize {
        let mut count = 0;
        let freed = reader.reserve.give_way();
        if let Some(mapped) = self.memory.mappings().get(id)
            && let Ok(events) = mapped.uffd.events(&mut reader.buffer)
        {
            events.for_each(|event| {
                count += 1;
                match event {
                    UffdEvent::Fork(child) => self.forked(id, child, freed),
                    other => self.handle_event(id, other, transfers),
                }
            });
        }
        reader.reserve.reopen();
        // Logged once, because the event is reported in every round while it cannot be read.
        let waits = count == 0;
        if waits && !self.fork_waits {
            tracing::error!(%errno, region = self.options.region, "a fork waits, and with it its process");
        }
        self.fork_waits = waits;
        count
    }

    /// Makes a userfaultfd non-blocking again if its process has changed that: poll reports a blocking
    /// userfaultfd as an error, and never as ready.
    #[cold]
    pub(crate) fn unblock(&self, id: MappingId) {
        let Some(mapped) = self.memory.mappings().get(id) else { return };
        if let Ok(true) = mapped.uffd.set_nonblocking() {
            tracing::warn!(
                region = self.options.region,
                pid = mapped.pid,
                "a process has set its userfaultfd to block"
            );
        }
    }

    #[inline]
    fn handle_event(&mut self, id: MappingId, event: UffdEvent, transfers: &mut Transfers) {
        match event {
            UffdEvent::Fault { address, write, wp, minor, thread } => {
                let found = match &self.memory {
                    KernelMemory::Foreign(memory) => memory.find(address),
                    memory => memory.mappings().get(id).and_then(|m| Some((id, m.page_at(address)?))),
                };
                let Some((mapping, page)) = found else { return };
                // The first page of private memory is the probe page, which holds no data of the program.
                if page == 0 && self.options.kind == MappingKind::Private {
                    self.answer_probe(mapping);
                    return;
                }
                self.faulting = Some((mapping, thread));
                let write = write || self.options.kind == MappingKind::Foreign;
                let fault = Fault { mapping, page, access: access(wp, minor), write };
                let (since, before) = (self.clock.now(), self.pager.counters());
                self.with_io(transfers, |pager, io| pager.fault(fault, io));
                let after = self.pager.counters();
                if after.local_faults() > before.local_faults() {
                    transfers.watch.served(since, self.clock.now());
                } else if after.waits_for_room > before.waits_for_room {
                    transfers.watch.stalled(self.place, mapping, page, since);
                }
            }
            UffdEvent::Fork(child) => self.forked(id, child, false),
            UffdEvent::Remove { start, end } => {
                let KernelMemory::Foreign(memory) = &self.memory else { return };
                // The process may have registered more memory than the pages of this region.
                let ours: Vec<Range<u32>> = memory.pages_in(start..end).collect();
                ours.into_iter().for_each(|pages| self.pager.discarded(ONLY, pages));
            }
            UffdEvent::Unmap { .. } | UffdEvent::Remap { .. } => {}
        }
    }

    /// Answers a process that touches the probe page to learn the number of its view.
    #[cold]
    fn answer_probe(&self, id: MappingId) {
        let (Some(mapped), Some(view)) = (self.memory.mappings().get(id), self.pager.view_of(id)) else {
            return;
        };
        let mut page: Page = [0; PAGE_BYTES];
        page[..PROBE_BYTES].copy_from_slice(&ProbePage { view: view.0, proof: mapped.proof }.encode());
        if mapped.uffd.copy(mapped.address, &page, Access::Writable).is_err() {
            mapped.wake(0);
        }
    }

    /// Adds a view (a table of pages) for a forked child, which is served once the table is complete. The child's
    /// process id is unknown until the child joins the space. Refuses the child if its descriptor is one of the last
    /// (`is_last`).
    #[cold]
    fn forked(&mut self, parent: MappingId, child: OwnedFd, is_last: bool) {
        let Some(view) = self.pager.view_of(parent) else { return dispose(child) };
        let Some((address, pages)) = self.memory.mappings().get(parent).map(|m| (m.address, m.pages)) else {
            return dispose(child);
        };
        let uffd = match Uffd::from_fd(child) {
            Ok(uffd) => uffd,
            Err(error) => {
                tracing::error!(%error, region = self.options.region, "a forked process is not followed");
                self.denied = Some(error.to_string());
                return;
            }
        };
        let (expected, memory) = (self.free_view(), address..address + u64::from(pages) * PAGE_BYTES as u64);
        let table = match self.table_of_child(expected, &uffd, is_last) {
            Ok(table) => table,
            Err(error) => return self.deny(uffd, memory, error),
        };
        // The child's userfaultfd goes to the keeper (a process that outlives agents) before the table is copied: that
        // takes a while for a large table, and this agent may be killed meanwhile. The keeper would keep the faults of a
        // refused child waiting.
        self.keep(expected, &uffd, memory.clone());
        let follow = || {
            let view = self.pager.forked(view, table)?;
            debug_assert_eq!(view, expected, "views are numbered alike here and there");
            let mapping = self.pager.add_mapping(view);
            if mapping.is_err() {
                self.pager.end_view(view);
            }
            Ok::<_, PagerFull>((view, mapping?))
        };
        match follow() {
            Ok((view, mapping)) => {
                tracing::debug!(region = self.options.region, view = view.0, "a process has forked");
                let mapped = Mapped::new(uffd, address, 0, pages, 0, None).of_child(rand::random());
                self.children.push_back(PendingChild::new(view, mapping, mapped));
                self.admit_children();
            }
            Err(error) => self.deny(uffd, memory, error.to_string()),
        }
    }

    /// Table of pages for a forked child that would have the view `expected`.
    ///
    /// # Errors
    /// The reason why the child cannot be served.
    fn table_of_child(&self, expected: ViewId, uffd: &Uffd, is_last: bool) -> Result<PageTable, String> {
        if is_last || is_spare(uffd) {
            return Err(NO_FILE_LEFT.to_owned());
        }
        if usize::from(expected.0) >= VIEWS_MAX {
            return Err(PagerFull { limit: VIEWS_MAX }.to_string());
        }
        self.shared_state.table(expected.0).map_err(|error| error.to_string())
    }

    #[cold]
    fn deny(&mut self, uffd: Uffd, memory: Range<u64>, error: String) {
        tracing::error!(%error, region = self.options.region, "a forked process is not followed");
        self.denied = Some(error);
        dispose(DeniedChild { uffd, memory });
    }

    /// Sets the socket to the keeper process, which gets the userfaultfds of forked children.
    pub fn keep_with(&mut self, keeper: ClosedElsewhere<OwnedFd>) {
        self.keeper = Some(keeper);
    }

    /// Sends a child's userfaultfd to the keeper, which outlives this agent and holds it until the child has
    /// joined.
    #[cold]
    fn keep(&self, view: ViewId, uffd: &Uffd, memory: Range<u64>) {
        let Some(keeper) = &self.keeper else { return };
        let child = ForkedChild { view: view.0, memory };
        if let Err(error) = send_some(keeper.as_fd(), &child.encode(), &[uffd.as_fd()], libc::MSG_DONTWAIT) {
            tracing::warn!(%error, region = self.options.region, "a forked process loses its memory if this agent dies now");
        }
    }

    /// Number of the view that the pager will assign next.
    pub(crate) fn free_view(&self) -> ViewId {
        // The first number beyond all views has no table, so that nothing is done for it.
        self.pager.next_view().unwrap_or(ViewId(VIEWS_MAX as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::testing::options;

    /// A process that rejoins passes its userfaultfd, and may pass another one that was never set up.
    #[test]
    fn a_process_whose_faults_cannot_be_read_leaves_no_view() {
        let mut space = Space::create(options(MappingKind::Private)).unwrap();
        let uffd = Uffd::create_user_only().or_else(|_| Uffd::create()).unwrap();
        let view = space.pager.add_view(PageTable::local(64), true).unwrap();
        let mapping = space.pager.add_mapping(view).unwrap();
        let KernelMemory::Private(memory) = &mut space.memory else { unreachable!("it is private") };
        memory.add(view, mapping, Mapped::new(uffd, 0, 0, 64, 0, None));
        space.read_events(mapping, &mut EventReader::new(), &mut Transfers::new(0));
        assert_eq!((space.memory.mappings().iter().count(), space.parted.len()), (0, 1));
        assert_eq!((space.pager.view_of(mapping), space.pager.entry_of(view, 0)), (None, None));
    }
}
