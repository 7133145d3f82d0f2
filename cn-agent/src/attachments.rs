//! Which regions are attached at which host physical addresses, and what has to change when the manager tells
//! of others. Decides without I/O; what it holds is what the state file keeps.
//!
//! Each region gets a stretch of HPA of its own, one after the other, aligned as a CXL fixed memory window is,
//! and keeps it as long as it is attached, over restarts of the agent too. An address is never given to a
//! second region: a program that holds an old one gets an error, not another's data.

use std::collections::BTreeMap;

use cxloe_gmm::model::{Leg, LegState, Name, Region, RegionState};
use serde::{Deserialize, Serialize};

use crate::local::message::{AttachedLeg, AttachedRegion};

/// The first HPA given away: 1 TiB, above what machines have of their own.
pub const HPA_FIRST: u64 = 1 << 40;
/// The first HPA not given away: addresses have 52 bits (the most a CPU has today).
pub const HPA_LIMIT: u64 = 1 << 52;
/// Alignment of regions: base and size of a CXL HDM decoder are multiples of 256 MiB.
pub const HPA_ALIGN: u64 = 256 << 20;

/// An attached region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// As the manager told last.
    pub region: Region,
    /// Its first HPA.
    pub hpa: u64,
}

/// What the worker has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Make it reachable.
    Attach(Attachment),
    /// Make it unreachable. `keep`: its content lives on, so what is modified is written back first.
    Detach {
        /// As it was attached.
        attachment: Attachment,
        /// Whether its content lives on.
        keep: bool,
    },
}

/// The regions attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachments {
    /// The next HPA to give away; only grows.
    next_hpa: u64,
    by_name: BTreeMap<Name, Attachment>,
}

impl Default for Attachments {
    fn default() -> Self {
        Attachments { next_hpa: HPA_FIRST, by_name: BTreeMap::new() }
    }
}

/// What of a leg decides where requests go and whether they may.
fn way(leg: &Leg) -> (Option<cxloe_gmm::model::Mac>, u64, u64, u64, Option<u64>, bool) {
    (leg.mac(), leg.offset, leg.cmem_base, leg.bytes, leg.incarnation, leg.state == LegState::Lost)
}

fn same_way(a: &Region, b: &Region) -> bool {
    a.legs.len() == b.legs.len() && a.legs.iter().zip(&b.legs).all(|(a, b)| way(a) == way(b))
}

/// Whether the legs hold the same content as before, wherever they are.
fn same_content(a: &Region, b: &Region) -> bool {
    let content = |region: &Region| region.legs.iter().map(|leg| leg.incarnation).collect::<Vec<_>>();
    content(a) == content(b) && b.state != RegionState::Lost
}

impl Attachments {
    /// Everything attached, as changes of an empty engine.
    pub fn all(&self) -> impl Iterator<Item = Change> {
        self.by_name.values().cloned().map(Change::Attach)
    }

    /// Takes over the regions that the manager tells of: all of this compute node's.
    pub fn follow(&mut self, regions: &[Region]) -> Vec<Change> {
        let mut changes = Vec::new();
        let told: BTreeMap<&Name, &Region> = regions.iter().map(|region| (&region.name, region)).collect();
        self.by_name.retain(|name, attachment| {
            // A region of the same name that was created later is another one.
            let stays = told.get(name).is_some_and(|region| {
                region.created_ms == attachment.region.created_ms && region.state != RegionState::Draining
            });
            if !stays {
                changes.push(Change::Detach { attachment: attachment.clone(), keep: false });
            }
            stays
        });
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
        if let Some(attachment) = self.by_name.get_mut(&region.name) {
            if !same_way(&attachment.region, region) {
                let keep = same_content(&attachment.region, region);
                changes.push(Change::Detach { attachment: attachment.clone(), keep });
                attachment.region = region.clone();
                changes.push(Change::Attach(attachment.clone()));
            }
            attachment.region = region.clone();
            return;
        }
        let (name, size) = (&region.name, region.size);
        let end = self.next_hpa.checked_add(size).and_then(|end| end.checked_next_multiple_of(HPA_ALIGN));
        let Some(end) = end.filter(|end| *end <= HPA_LIMIT) else {
            tracing::error!(
                region = %name, size, next = format_args!("{:#x}", self.next_hpa),
                "no host physical addresses are left for this region; stop the agent, remove its state file \
                 in the data directory, and start it again"
            );
            return;
        };
        let attachment = Attachment { region: region.clone(), hpa: self.next_hpa };
        self.next_hpa = end;
        changes.push(Change::Attach(attachment.clone()));
        self.by_name.insert(name.clone(), attachment);
    }

    /// What is attached, by HPA, as `cn-agent list` shows it.
    pub fn list(&self) -> Vec<AttachedRegion> {
        let mut list: Vec<AttachedRegion> = self.by_name.values().map(listed).collect();
        list.sort_by_key(|region| region.hpa);
        list
    }
}

fn listed(Attachment { region, hpa }: &Attachment) -> AttachedRegion {
    let leg = |leg: &Leg| AttachedLeg {
        memory_node: leg.memory_node.to_string(),
        mac: leg.mac().map_or_else(|| "unknown".into(), |mac| mac.to_string()),
        offset: leg.offset,
        bytes: leg.bytes,
    };
    AttachedRegion {
        region: region.name.to_string(),
        hpa: *hpa,
        size: region.size,
        state: region.state.to_string(),
        served_by: "ethernet".into(),
        memory_nodes: region.legs.iter().map(leg).collect(),
    }
}

#[cfg(test)]
mod tests {
    use cxloe_gmm::model::Extents;

    use super::*;

