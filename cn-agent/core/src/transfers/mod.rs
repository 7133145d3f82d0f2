//! Transfers of pages between page buffers and memory nodes: the [`Store`] of every pager, over one engine.
//!
//! ```text
//!   Pager --fetch, write--> lanes: demand, write, ahead --advance--> Engine: bursts, some for each page
//!                              ^                                       |
//!                              |  after a pause                        v answers (by burst)
//!                           waiting_to_retry <--- failed --- PageTransfer --- all done --> Pager::fetched, written
//! ```
//!
//! Each memory node has queues of its own (`lanes.rs`). Demanded pages are sent first and at once. Write-backs and
//! read-ahead have so few bursts in flight to a memory node that they hardly delay a later fault.
//!
//! A page may be interleaved over several memory nodes and takes several frames, so it is sent as *bursts*, one frame
//! each. If a burst fails, the whole page is retried after a pause, until the region's longest outage is exceeded. All
//! memory is allocated at the start.
//!
//! Driven by the contract of all machines ([`cxloe_wire::machine`]) within the rounds of its engine:
//!
//! ```text
//!   loop {
//!       for (id, data) in completed { transfers.read(id, data, buffers, &mut ended); }
//!       transfers.advance(engine, now, tx, buffers, &mut ended);    // sends, and retries what is due
//!       for transfer in ended { pager.fetched(...) or pager.written(...); }
//!       wait for completions, until transfers.deadline() at the latest, or briefly while is_waiting()
//!   }
//! ```

mod lanes;
mod sending;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::session::OpError;
use cxloe_wire::time::Time;

use crate::engine::{EngineError, RequestId, Segment, SegmentIter};
use crate::fault_times::FaultWatch;
use crate::pager::{BufferId, Lost, PAGE_BYTES, PageBuffers, Store, Urgency};

use lanes::{Class, LANES, Lanes, NEW};

/// Maximum number of pages in flight, over all spaces.
pub const TRANSFERS_MAX: usize = 512;
/// Maximum number of bursts in flight.
const BURSTS_MAX: usize = 4096;
/// Maximum number of pages whose priority is raised together when a thread begins to wait for the first of them.
const HURRIED_MAX: usize = 16;
/// Pause before a failed page is retried.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Clone, Debug)]
enum TransferDirection {
    Fetch,
    /// A write of the lines that the mask selects.
    Write(u64),
}

#[derive(Clone, Debug)]
struct PageTransfer {
    /// Index of the transfer's space; `None` once the space has ended.
    space: Option<u16>,
    buffer: BufferId,
    hpa: u64,
    way: TransferDirection,
    segment_iter: SegmentIter,
    /// Whether all segments of the page were sent.
    all_sent: bool,
    in_flight: u16,
    failed: Option<EngineError>,
    /// Time of the transfer's first failure.
    since: Option<Time>,
    wait_limit: Duration,
    serial: u64,
    class: Class,
    /// Time at which the fetch was begun, if a thread waits for the page.
    began: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    transfer: u16,
    segment: Segment,
    lane: u8,
    class: Class,
}

/// A transfer that has ended, for the pager of its space.
#[derive(Clone, Copy, Debug)]
pub struct FinishedTransfer {
    /// Index of the transfer's space; `None` once the space has ended.
    pub space: Option<u16>,
    /// Buffer that the transfer has filled or emptied.
    pub buffer: BufferId,
    /// Whether the transfer was a fetch, not a write.
    pub fetch: bool,
    /// Success, or loss of the page.
    pub outcome: Result<(), Lost>,
    /// Error of the last attempt, if the transfer failed.
    pub cause: Option<EngineError>,
    /// Time at which the transfer was begun, on the clock of [`Transfers::watch`], if it was a fetch for a waiting
    /// thread.
    pub began: Option<Time>,
}

pub trait BufferSource {
    /// Buffers of a space; `None` once the space has ended.
    fn buffers(&mut self, space: u16) -> Option<&mut PageBuffers>;
}

