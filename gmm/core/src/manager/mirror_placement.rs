//! Choice of memory nodes for a mirrored region: two memory nodes for each position of an interleave set, on
//! different racks if both have a rack label. A memory node can serve both copies, at different positions.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use cxloe_fabric::model::Name;

use super::placement::{Candidate, InterleaveSet, PlacementRequest};
use super::{DECODERS_MAX, Manager, ManagerError};

/// Indexes of candidates for one interleave set, in the order of the ways: first those of copy 0, then those
/// of copy 1.
type Pairs = (Vec<usize>, Vec<usize>);

impl Manager {
    /// Chooses memory for both copies of a region, or of its growth.
    pub(super) fn place_mirrored(
        &self,
        wanted: &PlacementRequest<'_>,
    ) -> Result<Vec<InterleaveSet>, ManagerError> {
        let ways = wanted.ways.count() as usize;
        let mut candidates = self.candidates(wanted)?;
        let with_room = candidates.len();
        let labelled_alike = candidates.windows(2).all(|pair| !are_apart(&pair[0], &pair[1]));
        let (mut shares, mut remaining) = (Vec::new(), wanted.size);
        while remaining > 0 {
            candidates.sort_by_key(|candidate| {
                (candidate.fresh, Reverse(candidate.available), &candidate.node.name)
            });
            let Some((firsts, seconds)) = pairs(&candidates, ways) else { break };
            let mut uses: BTreeMap<usize, u64> = BTreeMap::new();
            firsts.iter().chain(&seconds).for_each(|at| *uses.entry(*at).or_default() += 1);
            let unit = uses.keys().map(|at| candidates[*at].node.extent_bytes).max().unwrap_or(1);
            let unit = unit.max(u64::from(wanted.granularity.bytes()));
            let least = uses.iter().map(|(at, uses)| candidates[*at].available / uses).min().unwrap_or(0);
            let bytes = least.min(remaining / ways as u64) / unit * unit;
            if bytes == 0 {
                // Either one of these nodes has less than a unit free, or less than a unit remains to be
                // placed. Continues without one node: one with less than a unit free, or else the one with
                // the largest extents.
                let worst = uses.keys().max_by_key(|at| {
                    let candidate = &candidates[**at];
                    (candidate.available < unit, candidate.node.extent_bytes, Reverse(candidate.available))
                });
                let worst = worst.copied().unwrap_or(0);
                candidates.remove(worst);
                continue;
            }
            uses.iter().for_each(|(at, uses)| candidates[*at].available -= bytes * uses);
            let nodes = |chosen: &[usize]| chosen.iter().map(|at| candidates[*at].node.clone()).collect();
            shares.push(InterleaveSet { nodes: nodes(&firsts), mirrors: nodes(&seconds), bytes });
            remaining -= bytes * ways as u64;
            if shares.len() > DECODERS_MAX {
                let limit = DECODERS_MAX as u64;
                return Err(ManagerError::LimitReached { what: "decoders of a region", limit });
            }
        }
        if remaining == 0 {
            return Ok(shares);
        }
        if with_room >= 2 && labelled_alike {
            return Err(ManagerError::OneRack { name: wanted.name.clone() });
        }
        if with_room < ways.max(2) {
            let (name, ways) = (wanted.name.clone(), wanted.ways.count());
            return Err(ManagerError::TooFewForMirror { name, ways, nodes: with_room });
        }
        Err(self.no_capacity(wanted, with_room))
    }
}

/// Returns true if two copies of a position can be on these memory nodes.
fn are_apart(one: &Candidate<'_>, other: &Candidate<'_>) -> bool {
    let same_rack = |one: &Name| other.node.rack.as_ref() == Some(one);
    one.node.name != other.node.name && !one.node.rack.as_ref().is_some_and(same_rack)
}

/// Returns candidates in pairs for one interleave set; `None` if there are not enough. `candidates` is in
/// order of preference. The nodes of copy 0 are the most preferred ones or, if these leave no partners, the
/// preferred ones of each rack in turn.
fn pairs(candidates: &[Candidate<'_>], ways: usize) -> Option<Pairs> {
    if candidates.len() < ways {
        return None;
    }
    let preferred: Vec<usize> = (0..ways).collect();
    let seconds = partners(candidates, &preferred);
    seconds.map(|seconds| (preferred, seconds)).or_else(|| {
        let mut in_rack: BTreeMap<Option<&Name>, usize> = BTreeMap::new();
        let mut turns: Vec<(usize, usize)> = Vec::new();
        for (at, candidate) in candidates.iter().enumerate() {
            let turn = in_rack.entry(candidate.node.rack.as_ref()).or_default();
            turns.push((*turn, at));
            *turn += 1;
        }
        turns.sort_unstable();
        let firsts: Vec<usize> = turns.into_iter().take(ways).map(|(_, at)| at).collect();
        let seconds = partners(candidates, &firsts)?;
        Some((firsts, seconds))
    })
}

/// For each of `firsts`, returns a candidate for the other copy; no candidate is returned twice. This is a
/// matching by augmenting paths. Candidates that serve no first copy are preferred.
fn partners(candidates: &[Candidate<'_>], firsts: &[usize]) -> Option<Vec<usize>> {
    let spare = (0..candidates.len()).filter(|at| !firsts.contains(at));
    let order: Vec<usize> = spare.chain(firsts.iter().rev().copied()).collect();
    let mut serves: Vec<Option<usize>> = vec![None; candidates.len()];
    for position in 0..firsts.len() {
        let mut seen = vec![false; candidates.len()];
        if !find_partner(candidates, firsts, &order, position, &mut seen, &mut serves) {
            return None;
        }
    }
    let mut seconds = vec![0; firsts.len()];
    for (at, position) in serves.iter().enumerate() {
        if let Some(position) = position {
            seconds[*position] = at;
        }
    }
    Some(seconds)
}

fn find_partner(
    candidates: &[Candidate<'_>],
    firsts: &[usize],
    order: &[usize],
    position: usize,
    seen: &mut [bool],
    serves: &mut [Option<usize>],
) -> bool {
    for at in order {
        if seen[*at] || !are_apart(&candidates[firsts[position]], &candidates[*at]) {
            continue;
        }
        seen[*at] = true;
        let free = match serves[*at] {
            None => true,
            Some(other) => find_partner(candidates, firsts, order, other, seen, serves),
        };
        if free {
            serves[*at] = Some(position);
            return true;
        }
    }
    false
}
