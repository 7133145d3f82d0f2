//! Choice of the parts of regions that move, and of the memory nodes that they move to, so that all pools are
//! used evenly. The functions do no I/O.
//!
//! Each move takes a part from one pool to another that is used less, and is made only if the use of both pools
//! afterwards lies between their former values. So each move lessens the unevenness, and a series of moves ends.

use std::collections::BTreeSet;

use cxloe_fabric::model::Name;

/// Pool of a memory node that can receive parts of regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub node: Name,
    pub bytes: u64,
    /// Bytes that belong to regions.
    pub used: u64,
    /// Bytes that can be allocated.
    pub free: u64,
    /// Size of an extent in bytes; parts can move here only if their size is a multiple of it.
    pub extent_bytes: u64,
}

impl Pool {
    /// Fraction of the pool that is used if `more` bytes are added, from 0 to 1.
    fn used_with(&self, more: u64) -> f64 {
        (self.used + more) as f64 / self.bytes.max(1) as f64
    }
}

/// The parts of one region on one memory node, which move together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub region: Name,
    /// Memory node that has the parts now.
    pub on: Name,
    pub bytes: u64,
    /// Memory nodes with another copy of these parts.
    pub copies_on: BTreeSet<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub region: Name,
    pub from: Name,
    pub to: Name,
    pub bytes: u64,
}

/// Difference between the highest and the lowest use of any pool, from 0 to 1.
pub fn spread(pools: &[Pool]) -> f64 {
    let used = || pools.iter().map(|pool| pool.used_with(0));
    (used().fold(0.0, f64::max) - used().fold(1.0, f64::min)).max(0.0)
}

/// Returns the next move, or `None` if the use of the pools differs by at most `within` (0 to 1) or no move
/// makes it more even. `refused` lists regions with memory nodes that cannot take parts of them.
pub fn next_move(
    pools: &[Pool],
    parts: &[Part],
    within: f64,
    refused: &BTreeSet<(Name, Name)>,
) -> Option<Move> {
    if spread(pools) <= within {
        return None;
    }
    let mut by_use: Vec<&Pool> = pools.iter().collect();
    by_use.sort_by(|one, other| {
        one.used_with(0).total_cmp(&other.used_with(0)).then_with(|| one.node.cmp(&other.node))
    });
    let fullest_first = by_use.iter().rev();
    let mut best: Option<(f64, Move)> = None;
    for from in fullest_first {
        for to in by_use.iter().filter(|to| to.used_with(0) < from.used_with(0)) {
            for part in parts.iter().filter(|part| part.on == from.node) {
                let fits = part.bytes <= to.free && part.bytes.is_multiple_of(to.extent_bytes);
                let refused = refused.contains(&(part.region.clone(), to.node.clone()));
                if part.bytes == 0 || !fits || refused || part.copies_on.contains(&to.node) {
                    continue;
                }
                let after = from.used_with(0) - part.bytes as f64 / from.bytes.max(1) as f64;
                let higher = to.used_with(part.bytes).max(after);
                // After the move, the use of both pools must lie between their former values. So each move lessens the
                // unevenness, and a series of moves ends.
                if to.used_with(part.bytes) >= from.used_with(0) || after < to.used_with(0) {
                    continue;
                }
                let found = Move {
                    region: part.region.clone(),
                    from: from.node.clone(),
                    to: to.node.clone(),
                    bytes: part.bytes,
                };
                if best.as_ref().is_none_or(|(least, _)| higher < *least) {
                    best = Some((higher, found));
                }
            }
        }
        // Parts leave a less used pool only if no move from a fuller pool is possible.
        if best.is_some() {
            break;
        }
    }
    best.map(|(_, found)| found)
}

