//! The worker's side of a persistent link. While the interface is unusable, frames are lost, as on a wire.

use std::io::Write;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::{Link, LinkCounters, LinkError, LinkInfo, OnFrame};
use cxloe_wire::Transmit;
use cxloe_wire::frame::MAX_FRAME_LIMIT;
use cxloe_wire::session::HelloSieve;

/// Maximum sleep of a worker that has no link, so that it soon takes the next link.
const NO_LINK_SLEEP: Duration = Duration::from_millis(10);

/// State of a slot, and an order to the worker: use the link.
const OPEN: u32 = 0;
/// State of a slot, and an order to the worker: release the link.
const CLOSE: u32 = 1;
/// State of a slot: the worker has released its link.
const CLOSED: u32 = 2;
/// State of a slot: a new link is ready for the worker.
const READY: u32 = 3;

/// Passes links between a worker and the thread that opens them.
#[derive(Default)]
pub(super) struct Slot {
    order: AtomicU32,
    link: Mutex<Option<Box<dyn Link>>>,
    /// Error that made the worker release its link without an order.
    failure: Mutex<Option<String>>,
}

impl Slot {
    /// Makes the worker release its link.
    pub fn close(&self) {
        // Withdraws a link that the worker has not taken yet. The lock is held until the order has changed, so that a
        // worker takes the link before that change or not at all.
        let mut waiting = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting = None;
        // Changes the order only if it is OPEN, because a worker may have released its link without an order.
        let _ = self.order.compare_exchange(OPEN, CLOSE, Ordering::AcqRel, Ordering::Acquire);
        let _ = self.order.compare_exchange(READY, CLOSED, Ordering::AcqRel, Ordering::Acquire);
    }

    pub fn is_closed(&self) -> bool {
        self.order.load(Ordering::Acquire) == CLOSED
    }

    /// Passes a new link to a worker that has released its last one.
    pub fn hand_over(&self, link: Box<dyn Link>) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(link);
        self.order.store(READY, Ordering::Release);
    }

    /// Removes and returns the error that made the worker release its link without an order, if there is a new one.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

pub(super) struct PersistentLink {
    slot: Arc<Slot>,
    link: Option<Box<dyn Link>>,
    info: LinkInfo,
    nowhere: DiscardFrames,
    /// Sums of the counters of earlier links, so that counters never go back.
    before: LinkCounters,
    reopened: u32,
    /// Socket by which a worker wakes the thread that opens links. The thread ends when all workers have closed their
    /// ends.
    alarm: Arc<UnixStream>,
}

impl PersistentLink {
    pub fn new(link: Box<dyn Link>, slot: Arc<Slot>, alarm: Arc<UnixStream>) -> PersistentLink {
        let info = link.info().clone();
        PersistentLink {
            slot,
            link: Some(link),
            info,
            nowhere: DiscardFrames { scratch: vec![0; MAX_FRAME_LIMIT].into_boxed_slice(), lent: 0, lost: 0 },
            before: LinkCounters::default(),
            reopened: 0,
            alarm,
        }
    }

    #[cold]
    fn apply(&mut self, order: u32) {
        match order {
            CLOSE => {
                self.close_link();
                self.slot.order.store(CLOSED, Ordering::Release);
            }
            READY => {
                let mut waiting = self.slot.link.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(link) = waiting.take() {
                    self.info = link.info().clone();
                    self.link = Some(link);
                    self.reopened = self.reopened.wrapping_add(1);
                    self.slot.order.store(OPEN, Ordering::Release);
                }
            }
            _ => {}
        }
    }

    fn close_link(&mut self) {
        if let Some(mut link) = self.link.take() {
            self.before = self.before.plus(&link.counters());
        }
    }

    /// Releases a failed link. The link is then opened again, as after a failure of the interface.
    #[cold]
    fn failed(&mut self, error: &LinkError) {
        self.close_link();
        *self.slot.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        self.slot.order.store(CLOSED, Ordering::Release);
        // If the socket's buffer is full, the thread is woken anyway.
        let _ = (&*self.alarm).write(&[0]);
    }

    fn check(&mut self, result: Result<usize, LinkError>) -> Result<usize, LinkError> {
        result.or_else(|error| {
            self.failed(&error);
            Ok(0)
        })
    }
}

