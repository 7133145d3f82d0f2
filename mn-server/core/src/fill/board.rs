//! Orders to copy, and the progress with them: shared by the control thread, which has both from and for the manager,
//! and by the workers, which copy. No lock is taken for a line.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_fabric::model::{FillCmem, FillProgress};
use cxloe_wire::frame::Mac;

/// Orders in force, each carried out by one worker at a time.
#[derive(Debug, Default)]
pub struct FillBoard {
    orders: Mutex<Orders>,
    /// Number of changes since the start. Workers compare the number to detect a change without a lock.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct Orders {
    present: Vec<Arc<FillCmem>>,
    /// Bytes copied, by first CMem address of the order.
    done: BTreeMap<u64, u64>,
    /// Worker that carries out the order with this first CMem address.
    taken: BTreeMap<u64, u32>,
    /// Worker that receives the frames of a memory node. Until one has received any, it is taken to be the first.
    receivers: BTreeMap<u64, u32>,
}

impl Orders {
    fn receiver(&self, source: Mac) -> u32 {
        self.receivers.get(&source.to_u64()).copied().unwrap_or(0)
    }

    fn is_complete(&self, order: &FillCmem) -> bool {
        self.done.get(&order.mapping.cmem_base).is_some_and(|done| *done >= order.mapping.bytes())
    }

    /// Whether `worker` may take the order now: it is not complete, no worker carries it out, and its source's frames
    /// arrive at `worker`.
    fn is_free(&self, order: &FillCmem, worker: u32, own: Mac) -> bool {
        self.receiver(order.source.mac) == worker
            && order.mapping.cn.mac() == own
            && !self.taken.contains_key(&order.mapping.cmem_base)
            && !self.is_complete(order)
    }
}

impl FillBoard {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Replaces the orders by the manager's list. Progress is kept with orders that stay the same.
    pub fn set_orders(&self, list: &[FillCmem]) {
        let mut orders = self.orders();
        if orders.present.iter().map(|order| &**order).eq(list) {
            return;
        }
        let before = std::mem::replace(&mut orders.present, list.iter().cloned().map(Arc::new).collect());
        let kept = before.iter().filter(|order| list.contains(order)).map(|order| order.mapping.cmem_base);
        let kept: BTreeSet<u64> = kept.collect();
        orders.done.retain(|base, _| kept.contains(base));
        self.changed();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.orders().present.is_empty()
    }

    /// Whether an order is not complete.
    pub fn is_busy(&self) -> bool {
        let orders = self.orders();
        orders.present.iter().any(|order| !orders.is_complete(order))
    }

    /// Progress with each order, for the manager.
    pub fn progress(&self) -> Vec<FillProgress> {
        let orders = self.orders();
        let progress = |(cmem_base, done): (&u64, &u64)| FillProgress { cmem_base: *cmem_base, done: *done };
        orders.done.iter().map(progress).collect()
    }

    /// Takes the first order that is free for `worker`.
    pub(crate) fn take(&self, worker: u32, own: Mac) -> Option<Arc<FillCmem>> {
        let mut orders = self.orders();
        let order = Arc::clone(orders.present.iter().find(|order| orders.is_free(order, worker, own))?);
        orders.taken.insert(order.mapping.cmem_base, worker);
        Some(order)
    }

    /// Gives an order back whose source does not answer, and takes the next one in the list that is free and has another
    /// source. `None` if there is none; the worker then keeps the order.
    pub(crate) fn exchange(&self, worker: u32, own: Mac, order: &FillCmem) -> Option<Arc<FillCmem>> {
        let mut orders = self.orders();
        let at = orders.present.iter().position(|present| **present == *order)?;
        let (before, after) = orders.present.split_at(at);
        let is_other = |other: &&Arc<FillCmem>| {
            other.source.mac != order.source.mac && orders.is_free(other, worker, own)
        };
        let other = Arc::clone(after.iter().chain(before).find(is_other)?);
        orders.taken.remove(&order.mapping.cmem_base);
        orders.taken.insert(other.mapping.cmem_base, worker);
        self.changed();
        Some(other)
    }

    /// Whether `worker` is to go on with an order that it has taken.
    pub(crate) fn keeps(&self, worker: u32, order: &Arc<FillCmem>) -> bool {
        let orders = self.orders();
        let is_it = |present: &Arc<FillCmem>| present == order;
        orders.receiver(order.source.mac) == worker && orders.present.iter().any(is_it)
    }

    /// Gives an order back, to which the worker writes nothing any more.
    pub(crate) fn give_back(&self, order: &FillCmem) {
        self.orders().taken.remove(&order.mapping.cmem_base);
        self.changed();
    }

