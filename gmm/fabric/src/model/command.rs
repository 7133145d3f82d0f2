//! Commands of the manager to a memory node, and the node's results. The commands to a node are numbered
//! without gaps and carried out in order; a repeated command changes nothing. A node stores the highest
//! [`Watermark`] that it has seen on its disk, and refuses commands with a lower one. A superseded manager
//! therefore cannot change anything.

use serde::{Deserialize, Serialize};

use super::{CnId, Extents, FormerOwner, Name, PublicKey};

/// Progress of a manager's store: the term, which grows each time a manager is started on the store, and the
/// revision, which grows with each change. A restored store repeats terms and revisions, so the random number
/// of the manager's run distinguishes them from the earlier ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Watermark {
    /// Term of the manager, from 1.
    pub term: u64,
    /// Revision of the manager's store.
    pub revision: u64,
    /// The random number of the manager's run; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub run: u64,
}

fn is_zero(run: &u64) -> bool {
    *run == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Watermark {
    pub const fn new(term: u64, revision: u64) -> Self {
        Self { term, revision, run: 0 }
    }

    /// Returns true if this watermark precedes `other`, by term first. Meaningful only for watermarks of one
    /// store.
    pub fn is_before(self, other: Self) -> bool {
        (self.term, self.revision) < (other.term, other.revision)
    }

    /// Returns true if this watermark is a later revision of the same run as `other`, or equal to `other`.
    pub fn is_further_on_than(self, other: Self) -> bool {
        (self.term, self.run) == (other.term, other.run) && self.revision >= other.revision
    }
}

/// Command to a memory node, with its number at that node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeCommand {
    /// Number of the command at its node, from 1, without gaps.
    pub seq: u64,
    /// Term of the manager that delivers the command, not of the one that issued it: a command outlives its manager.
    pub term: u64,
    /// Revision of the store at the delivery. A command that is delivered again, because its result was lost, has a
    /// higher revision than before. A revision below the highest seen comes from an answer that another one overtook,
    /// or from another store.
    pub revision: u64,
    /// The action to carry out, with its mapping.
    #[serde(flatten)]
    pub action: NodeAction,
}

impl NodeCommand {
    /// Returns term and revision of the delivery, to compare with the highest watermark seen.
    pub fn watermark(&self) -> Watermark {
        Watermark::new(self.term, self.revision)
    }
}

/// Action that a command requests of a memory node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum NodeAction {
    /// Fill the extents with zeros, unless they are recorded as zero, then map them. An existing equal mapping stays
    /// and keeps its content.
    MapCmem(Mapping),
    /// Remove the mapping, wait until every worker has passed a batch boundary without it, fill the extents with zeros,
    /// and only then report success. Extents that are not mapped are zeroed too.
    UnmapCmem(Mapping),
    /// Remove the mapping of the former owner, wait until every worker has passed a batch boundary without it, then map
    /// the same extents for another compute node. They keep their content: they are never filled with zeros.
    HandOver(HandOver),
    /// Let a further compute node read the sealed extents of a mapping, at its own addresses.
    Share(Share),
    /// End a share: remove it, then wait until every worker has passed a batch boundary without it.
    Unshare(Share),
    /// Map extents with the content that another mapping of the node has at this moment. The new extents are served at
    /// once, and filled page by page: later writes to the other mapping, or its removal, do not change their content.
    Clone(CloneCmem),
}

/// Mapping that begins with the content of another one on the same memory node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CloneCmem {
    /// The new mapping.
    #[serde(flatten)]
    pub mapping: Mapping,
    /// The mapping whose content the new mapping gets; both have the same number of extents.
    pub source: Mapping,
    /// Incarnation of the pool that contains the content; a pool of another incarnation refuses the command.
    pub incarnation: u64,
}

/// Sealed memory of one compute node that another may read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Share {
    /// The owner's mapping, which is sealed.
    #[serde(flatten)]
    pub mapping: Mapping,
    /// CN id of the compute node that may read.
    pub reader: CnId,
    /// First CMem byte address at the reader, a multiple of `extent_bytes`.
    pub reader_base: u64,
}

/// Change of the compute node for which extents are mapped; the extents keep their content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HandOver {
    /// The mapping for the new owner.
    #[serde(flatten)]
    pub mapping: Mapping,
    /// The mapping before: the same extents for another compute node.
    pub former: FormerOwner,
    /// Incarnation of the pool that contains the content; a pool of another incarnation refuses the command.
    pub incarnation: u64,
}

impl NodeAction {
    /// Returns the mapping that the action adds or removes; for a hand-over or a clone, the one that it adds,
    /// and for a share the owner's.
    pub fn mapping(&self) -> &Mapping {
        match self {
            Self::MapCmem(mapping) | Self::UnmapCmem(mapping) => mapping,
            Self::HandOver(hand_over) => &hand_over.mapping,
            Self::Share(share) | Self::Unshare(share) => &share.mapping,
            Self::Clone(clone) => &clone.mapping,
        }
    }
}

/// CMem of one CN backed by extents of one pool: byte `cmem_base + i * extent_bytes` is the first of the `i`-th extent
/// in `extents`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mapping {
    /// CN id of the compute node that the CMem belongs to.
    pub cn: CnId,
    /// Name of the region that the mapping belongs to, for logs only.
    pub region: Name,
    /// First CMem byte address, a multiple of `extent_bytes`.
    pub cmem_base: u64,
    /// Size of an extent in bytes, as in the node's registration.
    pub extent_bytes: u64,
    /// The extents behind the CMem, in the order of its addresses.
    pub extents: Extents,
    /// True if the content is sealed: the memory node refuses writes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub sealed: bool,
    /// Present public key of the compute node; none if it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cn_key: Option<PublicKey>,
}

impl Mapping {
    pub fn bytes(&self) -> u64 {
        self.extents.len() * self.extent_bytes
    }
}

/// Result of one command. A node repeats it in each sync until a sync is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommandResult {
    /// Number of the command that was carried out or failed.
    pub seq: u64,
    /// The reason of the failure; `None`: the command was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl CommandResult {
    pub fn done(seq: u64) -> Self {
        Self { seq, error: None }
    }

    pub fn failed(seq: u64, error: impl Into<String>) -> Self {
        Self { seq, error: Some(error.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PublicKey;

    #[test]
    fn json_of_a_command_is_flat() {
        let mapping = Mapping {
            cn: "02:00:00:00:00:01".parse().unwrap(),
            region: Name::new("r0").unwrap(),
            cmem_base: 2 << 20,
            extent_bytes: 2 << 20,
            extents: [3, 4].into_iter().collect(),
            sealed: false,
            cn_key: Some(PublicKey([7; 32])),
        };
        assert_eq!(mapping.bytes(), 4 << 20);
        let command = NodeCommand { seq: 7, term: 2, revision: 40, action: NodeAction::MapCmem(mapping) };
        let json = serde_json::to_value(&command).unwrap();
        assert_eq!(json["command"], "map_cmem");
        assert_eq!(json["seq"], 7);
        assert_eq!(json["cn"], "02:00:00:00:00:01");
        assert_eq!(serde_json::from_value::<NodeCommand>(json).unwrap(), command);
    }

    #[test]
    fn a_later_term_outweighs_any_revision() {
        let (early, late) = (Watermark::new(1, 900), Watermark::new(2, 1));
        assert!(early.is_before(late) && !late.is_before(early) && !late.is_before(late));
        assert!(late.is_further_on_than(late) && !late.is_further_on_than(early));
        assert!(!Watermark { run: 5, ..late }.is_further_on_than(late), "another run");
    }
}