/// Transfers of all spaces over one engine.
#[derive(Debug)]
pub struct Transfers {
    /// Number of this set in the identities of its bursts; see [`Transfers::new`].
    number: u32,
    slots: Vec<Option<PageTransfer>>,
    /// [`key`] of each transfer, close together so that a search is short; [`NO_KEY`] for none.
    keys: Box<[u64; TRANSFERS_MAX]>,
    free: Vec<u16>,
    bursts: Vec<Option<Burst>>,
    free_bursts: Vec<u16>,
    lanes: Lanes,
    /// Number of bursts in flight, by class and lane.
    on_their_way: [[u16; LANES]; 3],
    /// Number of transfers that threads wait for.
    demands: usize,
    /// Number of fetches that no thread waits for yet.
    ahead: usize,
    waiting_to_retry: VecDeque<(Time, u16)>,
    now: Time,
    serial: u64,
    /// Buffer in which the lines of a write are gathered.
    room: Box<[u8; PAGE_BYTES]>,
    /// Durations of faults of all spaces.
    pub watch: FaultWatch,
}

/// Identity of a transfer for its pager: the space and the buffer.
fn key(space: u16, buffer: BufferId) -> u64 {
    u64::from(space) << 32 | u64::from(buffer.0)
}

const NO_KEY: u64 = u64::MAX;

/// Transfers of one space, as its pager's store.
#[derive(Debug)]
pub struct PageIo<'a> {
    pub transfers: &'a mut Transfers,
    /// Index of the space among all.
    pub space: u16,
    /// First HPA of the space's region.
    pub hpa: u64,
    /// Longest outage of memory nodes, after which a transfer fails for good.
    pub wait_limit: Duration,
    /// Present time, on the clock of [`Transfers::watch`].
    pub now: Time,
}

impl Store for PageIo<'_> {
    fn room(&self) -> usize {
        self.transfers.free.len()
    }

    fn fetch(&mut self, slot: u32, buffer: BufferId, urgency: Urgency) {
        let class = if urgency == Urgency::Ahead { Class::Ahead } else { Class::Demand };
        self.begin(slot, buffer, TransferDirection::Fetch, class);
    }

    fn write(&mut self, slot: u32, lines: u64, buffer: BufferId) {
        self.begin(slot, buffer, TransferDirection::Write(lines), Class::Write);
    }

    fn hurry(&mut self, buffer: BufferId) {
        self.transfers.hurry(self.space, buffer);
    }

    fn demands(&self) -> usize {
        self.transfers.demands
    }
}

impl PageIo<'_> {
    fn begin(&mut self, slot: u32, buffer: BufferId, way: TransferDirection, class: Class) {
        let PageIo { space, hpa, wait_limit, now, .. } = *self;
        let hpa = hpa + u64::from(slot) * PAGE_BYTES as u64;
        let transfers = &mut *self.transfers;
        let Some(at) = transfers.free.pop() else {
            unreachable!("whoever begins a transfer has asked whether there is room");
        };
        transfers.serial += 1;
        let serial = transfers.serial;
        let segment_iter = SegmentIter::new(hpa..hpa + PAGE_BYTES as u64);
        let began = (class == Class::Demand).then_some(now);
        transfers.slots[usize::from(at)] = Some(PageTransfer {
            space: Some(space),
            buffer,
            hpa,
            way,
            segment_iter,
            all_sent: false,
            in_flight: 0,
            failed: None,
            since: None,
            wait_limit,
            serial,
            class,
            began,
        });
        transfers.keys[usize::from(at)] = key(space, buffer);
        transfers.demands += usize::from(class == Class::Demand);
        transfers.ahead += usize::from(class == Class::Ahead);
        transfers.lanes.push(at, NEW, class);
    }
}