    /// Records that the first `done` bytes of an order are copied.
    pub(crate) fn report(&self, order: &FillCmem, done: u64) {
        let mut orders = self.orders();
        if orders.present.iter().any(|present| **present == *order) {
            orders.done.insert(order.mapping.cmem_base, done);
        }
    }

    /// Records that frames of the memory node at `source` arrive at `worker`, which then carries out its orders.
    pub(crate) fn received_by(&self, source: Mac, worker: u32) {
        let mut orders = self.orders();
        let concerned = orders.present.iter().any(|order| order.source.mac == source);
        if concerned && orders.receiver(source) != worker {
            orders.receivers.insert(source.to_u64(), worker);
            self.changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use cxloe_fabric::model::{FillSource, Mapping, Name};

    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 2, 1]);
    const SOURCE: Mac = Mac([2, 0, 0, 0, 2, 0]);

    fn order(cmem_base: u64) -> FillCmem {
        let mapping = Mapping {
            cn: OWN.try_into().unwrap(),
            region: Name::new("r").unwrap(),
            cmem_base,
            extent_bytes: 4096,
            extents: [1, 2].into_iter().collect(),
            sealed: false,
            cn_key: None,
        };
        let memory_node = Name::new("mn0").unwrap();
        FillCmem { mapping, source: FillSource { memory_node, mac: SOURCE, key: None, incarnation: 7 } }
    }

    #[test]
    fn one_worker_has_an_order_until_it_gives_it_back() {
        let board = FillBoard::default();
        assert!(board.take(0, OWN).is_none());
        board.set_orders(&[order(0), order(8192)]);
        assert!(board.take(1, OWN).is_none(), "frames arrive at worker 0, as far as is known");
        assert!(board.take(0, SOURCE).is_none(), "the extents are mapped for another address");
        let first = board.take(0, OWN).unwrap();
        assert_eq!(first.mapping.cmem_base, 0);
        assert_eq!(board.take(0, OWN).unwrap().mapping.cmem_base, 8192);
        assert!(board.take(0, OWN).is_none());

        board.received_by(SOURCE, 1);
        assert!(!board.keeps(0, &first) && board.take(1, OWN).is_none(), "worker 0 may still write");
        board.give_back(&first);
        assert_eq!(board.take(1, OWN).unwrap(), first);
        board.report(&first, 4096);
        board.report(&first, 8192);
        board.give_back(&first);
        assert!(board.take(1, OWN).is_none(), "it is complete");
        assert_eq!(board.progress(), [FillProgress { cmem_base: 0, done: 8192 }]);
    }

    #[test]
    fn orders_whose_source_does_not_answer_give_way_to_the_next_source() {
        let from = |last: u8, base: u64| {
            let mut order = order(base);
            order.source.mac = Mac([2, 0, 0, 0, 3, last]);
            order
        };
        let board = FillBoard::default();
        board.set_orders(&[from(1, 0), from(1, 8192), from(2, 16384), from(3, 24576)]);
        let mut taken = board.take(0, OWN).unwrap();
        for base in [16384, 24576, 0, 16384] {
            taken = board.exchange(0, OWN, &taken).unwrap();
            assert_eq!(taken.mapping.cmem_base, base);
        }
        board.set_orders(&[from(2, 16384), from(2, 32768)]);
        assert!(board.exchange(0, OWN, &taken).is_none(), "from the same source");
        assert!(board.keeps(0, &taken));
        assert_eq!(board.take(0, OWN).unwrap().mapping.cmem_base, 32768, "the first one is still taken");
    }

    #[test]
    fn progress_lasts_as_long_as_the_order() {
        let board = FillBoard::default();
        board.set_orders(&[order(0)]);
        let changes = board.changes();
        board.set_orders(&[order(0)]);
        assert_eq!(board.changes(), changes, "the same list");
        let taken = board.take(0, OWN).unwrap();
        board.report(&taken, 4096);
        board.set_orders(&[order(0), order(8192)]);
        assert_eq!(board.progress().len(), 1);
        assert!(board.keeps(0, &taken) && board.is_busy());
        let mut changed = order(0);
        changed.source.incarnation = 8;
        board.set_orders(&[changed]);
        assert!(board.progress().is_empty() && !board.keeps(0, &taken), "it has other content");
        board.report(&taken, 8192);
        assert!(board.progress().is_empty(), "the order was withdrawn");
        board.set_orders(&[]);
        assert!(!board.is_busy());
    }
}
