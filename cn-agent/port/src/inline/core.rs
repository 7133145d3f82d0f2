//! State of a port with mapped regions: link, engine and regions. The thread that holds the lock uses it.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use cxloe_wire::Transmit;
use cxloe_wire::frame::Mac;
use cxloe_wire::session::{HandshakeDone, HandshakeJob};
use cxloe_wire::time::Time;

use super::counter::{Counter, PageRequestResult, PageRequestState};
use super::lock::SpinLock;
use super::masks::HeldSignals;
use super::space::{Space, Spaces};
use crate::frames::Stamped;
use crate::port::{Port, PortParts};
use crate::signals::Signals;
use cxloe_cn_core::engine::{Engine, EngineEvent, Route, RouteError, Sink};
use cxloe_cn_core::node::{self, Frames, Users};
use cxloe_cn_core::pager::Hint;

/// Maximum number of frames received in one round.
const BATCH: usize = 64;
/// Number of polls of the link between two readings of the clock.
const SPINS: u32 = 16;
/// Number of spins of a waiting thread after which it yields the processor.
const IDLE_ROUNDS_MAX: u32 = 512;

/// State of a port and its regions, protected by a spin lock, and the requests of threads that wait for pages.
#[derive(Debug)]
pub struct Core {
    state: SpinLock<CoreState>,
    counter: Counter,
    /// Number of threads that are writing back.
    flushing: AtomicUsize,
}

impl Core {
    pub fn new(state: CoreState) -> Core {
        Core { state: SpinLock::new(state), counter: Counter::new(), flushing: AtomicUsize::new(0) }
    }

    /// Takes the lock, spinning until it is free, and runs `with` on the state. Signals wait meanwhile.
    pub fn with<R>(&self, with: impl FnOnce(&mut CoreState) -> R) -> R {
        let _held = HeldSignals::hold();
        self.with_signals_held(with)
    }

    /// As [`with`](Self::with), in a thread that blocks signals already.
    pub fn with_signals_held<R>(&self, with: impl FnOnce(&mut CoreState) -> R) -> R {
        let mut with = Some(with);
        let mut spins = 0_u32;
        loop {
            let done = self.state.try_with(|state| with.take().map(|with| with(state)));
            if let Some(Some(result)) = done {
                return result;
            }
            relax(&mut spins);
        }
    }

    /// Whether a thread drives the port at present, because it waits for a page or writes pages back.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.counter.is_wanted() || self.flushing.load(Ordering::Relaxed) > 0
    }

    /// Takes the lock, and runs `with` on a region; `None` if the region has ended.
    pub fn with_space<R>(&self, space: u8, with: impl FnOnce(&mut Space) -> R) -> Option<R> {
        self.with(|state| state.spaces.get(space).map(with))
    }

    /// Writes back the dirty pages of a region, until `is_late` returns true; returns whether all are written back.
    pub fn flush(&self, space: u8, mut is_late: impl FnMut() -> bool) -> bool {
        self.flushing.fetch_add(1, Ordering::Relaxed);
        let (mut clean, mut spins) = (WriteBackProgress::default(), 0);
        let arrived = loop {
            match self.with(|state| state.clean(space, &mut clean)) {
                WriteBackStep::Arrived => break true,
                _ if is_late() => break false,
                WriteBackStep::GoesOn => spins = 0,
                WriteBackStep::Waits => relax(&mut spins),
            }
        };
        self.flushing.fetch_sub(1, Ordering::Relaxed);
        arrived
    }

    /// Serves the fault of the calling thread, in a signal handler; returns the fault's outcome.
    #[inline]
    pub fn serve(&self, space: u8, page: u32, write: bool) -> PageRequestResult {
        let mut spins = 0;
        let place = loop {
            if let Some(place) = self.counter.ask(space, page, write) {
                break place;
            }
            self.state.try_with(|state| state.round(&self.counter));
            relax(&mut spins);
        };
        loop {
            if let Some(end) = self.counter.take(place) {
                return end;
            }
            // If another thread holds the lock, that thread serves this request too.
            let served = self.state.try_with(|state| {
                state.ask(&self.counter);
                for _ in 0..IDLE_ROUNDS_MAX {
                    state.round(&self.counter);
                    if let Some(end) = self.counter.take(place) {
                        return Some(end);
                    }
                }
                None
            });
            match served {
                Some(Some(end)) => return end,
                // After a long wait the thread yields, because the memory node may run on this core.
                Some(None) => drop(nix::sched::sched_yield()),
                None => relax(&mut spins),
            }
        }
    }
}

/// Spins once; from time to time yields the processor instead.
#[inline]
fn relax(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(IDLE_ROUNDS_MAX) {
        // The thread yields, because the thread that holds the lock may need this core.
        nix::sched::sched_yield().ok();
    } else {
        std::hint::spin_loop();
    }
}

/// A link whose failure counts as an outage: transfers wait, up to their limit, for the end of the outage.
struct Enduring<'a, S>(Stamped<'a, S>);