impl Transfers {
    /// An empty set. `number` must differ from those of all other sets over the same engine, including former ones:
    /// it distinguishes answers to their requests, which may arrive later.
    pub fn new(number: u32) -> Transfers {
        Transfers {
            number,
            slots: vec![None; TRANSFERS_MAX],
            keys: Box::new([NO_KEY; TRANSFERS_MAX]),
            free: (0..TRANSFERS_MAX as u16).rev().collect(),
            bursts: vec![None; BURSTS_MAX],
            free_bursts: (0..BURSTS_MAX as u16).rev().collect(),
            lanes: Lanes::new(TRANSFERS_MAX),
            on_their_way: [[0; LANES]; 3],
            demands: 0,
            ahead: 0,
            waiting_to_retry: VecDeque::with_capacity(TRANSFERS_MAX),
            now: Time::ZERO,
            serial: 0,
            room: Box::new([0; PAGE_BYTES]),
            watch: FaultWatch::default(),
        }
    }

    /// Whether an operation is a burst of this set.
    #[inline]
    pub fn owns(&self, id: RequestId) -> bool {
        matches!(id, RequestId::PageBurst { transfers, .. } if transfers == self.number)
    }

    /// Sets the current time, for failures between two calls of [`advance`](Self::advance).
    #[inline]
    pub fn set_now(&mut self, now: Time) {
        self.now = now;
    }

    /// Number of transfers in flight or queued.
    #[inline]
    pub fn count(&self) -> usize {
        TRANSFERS_MAX - self.free.len()
    }

