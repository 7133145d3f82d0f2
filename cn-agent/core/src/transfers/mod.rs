//! Pages on their way between page buffers and memory nodes: the [`Store`] of every pager, over one engine.
//!
//! ```text
//!   Pager --fetch, write--> lanes: demand, write, ahead --go_on--> Engine: bursts, as many as a page takes, of many pages
//!                              ^                                       |
//!                              |  later                                v answers (by burst)
//!                           waiting_to_retry <--- failed --- PageTransfer --- all its segments are there ---> Pager::fetched, written
//! ```
//!
//! Each memory node has queues of its own (`lanes.rs`). What somebody waits for is sent first and at once; of write-backs and
//! of what is read ahead only so many bursts are on their way to a memory node that a fault behind them hardly notices.
//!
//! A page may be spread over several memory nodes and takes several frames, so it travels in *bursts*, one frame each.
//! If one fails the whole page is sent for again, after a pause, until its region's patience is over. Everything has a
//! place from the start: nothing is allocated later.

mod lanes;
mod sending;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;

use cxloe_wire::session::OpError;
use cxloe_wire::time::Time;

use crate::engine::{EngineError, Segment, SegmentIter};
use crate::fault_times::FaultWatch;
use crate::pager::{BufferId, Lost, PAGE_BYTES, PageBuffers, Store, Urgency};

use lanes::{Class, LANES, Lanes, NEW};

/// What tells user values of paging from those of ports.
pub const PAGING: u64 = 1 << 63;
/// Bits of a user value that say which burst it is; above are those that say whose, see [`Transfers::new`].
const BURST_BITS: u32 = 16;
/// How many [`Transfers`] there have been.
static MADE: AtomicU32 = AtomicU32::new(0);
/// Pages on their way at once, over all spaces.
pub const TRANSFERS_MAX: usize = 512;
/// Bursts on their way at once.
const BURSTS_MAX: usize = 4096;
/// Pages that go first together, where somebody waits for the first of them.
const HURRIED_MAX: usize = 16;
/// The pause before a page that failed is sent for again.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Clone, Debug)]
enum Way {
    Fetch,
    /// The lines to write.
    Write(u64),
}

#[derive(Clone, Debug)]
struct PageTransfer {
    /// Whose it is; `None` when its space has ended.
    space: Option<u16>,
    buffer: BufferId,
    hpa: u64,
    way: Way,
    segment_iter: SegmentIter,
    /// Whether all segments were sent.
    all_sent: bool,
    in_flight: u16,
    failed: Option<EngineError>,
    /// When it failed for the first time.
    since: Option<Time>,
    patience: Duration,
    serial: u64,
    class: Class,
    /// When it was begun, if somebody waits for what it fetches.
    began: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    transfer: u16,
    segment: Segment,
    lane: u8,
    class: Class,
}

/// A transfer that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Whose it was; `None` when the space has ended.
    pub space: Option<u16>,
    /// Its buffer.
    pub buffer: BufferId,
    /// Whether it was a fetch.
    pub fetch: bool,
    /// How it ended.
    pub outcome: Result<(), Lost>,
    /// What it failed of, if it did.
    pub cause: Option<EngineError>,
    /// When it was begun, on the clock of [`Transfers::watch`], if it was a fetch that somebody waited for.
    pub began: Option<Time>,
}

/// Where the buffers of spaces are.
pub trait BufferSource {
    /// Those of a space; `None` when it has ended.
    fn buffers(&mut self, space: u16) -> Option<&mut PageBuffers>;
}

/// All transfers.
#[derive(Debug)]
pub struct Transfers {
    /// The part of user values that is the same for all of these, [`PAGING`] included.
    own: u64,
    slots: Vec<Option<PageTransfer>>,
    free: Vec<u16>,
    bursts: Vec<Option<Burst>>,
    free_bursts: Vec<u16>,
    lanes: Lanes,
    /// Bursts on their way, by class and lane.
    on_their_way: [[u16; LANES]; 3],
    /// Transfers that somebody waits for.
    demands: usize,
    /// Those that fetch what nobody waits for yet.
    ahead: usize,
    waiting_to_retry: VecDeque<(Time, u16)>,
    now: Time,
    serial: u64,
    /// Room for what a write gathers.
    room: Box<[u8; PAGE_BYTES]>,
    /// How long faults take.
    pub watch: FaultWatch,
}