impl<S: FnMut() -> Time> Frames for Enduring<'_, S> {
    type Error = Infallible;

    #[inline]
    fn receive(
        &mut self,
        budget: usize,
        on_frame: impl FnMut(&mut [u8], Time, &mut dyn Transmit),
    ) -> Result<usize, Infallible> {
        Ok(self.0.receive(budget, on_frame).unwrap_or(0))
    }

    #[inline]
    fn transmit(&mut self) -> &mut dyn Transmit {
        self.0.transmit()
    }

    #[inline]
    fn flush(&mut self) -> Result<(), Infallible> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// Parts of a port that one round of receiving and sending needs: the regions and the requests of waiting threads.
struct Regions<'a> {
    spaces: &'a mut Spaces,
    counter: &'a Counter,
    signals: &'a mut Signals,
    /// Whether signals are polled even if no frame arrives.
    looks: bool,
    received: usize,
    /// Requests of threads found in this round.
    wishes: usize,
}

impl Users for Regions<'_> {
    #[inline]
    fn sink(&mut self) -> &mut dyn Sink {
        self.spaces
    }

    #[inline]
    fn received(&mut self, engine: &mut Engine, frames: usize, now: Time) {
        self.received = frames;
        if frames > 0 || self.looks {
            self.signals.poll(engine, || now);
        }
        self.spaces.iter().for_each(Space::finish);
    }

    /// Ends the requests of threads whose pages are present, and passes new requests to the pagers.
    #[inline]
    fn demand(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        let spaces = &mut *self.spaces;
        self.wishes = self.counter.each(|page_request| {
            spaces
                .get(page_request.space)
                .map_or(PageRequestState::Ended(PageRequestResult::Served), |space| {
                    space.consider(page_request)
                })
        });
        self.send(engine, now, tx, true)
    }

    /// Does nothing if a thread may just have got its page, so that the thread can continue first.
    #[inline]
    fn background(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        if self.received > 0 && self.wishes > 0 {
            return 0;
        }
        let work: usize = self.spaces.iter().map(|space| space.page(|pager, io| pager.turn(io))).sum();
        let sent = self.send(engine, now, tx, false);
        self.spaces.iter().for_each(Space::finish);
        work + sent
    }
}

impl Regions<'_> {
    /// Advances transfers; with `demand_alone`, only those that threads wait for.
    #[inline]
    fn send(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit, demand_alone: bool) -> usize {
        self.spaces.iter().map(|space| space.send(engine, now, tx, demand_alone)).sum()
    }
}

/// State of a port and its regions, which only the holder of the lock accesses.
pub struct CoreState {
    port: Option<PortParts>,
    spaces: Spaces,
    now: Time,
    looks: u32,
}

impl std::fmt::Debug for CoreState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Progress of writing back a region. Pages are visited once; pages that become dirty after their visit are not
/// waited for.
#[derive(Debug, Default)]
pub struct WriteBackProgress {
    /// Page at which to continue; `None` once all dirty pages are in flight.
    from: Option<u32>,
    /// Count of failed write-backs at the start; `None` before the start.
    failures: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBackStep {
    /// All pages have arrived at their memory nodes.
    Arrived,
    /// Some pages were sent, or have arrived.
    GoesOn,
    /// No page can be sent before memory nodes answer.
    Waits,
}

impl CoreState {
    pub fn new(port: Port) -> CoreState {
        let parts = port.into_parts();
        let now = parts.clock.now();
        CoreState { port: Some(parts), spaces: Spaces::default(), now, looks: 0 }
    }

    /// Runs one round, which serves the requests in `counter`. Returns whether it did any work.
    #[inline]
    pub fn round(&mut self, counter: &Counter) -> bool {
        let CoreState { port, spaces, now, looks } = self;
        let Some(PortParts { link, engine, clock, signals }) = port else { return false };
        *looks = looks.wrapping_add(1);
        let looks = looks.is_multiple_of(SPINS);
        if looks {
            *now = clock.now();
        }
        let mut link = Enduring(Stamped { link: &mut **link, stamp: || clock.now() });
        let mut users = Regions { spaces, counter, signals, looks, received: 0, wishes: 0 };
        let Ok(found) = node::round(engine, &mut link, &mut users, Some(*now), BATCH);
        *now = found.at.unwrap_or(*now);
        found.work() > 0
    }

    /// Requests the pages that threads wait for, without a complete round: called first by a thread that has just
    /// faulted, so that its request is not delayed by a poll of the ring.
    #[inline]
    fn ask(&mut self, counter: &Counter) {
        let CoreState { port, spaces, now, .. } = self;
        let Some(PortParts { link, engine, signals, .. }) = port else { return };
        let mut users = Regions { spaces, counter, signals, looks: false, received: 0, wishes: 0 };
        if users.demand(engine, *now, link.transmit()) > 0 {
            let _ = link.flush();
        }
    }

