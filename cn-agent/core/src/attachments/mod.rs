//! Which regions are attached at which host physical addresses, and what has to change when the manager tells
//! of others. Decides without I/O; what it holds is what the state file keeps.
//!
//! Each region gets a window of HPA of its own, one after the other, aligned as a CXL fixed memory window is and
//! with room to grow, and keeps it for as long as it is this compute node's, over restarts of the agent too,
//! whether it is attached or not. It also keeps what serves it, Ethernet or a CXL device of this machine: where that may be
//! a device, it is not attached before somebody who has looked says so. An address is never given to a second region: a program that holds an old one
//! gets an error, not another's data.
//!
//! ```text
//!                  the manager has it usable
//!   (remembered) ----------------------------> attached --- grows: extend; moves: write back, attach anew
//!        ^                                        |
//!        |  worker: written back, routes gone     | the manager asks for it back, or holds this node in reset
//!        +------------------------- letting go <--+
//! ```

mod backings;
mod before;
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
    HdmDecoder, LegState, LogicalDevice, Mac, Name, PublicKey, Region, RegionState, UnbindOption, Watermark,
};
use serde::{Deserialize, Serialize};

use crate::backing::{Backing, Preference};
pub use backings::Question;
use before::Stored;
pub use reach::{reach, reach_of};

/// The first HPA given away: 1 TiB, above what machines have of their own.
pub const HPA_FIRST: u64 = 1 << 40;
/// The first HPA not given away: addresses have 52 bits (the most a CPU has today).
pub const HPA_LIMIT: u64 = 1 << 52;
/// Alignment of regions: base and size of a CXL HDM decoder are multiples of 256 MiB.
pub const HPA_ALIGN: u64 = 256 << 20;
/// The least addresses a region gets.
pub const WINDOW_MIN: u64 = 16 << 30;
/// How many times its size a region gets, before rounding up to a power of two.
const WINDOW_FACTOR: u64 = 4;

/// A region and its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// As the manager told last.
    pub region: Region,
    /// Its first HPA.
    pub hpa: u64,
    /// Bytes of HPA that are its own.
    pub window: u64,
    /// What serves it.
    #[serde(default)]
    pub backing: Backing,
}

impl Attachment {
    /// `region` at `hpa`, with `window` bytes of addresses, served by its memory nodes.
    pub fn over_ethernet(region: Region, hpa: u64, window: u64) -> Attachment {
        Attachment { region, hpa, window, backing: Backing::Ethernet }
    }

    /// Bytes of it that can be reached: all, or those its window has room for.
    pub fn reach(&self) -> u64 {
        reach(&self.region, self.window)
    }

    /// How many bytes `before` had, if this is the same region with all of that where it was, and perhaps more behind it.
    pub fn grown_from(&self, before: &Attachment) -> Option<u64> {
        let same = (self.hpa, &self.backing) == (before.hpa, &before.backing);
        let (old, new) = (ways(&before.region, &before.backing), ways(&self.region, &self.backing));
        (same && new.starts_with(&old)).then_some(before.region.size)
    }

    /// Bytes that lie beyond its window.
    pub fn beyond(&self) -> u64 {
        self.region.size.saturating_sub(self.window)
    }
}

/// What the worker has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Make it reachable. If it is being let go of or moved, then after that.
    Attach(Attachment),
    /// It has grown: make the decoders reachable that lie behind the first `from` bytes.
    Extend {
        /// As it is now.
        attachment: Attachment,
        /// Bytes that were reachable before.
        from: u64,
    },
    /// Write back what is modified of it, then make it unreachable; it is attached again at once, elsewhere.
    Move(Attachment),
    /// Refuse new operations on it, write back what is modified, make it unreachable, and say so with `ticket`.
    Drain {
        /// As it was attached.
        attachment: Attachment,
        /// What to say it with.
        ticket: u64,
    },
    /// Make it unreachable now: its content is gone, nothing is written back.
    Drop(Attachment),
    /// Whether this node is held in reset from now on.
    Hold(bool),
    /// Which public key is which memory node's, all of them; none where the manager has taken it back.
    Keys(BTreeMap<Mac, Option<PublicKey>>),
}