/// The transfers of one space, as its pager sees them.
#[derive(Debug)]
pub struct PageIo<'a> {
    /// All transfers.
    pub transfers: &'a mut Transfers,
    /// The space.
    pub space: u16,
    /// Where its region begins.
    pub hpa: u64,
    /// How long memory nodes may be away.
    pub patience: Duration,
}

impl Store for PageIo<'_> {
    fn room(&self) -> usize {
        self.transfers.free.len()
    }

    fn fetch(&mut self, slot: u32, buffer: BufferId, urgency: Urgency) {
        let class = if urgency == Urgency::Ahead { Class::Ahead } else { Class::Demand };
        self.begin(slot, buffer, Way::Fetch, class);
    }

    fn write(&mut self, slot: u32, lines: u64, buffer: BufferId) {
        self.begin(slot, buffer, Way::Write(lines), Class::Write);
    }

    fn hurry(&mut self, buffer: BufferId) {
        self.transfers.hurry(self.space, buffer);
    }

    fn demands(&self) -> usize {
        self.transfers.demands
    }
}

impl PageIo<'_> {
    fn begin(&mut self, slot: u32, buffer: BufferId, way: Way, class: Class) {
        let PageIo { space, hpa, patience, .. } = *self;
        let hpa = hpa + u64::from(slot) * PAGE_BYTES as u64;
        let transfers = &mut *self.transfers;
        let Some(at) = transfers.free.pop() else {
            unreachable!("whoever begins a transfer has asked whether there is room");
        };
        transfers.serial += 1;
        let serial = transfers.serial;
        let segment_iter = SegmentIter::new(hpa..hpa + PAGE_BYTES as u64);
        let began = (class == Class::Demand).then(|| transfers.watch.now());
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
            patience,
            serial,
            class,
            began,
        });
        transfers.demands += usize::from(class == Class::Demand);
        transfers.ahead += usize::from(class == Class::Ahead);
        transfers.lanes.push(at, NEW, class);
    }
}

impl Transfers {
    /// None. `clock` tells the time for how long faults take.
    ///
    /// An engine may have served others before, whose answers are still to come: each has user values of its own, so that
    /// nobody takes them for what he has asked for.
    pub fn new(clock: impl Fn() -> Time + Send + 'static) -> Transfers {
        Transfers {
            own: PAGING | u64::from(MADE.fetch_add(1, Relaxed) & (u32::MAX >> 1)) << BURST_BITS,
            slots: vec![None; TRANSFERS_MAX],
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
            watch: FaultWatch::new(clock),
        }
    }

    /// What time it is, for what fails between two calls of [`go_on`](Self::go_on).
    #[inline]
    pub fn set_now(&mut self, now: Time) {
        self.now = now;
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        TRANSFERS_MAX - self.free.len()
    }

    /// Whether some wait to be sent.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// How many there are that somebody waits for.
    #[inline]
    pub fn demands(&self) -> usize {
        self.demands
    }

    /// Whether any fetches what nobody waits for yet.
    #[inline]
    pub fn is_reading_ahead(&self) -> bool {
        self.ahead > 0
    }

    /// Somebody waits now for what is being fetched into this buffer of a space: what is not sent of it goes first. Where others
    /// wait as well, so does what was begun right behind it: nothing that is read ahead is sent beside many faults, and the
    /// reader would wait for each page of it.
    fn hurry(&mut self, space: u16, buffer: BufferId) {
        let Transfers { slots, lanes, demands, ahead, .. } = self;
        let is_it = |at: u16| {
            let transfer = slots[usize::from(at)].as_ref();
            transfer.is_some_and(|transfer| (transfer.space, transfer.buffer) == (Some(space), buffer))
        };
        let count = if *demands > 0 { HURRIED_MAX } else { 1 };
        let mut taken = lanes.take(Class::Ahead, is_it);
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

    /// When one that failed is due again.
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        self.waiting_to_retry.front().map(|(at, _)| *at)
    }

    /// The number of the last one begun.
    #[inline]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether a write of `space` that was begun up to `serial` is still on its way.
    pub fn is_writing(&self, space: u16, serial: u64) -> bool {
        let writing = |transfer: &PageTransfer| {
            transfer.space == Some(space)
                && transfer.serial <= serial
                && matches!(transfer.way, Way::Write(_))
        };
        self.slots.iter().flatten().any(writing)
    }

    /// How many transfers a space has on their way.
    pub fn count_of(&self, space: u16) -> usize {
        self.slots.iter().flatten().filter(|transfer| transfer.space == Some(space)).count()
    }

