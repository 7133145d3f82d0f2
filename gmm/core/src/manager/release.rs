//! Release of a region by its owner: the owner is asked to write back and detach (managed), or the manager
//! waits until the owner stops. Afterwards the region is disabled, destroyed, or given to another compute
//! node (`hand_over`).

use cxloe_fabric::api::{Owner, ReleasedRegion};
use cxloe_fabric::model::{CnId, EventKind, Name, Region, RegionState, Release, UnbindOption};

use super::{Change, Manager, ManagerError};

impl Manager {
    pub(super) fn disable_region(&mut self, name: &Name) -> Result<(), ManagerError> {
        let mut region = self.region(name)?.clone();
        match region.state {
            RegionState::Active | RegionState::Exposed | RegionState::Degraded | RegionState::Lost => {
                self.request_release(region, UnbindOption::Managed, false, None);
                Ok(())
            }
            RegionState::Releasing | RegionState::Disabled => {
                self.check_uncloned(&region)?;
                let stopped = region.release.as_mut().is_some_and(|release| {
                    release.seal = false;
                    release.to.take().is_some()
                });
                if stopped {
                    self.settle(region, Some("the move was stopped: it is to be disabled".to_owned()));
                }
                Ok(())
            }
            state @ (RegionState::Creating | RegionState::Draining) => {
                let reason = "nobody uses it".to_owned();
                Err(ManagerError::WrongState { name: name.clone(), state, reason })
            }
        }
    }

    pub(super) fn enable_region(&mut self, name: &Name) -> Result<(), ManagerError> {
        let mut region = self.region(name)?.clone();
        self.check_uncloned(&region)?;
        match region.release {
            Some(Release { destroy: false, .. }) if region.state != RegionState::Draining => {
                region.release = None;
                self.settle(region, Some("enabled".to_owned()));
                Ok(())
            }
            None if matches!(
                region.state,
                RegionState::Active | RegionState::Exposed | RegionState::Degraded
            ) =>
            {
                Ok(())
            }
            _ => {
                let reason = "only a disabled region can be enabled".to_owned();
                Err(ManagerError::WrongState { name: name.clone(), state: region.state, reason })
            }
        }
    }

    pub(super) fn release_region(&mut self, name: &Name) -> Result<(), ManagerError> {
        let region = self.region(name)?.clone();
        if region.state != RegionState::Draining {
            let reason = "its owner is asked to release it".to_owned();
            self.request_release(region, UnbindOption::Managed, true, Some(reason));
        }
        Ok(())
    }

    /// Asks the owner to release a region, which is destroyed afterwards if `destroy` is set.
    pub(super) fn request_release(
        &mut self,
        mut region: Region,
        option: UnbindOption,
        destroy: bool,
        reason: Option<String>,
    ) {
        let nobody_uses_it = region.state == RegionState::Creating;
        let let_go = region.state == RegionState::Disabled;
        if destroy && (nobody_uses_it || let_go || option == UnbindOption::Surprise) {
            return self.drain(region, reason);
        }
        if region.release.is_some_and(|release| release.copy) {
            self.fail_clones_of(&region.name, "its source is released for another reason");
        }
        // There is no release to wait for if the owner is not running, or if the condition is a link-down and
        // the owner's link is down already.
        let gone = !self.is_owner_present(&region)
            || option == UnbindOption::WaitLinkDown && self.is_link_down(region.owner);
        region.release = Some(Release { option, destroy, done: false, to: None, seal: false, copy: false });
        self.settle(region.clone(), reason);
        if gone {
            self.abandoned_by_owner(&region.name);
        }
    }

