//! Attached regions and their host physical addresses, and the changes that follow from the manager's
//! answers. The code does no I/O; the agent keeps [`Attachments`] in its state file.
//!
//! Each region gets its own window of HPA, aligned like a CXL fixed memory window and with room to grow. The
//! region keeps this window as long as it belongs to this compute node, over restarts of the agent, whether
//! attached or not. The region also keeps its backing, Ethernet or a CXL device of this machine: where a
//! device is possible, the region is not attached before the device monitor has answered. An address is never
//! reused for another region: a program that uses an old address gets an error, not another region's data.
//!
//! ```text
//!                  the manager has it usable
//!   (remembered) ----------------------------> attached --- grows: extend; moves: write back, attach again
//!        ^                                        |
//!        |  worker: written back, routes removed  | the manager reclaims it, or has suspended this node
//!        +------------------------- draining <----+
//! ```

mod addresses;
mod backings;
mod listing;
mod reach;
pub mod view;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use cxloe_fabric::api::{Held, ReleasedRegion};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{
    FormerLeg, HdmDecoder, Leg, LegState, LogicalDevice, Mac, Name, PublicKey, Region, RegionState,
    UnbindOption, Watermark,
};
use serde::{Deserialize, Serialize};

use crate::backing::{Backing, Preference};
pub use addresses::{BAND, worker_of};
pub use backings::BackingQuery;
pub use reach::reach;
pub(crate) use reach::reach_of;

/// First HPA used: 1 TiB, above the physical memory of machines.
pub(crate) const HPA_FIRST: u64 = 1 << 40;
/// End of the HPAs: no CPU today has physical addresses of more than 52 bits.
pub(crate) const HPA_LIMIT: u64 = 1 << 52;
/// Alignment of regions: base and size of a CXL HDM decoder are multiples of 256 MiB.
pub(crate) const HPA_ALIGN: u64 = 256 << 20;
/// Minimum size of a region's window, in bytes.
pub(crate) const WINDOW_MIN: u64 = 16 << 30;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Description of the region in the manager's last answer.
    pub region: Region,
    /// First HPA of the region; 256 MiB aligned.
    pub hpa: u64,
    /// Size in bytes of the region's window of addresses.
    pub window: u64,
    /// Memory that serves the region: its memory nodes, or a CXL device.
    #[serde(default)]
    pub backing: Backing,
}

impl Attachment {
    /// Returns an attachment of `region` at `hpa` with `window` bytes of addresses, served by the region's
    /// memory nodes.
    pub fn over_ethernet(region: Region, hpa: u64, window: u64) -> Attachment {
        Attachment { region, hpa, window, backing: Backing::Ethernet }
    }

    /// Number of bytes of the region that are committed and fit the window.
    pub fn reach(&self) -> u64 {
        reach(&self.region, self.window)
    }

    /// Returns the size of `before` if this attachment only extends it: the address, and the decoders and legs (parts
    /// on memory nodes) of `before`, are unchanged, and new ones may follow.
    pub(crate) fn grown_from(&self, before: &Attachment) -> Option<u64> {
        let same = (self.hpa, &self.backing) == (before.hpa, &before.backing);
        let (old, new) = (ways(&before.region, &before.backing), ways(&self.region, &self.backing));
        (same && new.starts_with(&old)).then_some(before.region.size)
    }

    /// Bytes of the region beyond its [`reach`](Self::reach), if it is larger than its window. With three ways, up to two
    /// pages within the window are among them: their last lines would be at addresses outside it.
    pub fn beyond(&self) -> u64 {
        if self.region.size <= self.window { 0 } else { self.region.size.saturating_sub(self.reach()) }
    }
}

