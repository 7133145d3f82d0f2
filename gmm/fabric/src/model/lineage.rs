//! Lineage of a store: the managers that have led a fabric, in order. It distinguishes a store from an older
//! copy of itself. Each start of a manager adds a [`LeaderTerm`] to its store, with a random number that no
//! other start has. Nodes record the latest term they have seen and its revision. A restored store either
//! lacks that term or ended it too early, however often managers are started on that store.

use serde::{Deserialize, Serialize};

use super::Watermark;

/// Term of one manager on a store: from its start to the start of the next manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaderTerm {
    /// Term of the manager, which grows with each takeover.
    pub term: u64,
    /// Random number chosen at the manager's start; 0: none.
    pub run: u64,
    /// The first revision of the term.
    pub first: u64,
    /// Histories of other stores, given up by an explicit command in this term: nodes that have seen one of them accept
    /// this store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adopted: Vec<Watermark>,
}

impl LeaderTerm {
    fn is_of(&self, seen: Watermark) -> bool {
        (self.term, self.run) == (seen.term, seen.run)
    }

    fn adopts(&self, seen: Watermark) -> bool {
        self.adopted.iter().any(|given_up| given_up.is_further_on_than(seen))
    }
}

/// The manager's store lacks changes that this node has seen, so the node does not accept the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the manager's store, at term {}, revision {}, does not have what this node has seen, term {}, revision {}: it is an older \
     copy, or another fabric's; nothing was changed here. Start the manager over its newest store, or see `gmm adopt-fabric` \
     for what would be lost with this one",
    own.term, own.revision, seen.term, seen.revision
)]
pub struct Lacking {
    /// The latest watermark that the node has seen.
    pub seen: Watermark,
    /// The watermark of the manager's store.
    pub own: Watermark,
}

/// Checks that a store at watermark `own`, with `terms` as its lineage, [`contains`] `seen`.
///
/// # Errors
/// [`Lacking`] if it does not.
pub fn check(terms: &[LeaderTerm], own: Watermark, seen: Watermark) -> Result<(), Lacking> {
    if contains(terms, own, seen) { Ok(()) } else { Err(Lacking { seen, own }) }
}

/// Returns true if a store at watermark `own`, with `terms` as its lineage (by ascending term), contains
/// every change up to `seen`.
///
/// For a `seen` without a run's number, only term and revision are compared.
pub fn contains(terms: &[LeaderTerm], own: Watermark, seen: Watermark) -> bool {
    continues(terms, own, seen) || adopts(terms, seen)
}

/// Returns true if a store [`contains`] `seen` only because an administrator gave up the history up to `seen`: numbers
/// that only grow in one history, such as a region's epoch, may be lower in this store than a node has seen them.
pub fn is_given_up(terms: &[LeaderTerm], own: Watermark, seen: Watermark) -> bool {
    !continues(terms, own, seen) && adopts(terms, seen)
}

fn adopts(terms: &[LeaderTerm], seen: Watermark) -> bool {
    seen.run != 0 && terms.iter().any(|leader| leader.adopts(seen))
}

/// Whether the store has all changes up to `seen` itself.
fn continues(terms: &[LeaderTerm], own: Watermark, seen: Watermark) -> bool {
    if seen.run == 0 {
        return seen.term <= own.term && seen.revision <= own.revision;
    }
    let last = match terms.iter().position(|leader| leader.is_of(seen)) {
        // A term ends before the first revision of the next one.
        Some(at) => terms.get(at + 1).map_or(own.revision, |next| next.first.saturating_sub(1)),
        None => 0,
    };
    seen.revision <= last
}

