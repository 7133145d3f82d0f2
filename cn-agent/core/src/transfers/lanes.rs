//! Queues of transfers to be sent: three for each memory node, so that neither a slow memory node nor pages without a
//! waiting thread delay a fault.
//!
//! ```text
//!   lane of a node:  demand  sent before all other transfers
//!                    write   a bounded number in flight
//!                    ahead   a bounded number in flight
//!   order over the lanes of all nodes: demand, then write-back, then read-ahead
//! ```
//!
//! A queue is a linked list through an array with a slot for each transfer, so nothing is allocated, a transfer is in at
//! most one queue, and it is taken out of the middle without a search. There are as many lanes as bits in a word; if there
//! are more memory nodes, some share a lane.

use alloc::boxed::Box;
use alloc::vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// A thread waits for the page.
    Demand,
    /// The page is being written back.
    Write,
    /// The page is read ahead: no thread waits for it yet.
    Ahead,
}

impl Class {
    #[cfg(test)]
    pub const ALL: [Class; 3] = [Class::Demand, Class::Write, Class::Ahead];
}

/// Number of lanes: one for each bit of a mask of lanes.
pub(super) const LANES: usize = u64::BITS as usize;
/// Lane of new transfers, whose memory node has not been looked up yet.
pub(super) const NEW: u8 = 0;

/// The lane of a memory node; `None` for addresses without one.
#[inline]
pub(super) fn lane_of(peer: Option<usize>) -> u8 {
    peer.map_or(1, |peer| 1 + ((peer + 1) % (LANES - 1)) as u8)
}

const NONE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u16,
    last: u16,
}

#[derive(Clone, Copy, Debug)]
struct QueuePosition {
    next: u16,
    before: u16,
    lane: u8,
    class: Class,
    queued: bool,
}

const UNQUEUED: QueuePosition =
    QueuePosition { next: NONE, before: NONE, lane: NEW, class: Class::Demand, queued: false };

#[derive(Clone, Copy, Debug)]
pub(super) struct DequeuedTransfer {
    pub transfer: u16,
    pub lane: u8,
    class: Class,
    before: u16,
}

#[derive(Debug)]
pub(super) struct Lanes {
    places: Box<[QueuePosition]>,
    queues: [[Queue; LANES]; 3],
    /// Mask of the lanes with waiting transfers, for every class.
    waiting: [u64; 3],
}

