//! State files of the release before regions had decoders: read once, and written in today's shape from then on, so that
//! an upgrade of the agent moves no region.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{
    CnId, Extents, HdmDecoder, Leg, LegState, Mac, Name, Region, RegionState, Unmapped, Watermark,
};
use serde::Deserialize;

use super::{Attachment, Attachments, HPA_ALIGN};

/// What a state file may hold.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Stored {
    /// Today's shape.
    Now {
        next_hpa: u64,
        by_name: BTreeMap<Name, Attachment>,
        held: bool,
        #[serde(default)]
        seen: Watermark,
        #[serde(default)]
        joined: Option<Watermark>,
        #[serde(default)]
        revoked: BTreeSet<Mac>,
    },
    /// That of before.
    Before { next_hpa: u64, by_name: BTreeMap<Name, OldAttachment> },
}

#[derive(Deserialize)]
pub(super) struct OldAttachment {
    region: OldRegion,
    hpa: u64,
}

#[derive(Deserialize)]
struct OldRegion {
    name: Name,
    owner: CnId,
    size: u64,
    state: RegionState,
    legs: Vec<OldLeg>,
    #[serde(default)]
    failure: Option<String>,
    created_ms: u64,
}

/// A leg that held its part of the region in one piece.
#[derive(Deserialize)]
struct OldLeg {
    memory_node: Name,
    macs: Vec<Mac>,
    offset: u64,
    cmem_base: u64,
    bytes: u64,
    extent_bytes: u64,
    extents: Extents,
    incarnation: Option<u64>,
    state: LegState,
}

impl From<Stored> for Attachments {
    fn from(stored: Stored) -> Self {
        let (next_hpa, by_name, held, seen, joined, revoked) = match stored {
            Stored::Now { next_hpa, by_name, held, seen, joined, revoked } => {
                (next_hpa, by_name, held, seen, joined, revoked)
            }
            Stored::Before { next_hpa, by_name } => {
                let by_name = by_name.into_iter().map(|(name, old)| (name, old.into())).collect();
                (next_hpa, by_name, false, Watermark::default(), None, BTreeSet::new())
            }
        };
        Attachments { next_hpa, by_name, held, seen, joined, revoked, ..Attachments::default() }
    }
}

impl From<OldAttachment> for Attachment {
    fn from(old: OldAttachment) -> Self {
        // Regions had as many addresses as bytes, and the next one followed.
        let window = old.region.size.next_multiple_of(HPA_ALIGN);
        Attachment::over_ethernet(old.region.into(), old.hpa, window)
    }
}

impl From<OldRegion> for Region {
    fn from(old: OldRegion) -> Self {
        let mut legs = old.legs;
        legs.sort_unstable_by_key(|leg| leg.offset);
        let (ways, granularity) = (Ways::One, Granularity::PAGE);
        let decoder = |leg: &OldLeg| {
            let committed = leg.state != LegState::Mapping;
            HdmDecoder { offset: leg.offset, size: leg.bytes, ways, granularity, committed }
        };
        let decoders = legs.iter().map(decoder).collect();
        let leg = |(decoder, leg): (u32, OldLeg)| Leg {
            memory_node: leg.memory_node,
            macs: leg.macs,
            udp: None,
            mn_key: None,
            decoder,
            position: 0,
            cmem_base: leg.cmem_base,
            bytes: leg.bytes,
            extent_bytes: leg.extent_bytes,
            extents: leg.extents,
            incarnation: leg.incarnation,
            state: leg.state,
        };
        Region {
            name: old.name,
            owner: old.owner,
            size: old.size,
            ways,
            granularity,
            state: old.state,
            decoders,
            legs: (0..).zip(legs).map(leg).collect(),
            unmapped: Unmapped::default(),
            release: None,
            failure: old.failure,
            uid: None,
            created_ms: old.created_ms,
        }
    }
}