/// Returns the part of `terms` that [`contains`] needs to decide about `seen`, and the latest term.
pub fn excerpt<'a>(terms: impl Iterator<Item = &'a LeaderTerm>, seen: Watermark) -> Vec<LeaderTerm> {
    let (mut found, mut after) = (Vec::new(), false);
    let mut terms = terms.peekable();
    while let Some(leader) = terms.next() {
        let wanted = leader.is_of(seen) || after || leader.adopts(seen) || terms.peek().is_none();
        after = leader.is_of(seen);
        if wanted {
            let adopted = leader.adopted.iter().copied().filter(|given_up| given_up.is_further_on_than(seen));
            found.push(LeaderTerm { adopted: adopted.collect(), ..leader.clone() });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(term: u64, run: u64, revision: u64) -> Watermark {
        Watermark { term, revision, run }
    }

    fn leader(term: u64, run: u64, first: u64) -> LeaderTerm {
        LeaderTerm { term, run, first, adopted: Vec::new() }
    }

    /// Returns the result of [`contains`], after asserting that the excerpt gives the same result as the
    /// whole lineage.
    fn holds(terms: &[LeaderTerm], own: Watermark, seen: Watermark) -> bool {
        let whole = contains(terms, own, seen);
        assert_eq!(contains(&excerpt(terms.iter(), seen), own, seen), whole, "{seen:?} in {terms:?}");
        whole
    }

    #[test]
    fn a_store_contains_its_own_history() {
        let terms = [leader(1, 11, 1), leader(2, 22, 10), leader(3, 33, 20)];
        let own = at(3, 33, 25);
        for seen in [at(1, 11, 9), at(2, 22, 10), at(2, 22, 19), at(3, 33, 25), at(0, 0, 0), at(2, 0, 12)] {
            assert!(holds(&terms, own, seen), "{seen:?}");
        }
        for seen in [at(1, 11, 10), at(2, 22, 20), at(3, 33, 26), at(2, 23, 12), at(4, 44, 1), at(4, 0, 1)] {
            assert!(!holds(&terms, own, seen), "{seen:?}");
        }
    }

    #[test]
    fn a_store_that_was_put_back_never_grows_into_the_one_that_was_lost() {
        // A store was copied at revision 9. The original continued in run 22, up to revision 15, and was then
        // lost.
        let seen = at(2, 22, 15);
        let mut terms = vec![leader(1, 11, 1)];
        for start in 0..40 {
            let term = 2 + start;
            terms.push(leader(term, 1000 + start, 10 + start * 7));
            let own = at(term, 1000 + start, 16 + start * 7);
            assert!(!holds(&terms, own, seen), "after start {start}");
            assert!(holds(&terms, own, at(1, 11, 9)), "who has not seen what was lost goes on");
        }
        // The copy was made in the middle of the run that the node has seen.
        let terms = [leader(2, 22, 10), leader(3, 1000, 13), leader(4, 1001, 40)];
        assert!(!holds(&terms, at(4, 1001, 80), seen) && holds(&terms, at(4, 1001, 80), at(2, 22, 12)));
    }

    #[test]
    fn what_was_given_up_by_command_is_contained_so_far_and_no_further() {
        let mut terms = [leader(1, 11, 1), leader(2, 1000, 10), leader(3, 1001, 12)];
        terms[1].adopted = vec![at(9, 99, 500), at(2, 22, 15)];
        let own = at(3, 1001, 14);
        assert!(holds(&terms, own, at(2, 22, 15)) && holds(&terms, own, at(2, 22, 3)));
        assert!(holds(&terms, own, at(9, 99, 500)));
        assert!(is_given_up(&terms, own, at(2, 22, 15)) && !is_given_up(&terms, own, at(2, 22, 16)));
        assert!(!is_given_up(&terms, own, at(1, 11, 9)), "the store has it itself");
        assert!(!holds(&terms, own, at(2, 22, 16)) && !holds(&terms, own, at(9, 98, 1)));
    }

    #[test]
    fn a_manager_without_a_lineage_contains_nothing_of_one_that_has() {
        assert!(!contains(&[], at(7, 0, 100), at(2, 22, 3)));
        assert!(contains(&[], at(7, 0, 100), at(2, 0, 3)));
    }
}