    /// A space has ended; what is on its way for it is nobody's.
    pub fn abandon(&mut self, space: u16) {
        self.slots.iter_mut().flatten().filter(|t| t.space == Some(space)).for_each(|t| t.space = None);
    }

    fn fail(&mut self, at: u16, error: EngineError) {
        let now = self.now;
        if let Some(transfer) = &mut self.slots[usize::from(at)] {
            transfer.all_sent = true;
            transfer.failed = Some(error);
            transfer.since.get_or_insert(now);
        }
    }

    /// Ends a transfer, or lays it to rest, if nothing of it is on its way any more.
    fn settle(&mut self, at: u16, ended: &mut Vec<Ended>) {
        let Some(transfer) = &mut self.slots[usize::from(at)] else { return };
        if transfer.in_flight > 0 || !transfer.all_sent || self.lanes.has(at) {
            return;
        }
        let cause = transfer.failed.take().filter(|_| transfer.space.is_some());
        let outcome = match cause {
            Some(error) => {
                let since = transfer.since.map_or(Duration::ZERO, |since| self.now.since(since));
                if !is_final(error) && since < transfer.patience {
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
        ended.push(Ended { space, buffer, fetch: matches!(way, Way::Fetch), outcome, cause, began });
        self.demands -= usize::from(class == Class::Demand);
        self.ahead -= usize::from(class == Class::Ahead);
        self.slots[usize::from(at)] = None;
        self.free.push(at);
    }

    /// The burst of this user value has arrived: which transfer, and where its data goes.
    fn arrived(&mut self, user: u64) -> Option<Burst> {
        let at = (user ^ self.own) as usize;
        let burst = self.bursts.get_mut(at)?.take()?;
        self.free_bursts.push(at as u16);
        self.on_their_way[burst.class as usize][usize::from(burst.lane)] -= 1;
        if let Some(transfer) = &mut self.slots[usize::from(burst.transfer)] {
            transfer.in_flight -= 1;
        }
        Some(burst)
    }

    /// Data has come.
    #[inline]
    pub fn read(&mut self, user: u64, data: &[u8], source: &mut impl BufferSource, ended: &mut Vec<Ended>) {
        let Some(Burst { transfer: at, segment, .. }) = self.arrived(user) else { return };
        if let Some(transfer) = &self.slots[usize::from(at)]
            && let Some(buffers) = transfer.space.and_then(|space| source.buffers(space))
        {
            let from = (segment.hpa - transfer.hpa) as usize;
            segment.scatter(data, &mut buffers.page_mut(transfer.buffer)[from..]);
        }
        self.settle(at, ended);
    }

    /// Lines have been written.
    #[inline]
    pub fn written(&mut self, user: u64, ended: &mut Vec<Ended>) {
        if let Some(Burst { transfer, .. }) = self.arrived(user) {
            self.settle(transfer, ended);
        }
    }

    /// A burst has failed.
    #[cold]
    pub fn failed(&mut self, user: u64, error: EngineError, ended: &mut Vec<Ended>) {
        if let Some(Burst { transfer, .. }) = self.arrived(user) {
            // What was not sent yet is not sent; that is noticed when its turn comes, if it is in a queue.
            self.fail(transfer, error);
            self.settle(transfer, ended);
        }
    }
}

/// Whether trying again cannot help.
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

    /// As a mapping ends, what it reads ahead is on its way; the next one over the same engine hears of it.
    #[test]
    fn answers_to_a_predecessor_are_nobodys() {
        let (before, mut after) = (Transfers::new(|| Time::ZERO), Transfers::new(|| Time::ZERO));
        assert_ne!(before.own, after.own);
        let segment = Segment::straight(0, 1);
        let burst = || Some(Burst { transfer: 0, segment, lane: 0, class: Class::Ahead });
        (after.bursts[7], after.on_their_way[Class::Ahead as usize][0]) = (burst(), 1);
        assert!(after.arrived(before.own | 7).is_none() && after.arrived(after.own | 8).is_none());
        assert!(after.bursts[7].is_some() && after.arrived(after.own | 7).is_some());
    }

    #[test]
    fn only_lost_data_is_given_up_at_once() {
        let mac = cxloe_wire::frame::Mac([2, 0, 0, 0, 0, 1]);
        assert!(is_final(EngineError::DataLost(mac)));
        assert!(is_final(EngineError::Failed { mac, error: OpError::DataLost }));
        assert!(!is_final(EngineError::NotConnected(mac)) && !is_final(EngineError::Unmapped(0)));
    }
}