impl Link for PersistentLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    #[inline]
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let order = self.slot.order.load(Ordering::Acquire);
        if order != OPEN {
            self.apply(order);
        }
        let Some(link) = &mut self.link else { return Ok(0) };
        match link.receive(budget, on_frame) {
            Err(error) => self.check(Err(error)),
            received => received,
        }
    }

    #[inline]
    fn peek(&mut self, budget: usize, look: &mut dyn FnMut(&[u8])) {
        if let Some(link) = &mut self.link {
            link.peek(budget, look);
        }
    }

    #[inline]
    fn holds(&mut self, count: usize) -> bool {
        self.link.as_mut().is_some_and(|link| link.holds(count))
    }

    #[inline]
    fn transmit(&mut self) -> &mut dyn Transmit {
        match &mut self.link {
            Some(link) => link.transmit(),
            None => {
                self.nowhere.limit_to(self.info.max_frame);
                &mut self.nowhere
            }
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        let Some(link) = &mut self.link else { return Ok(()) };
        match link.flush() {
            Err(error) => self.check(Err(error)).map(drop),
            sent => sent,
        }
    }

    fn has_unsent(&mut self) -> bool {
        self.link.as_mut().is_some_and(|link| link.has_unsent())
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        let Some(link) = &mut self.link else {
            std::thread::sleep(timeout.min(NO_LINK_SLEEP));
            return Ok(());
        };
        match link.wait(timeout) {
            Err(error) => self.check(Err(error)).map(drop),
            waited => waited,
        }
    }

    fn readiness(&self) -> Option<RawFd> {
        self.link.as_ref().and_then(|link| link.readiness())
    }

    fn sleep_max(&self) -> Duration {
        self.link.as_ref().map_or(Duration::MAX, |link| link.sleep_max())
    }

    /// Returns `Ok(true)` if there is no link, because no frame arrives then. The next link gets the sieve when it is
    /// opened.
    fn sift(&mut self, sieve: Option<&HelloSieve>) -> Result<bool, LinkError> {
        self.link.as_mut().map_or(Ok(true), |link| link.sift(sieve))
    }

    fn counters(&mut self) -> LinkCounters {
        let now = self.link.as_mut().map(|link| link.counters()).unwrap_or_default();
        let mut sum = self.before.plus(&now);
        sum.tx_errors += self.nowhere.lost;
        sum
    }

    fn reopened(&self) -> u32 {
        self.reopened
    }
}

/// Transmit side while there is no link: discards frames.
struct DiscardFrames {
    scratch: Box<[u8]>,
    lent: usize,
    lost: u64,
}

impl DiscardFrames {
    /// Enlarges the buffer to `max_frame` if needed; never shrinks it.
    fn limit_to(&mut self, max_frame: usize) {
        if max_frame > self.scratch.len() {
            self.scratch = vec![0; max_frame].into_boxed_slice();
        }
    }
}

impl Transmit for DiscardFrames {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if len == 0 {
            return None;
        }
        self.lent = len;
        self.scratch.get_mut(..len)
    }

    fn commit(&mut self) {
        self.lost += u64::from(std::mem::take(&mut self.lent) > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{PortConfig, SimNetwork};
    use cxloe_wire::frame::Mac;
    use cxloe_wire::time::Time;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn send(link: &mut dyn Link, mark: u8) {
        let slot = link.transmit().slot(60).unwrap();
        slot.fill(mark);
        slot[..6].copy_from_slice(&B.0);
        slot[6..12].copy_from_slice(&A.0);
        link.transmit().commit();
        link.flush().unwrap();
    }

    fn marks(link: &mut dyn Link) -> Vec<u8> {
        let mut marks = Vec::new();
        link.receive(64, &mut |frame, _| marks.push(frame[59])).unwrap();
        marks
    }

    #[test]
    fn frames_are_lost_while_there_is_no_link_and_pass_when_there_is_a_new_one() {
        let net = SimNetwork::new(1);
        let mut b = net.attach(B, PortConfig::default()).unwrap();
        let slot = Arc::new(Slot::default());
        let (alarm, _watch) = UnixStream::pair().unwrap();
        let first = Box::new(net.attach(A, PortConfig::default()).unwrap());
        let mut link = PersistentLink::new(first, Arc::clone(&slot), Arc::new(alarm));
        send(&mut link, 1);
        net.step(Time(1_000_000));
        assert_eq!(marks(&mut b), [1]);

        slot.close();
        assert!(!slot.is_closed(), "the worker has it until it comes by");
        assert_eq!(marks(&mut link), [] as [u8; 0]);
        assert!(slot.is_closed() && link.readiness().is_none());
        send(&mut link, 2);
        link.wait(Duration::from_millis(1)).unwrap();
        assert_eq!(link.transmit().slot(1 << 20), None, "no frame can be so long");
        let lost = link.counters();
        assert_eq!((lost.tx_frames, lost.tx_errors), (1, 1));

        // A link that is withdrawn before the worker takes it must never be used.
        slot.hand_over(Box::new(net.attach(Mac([2, 0, 0, 0, 0, 9]), PortConfig::default()).unwrap()));
        slot.close();
        assert!(slot.is_closed());
        assert_eq!((marks(&mut link), link.reopened()), (vec![], 0));

        slot.hand_over(Box::new(net.attach(Mac([2, 0, 0, 0, 0, 8]), PortConfig::default()).unwrap()));
        assert_eq!((marks(&mut link), link.reopened()), (vec![], 1));
        send(&mut link, 3);
        net.step(Time(2_000_000));
        assert_eq!(marks(&mut b), [3]);
        assert_eq!(link.counters().tx_frames, 2, "what passed before is counted on");
    }
}