    const CREATED: u64 = 1_700_000_000_000;

    fn region(name: &str, size: u64, state: RegionState) -> Region {
        let leg = Leg {
            memory_node: Name::new("mn0").unwrap(),
            macs: vec!["02:00:00:00:00:09".parse().unwrap()],
            offset: 0,
            cmem_base: 0,
            bytes: size,
            extent_bytes: 2 << 20,
            extents: Extents::default(),
            incarnation: Some(7),
            state: LegState::Mapped,
        };
        Region {
            name: Name::new(name).unwrap(),
            owner: "02:00:00:00:00:01".parse().unwrap(),
            size,
            ways: 1,
            granularity: 4096,
            state,
            legs: vec![leg],
            failure: None,
            created_ms: CREATED,
        }
    }

    fn hpas(changes: &[Change]) -> Vec<u64> {
        let hpa = |change: &Change| match change {
            Change::Attach(a) | Change::Detach { attachment: a, .. } => a.hpa,
        };
        changes.iter().map(hpa).collect()
    }

    #[test]
    fn regions_get_addresses_one_after_the_other_and_keep_them() {
        let mut table = Attachments::default();
        let a = region("a", 4 << 20, RegionState::Active);
        let b = region("b", HPA_ALIGN + 1, RegionState::Degraded);
        let both = [a.clone(), b.clone()];
        assert_eq!(hpas(&table.follow(&both)), [HPA_FIRST, HPA_FIRST + HPA_ALIGN]);
        assert_eq!(table.follow(&both), []);
        // One goes and comes back: another address; the other stays where it is.
        let gone = table.follow(std::slice::from_ref(&b));
        assert!(
            matches!(&gone[..], [Change::Detach { keep: false, attachment }] if attachment.hpa == HPA_FIRST)
        );
        assert_eq!(hpas(&table.follow(&both)), [HPA_FIRST + 3 * HPA_ALIGN]);
        assert_eq!(table.list().iter().map(|r| r.region.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    }

    #[test]
    fn what_is_not_ready_is_not_attached() {
        let mut table = Attachments::default();
        assert_eq!(table.follow(&[region("a", 4096, RegionState::Creating)]), []);
        assert_eq!(table.follow(&[region("a", 4096, RegionState::Draining)]), []);
        assert_eq!(table.follow(&[region("a", 4096, RegionState::Active)]).len(), 1);
        let draining = table.follow(&[region("a", 4096, RegionState::Draining)]);
        assert!(matches!(&draining[..], [Change::Detach { keep: false, .. }]));
    }

    #[test]
    fn another_state_is_shown_but_moves_nothing() {
        let mut table = Attachments::default();
        table.follow(&[region("a", 4096, RegionState::Active)]);
        assert_eq!(table.follow(&[region("a", 4096, RegionState::Degraded)]), []);
        assert_eq!(table.list()[0].state, "degraded");
    }

    #[test]
    fn a_move_keeps_content_a_loss_does_not() {
        let mut table = Attachments::default();
        table.follow(&[region("a", 4096, RegionState::Active)]);
        let mut moved = region("a", 4096, RegionState::Active);
        moved.legs[0].macs = vec!["02:00:00:00:00:0a".parse().unwrap()];
        let changes = table.follow(std::slice::from_ref(&moved));
        assert!(matches!(&changes[..], [Change::Detach { keep: true, .. }, Change::Attach(_)]));
        assert_eq!(hpas(&changes), [HPA_FIRST, HPA_FIRST]);

        let mut lost = moved.clone();
        lost.legs[0].state = LegState::Lost;
        lost.state = RegionState::Lost;
        let changes = table.follow(std::slice::from_ref(&lost));
        assert!(matches!(&changes[..], [Change::Detach { keep: false, .. }, Change::Attach(_)]));

        // Reset: lost to programs until it is active again, and then empty.
        let mut creating = lost.clone();
        creating.state = RegionState::Creating;
        assert_eq!(table.follow(&[creating]), []);
        let mut fresh = moved;
        fresh.legs[0].incarnation = Some(8);
        let changes = table.follow(&[fresh]);
        assert!(matches!(&changes[..], [Change::Detach { keep: false, .. }, Change::Attach(_)]));
        assert_eq!(hpas(&changes), [HPA_FIRST, HPA_FIRST]);
    }

    #[test]
    fn the_same_name_created_anew_is_another_region() {
        let mut table = Attachments::default();
        table.follow(&[region("a", 4096, RegionState::Active)]);
        let again = Region { created_ms: CREATED + 1, ..region("a", 4096, RegionState::Active) };
        let changes = table.follow(&[again]);
        assert!(matches!(&changes[..], [Change::Detach { keep: false, .. }, Change::Attach(_)]));
        assert_eq!(hpas(&changes), [HPA_FIRST, HPA_FIRST + HPA_ALIGN]);
    }

    #[test]
    fn addresses_run_out_without_harm() {
        let mut table = Attachments { next_hpa: HPA_LIMIT - HPA_ALIGN, ..Attachments::default() };
        assert_eq!(table.follow(&[region("big", 2 * HPA_ALIGN, RegionState::Active)]), []);
        assert_eq!(table.follow(&[region("huge", u64::MAX - 5, RegionState::Active)]), []);
        assert_eq!(table.follow(&[region("fits", HPA_ALIGN, RegionState::Active)]).len(), 1);
    }

    #[test]
    fn it_reads_back() {
        let mut table = Attachments::default();
        table.follow(&[region("a", 4096, RegionState::Active)]);
        let json = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<Attachments>(&json).unwrap(), table);
        assert_eq!(table.all().count(), 1);
    }
}
