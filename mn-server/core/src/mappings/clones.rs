//! Clones: mappings whose extents are filled with the content of another mapping of this node, page by page, while both
//! mappings are in use.
//!
//! ```text
//!   plan_clone: earlier copies to the extents are given up    -- every worker has passed --> extents are prepared
//!   begin_clone: the copies are recorded, workers get them    -- every worker has passed -->
//!   serve_clone: the extents are mapped; the rest is copied in the background
//! ```
//!
//! A clone command that is repeated starts again, with the extents that are not mapped yet.

use cxloe_fabric::model::{CloneCmem, NodeAction, NodeCommand};

use super::{Mappings, Plan, orphan_error};
use crate::job::{Job, Purpose};
use crate::pool::MpExtent;
use crate::translation::{TableError, Translation};

impl Mappings {
    /// Takes the second job of a command when its first job is complete.
    pub(crate) fn take_continuation(&mut self) -> Option<Job> {
        self.continuation.take()
    }

    pub(super) fn plan_clone(&mut self, clone: &CloneCmem, targets: &[Translation]) -> Result<Plan, String> {
        let incarnation = self.table().pool().incarnation();
        if clone.incarnation != incarnation {
            return Err(format!(
                "the content is of pool incarnation {:#x}, and this pool's is {incarnation:#x}",
                clone.incarnation
            ));
        }
        self.orphan_strangers(targets, &[]);
        if let Some(orphan) = targets.iter().find_map(|t| self.orphans.get(&t.mp_extent)) {
            return Err(orphan_error(orphan));
        }
        let pairs = self.pairs(clone, targets)?;
        for t in targets {
            match self.writer.check(*t) {
                Ok(_) | Err(TableError::ExtentBusy(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        let (sources, granted): (Vec<MpExtent>, Vec<MpExtent>) = pairs.into_iter().unzip();
        self.writer.give_up_copies(&granted);
        self.forget_kept(targets);
        Ok(Plan { generation: self.writer.seal(), granted, sources, ..Plan::default() })
    }

    /// Records the copies of a clone command whose target extents are prepared, and creates the command's
    /// second job.
    pub(super) fn begin_clone(&mut self, command: Box<NodeCommand>) {
        let NodeAction::Clone(clone) = &command.action else { return };
        let targets = self.translations(&clone.mapping);
        match targets.and_then(|targets| self.pairs(clone, &targets)) {
            Ok(pairs) => {
                let generation = self.writer.begin_copies(&pairs);
                let plan = Plan { generation, ..Plan::default() };
                self.continuation = Some(plan.job(Purpose::Copies(command)));
            }
            Err(error) => self.conclude(command.seq, Some(error)),
        }
    }

    /// Maps the extents of a clone. Call after every worker has taken a set that contains the clone's copies.
    pub(super) fn serve_clone(&mut self, command: &NodeCommand) {
        let mapping = command.action.mapping();
        let extents: Vec<MpExtent> =
            self.translations(mapping).into_iter().flatten().map(|t| t.mp_extent).collect();
        self.writer.copies_known(&extents);
        let error = self.add(mapping).err();
        self.conclude(command.seq, error);
    }

    /// Pairs of source and target extent to be copied, without targets that are mapped already.
    fn pairs(&self, clone: &CloneCmem, targets: &[Translation]) -> Result<Vec<(MpExtent, MpExtent)>, String> {
        let sources = self.translations(&clone.source)?;
        if sources.len() != targets.len() {
            return Err(format!("{} extents cannot be cloned to {}", sources.len(), targets.len()));
        }
        let is_here =
            |t: &Translation| self.writer.owner(t.mp_extent).is_some_and(|held| held.is_same_place(t));
        if let Some(t) = sources.iter().find(|t| !is_here(t)) {
            return Err(format!(
                "extent {} is not mapped here for CN {}: it cannot be cloned",
                t.mp_extent.0, clone.source.cn
            ));
        }
        let open = sources.iter().zip(targets).filter(|(_, target)| !is_here(target));
        Ok(open.map(|(source, target)| (source.mp_extent, target.mp_extent)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use cxloe_fabric::model::{Mapping, Name, Watermark};
    use cxloe_wire::frame::Mac;
    use proptest::prelude::*;

    use super::*;
    use crate::pool::{MpAddr, PAGE_BYTES, Pool};
    use crate::translation::{CopySet, PageTable, Tlb, WorkerGeneration};

    const EXTENT: u64 = 64 << 10;
    const PAGES: u64 = EXTENT / PAGE_BYTES;
    const EXTENTS: u64 = 8;

    struct Worker {
        table: Arc<PageTable>,
        passage: WorkerGeneration,
        tlb: Tlb,
        copies: Arc<CopySet>,
    }

    impl Worker {
        fn new(table: &Arc<PageTable>) -> Worker {
            let (passage, copies) = (table.generation().worker(), table.copies().current());
            Worker { table: Arc::clone(table), passage, tlb: Tlb::new(4), copies }
        }

        fn begin_batch(&mut self) {
            let Worker { table, passage, tlb, copies } = self;
            passage.pass(|| {
                tlb.purge(table);
                *copies = table.copies().current();
            });
        }

        fn at(&mut self, region: u64, page: u64, written: bool) -> Option<MpAddr> {
            let addr = region * EXTENT + page * PAGE_BYTES;
            let mp = self.tlb.translate(&self.table, cn(region), addr).ok()?;
            if !self.copies.is_empty() {
                self.copies.before(self.table.pool(), mp, written);
            }
            Some(mp)
        }

        fn write(&mut self, region: u64, page: u64, value: u8) -> bool {
            let Some(mp) = self.at(region, page, true) else { return false };
            self.table.pool().write_lines(mp, &[value; 64]);
            true
        }

        fn read(&mut self, region: u64, page: u64) -> Option<u8> {
            let mp = self.at(region, page, false)?;
            let mut line = [0; 64];
            self.table.pool().read_lines(mp, &mut line);
            assert!(line.iter().all(|byte| *byte == line[0]), "a torn line: {line:?}");
            Some(line[0])
        }
    }

    /// Id of the compute node that owns the region; each region has another one.
    fn cn(region: u64) -> u64 {
        0x0200_0000_0001 + region
    }

    fn mapping(region: u64, extent: u64) -> Mapping {
        Mapping {
            cn: Mac::from_u64(cn(region)).try_into().unwrap(),
            region: Name::new("r").unwrap(),
            cmem_base: region * EXTENT,
            extent_bytes: EXTENT,
            extents: [extent].into_iter().collect(),
            sealed: false,
            cn_key: None,
        }
    }

    struct Node {
        pool: Arc<Pool>,
        mappings: Mappings,
        seq: u64,
    }

    impl Node {
        fn new() -> Node {
            let pool = Arc::new(Pool::on_heap(EXTENTS * EXTENT, EXTENT, 77).unwrap());
            let mappings = Mappings::open(Arc::clone(&pool), Watermark::default()).0;
            Node { pool, mappings, seq: 0 }
        }

        /// Simulates a crash: replaces the process by another one that serves the same memory.
        fn restart(&mut self) {
            self.mappings = Mappings::open(Arc::clone(&self.pool), Watermark::default()).0;
            self.seq = 0;
        }

        /// Carries out a command. Calls `pass`, which makes the workers pass a batch boundary, until each job is due.
        fn order(&mut self, action: NodeAction, mut pass: impl FnMut()) -> Option<String> {
            self.seq += 1;
            let command = NodeCommand { seq: self.seq, term: 1, revision: self.seq, action };
            let mut job = self.mappings.start(&command).unwrap();
            while let Some(next) = job {
                let table = Arc::clone(self.mappings.table());
                while !next.is_due(&table) {
                    pass();
                }
                let outcome = next.carry_out(&table, |_| true, || ());
                self.mappings.finish(next, outcome);
                job = self.mappings.take_continuation();
            }
            self.mappings.results().last().unwrap().error.clone()
        }

        fn clone_order(&self, source: (u64, u64), target: (u64, u64)) -> NodeAction {
            let (mapping, source) = (mapping(target.0, target.1), mapping(source.0, source.1));
            NodeAction::Clone(CloneCmem { mapping, source, incarnation: self.pool.incarnation() })
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Map(u64),
        Clone(u64, u64),
        Unmap(u64),
        Write(u64, u64, u8),
        Read(u64, u64),
        Copy(usize),
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        let (region, page) = (0..EXTENTS, 0..PAGES);
        prop_oneof![
            1 => region.clone().prop_map(Step::Map),
            3 => (region.clone(), region.clone()).prop_map(|(from, to)| Step::Clone(from, to)),
            1 => region.clone().prop_map(Step::Unmap),
            12 => (region.clone(), page.clone(), 1u8..).prop_map(|(r, p, v)| Step::Write(r, p, v)),
            8 => (region, page).prop_map(|(r, p)| Step::Read(r, p)),
            3 => (1usize..20).prop_map(Step::Copy),
            1 => Just(Step::Restart),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        /// After writes, clones, copies, unmaps and restarts in any order, each region contains what was last written
        /// to it or, if it was not written since it was cloned, its source's content at that time.
        #[test]
        fn clones_have_the_content_of_their_moment(steps in prop::collection::vec(step(), 1..120)) {
            let mut node = Node::new();
            let mut workers = [Worker::new(node.mappings.table()), Worker::new(node.mappings.table())];
            // Region -> its extent and the value of each page.
            let mut model: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
            for step in steps {
                workers.iter_mut().for_each(Worker::begin_batch);
                let free = (0..EXTENTS).find(|extent| model.values().all(|(used, _)| used != extent));
                let mut pass = || workers.iter_mut().for_each(Worker::begin_batch);
                match step {
                    Step::Map(region) => {
                        let Some(extent) = free.filter(|_| !model.contains_key(&region)) else { continue };
                        let map = NodeAction::MapCmem(mapping(region, extent));
                        prop_assert_eq!(node.order(map, &mut pass), None);
                        model.insert(region, (extent, vec![0; PAGES as usize]));
                    }
                    Step::Clone(from, to) => {
                        let Some(extent) = free.filter(|_| !model.contains_key(&to)) else { continue };
                        let Some((source, content)) = model.get(&from).cloned() else { continue };
                        let order = node.clone_order((from, source), (to, extent));
                        prop_assert_eq!(node.order(order, &mut pass), None);
                        model.insert(to, (extent, content));
                    }
                    Step::Unmap(region) => {
                        let Some((extent, _)) = model.remove(&region) else { continue };
                        let unmap = NodeAction::UnmapCmem(mapping(region, extent));
                        prop_assert_eq!(node.order(unmap, &mut pass), None);
                    }
                    Step::Write(region, page, value) => {
                        let worker = &mut workers[region as usize % 2];
                        let known = model.get_mut(&region);
                        prop_assert_eq!(worker.write(region, page, value), known.is_some());
                        known.into_iter().for_each(|(_, pages)| pages[page as usize] = value);
                    }
                    Step::Read(region, page) => {
                        let expected = model.get(&region).map(|(_, pages)| pages[page as usize]);
                        prop_assert_eq!(workers[region as usize % 2].read(region, page), expected);
                    }
                    Step::Copy(pages) => drop(node.mappings.table().copy_pages(pages)),
                    Step::Restart => {
                        node.restart();
                        workers = [Worker::new(node.mappings.table()), Worker::new(node.mappings.table())];
                    }
                }
            }
            for (region, (_, pages)) in &model {
                for (page, value) in (0..).zip(pages) {
                    prop_assert_eq!(workers[0].read(*region, page), Some(*value), "region {} page {}", region, page);
                }
            }
            // After the last copy, the workers' sets are empty, so that requests do not search them.
            while node.mappings.table().copy_pages(64) {}
            workers.iter_mut().for_each(Worker::begin_batch);
            prop_assert_eq!(node.mappings.table().bytes_to_copy(), 0);
            prop_assert!(workers.iter().all(|worker| worker.copies.is_empty()));
        }
    }

    /// One thread writes the source, one uses the clone, and one copies in the background, all at the same time: source
    /// and clone must each keep their own content.
    #[test]
    fn threads_that_touch_the_same_pages_lose_nothing() {
        for round in 0..50u8 {
            let mut node = Node::new();
            let mut first = Worker::new(node.mappings.table());
            first.begin_batch();
            let map = NodeAction::MapCmem(mapping(0, 0));
            assert_eq!(node.order(map, || first.begin_batch()), None);
            first.begin_batch();
            (0..PAGES).for_each(|page| assert!(first.write(0, page, 1 + page as u8)));
            let order = node.clone_order((0, 0), (1, 5));
            assert_eq!(node.order(order, || first.begin_batch()), None);
            let table = Arc::clone(node.mappings.table());
            let ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let copier = scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        table.copy_pages(1);
                    }
                });
                let writer = scope.spawn(|| {
                    let mut worker = Worker::new(&table);
                    worker.begin_batch();
                    for page in (0..PAGES).rev() {
                        assert!(worker.write(0, page, 100 + round));
                    }
                });
                let mut user = Worker::new(&table);
                user.begin_batch();
                for page in (0..PAGES).map(|page| page * 7 % PAGES) {
                    assert_eq!(user.read(1, page), Some(1 + page as u8), "page {page}");
                    assert!(user.write(1, page, 200));
                }
                writer.join().unwrap();
                ended.store(true, Ordering::Relaxed);
                copier.join().unwrap();
                for page in 0..PAGES {
                    assert_eq!((user.read(0, page), user.read(1, page)), (Some(100 + round), Some(200)));
                }
            });
        }
    }

    #[test]
    fn what_cannot_be_cloned_is_refused() {
        let mut node = Node::new();
        let refused = |error: Option<String>, words: &str| {
            let error = error.unwrap();
            assert!(error.contains(words), "{error}");
        };
        let order = node.clone_order((0, 0), (1, 1));
        refused(node.order(order, || ()), "not mapped here");
        assert_eq!(node.order(NodeAction::MapCmem(mapping(0, 0)), || ()), None);
        let NodeAction::Clone(mut other) = node.clone_order((0, 0), (1, 1)) else { unreachable!() };
        other.incarnation += 1;
        refused(node.order(NodeAction::Clone(other), || ()), "incarnation");
        assert_eq!(node.order(NodeAction::MapCmem(mapping(2, 1)), || ()), None);
        let order = node.clone_order((0, 0), (1, 1));
        refused(node.order(order, || ()), "two CNs never share one");
        let order = node.clone_order((0, 0), (1, 2));
        assert_eq!(node.order(order.clone(), || ()), None);
        assert_eq!(node.order(order, || ()), None, "a repetition changes nothing");
    }
}