/// Change to an attachment, to be carried out by the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentChange {
    /// Makes a region reachable. If a drain or a move of the region is in progress, waits for its end.
    Attach(Attachment),
    /// Makes the part of a grown region behind its first `from` bytes reachable.
    Extend { attachment: Attachment, from: u64 },
    /// Updates which legs (copies on memory nodes) of an attached region are in sync; operations on the region
    /// continue.
    Legs(Attachment),
    /// As [`Legs`](Self::Legs), by a manager over a restored store: legs that the store lists as in sync may lack writes
    /// that this node knows of.
    RestoredLegs(Attachment),
    /// Writes back a region's dirty lines, then makes it unreachable. An [`Attach`](Self::Attach) with the
    /// new routes follows in the same list.
    Move(Attachment),
    /// Refuses new operations on a region, writes back its dirty lines, makes it unreachable, and reports the
    /// end with `ticket`.
    Drain {
        attachment: Attachment,
        /// Number with which the worker reports the end of the drain.
        ticket: u64,
    },
    /// Makes a region unreachable at once. Nothing is written back, because the region's content no longer exists.
    Drop(Attachment),
    /// Suspends this node (`true`), so that none of its regions is attached, or resumes it.
    Hold(bool),
    /// Public keys of all memory nodes by MAC address; `None` for revoked ones.
    Keys(BTreeMap<Mac, Option<PublicKey>>),
}