/// Plans moves until no further move makes the use of the pools more even. Returns the moves, and the difference in use
/// (0 to 1) that remains after them.
pub fn plan(mut pools: Vec<Pool>, mut parts: Vec<Part>, within: f64) -> (Vec<Move>, f64) {
    let mut moves = Vec::new();
    // The plan ends even without the bound, since each move lessens the unevenness; the bound limits the
    // length of the printed plan.
    while moves.len() < 10_000
        && let Some(next) = next_move(&pools, &parts, within, &BTreeSet::new())
    {
        for pool in &mut pools {
            if pool.node == next.from {
                (pool.used, pool.free) = (pool.used - next.bytes, pool.free + next.bytes);
            } else if pool.node == next.to {
                (pool.used, pool.free) = (pool.used + next.bytes, pool.free - next.bytes);
            }
        }
        for part in parts.iter_mut().filter(|part| part.region == next.region && part.on == next.from) {
            part.on = next.to.clone();
        }
        moves.push(next);
    }
    let after = spread(&pools);
    (moves, after)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn pool(node: &str, bytes: u64, used: u64) -> Pool {
        Pool { node: name(node), bytes, used, free: bytes - used, extent_bytes: 1 }
    }

    fn part(region: &str, on: &str, bytes: u64) -> Part {
        Part { region: name(region), on: name(on), bytes, copies_on: BTreeSet::new() }
    }

    #[test]
    fn a_new_node_takes_its_share() {
        let pools = vec![pool("a", 100, 80), pool("b", 100, 80), pool("new", 100, 0)];
        let parts: Vec<Part> =
            (0..8).flat_map(|n| [part(&format!("a{n}"), "a", 10), part(&format!("b{n}"), "b", 10)]).collect();
        let (moves, after) = plan(pools, parts, 0.1);
        assert_eq!(moves.len(), 5, "{moves:?}");
        assert!(moves.iter().all(|one| one.to == name("new")) && after <= 0.1 + 1e-9, "{after}");
    }

    #[test]
    fn pools_of_different_sizes_are_compared_by_their_use() {
        let pools = vec![pool("small", 40, 20), pool("large", 400, 100)];
        let parts = vec![part("r", "small", 10), part("s", "large", 10)];
        let (moves, _) = plan(pools, parts, 0.05);
        assert_eq!(moves, [Move { region: name("r"), from: name("small"), to: name("large"), bytes: 10 }]);
    }

    #[test]
    fn what_cannot_help_stays() {
        // The only region has all the used bytes: moving it would leave the pools as uneven as before.
        assert!(
            plan(vec![pool("a", 100, 80), pool("b", 100, 0)], vec![part("r", "a", 80)], 0.1).0.is_empty()
        );
        // A move is impossible if the target has the other copy, lacks space, has too large extents or has
        // refused it.
        let pools = [pool("a", 100, 80), pool("b", 100, 0)];
        let mirrored = Part { copies_on: [name("b")].into(), ..part("r", "a", 20) };
        assert_eq!(next_move(&pools, &[mirrored], 0.1, &BTreeSet::new()), None);
        let full = [pool("a", 100, 80), Pool { free: 10, ..pool("b", 100, 0) }];
        assert_eq!(next_move(&full, &[part("r", "a", 20)], 0.1, &BTreeSet::new()), None);
        let coarse = [pool("a", 100, 80), Pool { extent_bytes: 16, ..pool("b", 100, 0) }];
        assert_eq!(next_move(&coarse, &[part("r", "a", 20)], 0.1, &BTreeSet::new()), None);
        let refused = [(name("r"), name("b"))].into();
        assert_eq!(next_move(&pools, &[part("r", "a", 20)], 0.1, &refused), None);
        assert!(next_move(&pools, &[part("r", "a", 20)], 0.1, &BTreeSet::new()).is_some());
    }

    #[test]
    fn if_the_fullest_cannot_give_the_next_one_does() {
        let pools = [pool("stuck", 100, 90), pool("b", 100, 80), pool("c", 100, 0)];
        let found = next_move(&pools, &[part("r", "b", 30)], 0.1, &BTreeSet::new()).unwrap();
        assert_eq!((found.from, found.to), (name("b"), name("c")));
    }

    proptest! {
        #[test]
        fn every_plan_ends_and_no_move_makes_it_worse(
            sizes in proptest::collection::vec(10u64..100, 2..6),
            regions in proptest::collection::vec((0usize..6, 1u64..20), 0..30),
        ) {
            let names: Vec<String> = (0..sizes.len()).map(|n| format!("n{n}")).collect();
            let mut pools: Vec<Pool> = sizes.iter().zip(&names).map(|(bytes, node)| pool(node, *bytes, 0)).collect();
            let mut parts = Vec::new();
            for (number, (at, bytes)) in regions.into_iter().enumerate() {
                let at = at % pools.len();
                if pools[at].free >= bytes {
                    pools[at].used += bytes;
                    pools[at].free -= bytes;
                    parts.push(part(&format!("r{number}"), &names[at], bytes));
                }
            }
            let before = spread(&pools);
            let (moves, after) = plan(pools, parts, 0.05);
            prop_assert!(moves.len() < 1000, "{} moves", moves.len());
            prop_assert!(after <= before + 1e-9, "{before} {after}");
        }
    }
}
