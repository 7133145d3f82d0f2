//! Addresses whose lines are in memory of this machine: regions on a CXL device.
//!
//! ```text
//!   read, write, burst --> line cache (never has them) --> routes: none --> locals --> the memory, at once
//!                                                                             |
//!                                                                             +-- none: decode-miss policy
//! ```
//!
//! Such memory is as fast as the line cache, so its lines are never cached, dirty or in flight, and a flush
//! or write-back does not concern them. Local memory is looked up after the routes, so that an operation that
//! goes to a memory node is not slowed down, and the functions for local memory are kept out of that path
//! (`inline(never)`).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;

use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE};

use super::routes::{ROUTES_MAX, RouteError, check_shape};
use super::{BurstRead, Engine, EngineError, Read, Segment, Write};
use crate::cache::Line;

/// Error of an access to memory that has disappeared; the data of the access is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory is gone")]
pub struct MemoryGone;

/// Memory that this machine reaches by loads and stores.
pub trait LocalMemory: Debug + Send + Sync {
    /// Size of the memory in bytes.
    fn bytes(&self) -> u64;

    /// Reads whole lines from `offset` on. During concurrent writes each line is read as one of the writes left it.
    ///
    /// # Errors
    /// [`MemoryGone`]; the content of `out` is unspecified then.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryGone>;

    /// Writes whole lines from `offset` on.
    ///
    /// # Errors
    /// [`MemoryGone`]; the lines may or may not have been written then.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryGone>;
}

/// A range of HPA that local memory serves: the memory, and the offset of the range in it.
#[derive(Debug)]
struct LocalRange {
    hpa: u64,
    bytes: u64,
    memory: Arc<dyn LocalMemory>,
    offset: u64,
}

/// All ranges of local memory, in order of their HPA, not overlapping.
#[derive(Debug)]
pub(super) struct LocalRanges {
    sorted: Vec<LocalRange>,
    /// Buffer for the data of a burst read, which the caller borrows.
    page: Box<[u8; BURST_LINES_MAX * LINE_SIZE]>,
}

impl Default for LocalRanges {
    fn default() -> Self {
        LocalRanges { sorted: Vec::new(), page: Box::new([0; BURST_LINES_MAX * LINE_SIZE]) }
    }
}

impl LocalRanges {
    /// Whether any of the `bytes` bytes from `hpa` on is local. The range must be within the address space.
    pub fn overlap(&self, hpa: u64, bytes: u64) -> bool {
        let behind = self.sorted.partition_point(|s| s.hpa < hpa.saturating_add(bytes));
        behind.checked_sub(1).is_some_and(|at| self.sorted[at].hpa + self.sorted[at].bytes > hpa)
    }

    /// Returns the memory that serves `hpa`, the offset in it, and a buffer for a page; `None` if `hpa` is
    /// not local.
    #[inline]
    fn find(&mut self, hpa: u64) -> Option<(&dyn LocalMemory, u64, &mut [u8])> {
        let at = self.sorted.partition_point(|s| s.hpa <= hpa).checked_sub(1)?;
        let LocalRange { hpa: base, bytes, memory, offset } = &self.sorted[at];
        (hpa - base < *bytes).then(|| (&**memory, offset + (hpa - base), &mut self.page[..]))
    }
}

