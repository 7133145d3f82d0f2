//! Division of a compute node's work over its workers: the worker of an address follows from its band
//! ([`worker_of`]), all else from that.
//!
//! ```text
//!   address             --band-->                    worker   (a region lies in one band)
//!   space               --low bits of its number-->  worker   (set when the space is created)
//!   change of a region  -->  its worker; if it adds memory nodes, the first worker opens its sessions before
//!   change of the node  -->  all workers
//! ```
//!
//! Workers share nothing: each has an engine, sessions, a line cache, pagers and drains of its own. A memory node opens
//! sessions with the workers after the first, which are shards, only after one with the first (`wire/PROTOCOL.md`).

use core::ops::Range;

use cxloe_wire::frame::SHARDS_MAX;

use crate::attachments::{Attachment, AttachmentChange, worker_of};

/// Modulus by which a space's number contains that of its worker: the maximum number of workers of a node.
const NUMBERED: u64 = SHARDS_MAX as u64;

/// Order to one worker, which follows from a change of this node's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowOrder<'a> {
    /// Carry out the change at the worker's own engine.
    Apply(&'a AttachmentChange),
    /// Open sessions with the memory nodes of a region that another worker serves.
    OpenSessions(&'a Attachment),
}

/// Returns the orders by which `workers` workers carry out a change, each with the number of its worker, in the order
/// in which they are to be given.
pub fn orders_for(
    change: &AttachmentChange,
    workers: usize,
) -> impl Iterator<Item = (usize, FollowOrder<'_>)> {
    let (opens, followers) = match change.attachment() {
        None => (None, 0..workers.max(1)),
        Some(region) => {
            let worker = worker_of(region.hpa, workers);
            let opens = (worker > 0 && adds_memory_nodes(change)).then_some(region);
            (opens, worker..worker + 1)
        }
    };
    let opens = opens.map(|region| (0, FollowOrder::OpenSessions(region)));
    opens.into_iter().chain(followers.map(move |worker| (worker, FollowOrder::Apply(change))))
}

/// Whether the change may put parts of the region on memory nodes that the region did not use before.
fn adds_memory_nodes(change: &AttachmentChange) -> bool {
    matches!(
        change,
        AttachmentChange::Attach(_)
            | AttachmentChange::Extend { .. }
            | AttachmentChange::Legs(_)
            | AttachmentChange::RestoredLegs(_)
    )
}

/// Returns the number of a new space of worker `worker`, made from a random number.
pub fn space_number(random: u64, worker: usize) -> u64 {
    random - random % NUMBERED + worker as u64
}

/// Returns the worker that had space `id` at first. The space may have another one after a restart with another number
/// of workers, or if its region has got another address.
pub fn first_worker_of_space(id: u64, workers: usize) -> usize {
    (id % NUMBERED) as usize % workers.max(1)
}

/// Returns the last event for which no worker has an operation in flight that began before the event's changes, from
/// that event of each worker.
pub fn quiet_event(of_workers: impl IntoIterator<Item = u64>) -> u64 {
    of_workers.into_iter().min().unwrap_or(0)
}

/// Returns the workers that end together, in the order in which they do: the numbers of a stage are above those of the
/// next. The first worker ends last, because its session is the compute node's own.
pub fn ending_stages(workers: usize) -> [Range<usize>; 2] {
    [1..workers.max(1), 0..1]
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;
    use crate::attachments::BAND;
    use crate::attachments::tests::spread;

    fn at(band: u64) -> Attachment {
        Attachment::over_ethernet(spread("r", 2 << 20, 1), band * BAND + (1 << 40), 64 << 20)
    }

    /// Numbers of the workers that get an order; true for an order to open sessions.
    fn orders(change: &AttachmentChange, workers: usize) -> Vec<(usize, bool)> {
        let order = |(worker, order)| (worker, matches!(order, FollowOrder::OpenSessions(_)));
        orders_for(change, workers).map(order).collect()
    }

    #[test]
    fn a_region_has_one_worker_and_the_first_opens_sessions_for_it() {
        let attach = |band| AttachmentChange::Attach(at(band));
        assert_eq!(orders(&attach(3), 4), [(0, true), (3, false)]);
        assert_eq!((orders(&attach(4), 4), orders(&attach(3), 1)), (vec![(0, false)], vec![(0, false)]));
        for change in [
            AttachmentChange::Extend { attachment: at(1), from: 0 },
            AttachmentChange::Legs(at(1)),
            AttachmentChange::RestoredLegs(at(1)),
        ] {
            assert_eq!(orders(&change, 2), [(0, true), (1, false)], "{change:?}");
        }
        for change in [
            AttachmentChange::Move(at(1)),
            AttachmentChange::Drain { attachment: at(1), ticket: 7 },
            AttachmentChange::Drop(at(1)),
        ] {
            assert_eq!(orders(&change, 2), [(1, false)], "{change:?}");
        }
    }

    #[test]
    fn changes_of_the_node_concern_all_workers() {
        for change in [AttachmentChange::Hold(true), AttachmentChange::Keys(BTreeMap::new())] {
            assert_eq!(orders(&change, 3), [(0, false), (1, false), (2, false)], "{change:?}");
        }
        assert_eq!(quiet_event([7, 5, 9]), 5);
        assert_eq!(quiet_event([]), 0);
    }

    #[test]
    fn the_number_of_a_space_has_that_of_its_worker() {
        for random in [0, 15, 16, u64::MAX] {
            for worker in 0..4 {
                assert_eq!(first_worker_of_space(space_number(random, worker), 4), worker);
            }
        }
        assert_eq!(first_worker_of_space(space_number(99, 3), 2), 1);
    }

    #[test]
    fn the_first_worker_ends_last() {
        assert_eq!(ending_stages(4), [1..4, 0..1]);
        assert_eq!(ending_stages(1), [1..1, 0..1]);
    }
}