/// How far a region is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Not, and the worker knows nothing of it.
    #[default]
    Unknown,
    /// Yes.
    Attached,
    /// The worker is writing back what is modified of it.
    Draining(u64),
    /// Nothing is left of it here but its address.
    Detached,
}

/// All regions of this compute node that have addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Attachments {
    /// The next HPA to give away; only grows.
    next_hpa: u64,
    by_name: BTreeMap<Name, Attachment>,
    /// Whether this node is held in reset.
    held: bool,
    /// How far the manager had come that told of these regions.
    seen: Watermark,
    /// How far the manager had come that this node has joined with, which it follows from then on, also without regions; none
    /// of a node that has not joined.
    #[serde(default)]
    joined: Option<Watermark>,
    /// How far each is attached; those that are not named are not. Nothing is when the agent starts.
    #[serde(skip)]
    phases: BTreeMap<Name, Phase>,
    /// Those that the manager wants back after what is modified was written back.
    #[serde(skip)]
    wanted_back: Vec<ReleasedRegion>,
    /// Bound to this node, as the manager told last.
    #[serde(skip)]
    devices: Vec<LogicalDevice>,
    #[serde(skip)]
    tickets: u64,
    /// Which public key is which memory node's, as the worker was told last; none where it was taken back.
    #[serde(skip)]
    keys: BTreeMap<Mac, Option<PublicKey>>,
    /// Memory nodes whose key was taken back, so that a restart does not make them ones that never had any.
    #[serde(default)]
    revoked: BTreeSet<Mac>,
    /// What new regions are to be served by.
    #[serde(skip)]
    preference: Preference,
    /// What there is to say about what serves a region.
    #[serde(skip)]
    notes: BTreeMap<Name, String>,
}

impl Default for Attachments {
    fn default() -> Self {
        Attachments {
            next_hpa: HPA_FIRST,
            by_name: BTreeMap::new(),
            held: false,
            seen: Watermark::default(),
            joined: None,
            phases: BTreeMap::new(),
            wanted_back: Vec::new(),
            devices: Vec::new(),
            tickets: 0,
            keys: BTreeMap::new(),
            revoked: BTreeSet::new(),
            preference: Preference::default(),
            notes: BTreeMap::new(),
        }
    }
}

/// What decides of a region where requests go and whether they may: its committed decoders and their legs.
type Way = (HdmShape, Vec<(u32, Option<Mac>, u64, Option<u64>, bool)>);
type HdmShape = (u64, u64, Ways, Granularity);

