//! Orphans: memory that a memory node holds although it belongs to no region of this store. They arise when a memory
//! node returns after its record was removed, or when an older store was adopted. The memory node keeps them unchanged
//! and reports them; they are not allocated until a user releases them, which zeroes them.

use cxloe_fabric::api::{Orphans, ReportOrphans};
use cxloe_fabric::model::{
    EventKind, ExtentRun, Extents, LegState, Mapping, MemoryNode, Name, NodeAction, Region,
};

use super::pool::FreeExtents;
use super::{Change, Manager, ManagerError};

/// Maximum number of runs of extents recorded per memory node. Orphans beyond this number stay on the memory
/// node, unlisted and unchanged.
pub(super) const RUNS_MAX: usize = 4096;

impl Manager {
    pub fn orphans_on(&self, node: &Name) -> &[Mapping] {
        self.state.orphans.get(node).map_or(&[], |orphans| &orphans.orphans)
    }

    pub fn orphan_bytes(&self, node: &Name) -> u64 {
        self.state.orphans.get(node).map_or(0, Orphans::bytes)
    }

    pub(super) fn report_orphans(&mut self, name: &Name, report: &ReportOrphans) -> Result<(), ManagerError> {
        let registration = report.registration;
        let node = self.state.memory_nodes.get(name).filter(|node| node.registration == registration);
        let Some(node) = node.cloned() else {
            return Err(ManagerError::NotRegistered { who: format!("memory node {name}"), registration });
        };
        let mut orphans = self.orphans_on(name).to_vec();
        let mut others = self.without_orphans(&node);
        let mut runs: usize = orphans.iter().map(|orphan| orphan.extents.runs().len()).sum();
        let mut news = 0;
        for orphan in &report.orphans {
            check_orphan(&node, orphan)?;
        }
        // What is recorded already comes again after a registration, or if the answer to an earlier report was lost, in
        // one piece with adjacent memory that became an orphan since.
        for orphan in report.orphans.iter().flat_map(|orphan| unrecorded(orphan, &others)).collect::<Vec<_>>()
        {
            // A report may list an extent twice.
            if !orphan.extents.runs().iter().all(|run| others.is_free(*run)) {
                continue;
            }
            runs += orphan.extents.runs().len();
            if runs > RUNS_MAX {
                break;
            }
            others.withhold(&orphan.extents);
            news += orphan.bytes();
            orphans.push(Mapping { region: orphan_name(), ..orphan });
        }
        if news == 0 {
            return Ok(());
        }
        self.put(Change::Orphans(Orphans { memory_node: name.clone(), orphans }));
        self.refresh_free(&node);
        self.event(EventKind::OrphansFound { memory_node: name.clone(), bytes: news });
        self.mark_orphaned_legs_lost(&node);
        Ok(())
    }

    /// Returns the extents of a memory node that belong to no recorded orphan.
    fn without_orphans(&self, node: &MemoryNode) -> FreeExtents {
        let mut others = FreeExtents::all(node.extent_count());
        self.orphans_on(&node.name).iter().for_each(|orphan| others.withhold(&orphan.extents));
        others
    }

    /// Marks a leg as lost if an orphan lies in its extents, because the memory node then does not serve the
    /// leg.
    fn mark_orphaned_legs_lost(&mut self, node: &MemoryNode) {
        let others = self.without_orphans(node);
        let other_memory = |extents: &Extents| !extents.runs().iter().all(|run| others.is_free(*run));
        let concerned: Vec<Region> = self
            .legs_on(&node.name)
            .filter(|(_, leg)| {
                matches!(leg.state, LegState::Mapped | LegState::Stale) && other_memory(&leg.extents)
            })
            .map(|(region, _)| region.clone())
            .collect();
        for mut region in concerned {
            for leg in region.legs.iter_mut() {
                if leg.memory_node == node.name
                    && matches!(leg.state, LegState::Mapped | LegState::Stale)
                    && other_memory(&leg.extents)
                {
                    leg.state = LegState::Lost;
                    // What nobody serves is lent to nobody; a hand-over under way has yet to be answered.
                    leg.lent = leg.lent.filter(|_| leg.former.is_some());
                    // The pool never had this incarnation, so the next registration does not mark the leg as
                    // intact.
                    leg.incarnation = Some(!node.incarnation);
                }
            }
            let reason = format!("memory node {} holds other memory in its place", node.name);
            self.settle(region, Some(reason));
        }
    }