    /// Handles the case that the owner of a region has stopped after it was asked to release the region.
    fn abandoned_by_owner(&mut self, name: &Name) {
        let Some(region) = self.state.regions.get(name) else { return };
        let waits = region.release.is_some_and(|release| !release.done);
        let settled = self.state.compute_nodes.get(&region.owner).is_some_and(|owner| owner.settled);
        if waits && !settled {
            if region.release.is_some_and(|release| release.to.is_some() || release.copy) {
                let reason = "its owner stopped before it had released the region, and keeps it";
                self.fail_clones_of(name, "the owner of its source stopped before it had written back");
                return self.keep_owner(name, reason);
            }
            self.writes_may_differ(name, "its owner stopped while it may have been writing");
        }
        self.release_by_owner(name);
    }

    /// Completes the release of a region that its owner has released, or whose owner has stopped.
    fn release_by_owner(&mut self, name: &Name) {
        let Some(mut region) = self.state.regions.get(name).cloned() else { return };
        let Some(release) = region.release.as_mut().filter(|release| !release.done) else { return };
        if region.state == RegionState::Draining {
            return;
        }
        release.done = true;
        if release.destroy {
            self.drain(region, Some("its owner has released it".to_owned()));
        } else {
            self.settle(region, None);
            self.hand_over_released(name);
            self.begin_clones_of(name);
        }
    }

    /// Handles an owner's report of regions that it has released.
    pub(super) fn released(&mut self, cn: CnId, released: &[ReleasedRegion]) {
        for ReleasedRegion { name, created_ms } in released {
            let asked = self.state.regions.get(name).is_some_and(|region| {
                region.owner == cn
                    && region.created_ms == *created_ms
                    && region.release.is_some_and(|release| release.option == UnbindOption::Managed)
            });
            if asked {
                self.release_by_owner(name);
            }
        }
    }

    /// Ends every wait for releases by a compute node that has stopped.
    pub(super) fn end_release_waits(&mut self, cn: CnId) {
        let names: Vec<Name> = self.index.regions_of(cn).cloned().collect();
        names.iter().for_each(|name| self.abandoned_by_owner(name));
    }

    /// Returns true if the link of a compute node is down, which it is while the node is held in reset.
    fn is_link_down(&self, cn: CnId) -> bool {
        self.state.compute_nodes.get(&cn).is_some_and(|node| node.held)
    }

    /// Handles a link-down of a compute node, however short: ends every wait for a release that has a
    /// link-down as its condition.
    pub(super) fn link_down(&mut self, cn: CnId) {
        let waits = |name: &&Name| {
            let release = self.state.regions.get(*name).and_then(|region| region.release);
            release.is_some_and(|release| release.option == UnbindOption::WaitLinkDown)
        };
        let names: Vec<Name> = self.index.regions_of(cn).filter(waits).cloned().collect();
        names.iter().for_each(|name| self.abandoned_by_owner(name));
    }

    /// Cancels an unbinding: the owner keeps the regions that it has not released.
    pub(super) fn keep_regions(&mut self, names: &[Name], reason: &str) {
        for name in names {
            let Some(mut region) = self.state.regions.get(name).cloned() else { continue };
            let asked = region.release.is_some_and(|release| release.destroy && !release.done);
            if asked && region.state == RegionState::Releasing {
                region.release = None;
                self.settle(region, Some(reason.to_owned()));
            }
        }
    }

    pub(super) fn hold_by_hand(&mut self, owner: &Owner, held: bool) -> Result<(), ManagerError> {
        let mut node = self.known_compute_node(owner)?;
        let cn = node.cn_id;
        if node.held_by_hand != held {
            node.held_by_hand = held;
            self.put(Change::ComputeNode(node));
        }
        self.hold(cn, held);
        Ok(())
    }

    pub(super) fn hold(&mut self, cn: CnId, held: bool) {
        let Some(mut node) = self.state.compute_nodes.get(&cn).cloned() else { return };
        if node.held == held {
            return;
        }
        node.held = held;
        self.put(Change::ComputeNode(node));
        if held {
            self.region_event(cn, EventKind::ComputeNodeHeld { compute_node: cn });
            self.link_down(cn);
        } else {
            self.region_event(cn, EventKind::ComputeNodeReleased { compute_node: cn });
        }
    }
}