fn ways(region: &Region, backing: &Backing) -> Vec<Way> {
    let of_decoder = |(index, d): (usize, &HdmDecoder)| {
        // Wherever the legs of one are that a device serves, its requests do not go there.
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

/// Whether any leg still holds what it held before, wherever it is now.
fn keeps_content(before: &[Way], now: &[Way]) -> bool {
    let legs = |ways: &[Way]| -> Vec<_> { ways.iter().flat_map(|(_, legs)| legs.clone()).collect() };
    let (before, now) = (legs(before), legs(now));
    let mut pairs = before.iter().zip(&now);
    pairs.any(|((_, _, _, held, _), (_, _, _, holds, lost))| held == holds && !lost)
}

/// Whether a region was emptied between two of the manager's descriptions: none of its legs holds what it held.
fn was_emptied(before: &Region, now: &Region) -> bool {
    let legs = |region| ways(region, &Backing::Ethernet);
    let lost = now.legs.iter().any(|leg| leg.state == LegState::Lost);
    !lost && !before.legs.is_empty() && !keeps_content(&legs(before), &legs(now))
}

/// Whether the manager waits until this node has written back what it modified and let go.
fn is_wanted_back(region: &Region) -> bool {
    region.state == RegionState::Releasing
        && region.release.is_some_and(|release| release.option == UnbindOption::Managed)
}

impl Attachments {
    /// What is to be done at the start, when nothing is attached.
    pub fn begin(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.held {
            changes.push(Change::Hold(true));
        }
        changes.extend(self.other_keys(&[]));
        let names: Vec<Name> = self.by_name.keys().cloned().collect();
        names.iter().for_each(|name| self.settle(name, &mut changes));
        changes
    }

    /// How far the manager had come that told of these regions. Who has none, and has not joined, follows any manager.
    pub fn seen(&self) -> Watermark {
        match self.by_name.is_empty() && self.joined.is_none() {
            true => Watermark::default(),
            false => self.seen,
        }
    }

    /// This node has joined with a manager that had come so far; none: it has not joined. Where it joins anew, what it has
    /// seen before counts as long as it has regions.
    pub fn join(&mut self, joined: Option<Watermark>) {
        let is_new = joined != self.joined;
        self.joined = joined;
        if let Some(joined) = joined.filter(|_| is_new && self.by_name.is_empty()) {
            self.seen = joined;
        }
    }

    /// What follows is told by a manager that has come so far, and whose store contains what was [seen](Self::seen).
    pub fn hear(&mut self, manager: Watermark) {
        self.seen = manager;
    }

    /// Which outer address speaks for which memory node's MAC, as far as those of its regions use the `udp` link.
    pub fn udp_peers(&self) -> Vec<(Mac, SocketAddr)> {
        let legs = self.by_name.values().flat_map(|attachment| &attachment.region.legs);
        legs.flat_map(|leg| leg.macs.iter().filter_map(|mac| Some((*mac, leg.udp?)))).collect()
    }

    /// The keys of memory nodes, if they are others than the worker knows: as the regions told now have them, and of other
    /// memory nodes as they were. A memory node that had a key and has none was revoked.
    fn other_keys(&mut self, told: &[Region]) -> Option<Change> {
        let known = self.by_name.values().map(|attachment| &attachment.region).chain(told);
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
            Change::Keys(keys)
        })
    }

    /// What this node holds, for who wants to know what it would lose.
    pub fn holds(&self) -> Vec<Held> {
        let held = |Attachment { region, .. }: &Attachment| Held {
            compute_node: region.owner,
            region: Some(region.name.clone()),
            created_ms: Some(region.created_ms),
            bytes: region.size,
        };
        self.by_name.values().map(held).collect()
    }

    /// Takes over what the manager tells: all of this compute node's regions, and whether it is held in reset.
    pub fn follow(&mut self, regions: &[Region], held: bool) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.held != held {
            self.held = held;
            changes.push(Change::Hold(held));
        }
        changes.extend(self.other_keys(regions));
        let told: BTreeMap<&Name, &Region> = regions.iter().map(|region| (&region.name, region)).collect();
        let (phases, notes) = (&mut self.phases, &mut self.notes);
        self.by_name.retain(|name, attachment| {
            // A region of the same name that was created later is another one.
            let stays = told.get(name).is_some_and(|region| {
                region.created_ms == attachment.region.created_ms && region.state != RegionState::Draining
            });
            if !stays {
                phases.remove(name);
                notes.remove(name);
                changes.push(Change::Drop(attachment.clone()));
            }
            stays
        });
        self.wanted_back = regions
            .iter()
            .filter(|region| is_wanted_back(region))
            .map(|region| ReleasedRegion { name: region.name.clone(), created_ms: region.created_ms })
            .collect();
        for region in told.into_values() {
            self.follow_one(region, &mut changes);
        }
        changes
    }

    fn follow_one(&mut self, region: &Region, changes: &mut Vec<Change>) {
        if matches!(region.state, RegionState::Creating | RegionState::Draining) {
            // Not to be used yet, or any more. One that is being reset stays lost until it is active.
            return;
        }
        if !self.by_name.contains_key(&region.name) {
            let usable =
                matches!(region.state, RegionState::Active | RegionState::Degraded | RegionState::Lost);
            let Some(attachment) = usable.then(|| self.place(region)).flatten() else { return };
            self.by_name.insert(region.name.clone(), attachment);
        }
        let Some(attachment) = self.by_name.get_mut(&region.name) else { return };
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
            self.decide_anew(&region.name, was(before), changes);
            return;
        }
        if !self.is_to_drain(region) && self.phase(&region.name) == Phase::Attached {
            let (old, new) = (ways(&before, &now.backing), ways(region, &now.backing));
            if old == new {
                return;
            }
            if new.starts_with(&old) {
                changes.push(Change::Extend { from: before.size, attachment: now.clone() });
            } else {
                let moved = keeps_content(&old, &new);
                changes.push(if moved { Change::Move(was(before)) } else { Change::Drop(was(before)) });
                changes.push(Change::Attach(now.clone()));
            }
            return;
        }
        self.settle(&region.name, changes);
    }

    /// Attaches a remembered region, or has it let go of, as its state wants it.
    fn settle(&mut self, name: &Name, changes: &mut Vec<Change>) {
        let Some(attachment) = self.by_name.get(name).cloned() else { return };
        match (self.is_to_drain(&attachment.region), self.phase(name)) {
            (false, Phase::Attached) | (true, Phase::Draining(_) | Phase::Detached) => {}
            (false, _) if attachment.backing == Backing::Undecided => {}
            (false, _) => {
                self.phases.insert(name.clone(), Phase::Attached);
                changes.push(Change::Attach(attachment));
            }
            (true, Phase::Unknown) if self.held => {}
            // Also what was never attached, so that operations on it are refused with the reason.
            (true, Phase::Attached | Phase::Unknown) => {
                self.tickets += 1;
                self.phases.insert(name.clone(), Phase::Draining(self.tickets));
                changes.push(Change::Drain { attachment, ticket: self.tickets });
            }
        }
    }

    /// Whether a region is not to be attached at present.
    fn is_to_drain(&self, region: &Region) -> bool {
        self.held || region.state == RegionState::Disabled || is_wanted_back(region)
    }

    fn phase(&self, name: &Name) -> Phase {
        self.phases.get(name).copied().unwrap_or_default()
    }

    /// Gives a new region its addresses.
    fn place(&mut self, region: &Region) -> Option<Attachment> {
        let (name, size, hpa) = (&region.name, region.size, self.next_hpa);
        let left = HPA_LIMIT - hpa;
        if size > left {
            tracing::error!(
                region = %name, size, next = format_args!("{hpa:#x}"),
                "no host physical addresses are left for this region; stop the agent, remove its state file \
                 in the data directory, and start it again"
            );
            return None;
        }
        let wanted = size.saturating_mul(WINDOW_FACTOR).checked_next_power_of_two().unwrap_or(u64::MAX);
        let window = wanted.max(WINDOW_MIN).min(left);
        self.next_hpa = (hpa + window).next_multiple_of(HPA_ALIGN);
        Some(Attachment { region: region.clone(), hpa, window, backing: self.first_backing() })
    }

    /// The worker has let go of what `ticket` was for. Returns which region that is, if it is still to be let go of.
    pub fn drained(&mut self, ticket: u64) -> Option<Name> {
        let found = self.phases.iter().find(|(_, phase)| **phase == Phase::Draining(ticket));
        let name = found.map(|(name, _)| name.clone())?;
        self.phases.insert(name.clone(), Phase::Detached);
        Some(name)
    }

    /// What the manager wants back and nothing is left of here: to be told with each sync until it says otherwise.
    pub fn released(&self) -> Vec<ReleasedRegion> {
        let free =
            |region: &&ReleasedRegion| matches!(self.phase(&region.name), Phase::Unknown | Phase::Detached);
        self.wanted_back.iter().filter(free).cloned().collect()
    }

    /// Whether the worker is letting go of something.
    pub fn is_draining(&self) -> bool {
        self.phases.values().any(|phase| matches!(phase, Phase::Draining(_)))
    }

    /// Whether this node is held in reset.
    pub fn held(&self) -> bool {
        self.held
    }
}

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod backing_tests;