impl AttachmentChange {
    /// Region that the change concerns; `None` for a change of the whole node.
    pub fn attachment(&self) -> Option<&Attachment> {
        match self {
            AttachmentChange::Attach(attachment)
            | AttachmentChange::Extend { attachment, .. }
            | AttachmentChange::Legs(attachment)
            | AttachmentChange::RestoredLegs(attachment)
            | AttachmentChange::Move(attachment)
            | AttachmentChange::Drain { attachment, .. }
            | AttachmentChange::Drop(attachment) => Some(attachment),
            AttachmentChange::Hold(_) | AttachmentChange::Keys(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AttachmentPhase {
    /// The region is not attached, and the worker has no entry for it.
    #[default]
    Unknown,
    Attached,
    /// The worker is writing back the region's dirty lines; the worker reports the end with this ticket.
    Draining(u64),
    /// The region is unreachable; only its address is kept.
    Detached,
}

/// All regions of this compute node that have addresses, and the state that the agent stores on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachments {
    /// Next HPA to assign in each band; it never decreases.
    #[serde(default)]
    next: BTreeMap<u64, u64>,
    by_name: BTreeMap<Name, Attachment>,
    held: bool,
    /// Watermark (term and revision of the manager's store) of the manager that described these regions.
    seen: Watermark,
    /// Watermark (term and revision of the manager's store) at which this node has joined the fabric; `None` if it has
    /// not joined. The node refuses a manager with an earlier watermark, even while the node has no regions.
    #[serde(default)]
    joined: Option<Watermark>,
    /// Phases by region; a region without an entry is in [`AttachmentPhase::Unknown`], as all regions are
    /// when the agent starts.
    #[serde(skip)]
    phases: BTreeMap<Name, AttachmentPhase>,
    /// Regions that the manager reclaims; each is detached when its dirty lines are written back.
    #[serde(skip)]
    wanted_back: Vec<ReleasedRegion>,
    /// Logical devices bound to this node, from the manager's last answer.
    #[serde(skip)]
    devices: Vec<LogicalDevice>,
    #[serde(skip)]
    tickets: u64,
    /// Public keys of memory nodes in the last change for the worker; `None` for revoked ones.
    #[serde(skip)]
    keys: BTreeMap<Mac, Option<PublicKey>>,
    /// Memory nodes whose key was revoked. Stored over restarts, because sessions without keys may not be opened with
    /// such a node, unlike with a node that never had a key.
    #[serde(default)]
    revoked: BTreeSet<Mac>,
    #[serde(skip)]
    preference: Preference,
    /// Reason shown in `cn-agent list` why a region waits for its backing, or why its device is unusable.
    #[serde(skip)]
    notes: BTreeMap<Name, String>,
    /// Number of workers among which regions are distributed; 0 counts as one.
    #[serde(skip)]
    workers: usize,
    /// Worker chosen for each region that is expected to move to this node.
    #[serde(skip)]
    expected: BTreeMap<Name, usize>,
}

/// The part of a region's description that determines the destinations and permissions of its requests: its committed
/// decoders and their legs (parts on memory nodes).
type Routing = (HdmShape, Vec<(u32, Option<Mac>, u64, Option<u64>, bool)>);
type HdmShape = (u64, u64, Ways, Granularity);

fn ways(region: &Region, backing: &Backing) -> Vec<Routing> {
    let of_decoder = |(index, d): (usize, &HdmDecoder)| {
        // If a device serves the decoder, its legs (parts on memory nodes) get no requests, and changes of them have no
        // effect.
        let legs = region.legs_of(index as u32).filter(|_| !backing.serves(d));
        let legs = legs.map(|leg| {
            (leg.position, leg.mac(), leg.cmem_base, leg.incarnation, leg.state == LegState::Lost)
        });
        let mut legs: Vec<_> = legs.collect();
        legs.sort_unstable_by_key(|(position, ..)| *position);
        ((d.offset, d.size, d.ways, d.granularity), legs)
    };
    region.decoders.iter().enumerate().filter(|(_, d)| d.committed).map(of_decoder).collect()
}

/// Whether a leg (copy on a memory node) has taken the place of one listed in `before`, with the same content.
fn succeeds(leg: &Leg, before: &Region) -> bool {
    let former = leg.succeeds.filter(|_| leg.is_in_sync());
    let Some(FormerLeg { cmem_base, incarnation }) = former else { return false };
    let is_it = |known: &Leg| {
        let same = (known.decoder, known.position) == (leg.decoder, leg.position);
        let place = (known.cmem_base, known.incarnation) == (cmem_base, Some(incarnation));
        same && place && known.state == LegState::Mapped
    };
    before.legs.iter().any(is_it)
}

/// Whether the legs (copies on memory nodes) can be updated without interrupting operations: one of the descriptions is
/// mirrored, or a leg has taken the place of another one; and each committed position has a leg that is in sync now and
/// was listed in `before`, or has taken the place of such a leg.
fn keeps_legs(before: &Region, now: &Region) -> bool {
    let is_mirrored =
        |region: &Region| region.legs.iter().any(|leg| leg.copy > 0 || leg.state == LegState::Stale);
    let is_successor = |leg: &Leg| succeeds(leg, before);
    let same_shape =
        before.decoders.iter().zip(&now.decoders).all(|(a, b)| {
            (a.offset, a.size, a.ways, a.granularity) == (b.offset, b.size, b.ways, b.granularity)
        });
    let is_known = |leg: &Leg| {
        let same = |known: &&Leg| {
            (known.decoder, known.position, known.cmem_base) == (leg.decoder, leg.position, leg.cmem_base)
                && known.mac() == leg.mac()
        };
        before.legs.iter().find(same).is_some_and(|known| match known.state {
            LegState::Mapped => known.incarnation == leg.incarnation,
            state => state == LegState::Stale,
        })
    };
    let keeps = |decoder: u32, position: u32| {
        let mut legs = now.legs_of(decoder).filter(|leg| leg.position == position && leg.is_in_sync());
        legs.any(|leg| is_known(leg) || is_successor(leg))
    };
    let committed = before.decoders.iter().enumerate().filter(|(_, decoder)| decoder.committed);
    (is_mirrored(before) || is_mirrored(now) || now.legs.iter().any(is_successor))
        && same_shape
        && before.decoders.len() <= now.decoders.len()
        && committed.clone().count() > 0
        && committed
            .into_iter()
            .all(|(at, decoder)| (0..decoder.ways.count()).all(|position| keeps(at as u32, position)))
}

/// Whether any leg (part of the region on a memory node) still has its content. The incarnation, which identifies
/// content, decides; the memory node may be another one.
fn keeps_content(before: &[Routing], now: &[Routing]) -> bool {
    let legs = |ways: &[Routing]| -> Vec<_> { ways.iter().flat_map(|(_, legs)| legs.clone()).collect() };
    let (before, now) = (legs(before), legs(now));
    let mut pairs = before.iter().zip(&now);
    pairs.any(|((_, _, _, held, _), (_, _, _, holds, lost))| held == holds && !lost)
}

/// Whether a region was emptied between two descriptions: no leg (part on a memory node) has its former content.
fn was_emptied(before: &Region, now: &Region) -> bool {
    let legs = |region| ways(region, &Backing::Ethernet);
    let lost = now.legs.iter().any(|leg| leg.state == LegState::Lost);
    !lost && !before.legs.is_empty() && !keeps_content(&legs(before), &legs(now))
}

/// Whether the manager waits for this node to write back the region's dirty lines and detach it.
fn is_withdrawn(region: &Region) -> bool {
    region.state == RegionState::Releasing
        && region.release.is_some_and(|release| release.option == UnbindOption::Managed)
}

impl Attachments {
    /// Returns the changes to carry out when the agent starts and nothing is attached.
    pub fn begin(&mut self) -> Vec<AttachmentChange> {
        let mut changes = Vec::new();
        if self.held {
            changes.push(AttachmentChange::Hold(true));
        }
        changes.extend(self.other_keys(&[]));
        let names: Vec<Name> = self.by_name.keys().cloned().collect();
        names.iter().for_each(|name| self.settle(name, &mut changes));
        changes
    }

    /// Watermark (term and revision of the manager's store) of the manager that described these regions. A node that
    /// has no regions and has not joined returns the lowest watermark, and so accepts any manager.
    pub fn seen(&self) -> Watermark {
        match self.by_name.is_empty() && self.joined.is_none() {
            true => Watermark::default(),
            false => self.seen,
        }
    }

    /// Sets the watermark (term and revision of the manager's store) at which this node has joined; `None` if it has
    /// not joined. If the node joins another fabric while it has regions, the watermark of those regions stays in
    /// force.
    pub fn join(&mut self, joined: Option<Watermark>) {
        let is_new = joined != self.joined;
        self.joined = joined;
        if let Some(joined) = joined.filter(|_| is_new && self.by_name.is_empty()) {
            self.seen = joined;
        }
    }

    /// Sets the watermark of the manager whose answers follow; it must not be behind the one [seen](Self::seen).
    pub fn set_manager_watermark(&mut self, manager: Watermark) {
        self.seen = manager;
    }

    /// Returns the MAC and UDP addresses of those memory nodes of this node's regions that use the `udp`
    /// link.
    pub fn udp_peers(&self) -> Vec<(Mac, SocketAddr)> {
        let legs = self.by_name.values().flat_map(|attachment| &attachment.region.legs);
        legs.flat_map(|leg| leg.macs.iter().filter_map(|mac| Some((*mac, leg.udp?)))).collect()
    }

    /// Returns the memory nodes' keys if they differ from those in the last change for the worker. Keys are taken from
    /// `listed`, and the keys of other memory nodes from the regions in this table. A memory node that had a key and is
    /// listed without one counts as revoked.
    fn other_keys(&mut self, listed: &[Region]) -> Option<AttachmentChange> {
        let known = self.by_name.values().map(|attachment| &attachment.region).chain(listed);
        let legs = known.flat_map(|region| &region.legs);
        let mut keys: BTreeMap<Mac, Option<PublicKey>> = BTreeMap::new();
        for (mac, key) in legs.flat_map(|leg| leg.macs.iter().map(|mac| (*mac, leg.mn_key))) {
            let had_one =
                keys.contains_key(&mac) || self.keys.contains_key(&mac) || self.revoked.contains(&mac);
            if key.is_some() || had_one {
                keys.insert(mac, key);
            }
        }
        self.revoked = keys.iter().filter(|(_, key)| key.is_none()).map(|(mac, _)| *mac).collect();
        (keys != self.keys).then(|| {
            self.keys.clone_from(&keys);
            AttachmentChange::Keys(keys)
        })
    }

    /// Returns the regions in this table, for the manager: if its store lacks some of them, the manager reports that
    /// this node would lose them.
    pub fn holds(&self) -> Vec<Held> {
        let held = |Attachment { region, .. }: &Attachment| Held {
            compute_node: region.owner,
            region: Some(region.name.clone()),
            created_ms: Some(region.created_ms),
            bytes: region.size,
        };
        self.by_name.values().map(held).collect()
    }

    /// Applies the manager's answer about a single region. Nothing changes if the region is unknown here, or
    /// if `region` is a later region of the same name.
    pub fn follow_region(&mut self, region: &Region) -> Vec<AttachmentChange> {
        let mut changes = Vec::new();
        let known = self.by_name.get(&region.name);
        if known.is_some_and(|known| known.region.created_ms == region.created_ms) {
            self.follow_one(region, false, &mut changes);
        }
        changes
    }

    /// Returns the region whose window has this address, attached or not.
    pub fn region_at(&self, hpa: u64) -> Option<&Region> {
        let holds = |attachment: &&Attachment| hpa.wrapping_sub(attachment.hpa) < attachment.window;
        self.by_name.values().find(holds).map(|attachment| &attachment.region)
    }

    /// Applies the manager's answer: all of this compute node's regions, and whether the node is suspended.
    pub fn follow(&mut self, regions: &[Region], held: bool) -> Vec<AttachmentChange> {
        self.follow_all(regions, held, false)
    }

    /// Applies the answer to the registration with a manager whose store lacks changes that this node has seen, and whose
    /// administrator has given up these changes: unlike in [`follow`](Self::follow), a region may have an earlier epoch.
    pub fn follow_restored(&mut self, regions: &[Region], held: bool) -> Vec<AttachmentChange> {
        self.follow_all(regions, held, true)
    }

    fn follow_all(&mut self, regions: &[Region], held: bool, restored: bool) -> Vec<AttachmentChange> {
        let mut changes = Vec::new();
        if self.held != held {
            self.held = held;
            changes.push(AttachmentChange::Hold(held));
        }
        changes.extend(self.other_keys(regions));
        let listed: BTreeMap<&Name, &Region> = regions.iter().map(|region| (&region.name, region)).collect();
        let (phases, notes) = (&mut self.phases, &mut self.notes);
        self.by_name.retain(|name, attachment| {
            // A region of the same name that was created later is a different region.
            let stays = listed.get(name).is_some_and(|region| {
                region.created_ms == attachment.region.created_ms && region.state != RegionState::Draining
            });
            if !stays {
                phases.remove(name);
                notes.remove(name);
                changes.push(AttachmentChange::Drop(attachment.clone()));
            }
            stays
        });
        self.wanted_back = regions
            .iter()
            .filter(|region| is_withdrawn(region))
            .map(|region| ReleasedRegion { name: region.name.clone(), created_ms: region.created_ms })
            .collect();
        for region in listed.into_values() {
            self.follow_one(region, restored, &mut changes);
        }
        changes
    }

    fn follow_one(&mut self, region: &Region, restored: bool, changes: &mut Vec<AttachmentChange>) {
        if matches!(region.state, RegionState::Creating | RegionState::Draining) {
            // A region in these states cannot be used. Its entry in this table keeps the former description, for
            // instance while the manager resets the region.
            if let Some(known) = self.by_name.get_mut(&region.name).filter(|_| restored) {
                known.region.epoch = region.epoch;
            }
            return;
        }
        if !self.by_name.contains_key(&region.name) {
            let usable = matches!(
                region.state,
                RegionState::Active | RegionState::Exposed | RegionState::Degraded | RegionState::Lost
            );
            let Some(attachment) = usable.then(|| self.place(region)).flatten() else { return };
            self.by_name.insert(region.name.clone(), attachment);
        }
        let Some(attachment) = self.by_name.get_mut(&region.name) else { return };
        if region.epoch < attachment.region.epoch && !restored {
            // The answer is older than one that was already applied, so it is ignored.
            return;
        }
        let before = core::mem::replace(&mut attachment.region, region.clone());
        let (now, window) = (attachment.clone(), attachment.window);
        let was = |region: Region| Attachment { region, ..now.clone() };
        if now.beyond() > 0 && now.region.size != before.size {
            tracing::error!(
                region = %region.name, window, beyond = now.beyond(),
                "the region has grown beyond its host physical addresses: what fits is usable; \
                 create another region for the rest"
            );
        }
        if matches!(now.backing, Backing::Device(_)) && was_emptied(&before, region) {
            self.decide_again(&region.name, was(before), changes);
            return;
        }
        let (old, new) = (ways(&before, &now.backing), ways(region, &now.backing));
        let is_same = old == new && before.epoch == region.epoch && !restored;
        let phase = self.phase(&region.name);
        let is_routed = matches!(phase, AttachmentPhase::Attached | AttachmentPhase::Draining(_));
        let keeps_legs = is_routed && !is_same && keeps_legs(&before, region);
        if keeps_legs {
            // Also for a region that is drained: its lines are written to the legs that are in sync now.
            changes.push(if restored {
                AttachmentChange::RestoredLegs(now.clone())
            } else {
                AttachmentChange::Legs(now.clone())
            });
        }
        if !self.is_to_drain(region) && phase == AttachmentPhase::Attached {
            if is_same {
                return;
            }
            if keeps_legs {
                if before.size < region.size {
                    changes.push(AttachmentChange::Extend { from: before.size, attachment: now.clone() });
                }
                return;
            }
            if old == new {
                return;
            }
            // All former decoders and their legs (parts on memory nodes) are unchanged, so only new decoders are added.
            if new.starts_with(&old) {
                changes.push(AttachmentChange::Extend { from: before.size, attachment: now.clone() });
            } else {
                let moved = keeps_content(&old, &new);
                changes.push(if moved {
                    AttachmentChange::Move(was(before))
                } else {
                    AttachmentChange::Drop(was(before))
                });
                changes.push(AttachmentChange::Attach(now.clone()));
            }
            return;
        }
        self.settle(&region.name, changes);
    }

    /// Attaches or drains a region in this table, as its state requires. Does nothing if that is already done or in
    /// progress.
    fn settle(&mut self, name: &Name, changes: &mut Vec<AttachmentChange>) {
        let Some(attachment) = self.by_name.get(name).cloned() else { return };
        match (self.is_to_drain(&attachment.region), self.phase(name)) {
            (false, AttachmentPhase::Attached)
            | (true, AttachmentPhase::Draining(_) | AttachmentPhase::Detached) => {}
            (false, _) if attachment.backing == Backing::Undecided => {}
            (false, _) => {
                self.phases.insert(name.clone(), AttachmentPhase::Attached);
                changes.push(AttachmentChange::Attach(attachment));
            }
            (true, AttachmentPhase::Unknown) if self.held => {}
            // A region that was never attached is drained too, so that operations on it are refused with the reason.
            (true, AttachmentPhase::Attached | AttachmentPhase::Unknown) => {
                self.tickets += 1;
                self.phases.insert(name.clone(), AttachmentPhase::Draining(self.tickets));
                changes.push(AttachmentChange::Drain { attachment, ticket: self.tickets });
            }
        }
    }

    /// Whether a region must not be attached at present.
    fn is_to_drain(&self, region: &Region) -> bool {
        self.held || region.state == RegionState::Disabled || is_withdrawn(region)
    }

    fn phase(&self, name: &Name) -> AttachmentPhase {
        self.phases.get(name).copied().unwrap_or_default()
    }

    /// Records that the worker has drained the region of `ticket`. Returns the region's name, or `None` if the drain
    /// was cancelled meanwhile.
    pub fn drained(&mut self, ticket: u64) -> Option<Name> {
        let found = self.phases.iter().find(|(_, phase)| **phase == AttachmentPhase::Draining(ticket));
        let name = found.map(|(name, _)| name.clone())?;
        self.phases.insert(name.clone(), AttachmentPhase::Detached);
        Some(name)
    }

    /// Returns the regions that the manager reclaims and that are detached on this node. They are reported in each sync
    /// until the manager confirms the report.
    pub fn released(&self) -> Vec<ReleasedRegion> {
        let free = |region: &&ReleasedRegion| {
            matches!(self.phase(&region.name), AttachmentPhase::Unknown | AttachmentPhase::Detached)
        };
        self.wanted_back.iter().filter(free).cloned().collect()
    }

    pub fn is_draining(&self) -> bool {
        self.phases.values().any(|phase| matches!(phase, AttachmentPhase::Draining(_)))
    }

    /// Whether the manager has suspended this node: no region is attached until the manager resumes the node.
    pub fn held(&self) -> bool {
        self.held
    }
}

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod backing_tests;
