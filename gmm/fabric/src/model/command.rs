//! What the manager tells a memory node to do, and what the node answers. Commands of a node are numbered without gaps and
//! carried out in order; carrying one out again changes nothing. A node keeps the highest [`Watermark`] it has seen on
//! disk and refuses commands below it, so a manager that lost its place can do no harm.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CnId, Extents, Name, PublicKey};

/// How far a manager has come: its term, which grows with each start of a manager over the store, and the store's
/// revision, which grows with each change. A store that was put back has terms and revisions once more: the random number
/// of the manager's run tells them from those it had before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Watermark {
    /// The manager's term.
    pub term: u64,
    /// The revision of its store.
    pub revision: u64,
    /// The random number of the manager's run; 0: of a manager that chose none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub run: u64,
}

fn is_zero(run: &u64) -> bool {
    *run == 0
}

impl Watermark {
    /// Of a manager that chose no number for its run.
    pub const fn new(term: u64, revision: u64) -> Self {
        Self { term, revision, run: 0 }
    }

    /// Whether this is from before `other`, by term first. Says something of watermarks of one store only.
    pub fn is_before(self, other: Self) -> bool {
        (self.term, self.revision) < (other.term, other.revision)
    }

    /// Whether this is `other`, or a later revision of the same run.
    pub fn is_further_on_than(self, other: Self) -> bool {
        (self.term, self.run) == (other.term, other.run) && self.revision >= other.revision
    }
}

/// One command to one memory node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCommand {
    /// Number of the command at its node: 1 for the first, then one more each time.
    pub seq: u64,
    /// Term of the manager that delivers it (not of the one that issued it: a command outlives its manager).
    pub term: u64,
    /// Revision of the store when it is delivered. A command delivered again, because its result was lost, has a higher
    /// one than the first time; below the highest seen are only answers that were overtaken, or another store's.
    pub revision: u64,
    /// What to do.
    #[serde(flatten)]
    pub action: NodeAction,
}

impl NodeCommand {
    /// Term and revision, to compare with the highest seen.
    pub fn watermark(&self) -> Watermark {
        Watermark::new(self.term, self.revision)
    }
}

/// What a memory node is told to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum NodeAction {
    /// Fill the extents with zeros, unless they are known to be zero, then map them. A mapping that is there already,
    /// equal in all parts, stays as it is and keeps its content.
    MapCmem(Mapping),
    /// Remove the mapping, let every worker pass a batch boundary without it, fill the extents with zeros, and only then
    /// report success. What is not mapped is zeroed all the same.
    UnmapCmem(Mapping),
}

impl NodeAction {
    /// The mapping it is about.
    pub fn mapping(&self) -> &Mapping {
        match self {
            Self::MapCmem(mapping) | Self::UnmapCmem(mapping) => mapping,
        }
    }
}

/// CMem of one CN backed by extents of one pool: CMem `cmem_base + i * extent_bytes` is the `i`-th of `extents`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Mapping {
    /// Whose CMem.
    pub cn: CnId,
    /// The region it belongs to (for logs; addresses alone decide).
    pub region: Name,
    /// First CMem byte address, a multiple of `extent_bytes`.
    pub cmem_base: u64,
    /// Bytes of one extent.
    pub extent_bytes: u64,
    /// The extents behind it, in CMem order.
    pub extents: Extents,
    /// The public key of that CN, as far as the manager knows it at this moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cn_key: Option<PublicKey>,
}

impl Mapping {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.extents.len() * self.extent_bytes
    }
}

/// What became of one command. A node repeats it in each sync until one is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandResult {
    /// The command's number.
    pub seq: u64,
    /// Why it failed; `None`: it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl CommandResult {
    /// Command `seq` is done.
    pub fn done(seq: u64) -> Self {
        Self { seq, error: None }
    }

    /// Command `seq` failed, for the reason given.
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