    /// Whether any transfer waits to be sent.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.lanes.is_empty()
    }

    #[inline]
    pub fn demands(&self) -> usize {
        self.demands
    }

    /// Whether any fetch is in flight or queued that no thread waits for yet.
    #[inline]
    pub fn is_reading_ahead(&self) -> bool {
        self.ahead > 0
    }

    /// Raises the priority of the fetch into this buffer of a space, because a thread has begun to wait for the page:
    /// the part that has not been sent yet is sent first. If threads wait for other pages too, the priority of the next
    /// fetches begun after this one is raised as well: while there are many faults, no read-ahead is sent, and the
    /// reader would wait for each of those pages.
    fn hurry(&mut self, space: u16, buffer: BufferId) {
        let Transfers { slots, keys, lanes, demands, ahead, .. } = self;
        let wanted = key(space, buffer);
        let Some(at) = keys.iter().position(|key| *key == wanted) else { return };
        let count = if *demands > 0 { HURRIED_MAX } else { 1 };
        let mut taken = lanes.take(Class::Ahead, at as u16);
        for left in (0..count).rev() {
            let Some(now) = taken else { break };
            let Some(transfer) = &mut slots[usize::from(now.transfer)] else { break };
            transfer.class = Class::Demand;
            (*demands, *ahead) = (*demands + 1, *ahead - 1);
            let next = (Some(space), transfer.serial + 1);
            lanes.push(now.transfer, now.lane, Class::Demand);
            let follows = |at: u16| {
                let transfer = slots[usize::from(at)].as_ref();
                transfer.is_some_and(|transfer| (transfer.space, transfer.serial) == next)
            };
            taken = (left > 0).then(|| lanes.take_next(now, follows)).flatten();
        }
    }

    /// Serial number of the last transfer begun.
    #[inline]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether a write of `space` is still in flight that has a serial number up to `serial`.
    pub fn is_writing(&self, space: u16, serial: u64) -> bool {
        let writing = |transfer: &PageTransfer| {
            transfer.space == Some(space)
                && transfer.serial <= serial
                && matches!(transfer.way, TransferDirection::Write(_))
        };
        self.slots.iter().flatten().any(writing)
    }

    /// Detaches the transfers of a space that has ended; their results are ignored.
    pub fn abandon(&mut self, space: u16) {
        for (transfer, key) in self.slots.iter_mut().zip(self.keys.iter_mut()) {
            if let Some(transfer) = transfer.as_mut().filter(|transfer| transfer.space == Some(space)) {
                (transfer.space, *key) = (None, NO_KEY);
            }
        }
    }

    fn fail(&mut self, at: u16, error: EngineError) {
        let now = self.now;
        if let Some(transfer) = &mut self.slots[usize::from(at)] {
            // The rest of the page is not sent in this attempt.
            transfer.all_sent = true;
            transfer.failed = Some(error);
            transfer.since.get_or_insert(now);
        }
    }

    /// Ends a transfer, or schedules its retry, once none of its bursts is in flight.
    fn settle(&mut self, at: u16, ended: &mut Vec<FinishedTransfer>) {
        let Some(transfer) = &mut self.slots[usize::from(at)] else { return };
        if transfer.in_flight > 0 || !transfer.all_sent || self.lanes.has(at) {
            return;
        }
        let cause = transfer.failed.take().filter(|_| transfer.space.is_some());
        let outcome = match cause {
            Some(error) => {
                let since = transfer.since.map_or(Duration::ZERO, |since| self.now.since(since));
                if !is_final(error) && since < transfer.wait_limit {
                    transfer.segment_iter = SegmentIter::new(transfer.hpa..transfer.hpa + PAGE_BYTES as u64);
                    transfer.all_sent = false;
                    self.waiting_to_retry.push_back((self.now + RETRY_INTERVAL, at));
                    return;
                }
                tracing::error!(hpa = format_args!("{:#x}", transfer.hpa), %error, "a page is given up");
                Err(Lost)
            }
            None => Ok(()),
        };
        let PageTransfer { space, buffer, ref way, began, class, .. } = *transfer;
        ended.push(FinishedTransfer {
            space,
            buffer,
            fetch: matches!(way, TransferDirection::Fetch),
            outcome,
            cause,
            began,
        });
        self.demands -= usize::from(class == Class::Demand);
        self.ahead -= usize::from(class == Class::Ahead);
        self.slots[usize::from(at)] = None;
        self.keys[usize::from(at)] = NO_KEY;
        self.free.push(at);
    }

    /// Finds and frees the burst with this identity, which has ended; `None` if the burst belongs to another set.
    fn arrived(&mut self, id: RequestId) -> Option<Burst> {
        let RequestId::PageBurst { transfers, burst: at } = id else { return None };
        if transfers != self.number {
            return None;
        }
        let burst = self.bursts.get_mut(usize::from(at))?.take()?;
        self.free_bursts.push(at);
        self.on_their_way[burst.class as usize][usize::from(burst.lane)] -= 1;
        if let Some(transfer) = &mut self.slots[usize::from(burst.transfer)] {
            transfer.in_flight -= 1;
        }
        Some(burst)
    }

    /// Copies the data of a burst that has arrived into the page's buffer, and ends the transfer with the
    /// last burst.
    #[inline]
    pub fn read(
        &mut self,
        id: RequestId,
        data: &[u8],
        source: &mut impl BufferSource,
        ended: &mut Vec<FinishedTransfer>,
    ) {
        let Some(Burst { transfer: at, segment, .. }) = self.arrived(id) else { return };
        if let Some(transfer) = &self.slots[usize::from(at)]
            && let Some(buffers) = transfer.space.and_then(|space| source.buffers(space))
        {
            let from = (segment.hpa - transfer.hpa) as usize;
            segment.scatter(data, &mut buffers.page_mut(transfer.buffer)[from..]);
        }
        self.settle(at, ended);
    }

    /// Handles the end of a burst that writes.
    #[inline]
    pub fn written(&mut self, id: RequestId, ended: &mut Vec<FinishedTransfer>) {
        if let Some(Burst { transfer, .. }) = self.arrived(id) {
            self.settle(transfer, ended);
        }
    }

    #[cold]
    pub fn failed(&mut self, id: RequestId, error: EngineError, ended: &mut Vec<FinishedTransfer>) {
        if let Some(Burst { transfer, .. }) = self.arrived(id) {
            // The part not sent yet is dropped when its turn comes, if the transfer is queued.
            self.fail(transfer, error);
            self.settle(transfer, ended);
        }
    }
}

