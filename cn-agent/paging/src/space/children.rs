//! Forked children whose tables are still being copied. A child's events are read once its table is complete, and until
//! then its faults wait in the kernel. Its record is made then too, because a successor of the agent continues from the
//! table.

use cxloe_closer::dispose;
use cxloe_cn_core::pager::{MappingId, ViewId};

use super::Space;
use crate::memory::{KernelMemory, Mapped};
use crate::shared_state::Record;

/// A forked child whose table is not complete yet.
#[derive(Debug)]
pub(crate) struct PendingChild {
    view: ViewId,
    mapping: MappingId,
    mapped: Mapped,
    /// Number of turns for which the copy has gone on.
    turns: u32,
}

impl PendingChild {
    pub(super) fn new(view: ViewId, mapping: MappingId, mapped: Mapped) -> PendingChild {
        PendingChild { view, mapping, mapped, turns: 0 }
    }

    /// Whether the child was found to have ended, or to have executed another program. To be called once in each turn.
    fn has_ended(&mut self) -> bool {
        self.turns += 1;
        // Children that end early are found soon, for few checks: each is a system call that may have to wait for a
        // change of the child's address space.
        if self.turns.is_power_of_two() {
            self.mapped.check_alive();
        }
        self.mapped.is_gone()
    }
}

impl Space {
    /// Number of processes whose memory is paged, with forked children whose tables are not complete yet.
    pub(crate) fn processes(&self) -> usize {
        self.memory.mappings().iter().count() + self.children.len()
    }

    /// Serves the children whose tables are complete, from now on. Removes the view of a child that has ended
    /// meanwhile, as most children of a large process soon end or execute another program: the rest of the copy would
    /// be in vain.
    pub(super) fn admit_children(&mut self) {
        // Tables are copied one after another, in the order of the forks.
        while let Some(child) = self.children.front_mut() {
            let copying = self.pager.is_copying(child.view);
            if copying && !child.has_ended() {
                return;
            }
            let Some(PendingChild { view, mapping, mapped, .. }) = self.children.pop_front() else { return };
            match &mut self.memory {
                KernelMemory::Private(memory) if !copying => {
                    let address = mapped.address;
                    let record = Record { view: view.0, pid: 0, started: 0, address, nonce: 0 };
                    self.shared_state.set_record(mapping.0, Some(record));
                    memory.add(view, mapping, mapped);
                    self.changed = true;
                }
                _ => {
                    self.pager.end_view(view);
                    dispose(mapped);
                }
            }
        }
    }
}