impl Engine {
    /// Has `memory` serve the `bytes` bytes of HPA from `hpa` on, starting at byte `offset` of the memory.
    ///
    /// # Errors
    /// [`RouteError::Shape`], [`RouteError::Memory`] if the memory is too small, [`RouteError::Overlap`] with a route
    /// or other local memory, [`RouteError::Full`].
    pub fn add_local(
        &mut self,
        hpa: u64,
        bytes: u64,
        memory: Arc<dyn LocalMemory>,
        offset: u64,
    ) -> Result<(), RouteError> {
        check_shape(hpa, bytes)?;
        let enough = offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes());
        if !enough || !offset.is_multiple_of(LINE_SIZE as u64) {
            return Err(RouteError::Memory { hpa, bytes, offset, there: memory.bytes() });
        }
        if self.routes.overlap(hpa, bytes) || self.locals.overlap(hpa, bytes) {
            return Err(RouteError::Overlap { hpa });
        }
        let sorted = &mut self.locals.sorted;
        if sorted.len() == ROUTES_MAX {
            return Err(RouteError::Full(ROUTES_MAX));
        }
        let at = sorted.partition_point(|s| s.hpa < hpa);
        sorted.insert(at, LocalRange { hpa, bytes, memory, offset });
        Ok(())
    }

    /// Removes the memory that begins at `hpa`; returns whether there was any.
    pub fn remove_local(&mut self, hpa: u64) -> bool {
        let at = self.locals.sorted.binary_search_by_key(&hpa, |s| s.hpa);
        at.map(|at| self.locals.sorted.remove(at)).is_ok()
    }

    /// Reads a line without a route: from local memory, else by the decode-miss policy.
    #[inline(never)]
    pub(super) fn read_unrouted(&mut self, hpa: u64) -> Result<Read, EngineError> {
        let Some((memory, offset, _)) = self.locals.find(hpa) else {
            return self.read_miss_policy(hpa).map(Read::Hit);
        };
        let mut line = [0; LINE_SIZE];
        let read = memory.read(offset, &mut line);
        self.end_local(hpa, read)?;
        self.core.counters.local_reads += 1;
        Ok(Read::Hit(line))
    }

    /// Writes a line without a route: to local memory, else by the decode-miss policy.
    #[inline(never)]
    pub(super) fn write_unrouted(&mut self, hpa: u64, data: &Line) -> Result<Write, EngineError> {
        let Some((memory, offset, _)) = self.locals.find(hpa) else { return self.write_miss_policy(hpa) };
        let written = memory.write(offset, data);
        self.end_local(hpa, written)?;
        self.core.counters.local_writes += 1;
        Ok(Write::Done)
    }

    /// Reads a segment that has no route and lies within a page.
    #[inline(never)]
    pub(super) fn burst_read_unrouted(&mut self, segment: &Segment) -> Result<BurstRead<'_>, EngineError> {
        let hpa = segment.hpa;
        let Some((memory, offset, page)) = self.locals.find(hpa) else {
            return self.read_miss_policy(hpa).map(BurstRead::Alike);
        };
        // The segment was made for an interleave set that no longer exists.
        if !segment.is_straight() {
            return Err(EngineError::BadBurst(hpa));
        }
        let bytes = segment.lines * LINE_SIZE;
        let read = memory.read(offset, &mut page[..bytes]);
        self.end_local(hpa, read)?;
        self.core.counters.local_reads += 1;
        Ok(BurstRead::Here(&self.locals.page[..bytes]))
    }

    /// Writes the lines that `mask` selects of a segment that has no route and lies within a page.
    #[inline(never)]
    pub(super) fn burst_write_unrouted(
        &mut self,
        segment: &Segment,
        mask: u64,
        data: &[u8],
    ) -> Result<Write, EngineError> {
        let hpa = segment.hpa;
        let Some((memory, offset, _)) = self.locals.find(hpa) else { return self.write_miss_policy(hpa) };
        if !segment.is_straight() || data.len() != mask.count_ones() as usize * LINE_SIZE {
            return Err(EngineError::BadBurst(hpa));
        }
        let (mut left, mut rest, mut written) = (mask, data, Ok(()));
        while left != 0 && written.is_ok() {
            let first = left.trailing_zeros();
            let lines = (left >> first).trailing_ones();
            let (run, behind) = rest.split_at(lines as usize * LINE_SIZE);
            written = memory.write(offset + u64::from(first) * LINE_SIZE as u64, run);
            rest = behind;
            left &= u64::MAX.checked_shl(first + lines).unwrap_or(0);
        }
        self.end_local(hpa, written)?;
        self.core.counters.local_writes += 1;
        Ok(Write::Done)
    }

    #[inline]
    fn end_local(&mut self, hpa: u64, outcome: Result<(), MemoryGone>) -> Result<(), EngineError> {
        outcome.map_err(|MemoryGone| {
            self.core.counters.failures += 1;
            EngineError::DeviceGone(hpa)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
    use cxloe_net::Link;
    use cxloe_net::sim::{PortConfig, SimLink, SimNetwork};
    use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
    use cxloe_wire::session::{Identity, RequesterConfig, Timing};
    use cxloe_wire::time::Time;
    use proptest::prelude::*;

    use super::super::{DrainReason, Flush, RequestId, Route, RouteTarget, Unmapped};
    use super::*;
    use crate::cache::CacheConfig;

    const PAGE: u64 = 4096;
    const HPA: u64 = 1 << 40;
    const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const ID: RequestId = RequestId::Number(0);

    /// Local memory that a test can make disappear.
    #[derive(Debug)]
    struct Ram {
        bytes: Mutex<Vec<u8>>,
        gone: AtomicBool,
    }

    impl Ram {
        fn new(bytes: u64) -> Arc<Ram> {
            Arc::new(Ram { bytes: Mutex::new(vec![0; bytes as usize]), gone: AtomicBool::new(false) })
        }

        fn check(&self) -> Result<(), MemoryGone> {
            if self.gone.load(Ordering::Relaxed) { Err(MemoryGone) } else { Ok(()) }
        }
    }

    impl LocalMemory for Ram {
        fn bytes(&self) -> u64 {
            self.bytes.lock().unwrap().len() as u64
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
            out.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..out.len()]);
            self.check()
        }
        fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryGone> {
            self.bytes.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
            self.check()
        }
    }

    /// An engine with a cache, a memory node that never answers, and a link that drops its frames.
    struct Node {
        engine: Engine,
        link: SimLink,
    }

    impl Node {
        fn new() -> Node {
            let own = Mac([2, 0, 0, 0, 0, 1]);
            let link = SimNetwork::new(1).attach(own, PortConfig::default()).unwrap();
            let mut engine = Engine::new(CacheConfig::default());
            let config = RequesterConfig {
                identity: Identity { own, peer: MN, ethertype: ETHERTYPE_DEFAULT },
                max_frame: 1514,
                streams: 2,
                instance: 1,
                key: None,
                keys: None,
                timing: Timing::default(),
                seed: 1.into(),
            };
            engine.add_peer(config, Time::ZERO);
            Node { engine, link }
        }

        fn read(&mut self, hpa: u64) -> Result<Read, EngineError> {
            self.engine.read(hpa, ID, Time::ZERO, self.link.transmit())
        }

        fn write(&mut self, hpa: u64, byte: u8) -> Result<Write, EngineError> {
            self.engine.write(hpa, &[byte; LINE_SIZE], ID, Time::ZERO, self.link.transmit())
        }

        fn burst(&mut self, hpa: u64, lines: usize) -> Result<BurstRead<'_>, EngineError> {
            let segment = Segment::straight(hpa, lines);
            self.engine.burst_read(&segment, ID, Time::ZERO, self.link.transmit())
        }

        fn burst_write(&mut self, hpa: u64, mask: u64, data: &[u8]) -> Result<Write, EngineError> {
            let segment = Segment::straight(hpa, BURST_LINES_MAX);
            self.engine.burst_write(&segment, mask, data, ID, Time::ZERO, self.link.transmit())
        }
    }

    fn hit(byte: u8) -> Result<Read, EngineError> {
        Ok(Read::Hit([byte; LINE_SIZE]))
    }

    fn over_ethernet(hpa: u64, bytes: u64) -> Route {
        Route::direct(hpa, bytes, RouteTarget { peer: 0, cmem: 0, incarnation: None, mirror: None })
    }

    #[test]
    fn local_memory_is_answered_at_once_next_to_routes_and_policies() {
        let mut node = Node::new();
        let ram = Ram::new(4 * PAGE);
        node.engine.add_miss_policy(HPA, 16 * PAGE, Unmapped::AllOnes).unwrap();
        node.engine.add_local(HPA, 2 * PAGE, ram.clone(), 0).unwrap();
        node.engine.add_route(over_ethernet(HPA + 2 * PAGE, 2 * PAGE)).unwrap();
        node.engine.add_local(HPA + 5 * PAGE, PAGE, ram.clone(), 3 * PAGE).unwrap();
        let dead = EngineError::NotConnected(MN);
        assert_eq!(node.write(HPA + PAGE, 7), Ok(Write::Done));
        assert_eq!(node.write(HPA + 5 * PAGE + 64, 9), Ok(Write::Done));
        assert_eq!((node.read(HPA + PAGE), node.read(HPA)), (hit(7), hit(0)));
        assert_eq!(node.read(HPA + 5 * PAGE + 64), hit(9));
        assert_eq!(ram.bytes.lock().unwrap()[3 * PAGE as usize + 64], 9, "at its offset");
        assert_eq!((node.read(HPA + 2 * PAGE), node.burst(HPA + 2 * PAGE, 3)), (Err(dead), Err(dead)));
        assert_eq!(node.read(HPA + 4 * PAGE), hit(0xFF));
        assert_eq!(node.burst(HPA + 4 * PAGE, 2), Ok(BurstRead::Alike([0xFF; LINE_SIZE])));
        assert_eq!(node.read(HPA + 32), Err(EngineError::Unaligned(HPA + 32)));
        // Lines of local memory are neither cached nor in flight, so a flush waits for nothing.
        assert_eq!(node.engine.read_here(HPA + PAGE).ok(), None);
        assert!(node.engine.write_here(HPA + PAGE, &[1; LINE_SIZE]).is_err());
        assert_eq!(node.engine.in_flight(), 0);
        let tx = node.link.transmit();
        assert_eq!(node.engine.flush(Time::ZERO, tx), Ok(true));
        assert_eq!(node.engine.flush_on(&mut Flush::default(), Time::ZERO, tx), Ok(true));
        let counters = node.engine.counters();
        assert_eq!((counters.local_reads, counters.local_writes), (3, 2));
        assert_eq!((counters.read_misses, counters.write_misses, counters.read_hits), (0, 0, 0));
    }

    #[test]
    fn stretches_and_routes_do_not_overlap() {
        let mut node = Node::new();
        let ram = Ram::new(8 * PAGE);
        let mut add = |hpa, bytes, offset| node.engine.add_local(hpa, bytes, ram.clone(), offset);
        add(HPA, 2 * PAGE, 0).unwrap();
        add(HPA + 4 * PAGE, PAGE, 0).unwrap();
        for (hpa, bytes) in
            [(HPA, PAGE), (HPA + PAGE, 2 * PAGE), (HPA - PAGE, 8 * PAGE), (HPA + 3 * PAGE, 2 * PAGE)]
        {
            assert_eq!(add(hpa, bytes, 0), Err(RouteError::Overlap { hpa }));
        }
        assert!(matches!(add(HPA + 2 * PAGE, PAGE + 64, 0), Err(RouteError::Shape { .. })));
        assert!(matches!(add(HPA + 2 * PAGE, 0, 0), Err(RouteError::Shape { .. })));
        assert!(matches!(add(u64::MAX - 4095, PAGE, 0), Err(RouteError::Shape { .. })));
        for (bytes, offset) in [(2 * PAGE, 7 * PAGE), (PAGE, u64::MAX - 63), (PAGE, 32)] {
            assert!(
                matches!(add(HPA + 2 * PAGE, bytes, offset), Err(RouteError::Memory { .. })),
                "{offset:#x}"
            );
        }
        for (hpa, bytes) in [(HPA + PAGE, PAGE), (HPA - PAGE, 16 * PAGE), (HPA + 2 * PAGE, 3 * PAGE)] {
            assert_eq!(node.engine.add_route(over_ethernet(hpa, bytes)), Err(RouteError::Overlap { hpa }));
        }
        node.engine.add_route(over_ethernet(HPA + 2 * PAGE, 2 * PAGE)).unwrap();
        for (hpa, bytes) in [(HPA + 3 * PAGE, PAGE), (HPA + 2 * PAGE, PAGE)] {
            assert_eq!(node.engine.add_local(hpa, bytes, ram.clone(), 0), Err(RouteError::Overlap { hpa }));
        }
        assert!(node.engine.remove_local(HPA) && !node.engine.remove_local(HPA));
        assert_eq!(node.read(HPA), Err(EngineError::Unmapped(HPA)));
        node.engine.add_route(over_ethernet(HPA, 2 * PAGE)).unwrap();
    }

    #[test]
    fn memory_that_is_gone_is_an_error_and_no_data() {
        let mut node = Node::new();
        let ram = Ram::new(PAGE);
        node.engine.add_miss_policy(HPA, 2 * PAGE, Unmapped::AllOnes).unwrap();
        node.engine.add_local(HPA, PAGE, ram.clone(), 0).unwrap();
        node.write(HPA, 5).unwrap();
        ram.gone.store(true, Ordering::Relaxed);
        let gone = EngineError::DeviceGone(HPA);
        assert_eq!((node.read(HPA), node.write(HPA, 1)), (Err(gone), Err(gone)));
        assert_eq!(node.burst(HPA, 4), Err(gone));
        assert_eq!(node.burst_write(HPA, 0b101, &[1; 2 * LINE_SIZE]), Err(gone));
        let counters = node.engine.counters();
        assert_eq!((counters.failures, counters.local_reads, counters.local_writes), (4, 0, 1));
        assert_eq!(node.read(HPA + PAGE), hit(0xFF), "what is beside it is as it was");
    }

    #[test]
    fn close_and_reset_apply_to_local_ranges() {
        let mut node = Node::new();
        node.engine.add_local(HPA, PAGE, Ram::new(PAGE), 0).unwrap();
        node.write(HPA, 5).unwrap();
        let mut work = node.engine.begin_drain(HPA..HPA + PAGE, DrainReason::Draining);
        let refused = EngineError::Draining(HPA);
        assert_eq!(
            (node.read(HPA), node.write(HPA, 6), node.burst(HPA, 1)),
            (Err(refused), Err(refused), Err(refused))
        );
        let done = node.engine.write_back_range(&mut work, Time::ZERO, node.link.transmit());
        assert_eq!(done, Ok(true), "nothing is to be written back");
        node.engine.begin_drain(HPA..HPA + PAGE, DrainReason::Moving);
        assert_eq!(node.read(HPA), Err(EngineError::Busy));
        node.engine.end_drain(HPA);
        assert_eq!(node.read(HPA), hit(5));
        node.engine.set_in_reset(true);
        assert_eq!(node.read(HPA), Err(EngineError::InReset(HPA)));
    }

    #[test]
    fn bursts_that_make_no_sense_are_refused() {
        let mut node = Node::new();
        let decoder = Decoder { base: HPA, size: 4 * PAGE, ways: Ways::Two, granularity: Granularity::MIN };
        let targets = vec![RouteTarget { peer: 0, cmem: 0, incarnation: None, mirror: None }; 2];
        node.engine.add_route(Route { decoder, targets }).unwrap();
        let spread = node.engine.segment(HPA, 8);
        node.engine.remove_route(HPA);
        node.engine.add_local(HPA, 4 * PAGE, Ram::new(4 * PAGE), 0).unwrap();
        let tx = node.link.transmit();
        let bad = EngineError::BadBurst(HPA);
        assert_eq!(
            node.engine.burst_read(&spread, ID, Time::ZERO, tx),
            Err(bad),
            "lines of an interleave set"
        );
        assert_eq!(node.engine.burst_write(&spread, 3, &[0; 128], ID, Time::ZERO, tx), Err(bad));
        assert_eq!(node.burst_write(HPA, 3, &[0; 64]), Err(bad), "too little data");
        assert_eq!(node.burst_write(HPA, 1, &[0; 128]), Err(bad), "too much");
        assert_eq!(node.burst_write(HPA, 0, &[]), Err(bad));
        let over = HPA + PAGE - 64;
        assert_eq!(node.burst(over, 2), Err(EngineError::BadBurst(over)), "over the end of a page");
    }

    proptest! {
        /// Tests writes and reads of lines and of bursts with any mask, while ranges are added and removed,
        /// against a model in plain memory.
        #[test]
        fn it_is_what_was_written_last(
            operations in prop::collection::vec(
                (0_u8..6, 0_u64..4, 0_u64..64, any::<u64>(), 1_usize..=64), 1..60,
            ),
        ) {
            let mut node = Node::new();
            let ram = Ram::new(4 * PAGE);
            node.engine.add_local(HPA, 4 * PAGE, ram.clone(), 0).unwrap();
            let mut model = vec![0_u8; 4 * PAGE as usize];
            for (stamp, (kind, page, line, mask, lines)) in operations.into_iter().enumerate() {
                let at = (page * PAGE + line * 64) as usize;
                let byte = stamp as u8 + 1;
                match kind {
                    0 => prop_assert_eq!(node.read(HPA + at as u64), Ok(Read::Hit(*model[at..].first_chunk().unwrap()))),
                    1 => {
                        prop_assert_eq!(node.write(HPA + at as u64, byte), Ok(Write::Done));
                        model[at..at + 64].fill(byte);
                    }
                    2 => {
                        let lines = lines.min(64 - line as usize);
                        let expected = &model[at..at + lines * 64];
                        prop_assert_eq!(node.burst(HPA + at as u64, lines), Ok(BurstRead::Here(expected)));
                    }
                    3 | 4 if mask != 0 => {
                        let data: Vec<u8> = (0..mask.count_ones()).flat_map(|i| [byte.wrapping_add(i as u8); 64]).collect();
                        prop_assert_eq!(node.burst_write(HPA + page * PAGE, mask, &data), Ok(Write::Done));
                        let set = (0..64).filter(|bit| mask >> bit & 1 == 1);
                        for (bit, line) in set.zip(data.chunks(64)) {
                            model[(page * PAGE) as usize + bit * 64..][..64].copy_from_slice(line);
                        }
                    }
                    _ => {
                        prop_assert!(node.engine.remove_local(HPA));
                        prop_assert_eq!(node.read(HPA), Err(EngineError::Unmapped(HPA)));
                        node.engine.add_local(HPA, 4 * PAGE, ram.clone(), 0).unwrap();
                    }
                }
            }
            prop_assert_eq!(&*ram.bytes.lock().unwrap(), &model);
        }
    }
}