impl StateMachine for Transfers {
    /// Time at which the next failed transfer is retried, by [`advance`](Transfers::advance). Requests for which the
    /// engine had no room are not in it: they are sent by each round ([`is_waiting`](Transfers::is_waiting)).
    #[inline]
    fn deadline(&self) -> Deadline {
        self.waiting_to_retry
            .front()
            .map_or(Deadline::NEVER, |(at, _)| Deadline::new(*at, "another try of a page"))
    }
}

/// Whether `error` is final, so that a retry cannot succeed.
pub fn is_final(error: EngineError) -> bool {
    matches!(
        error,
        EngineError::DataLost(_)
            | EngineError::Failed { error: OpError::DataLost, .. }
            | EngineError::Poisoned(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that a mapping ignores answers to requests of an earlier mapping over the same engine: the
    /// read-ahead of a mapping may still be in flight at its end.
    #[test]
    fn answers_to_a_predecessor_are_dropped() {
        let mut transfers = Transfers::new(1);
        let segment = Segment::straight(0, 1);
        let burst = || Some(Burst { transfer: 0, segment, lane: 0, class: Class::Ahead });
        (transfers.bursts[7], transfers.on_their_way[Class::Ahead as usize][0]) = (burst(), 1);
        let of = |transfers, burst| RequestId::PageBurst { transfers, burst };
        let strangers =
            [RequestId::ClientBurst(7), RequestId::Number(7), RequestId::PortRequest { call: 1, request: 7 }];
        for id in strangers.into_iter().chain([of(0, 7), of(1, 8), of(1, u16::MAX)]) {
            assert!(transfers.arrived(id).is_none(), "{id:?}");
        }
        assert!(
            transfers.owns(of(1, 7)) && !transfers.owns(of(0, 7)) && !transfers.owns(RequestId::Number(7))
        );
        assert!(transfers.bursts[7].is_some() && transfers.arrived(of(1, 7)).is_some());
    }

    /// Begins to fetch into these buffers of two spaces in turn, ahead of any fault.
    fn fetch_ahead(transfers: &mut Transfers, buffers: core::ops::Range<u32>) {
        for (buffer, space) in buffers.flat_map(|buffer| [(BufferId(buffer), 1), (BufferId(buffer), 2)]) {
            io(transfers, space).fetch(buffer.0, buffer, Urgency::Ahead);
        }
    }

    fn io(transfers: &mut Transfers, space: u16) -> PageIo<'_> {
        PageIo { transfers, space, hpa: 0, wait_limit: Duration::ZERO, now: Time::ZERO }
    }

    #[test]
    fn the_fetch_that_a_thread_waits_for_is_the_one_into_its_buffer() {
        let mut transfers = Transfers::new(0);
        fetch_ahead(&mut transfers, 0..100);
        io(&mut transfers, 2).hurry(BufferId(77));
        let demanded = transfers.lanes.front(NEW, Class::Demand).unwrap();
        let of = transfers.slots[usize::from(demanded)].as_ref().unwrap();
        assert_eq!(
            (of.space, of.buffer, transfers.demands(), transfers.ahead),
            (Some(2), BufferId(77), 1, 199)
        );
        // Neither is waiting to be sent as read-ahead.
        io(&mut transfers, 2).hurry(BufferId(77));
        io(&mut transfers, 2).hurry(BufferId(100));
        transfers.abandon(1);
        io(&mut transfers, 1).hurry(BufferId(5));
        assert_eq!((transfers.demands(), transfers.ahead), (1, 199));
        // Others wait now: neighbours are hurried too, as long as they follow each other.
        io(&mut transfers, 2).hurry(BufferId(3));
        assert_eq!((transfers.demands(), transfers.ahead), (2, 198));
    }

    #[test]
    fn only_lost_data_is_given_up_at_once() {
        let mac = cxloe_wire::frame::Mac([2, 0, 0, 0, 0, 1]);
        assert!(is_final(EngineError::DataLost(mac)));
        assert!(is_final(EngineError::Failed { mac, error: OpError::DataLost }));
        assert!(!is_final(EngineError::NotConnected(mac)) && !is_final(EngineError::Unmapped(0)));
    }
}
