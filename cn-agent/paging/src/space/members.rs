//! Messages of members, notifications to them, and their departure.

use cxloe_cn_core::engine::EngineError;
use cxloe_cn_core::mapped::{MappingKind, TEMPORARY};
use cxloe_cn_core::pager::MappingId;
use cxloe_cn_core::transfers::{Transfers, is_final};

use super::Space;
use crate::member::{MemberMessage, ranges};
use crate::memory::{KernelMemory, Mapped};
use crate::shared_state;

/// Message for members about lost pages of a region, with the reason and the remedy.
fn loss(region: &str, error: EngineError) -> String {
    let remedy = if region.starts_with(TEMPORARY) {
        "start the program again when `gmm list -M` shows its memory nodes reachable".into()
    } else if is_final(error) {
        format!("`gmm reset-region {region}` gives the region back, all zeros; then start the program again")
    } else {
        "check the memory node (`gmm list -M`, its log), then start the program again".into()
    };
    format!("a page of region {region} is lost: {error}; {remedy}")
}

impl Space {
    /// Handles a member's messages; returns their number.
    #[inline]
    pub(crate) fn receive_messages(&mut self, id: MappingId, transfers: &mut Transfers) -> usize {
        let mut count = 0;
        while let Some(link) = self.memory.mappings_mut().get_mut(id).and_then(|mapped| mapped.link.as_mut())
        {
            let said = link.receive_message();
            let Some(view) = self.pager.view_of(id) else { return count };
            count += 1;
            match said {
                MemberMessage::Nothing => return count - 1,
                MemberMessage::Dropped(order) => {
                    let options = *self.pager.options();
                    self.with_io(transfers, |pager, io| {
                        ranges(&order, &options).for_each(|pages| pager.dropped(view, pages, io));
                    });
                }
                MemberMessage::Discard(message) => {
                    let options = *self.pager.options();
                    // Page 0 of private memory is the probe page, which is never discarded.
                    let first = u32::from(self.options.kind == MappingKind::Private);
                    for pages in ranges(&message, &options) {
                        self.pager.discarded(view, pages.start.max(first)..pages.end.max(first));
                    }
                    if let Some(link) =
                        self.memory.mappings_mut().get_mut(id).and_then(|mapped| mapped.link.as_mut())
                    {
                        link.discarded();
                    }
                }
                MemberMessage::Hint(hint, message) => {
                    let options = *self.pager.options();
                    let first = u32::from(self.options.kind == MappingKind::Private);
                    for pages in ranges(&message, &options) {
                        self.pager.hint(view, pages.start.max(first)..pages.end.max(first), hint);
                    }
                }
                MemberMessage::Leave => {
                    self.end(id);
                    return count;
                }
                MemberMessage::Gone => {
                    self.hang_up(id, transfers);
                    return count;
                }
            }
        }
        count
    }

    /// Handles the end of a member's connection. The faults of a process that is still alive are served nevertheless,
    /// because the process may rejoin.
    #[cold]
    fn hang_up(&mut self, id: MappingId, transfers: &mut Transfers) {
        let Some(view) = self.pager.view_of(id) else { return };
        let Some(mut link) = self.memory.mappings_mut().get_mut(id).and_then(|mapped| mapped.link.take())
        else {
            return;
        };
        self.changed = true;
        // Unanswered orders to drop pages are treated as carried out; a page that is still present shows this at its
        // next fault.
        let options = *self.pager.options();
        for order in link.take_ordered() {
            self.with_io(transfers, |pager, io| {
                ranges(&order, &options).for_each(|pages| pager.dropped(view, pages, io));
            });
        }
        match self.options.kind {
            MappingKind::Private => self.pager.set_droppable(view, false),
            MappingKind::Shared => {}
            // In a virtual machine's memory, the process that passed the memory owns the mapping, which ends with the
            // connection.
            MappingKind::Foreign => self.end(id),
        }
        self.remove_ended();
    }

    /// Ends a mapping, and its view if that has no other mapping.
    pub(crate) fn end(&mut self, id: MappingId) {
        let view = self.pager.view_of(id);
        match (&mut self.memory, view) {
            (KernelMemory::Private(memory), Some(view)) => {
                memory.forget(id);
                self.pager.end_view(view);
            }
            _ => self.pager.end_mapping(id),
        }
        self.part(id);
    }

    pub(super) fn part(&mut self, id: MappingId) {
        if let Some(mapped) = self.memory.mappings_mut().remove(id) {
            tracing::debug!(region = self.options.region, pid = mapped.pid, "a process has left");
            self.shared_state.set_record(id.0, None);
            self.changed = true;
            self.parted.push(mapped);
        }
    }

    /// Removes the mappings of processes that have ended, or executed another program, without a message.
    pub(crate) fn remove_ended(&mut self) {
        let shared = self.options.kind == MappingKind::Shared;
        let gone = |(id, mapped): (MappingId, &Mapped)| {
            match &mapped.link {
                None if shared && shared_state::started(mapped.pid).is_none() => return Some(id),
                // Another process may hold a duplicate of the connection, which then stays open when the member ends.
                // Only a process with unanswered orders is therefore checked.
                Some(link) if !link.is_busy() => {}
                _ if shared => {}
                _ => mapped.check_alive(),
            }
            mapped.is_gone().then_some(id)
        };
        let gone: Vec<MappingId> = self.memory.mappings().iter().filter_map(gone).collect();
        gone.into_iter().for_each(|id| self.end(id));
    }

    /// Sends the reason of a loss to all members, before any of them gets SIGBUS for a lost page.
    #[cold]
    pub(super) fn notify_loss(&mut self, error: EngineError) {
        let text = loss(&self.options.region, error);
        if self.notified_loss.as_ref() == Some(&text) {
            return;
        }
        let links = self.memory.mappings_mut().iter_mut().filter_map(|(_, mapped)| mapped.link.as_mut());
        links.for_each(|link| link.why(&text));
        self.notified_loss = Some(text);
    }

    /// Whether faults can be served only when members have answered orders to drop pages.
    #[inline]
    pub(crate) fn waits_for_members(&self) -> bool {
        let waits =
            |(_, mapped): (MappingId, &Mapped)| mapped.link.as_ref().is_some_and(|link| link.is_busy());
        self.options.kind == MappingKind::Private && self.memory.mappings().iter().any(waits)
    }

    pub(crate) fn notify_shutdown(&mut self) {
        let links = self.memory.mappings_mut().iter_mut().filter_map(|(_, mapped)| mapped.link.as_mut());
        links.for_each(|link| link.notify_shutdown());
    }
}
