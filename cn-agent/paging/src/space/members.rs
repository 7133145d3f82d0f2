//! What members say, what they are told, and how they leave.

use cxloe_cn_core::engine::EngineError;
use cxloe_cn_core::mapped::{Kind, TEMPORARY};
use cxloe_cn_core::pager::MappingId;
use cxloe_cn_core::transfers::{Transfers, is_final};

use super::Space;
use crate::member::{Said, ranges};
use crate::memory::{KernelMemory, Mapped};
use crate::shared_state;

/// Why a page of a region is lost, and what to do about it.
fn loss(region: &str, error: EngineError) -> String {
    let remedy = if region.starts_with(TEMPORARY) {
        "start the program again when `gmm list -M` shows its memory nodes reachable".into()
    } else if is_final(error) {
        format!("`gmm reset-region {region}` gives the region back, all zeros; then start the program again")
    } else {
        "see to the memory node (`gmm list -M`, its log), then start the program again".into()
    };
    format!("a page of region {region} is lost: {error}; {remedy}")
}

impl Space {
    /// Hears what members say; how much.
    #[inline]
    pub(crate) fn listen(&mut self, id: MappingId, transfers: &mut Transfers) -> usize {
        let mut count = 0;
        while let Some(link) = self.memory.mappings_mut().get_mut(id).and_then(|mapped| mapped.link.as_mut())
        {
            let said = link.hear();
            let Some(view) = self.pager.view_of(id) else { return count };
            count += 1;
            match said {
                Said::Nothing => return count - 1,
                Said::Dropped(order) => {
                    let options = *self.pager.options();
                    self.with_io(transfers, |pager, io| {
                        ranges(&order, &options).for_each(|pages| pager.dropped(view, pages, io));
                    });
                }
                Said::Discard(message) => {
                    let options = *self.pager.options();
                    let first = u32::from(self.options.kind == Kind::Private);
                    for pages in ranges(&message, &options) {
                        self.pager.discarded(view, pages.start.max(first)..pages.end.max(first));
                    }
                    if let Some(link) =
                        self.memory.mappings_mut().get_mut(id).and_then(|mapped| mapped.link.as_mut())
                    {
                        link.discarded();
                    }
                }
                Said::Hint(hint, message) => {
                    let options = *self.pager.options();
                    let first = u32::from(self.options.kind == Kind::Private);
                    for pages in ranges(&message, &options) {
                        self.pager.hint(view, pages.start.max(first)..pages.end.max(first), hint);
                    }
                }
                Said::Leave => {
                    self.end(id);
                    return count;
                }
                Said::Gone => {
                    self.hang_up(id, transfers);
                    return count;
                }
            }
        }
        count
    }

    /// A member's connection has ended. If its process lives, it goes on being served: it may come again.
    #[cold]
    fn hang_up(&mut self, id: MappingId, transfers: &mut Transfers) {
        let Some(view) = self.pager.view_of(id) else { return };
        let Some(mut link) = self.memory.mappings_mut().get_mut(id).and_then(|mapped| mapped.link.take())
        else {
            return;
        };
        self.changed = true;
        // Whether they were carried out is found when somebody touches the pages.
        let options = *self.pager.options();
        for order in link.take_ordered() {
            self.with_io(transfers, |pager, io| {
                ranges(&order, &options).for_each(|pages| pager.dropped(view, pages, io));
            });
        }
        match self.options.kind {
            Kind::Private => self.pager.set_droppable(view, false),
            Kind::Shared => {}
            // Who handed it over says when it is over.
            Kind::Foreign => self.end(id),
        }
        self.look_after();
    }

    /// Ends a mapping, and a view that was its alone.
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

    /// Parts with processes that have ended without a word.
    pub(crate) fn look_after(&mut self) {
        let shared = self.options.kind == Kind::Shared;
        let gone = |(id, mapped): (MappingId, &Mapped)| {
            if mapped.link.is_none() {
                match (shared, mapped.pid) {
                    (true, pid) if shared_state::started(pid).is_none() => return Some(id),
                    (true, _) => {}
                    (false, _) => mapped.look(),
                }
            }
            mapped.is_gone().then_some(id)
        };
        let gone: Vec<MappingId> = self.memory.mappings().iter().filter_map(gone).collect();
        gone.into_iter().for_each(|id| self.end(id));
    }

    /// Pages will be lost: says why to the processes that have them, before any of them gets SIGBUS.
    #[cold]
    pub(super) fn tell_why(&mut self, error: EngineError) {
        let text = loss(&self.options.region, error);
        if self.told.as_ref() == Some(&text) {
            return;
        }
        let links = self.memory.mappings_mut().iter_mut().filter_map(|(_, mapped)| mapped.link.as_mut());
        links.for_each(|link| link.why(&text));
        self.told = Some(text);
    }

    /// Whether the agent's answer depends on what members say.
    #[inline]
    pub(crate) fn waits_for_members(&self) -> bool {
        let waits =
            |(_, mapped): (MappingId, &Mapped)| mapped.link.as_ref().is_some_and(|link| link.is_busy());
        self.options.kind == Kind::Private && self.memory.mappings().iter().any(waits)
    }

    /// Says to everybody that the agent ends.
    pub(crate) fn bye(&mut self) {
        let links = self.memory.mappings_mut().iter_mut().filter_map(|(_, mapped)| mapped.link.as_mut());
        links.for_each(|link| link.bye());
    }
}