    /// Has a memory node zero and free its orphans.
    pub(super) fn release_orphans(&mut self, name: &Name) -> Result<(), ManagerError> {
        self.memory_node(name)?;
        let under_way: Vec<Mapping> = self
            .state
            .commands_of(name)
            .filter(|command| matches!(command.action, NodeAction::UnmapCmem(_)))
            .map(|command| command.action.mapping().clone())
            .collect();
        let waiting = self.orphans_on(name).iter().filter(|orphan| !under_way.contains(orphan));
        let waiting: Vec<Mapping> = waiting.cloned().collect();
        waiting.into_iter().for_each(|orphan| self.issue(name, NodeAction::UnmapCmem(orphan)));
        Ok(())
    }

    /// Handles the result of an unmap command. Returns true if the command was for an orphan.
    pub(super) fn orphan_answered(&mut self, name: &Name, action: &NodeAction, failed: bool) -> bool {
        let NodeAction::UnmapCmem(mapping) = action else { return false };
        let Some(orphans) = self.state.orphans.get(name).filter(|orphans| orphans.orphans.contains(mapping))
        else {
            return false;
        };
        if failed {
            return true;
        }
        let (mut orphans, bytes) = (orphans.clone(), mapping.bytes());
        orphans.orphans.retain(|orphan| orphan != mapping);
        self.put_orphans(orphans);
        if let Some(node) = self.state.memory_nodes.get(name).cloned() {
            self.refresh_free(&node);
        }
        self.event(EventKind::OrphansReleased { memory_node: name.clone(), bytes });
        // Regions could not be destroyed while orphans were in their extents: their unmaps are tried again.
        for region in self.regions_on(name) {
            self.reissue_unmaps(&region, Some(name));
        }
        true
    }

    fn put_orphans(&mut self, orphans: Orphans) {
        self.put(if orphans.orphans.is_empty() {
            Change::OrphansGone(orphans.memory_node)
        } else {
            Change::Orphans(orphans)
        });
    }

    /// Removes the orphans of a memory node whose pool has another incarnation, and so lost its content.
    pub(super) fn orphans_lost(&mut self, name: &Name) {
        if self.state.orphans.contains_key(name) {
            self.put(Change::OrphansGone(name.clone()));
        }
    }
}

/// Returns a placeholder for the region's name in mappings of orphans.
fn orphan_name() -> Name {
    Name::new("orphan").expect("these letters are a name")
}

/// Returns the parts of an orphan of which `others`, the extents that belong to no recorded orphan, has all extents.
fn unrecorded(orphan: &Mapping, others: &FreeExtents) -> Vec<Mapping> {
    if orphan.extents.runs().iter().all(|run| others.is_free(*run)) {
        return vec![orphan.clone()];
    }
    let (mut parts, mut before, mut end): (Vec<Mapping>, u64, _) = (Vec::new(), 0, None);
    for run in orphan.extents.runs() {
        let mut rest = *run;
        while let Some(free) = others.free_within(rest) {
            // Number of the orphan's extents before these.
            let at = before + (free.first - run.first);
            match parts.last_mut().filter(|_| end == Some(at)) {
                Some(part) => part.extents.push(free),
                None => {
                    let cmem_base = orphan.cmem_base.saturating_add(orphan.extent_bytes.saturating_mul(at));
                    parts.push(Mapping { cmem_base, extents: Extents::from_iter([free]), ..orphan.clone() });
                }
            }
            end = Some(at + free.count);
            let first = free.first + free.count;
            rest = ExtentRun { first, count: run.first + run.count - first };
        }
        before += run.count;
    }
    parts
}

fn check_orphan(node: &MemoryNode, orphan: &Mapping) -> Result<(), ManagerError> {
    let count = node.extent_count();
    let inside =
        |run: &ExtentRun| run.count > 0 && run.first.checked_add(run.count).is_some_and(|end| end <= count);
    let fits = orphan.extent_bytes == node.extent_bytes
        && !orphan.extents.is_empty()
        && orphan.extents.runs().iter().all(inside)
        && orphan.extents.len() <= count;
    if fits {
        return Ok(());
    }
    let reason = format!("they are not among its {count} extents of {} bytes", node.extent_bytes);
    Err(ManagerError::out_of_range(format!("orphans of memory node {}", node.name), reason))
}
