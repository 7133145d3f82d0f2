//! Messages of members, notifications to them, and their departure.

use cxloe_closer::dispose;
use cxloe_cn_core::engine::EngineError;
use cxloe_cn_core::mapped::{MappingKind, TEMPORARY};
use cxloe_cn_core::pager::MappingId;
use cxloe_cn_core::transfers::{Transfers, is_final};
use cxloe_member::wire::Message;

use super::Space;
use crate::member::{MemberMessage, ranges};
use crate::memory::{KernelMemory, Mapped};
use crate::shared_state;

/// Maximum number of reads of a member's connection in one call: a member that sends without a pause keeps the thread
/// from no other work.
const READS_MAX: u32 = 4;
/// Maximum number of pages discarded in one call, which takes some tens of microseconds.
const DISCARD_STEP: u32 = 8192;

/// A discard that a member has announced, and that is not complete. The member waits, and its further messages are
/// read after it.
#[derive(Debug)]
pub(crate) struct PendingDiscard {
    mapping: MappingId,
    message: Message,
    /// Index of the range in progress, and number of its pages that are done.
    range: usize,
    done: u32,
}

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
    /// Handles some of a member's messages; returns their number.
    #[inline]
    pub(crate) fn receive_messages(&mut self, id: MappingId, transfers: &mut Transfers) -> usize {
        let mut pages = DISCARD_STEP;
        self.receive_some(id, &mut pages, transfers)
    }

    /// Handles some of a member's messages, and takes the pages that they discard off `pages`; returns the number of
    /// messages.
    fn receive_some(&mut self, id: MappingId, pages: &mut u32, transfers: &mut Transfers) -> usize {
        let (mut count, mut reads) = (0, READS_MAX);
        while !self.discards.iter().any(|discard| discard.mapping == id)
            && let Some(link) = self.memory.mappings_mut().get_mut(id).and_then(|mapped| mapped.link.as_mut())
        {
            let said = link.receive_message(&mut reads);
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
                    let mut discard = PendingDiscard { mapping: id, message, range: 0, done: 0 };
                    if !self.discard(&mut discard, pages) {
                        self.discards.push_back(discard);
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

    /// Continues discards, each member's in turn; returns the amount of work.
    #[cold]
    pub(super) fn advance_discards(&mut self, transfers: &mut Transfers) -> usize {
        let (mut pages, mut work) = (DISCARD_STEP, 0);
        while pages > 0
            && let Some(mut discard) = self.discards.pop_front()
        {
            work += 1;
            if !self.discard(&mut discard, &mut pages) {
                self.discards.push_back(discard);
                break;
            }
            // Messages behind this one may have been read already.
            work += self.receive_some(discard.mapping, &mut pages, transfers);
        }
        work
    }

    /// Handles pages of a discard, at most `pages`, and takes them off `pages`. Once all are handled, answers the member,
    /// and returns `true`.
    fn discard(&mut self, discard: &mut PendingDiscard, pages: &mut u32) -> bool {
        let options = *self.pager.options();
        // Page 0 of private memory is the probe page, which is never discarded.
        let first = u32::from(self.options.kind == MappingKind::Private);
        let Some(view) = self.pager.view_of(discard.mapping) else { return true };
        if self.pager.is_walking() {
            return false;
        }
        loop {
            let range = ranges(&discard.message, &options).nth(discard.range);
            let Some(range) = range else { break };
            let (start, end) = (range.start.max(first) + discard.done, range.end.max(first));
            let until = end.min(start.saturating_add(*pages));
            self.pager.discarded(view, start..until);
            *pages -= until - start;
            if until < end {
                discard.done += until - start;
                return false;
            }
            (discard.range, discard.done) = (discard.range + 1, 0);
        }
        let mapped = self.memory.mappings_mut().get_mut(discard.mapping);
        if let Some(link) = mapped.and_then(|mapped| mapped.link.as_mut()) {
            link.discarded();
        }
        true
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
        // What the member has sent and nobody has read may be descriptors that are slow to close.
        dispose(link);
        self.remove_ended();
        let stays = self.memory.mappings().get(id).is_some();
        match self.options.kind {
            MappingKind::Private if stays => self.pager.set_droppable(view, false),
            // In a virtual machine's memory, the process that passed the memory owns the mapping, which ends with the
            // connection.
            MappingKind::Foreign if stays => self.end(id),
            _ => {}
        }
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
            self.discards.retain(|discard| discard.mapping != id);
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
                // The process may have executed another program, which may run for long.
                None if shared => mapped.check_alive_by_protecting(),
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

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use cxloe_cn_core::mapped::SpaceOptions;
    use cxloe_member::wire::{MESSAGE_MAX, MessageKind, Pages};

    use super::*;
    use crate::member::MemberLink;
    use crate::space::ONLY;
    use crate::uffd::Uffd;

    const PAGES: u32 = 3 * DISCARD_STEP;

    /// A space with a member, and the member's end of their connection.
    fn joined() -> (Space, MappingId, UnixStream) {
        let options = SpaceOptions {
            id: 1,
            region: "r".into(),
            kind: MappingKind::Shared,
            hpa: 1 << 40,
            pages: PAGES,
            view_pages: PAGES,
            limit: 64,
            prefetch: false,
            fresh: false,
            lost_wait: Duration::from_secs(1),
            stay: false,
            owner: None,
            created_ms: 0,
            user: None,
        };
        let mut space = Space::create(options).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let uffd = Uffd::create_user_only().or_else(|_| Uffd::create()).unwrap();
        let mapping = space.pager.add_mapping(ONLY).unwrap();
        let mapped = Mapped::new(uffd, 0, 0, PAGES, 0, Some(MemberLink::new(here.into())));
        space.memory.mappings_mut().add(mapping, mapped);
        (space, mapping, there)
    }

    fn bytes(kind: MessageKind, ranges: &[Pages]) -> Vec<u8> {
        let mut bytes = [0; MESSAGE_MAX];
        let length = Message::new(kind, ranges).encode(&mut bytes);
        bytes[..length].to_vec()
    }

    #[test]
    fn a_member_that_sends_without_a_pause_is_read_in_parts() {
        let (mut space, mapping, mut there) = joined();
        let mut transfers = Transfers::new(0);
        there.write_all(&bytes(MessageKind::WillRead, &[]).repeat(4096)).unwrap();
        let (mut all, mut calls) = (0, 0);
        while all < 4096 {
            let count = space.receive_messages(mapping, &mut transfers);
            assert!((1..1024).contains(&count), "{count} after {all}");
            (all, calls) = (all + count, calls + 1);
        }
        assert_eq!((all, space.receive_messages(mapping, &mut transfers)), (4096, 0));
        assert!(calls > 4);
    }

    #[test]
    fn a_large_discard_goes_on_between_other_work() {
        let (mut space, mapping, mut there) = joined();
        let mut transfers = Transfers::new(0);
        let all = Pages { first: 0, count: u32::MAX };
        there.write_all(&bytes(MessageKind::Discard, &[all, all])).unwrap();
        there.write_all(&bytes(MessageKind::Discard, &[Pages { first: 5, count: 1 }])).unwrap();
        assert_eq!(space.receive_messages(mapping, &mut transfers), 1);
        let mut done = DISCARD_STEP;
        let mut answers = [0; 64];
        while done < 2 * PAGES {
            assert!(space.has_work());
            assert_eq!(space.pager.counters().discarded, u64::from(done));
            assert_eq!(there.read(&mut answers).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
            assert_eq!(space.receive_messages(mapping, &mut transfers), 0, "later messages wait");
            space.turn(&mut transfers);
            done += DISCARD_STEP;
        }
        while space.has_work() {
            space.turn(&mut transfers);
        }
        assert_eq!(space.pager.counters().discarded, u64::from(2 * PAGES + 1));
        let answer = bytes(MessageKind::Discarded, &[]);
        assert_eq!(there.read(&mut answers).unwrap(), 2 * answer.len());
    }

    #[test]
    fn a_discard_waits_for_a_walk_and_is_done_in_the_turn_that_ends_it() {
        let (mut space, mapping, mut there) = joined();
        let mut transfers = Transfers::new(0);
        // Two steps through the buffers, of which the first is done at once.
        space.pager.set_walk_step(1);
        space.pager.set_droppable(ONLY, false);
        there.write_all(&bytes(MessageKind::Discard, &[Pages { first: 5, count: 2 }])).unwrap();
        assert_eq!(space.receive_messages(mapping, &mut transfers), 1);
        assert!(space.pager.is_walking() && space.has_work());
        let mut answers = [0; 64];
        assert_eq!(there.read(&mut answers).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
        assert_eq!(space.pager.counters().discarded, 0);
        space.turn(&mut transfers);
        assert_eq!((space.pager.is_walking(), space.pager.counters().discarded), (false, 2));
        assert_eq!(there.read(&mut answers).unwrap(), bytes(MessageKind::Discarded, &[]).len());
    }
}