impl Lanes {
    /// Queues with room for `transfers` transfers in total.
    pub fn new(transfers: usize) -> Lanes {
        debug_assert!(transfers < usize::from(NONE));
        Lanes {
            places: vec![UNQUEUED; transfers].into_boxed_slice(),
            queues: [[Queue { first: NONE, last: NONE }; LANES]; 3],
            waiting: [0; 3],
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting == [0; 3]
    }

    /// Mask of the lanes with waiting transfers of this class.
    #[inline]
    pub fn waiting(&self, class: Class) -> u64 {
        self.waiting[class as usize]
    }

    #[inline]
    pub fn has(&self, transfer: u16) -> bool {
        self.places[usize::from(transfer)].queued
    }

    /// Appends a transfer to the queue of its lane and class; it must be in no queue.
    #[inline]
    pub fn push(&mut self, transfer: u16, lane: u8, class: Class) {
        debug_assert!(!self.has(transfer));
        let queue = &mut self.queues[class as usize][usize::from(lane)];
        self.places[usize::from(transfer)] =
            QueuePosition { next: NONE, before: queue.last, lane, class, queued: true };
        if queue.last == NONE {
            queue.first = transfer;
        } else {
            self.places[usize::from(queue.last)].next = transfer;
        }
        queue.last = transfer;
        self.waiting[class as usize] |= 1 << lane;
    }

    #[inline]
    pub fn front(&self, lane: u8, class: Class) -> Option<u16> {
        Some(self.queues[class as usize][usize::from(lane)].first).filter(|first| *first != NONE)
    }

    #[inline]
    pub fn pop(&mut self, lane: u8, class: Class) -> Option<u16> {
        let first = self.front(lane, class)?;
        self.unlink(first);
        Some(first)
    }

    /// Removes a transfer from its queue, if it is in one of this class.
    pub fn take(&mut self, class: Class, transfer: u16) -> Option<DequeuedTransfer> {
        let QueuePosition { before, lane, class: own, queued, .. } = self.places[usize::from(transfer)];
        if !queued || own != class {
            return None;
        }
        self.unlink(transfer);
        Some(DequeuedTransfer { transfer, lane, class, before })
    }

    /// Removes the transfer that followed the one just taken, if `is_it` is true for it.
    pub fn take_next(
        &mut self,
        taken: DequeuedTransfer,
        is_it: impl FnOnce(u16) -> bool,
    ) -> Option<DequeuedTransfer> {
        let DequeuedTransfer { lane, class, before, .. } = taken;
        let next = match before {
            NONE => self.queues[class as usize][usize::from(lane)].first,
            before => self.places[usize::from(before)].next,
        };
        if next == NONE || !is_it(next) {
            return None;
        }
        self.unlink(next);
        Some(DequeuedTransfer { transfer: next, ..taken })
    }

    #[inline]
    fn unlink(&mut self, transfer: u16) {
        let QueuePosition { next, before, lane, class, .. } = self.places[usize::from(transfer)];
        let queue = &mut self.queues[class as usize][usize::from(lane)];
        if before == NONE {
            queue.first = next;
        } else {
            self.places[usize::from(before)].next = next;
        }
        if next == NONE {
            queue.last = before;
        } else {
            self.places[usize::from(next)].before = before;
        }
        if queue.first == NONE {
            self.waiting[class as usize] &= !(1 << lane);
        }
        self.places[usize::from(transfer)] = UNQUEUED;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const TRANSFERS: u16 = 24;

    proptest! {
        #[test]
        fn behaves_like_queues(steps in proptest::collection::vec((0_u8..4, 0..TRANSFERS, 0_u8..4, 0_usize..3), 0..400)) {
            let mut lanes = Lanes::new(usize::from(TRANSFERS));
            let mut model = vec![VecDeque::new(); 3 * LANES];
            for (step, transfer, lane, class) in steps {
                let lane = lane * 21;
                let (kind, here) = (Class::ALL[class], class * LANES + usize::from(lane));
                let known = model.iter().any(|queue| queue.contains(&transfer));
                prop_assert_eq!(lanes.has(transfer), known);
                match step {
                    0 | 1 if !known => {
                        lanes.push(transfer, lane, kind);
                        model[here].push_back(transfer);
                    }
                    2 => prop_assert_eq!(lanes.pop(lane, kind), model[here].pop_front()),
                    3 => {
                        let taken = lanes.take(kind, transfer);
                        let of_class = class * LANES..(class + 1) * LANES;
                        let expected = of_class.clone().find(|queue| model[*queue].contains(&transfer));
                        let lane_of = |queue: usize| (transfer, (queue - of_class.start) as u8);
                        prop_assert_eq!(taken.map(|t| (t.transfer, t.lane)), expected.map(lane_of));
                        if let Some((queue, taken)) = expected.zip(taken) {
                            let at = model[queue].iter().position(|other| *other == transfer).unwrap();
                            model[queue].remove(at);
                            let next = model[queue].get(at).copied().filter(|next| next.is_multiple_of(2));
                            let then = lanes.take_next(taken, |at| at.is_multiple_of(2));
                            prop_assert_eq!(then.map(|t| (t.transfer, t.lane)), next.map(|n| (n, taken.lane)));
                            model[queue].retain(|other| Some(*other) != next);
                        }
                    }
                    _ => {}
                }
                for (at, queue) in model.iter().enumerate() {
                    let (class, lane) = (Class::ALL[at / LANES], (at % LANES) as u8);
                    prop_assert_eq!(lanes.front(lane, class), queue.front().copied());
                    prop_assert_eq!(lanes.waiting(class) >> lane & 1 == 1, !queue.is_empty());
                }
                prop_assert_eq!(lanes.is_empty(), model.iter().all(VecDeque::is_empty));
            }
        }
    }

    #[test]
    fn memory_nodes_have_lanes_of_their_own_as_long_as_there_are_some() {
        let mut seen: Vec<u8> =
            (0..LANES - 2).map(|peer| lane_of(Some(peer))).chain([lane_of(None)]).collect();
        assert!(!seen.contains(&NEW) && seen.iter().all(|lane| usize::from(*lane) < LANES));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), LANES - 1);
        assert!(usize::from(lane_of(Some(usize::MAX - 1))) < LANES);
    }
}