    /// Runs a round for the keeper (the thread that drives the port while no thread faults); returns whether another
    /// round may be useful.
    pub fn round_of_keeper(&mut self) -> bool {
        let nobody = Counter::new();
        if let Some(PortParts { clock, .. }) = &mut self.port {
            self.now = clock.now();
        }
        let worked = self.round(&nobody);
        // Acknowledgements can wait for the next round, but a reader may soon need pages that are being read ahead.
        worked || self.spaces.iter().any(|space| space.transfers.is_reading_ahead())
    }

    /// The next event of a session, to be logged without the lock. The lock's holder must not allocate, because a
    /// thread that faults in the allocator waits for the lock.
    pub fn event(&mut self) -> Option<EngineEvent> {
        self.port.as_mut()?.engine.poll_event()
    }

    /// The next Diffie-Hellman computation, to be done without the lock, and the index of its session.
    pub fn handshake(&mut self) -> Option<(usize, HandshakeJob)> {
        self.port.as_mut()?.engine.poll_handshake()
    }

    /// Passes the result of a computation to session `session`.
    pub fn handshake_done(&mut self, session: usize, done: HandshakeDone) {
        if let Some(PortParts { engine, clock, .. }) = &mut self.port {
            engine.handshake_done(session, done, clock.now());
        }
    }

    /// Continues to write back the pages of a region that were dirty at the start.
    pub fn clean(&mut self, space: u8, clean: &mut WriteBackProgress) -> WriteBackStep {
        let Some(space) = self.spaces.get(space) else { return WriteBackStep::Arrived };
        let failures = space.pager.counters().write_back_failures;
        if clean.failures.replace(failures).is_none_or(|before| before != failures) {
            // Visit all pages again: those whose write-back failed are still dirty.
            clean.from = Some(0);
        }
        if let Some(from) = clean.from {
            let view = space.view;
            clean.from = space.page(|pager, io| pager.clean_from(view, from, true, io));
        } else if space.pager.buffers().writing() == 0 {
            return WriteBackStep::Arrived;
        }
        if self.round_of_keeper() { WriteBackStep::GoesOn } else { WriteBackStep::Waits }
    }

    /// Passes advice about pages of a region to its pager.
    pub fn hint(&mut self, space: u8, pages: Range<u32>, hint: Hint) {
        if let Some(space) = self.spaces.get(space) {
            space.pager.hint(space.view, pages, hint);
        }
        self.round_of_keeper();
    }

    /// Adds a region and returns its index; returns the region if there is no room.
    pub fn add(&mut self, space: Box<Space>) -> Result<u8, Box<Space>> {
        self.spaces.add(space)
    }

    /// Removes and returns the region with index `space`.
    pub fn take(&mut self, space: u8) -> Option<Box<Space>> {
        self.spaces.take(space)
    }

    /// Moves peers, routes and policies of `ready` into the engine.
    pub fn adopt(&mut self, ready: &mut Engine) -> Result<(), RouteError> {
        let Some(PortParts { engine, clock, .. }) = &mut self.port else { return Ok(()) };
        engine.adopt(ready, clock.now())
    }

    /// Moves the routes of the address range that begins at `hpa` and has `bytes` bytes into `parted`. The caller frees
    /// them after it has released the lock.
    pub fn part(&mut self, hpa: u64, bytes: u64, parted: &mut Vec<Route>) {
        if let Some(PortParts { engine, .. }) = &mut self.port {
            engine.part(hpa, bytes, parted);
        }
    }

    /// Whether the memory node at `mac` has an open session.
    pub fn is_connected_to(&self, mac: Mac) -> bool {
        self.port.as_ref().is_some_and(|parts| parts.engine.is_connected_to(mac))
    }

    /// Removes and returns the port; rounds do nothing afterwards.
    pub fn take_port(&mut self) -> Option<Port> {
        self.port.take().map(Port::from_parts)
    }
}

#[cfg(test)]
mod tests {
    use cxloe_cn_core::cache::CacheConfig;
    use cxloe_link::sim::{PortConfig, SimNetwork};
    use cxloe_link::wait::WaitStyle;
    use nix::sys::signal::{SigSet, Signal};

    use super::*;

    #[test]
    fn signals_wait_while_the_lock_is_held() {
        let link = SimNetwork::new(1).attach(Mac([2, 0, 0, 0, 0, 1]), PortConfig::default()).unwrap();
        let port = Port::new(Box::new(link), Engine::new(CacheConfig::OFF), WaitStyle::Busy);
        let core = Core::new(CoreState::new(port));
        let blocks = |signal| SigSet::thread_get_mask().unwrap().contains(signal);
        assert!(!blocks(Signal::SIGALRM));
        assert_eq!(core.with(|_| [Signal::SIGALRM, Signal::SIGBUS].map(blocks)), [true, false]);
        assert!(!blocks(Signal::SIGALRM));
    }
}
