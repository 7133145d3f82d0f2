//! Owners of the structures of a compute node with several workers: one worker alone writes a structure as long as the
//! process lives, and no line is cached by two. The owner is the worker that has used the structure first, so the check
//! needs none of the code that divides the work.

use std::collections::BTreeMap;
use std::fmt;

use cxloe_wire::frame::Mac;

use crate::trace::Name;
use crate::violation::InvariantViolation;

/// A structure that one worker alone writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Structure {
    /// Line at this HPA, which a client accesses or a worker's cache has.
    Line(u64),
    /// Routes, decode-miss policy and drains of the region at this HPA.
    Region(u64),
    /// Pager and transfers of the mapped region at this HPA.
    Space(u64),
    /// Session between these addresses: of a shard of the compute node, and of a memory node.
    Session(Mac, Mac),
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Structure::Line(hpa) => write!(f, "the line at {hpa:#x}"),
            Structure::Region(hpa) => write!(f, "the region at {hpa:#x}"),
            Structure::Space(hpa) => write!(f, "the mapped region at {hpa:#x}"),
            Structure::Session(own, peer) => write!(f, "the session of {} with {}", Name(*own), Name(*peer)),
        }
    }
}

/// Structures that a worker has used since the last check. A node with one worker records none.
pub(super) struct Uses(Option<Vec<Structure>>);

impl Uses {
    /// Makes the list of a worker of a node with `workers` workers.
    pub fn new(workers: usize) -> Uses {
        Uses((workers > 1).then(Vec::new))
    }

    pub fn are_recorded(&self) -> bool {
        self.0.is_some()
    }

    pub fn record(&mut self, structure: Structure) {
        if let Some(uses) = &mut self.0 {
            uses.push(structure);
        }
    }
}

/// Workers by the structures that they have used in the present process.
#[derive(Default)]
pub(super) struct Ownership(BTreeMap<Structure, usize>);

impl Ownership {
    /// Takes the structures that worker number `worker` of the node at `node` has used.
    ///
    /// # Errors
    /// Returns a violation if another worker has used one of them before.
    pub fn check(&mut self, node: Mac, worker: usize, uses: &mut Uses) -> Result<(), InvariantViolation> {
        for structure in uses.0.iter_mut().flat_map(|uses| uses.drain(..)) {
            let owner = *self.0.entry(structure).or_insert(worker);
            if owner != worker {
                return Err(InvariantViolation::Rule(format!(
                    "{}: {structure} is used by workers {owner} and {worker}",
                    Name(node)
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_user_of_a_structure_is_found() {
        let (node, mut ownership) = (Name::cn(0), Ownership::default());
        let mut used = |worker, structure| {
            let mut uses = Uses::new(2);
            uses.record(structure);
            ownership.check(node, worker, &mut uses)
        };
        assert_eq!(used(0, Structure::Line(64)), Ok(()));
        assert_eq!(used(1, Structure::Region(64)), Ok(()), "another structure at the same address");
        assert_eq!(used(0, Structure::Line(64)), Ok(()));
        let found = used(1, Structure::Line(64)).expect_err("the line has an owner");
        assert_eq!(found.to_string(), "cn0: the line at 0x40 is used by workers 0 and 1");
    }

    #[test]
    fn one_worker_records_nothing() {
        let mut uses = Uses::new(1);
        uses.record(Structure::Line(0));
        assert!(!uses.are_recorded() && uses.0.is_none());
    }
}
