//! What a mapping is served with, by whoever has its lock: link, engine, transfers, pager, memory.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cxloe_link::Link;
use cxloe_wire::session::{HandshakeDone, HandshakeJob};
use cxloe_wire::time::Time;

use super::counter::{Counter, End, Outcome, Wish};
use super::lock::SpinLock;
use crate::port::{Parts, Port};
use cxloe_cn_core::engine::{EngineError, EngineEvent, Sink};
use cxloe_cn_core::pager::{self, Access, Fault, Hint, Io, MappingId, Memory, PageBuffers, Pager, ViewId};
use cxloe_cn_core::transfers::{BufferSource, Ended, PAGING, PageIo, Transfers};
use cxloe_paging::memory::Anonymous;

/// PageBuffers taken from the ring in one round.
const BATCH: usize = 64;
/// Looks at the link between two looks at the clock.
const SPINS: u32 = 16;
/// Looks of a thread that waits before it lets others run.
const PATIENCE: u32 = 512;

/// A mapping: its state, and the wishes of those who wait.
#[derive(Debug)]
pub struct Core {
    state: SpinLock<State>,
    counter: Counter,
    /// Threads that write back.
    flushing: AtomicUsize,
}

impl Core {
    pub fn new(state: State) -> Core {
        Core { state: SpinLock::new(state), counter: Counter::new(), flushing: AtomicUsize::new(0) }
    }

    /// Does something with the state, as soon as nobody else does.
    pub fn with<R>(&self, with: impl FnOnce(&mut State) -> R) -> R {
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

    /// Whether a thread waits for its fault, or writes back, and so looks after everything.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.counter.is_wanted() || self.flushing.load(Ordering::Relaxed) > 0
    }

    /// Writes back what is dirty, unless that takes as long as `is_late` allows; whether it has.
    pub fn flush(&self, mut is_late: impl FnMut() -> bool) -> bool {
        self.flushing.fetch_add(1, Ordering::Relaxed);
        let (mut clean, mut spins) = (Clean::default(), 0);
        let arrived = loop {
            match self.with(|state| state.clean(&mut clean)) {
                Cleaned::Arrived => break true,
                _ if is_late() => break false,
                Cleaned::GoesOn => spins = 0,
                Cleaned::Waits => relax(&mut spins),
            }
        };
        self.flushing.fetch_sub(1, Ordering::Relaxed);
        arrived
    }

    /// Serves the fault of the calling thread, within a signal handler; whether it can be.
    #[inline]
    pub fn serve(&self, page: u32, write: bool) -> End {
        let mut spins = 0;
        let place = loop {
            if let Some(place) = self.counter.ask(page, write) {
                break place;
            }
            self.state.try_with(|state| state.round(&self.counter));
            relax(&mut spins);
        };
        loop {
            if let Some(end) = self.counter.take(place) {
                return end;
            }
            // As long as the lock is ours, everybody is served.
            let served = self.state.try_with(|state| {
                for _ in 0..PATIENCE {
                    state.round(&self.counter);
                    if let Some(end) = self.counter.take(place) {
                        return Some(end);
                    }
                }
                None
            });
            match served {
                Some(Some(end)) => return end,
                // It takes long: perhaps who is to answer wants this core.
                Some(None) => drop(nix::sched::sched_yield()),
                None => relax(&mut spins),
            }
        }
    }
}

/// Waits a moment for another thread.
#[inline]
fn relax(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(PATIENCE) {
        // Whoever has the lock may want this core.
        nix::sched::sched_yield().ok();
    } else {
        std::hint::spin_loop();
    }
}

/// What the lock protects.
pub struct State {
    port: Option<Parts>,
    pub pager: Pager,
    memory: Anonymous,
    view: ViewId,
    mapping: MappingId,
    hpa: u64,
    patience: Duration,
    transfers: Transfers,
    ended: Vec<Ended>,
    now: Time,
    looks: u32,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("pager", &self.pager).finish_non_exhaustive()
    }
}

/// How far writing back has come. Pages are gone through once; what is written behind is not waited for.
#[derive(Debug, Default)]
pub struct Clean {
    /// Where to go on; `None` once all is on its way.
    from: Option<u32>,
    /// Failed write-backs when that began; `None` before it has.
    failures: Option<u64>,
}

/// What has come of a step of writing back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// Everything is at its memory nodes.
    Arrived,
    /// Some was sent, or has arrived.
    GoesOn,
    /// Memory nodes are waited for.
    Waits,
}

/// The only space there is.
const SPACE: u16 = 0;

/// The buffers of the pager, for transfers.
struct Source<'a>(&'a mut PageBuffers);

impl BufferSource for Source<'_> {
    #[inline]
    fn buffers(&mut self, _: u16) -> Option<&mut PageBuffers> {
        Some(self.0)
    }
}

/// Takes what the engine has for the transfers.
struct Receiver<'a> {
    transfers: &'a mut Transfers,
    buffers: Source<'a>,
    ended: &'a mut Vec<Ended>,
}

impl Sink for Receiver<'_> {
    #[inline]
    fn read(&mut self, user: u64, data: &[u8]) {
        if user & PAGING != 0 {
            self.transfers.read(user, data, &mut self.buffers, self.ended);
        }
    }

    #[inline]
    fn written(&mut self, user: u64) {
        if user & PAGING != 0 {
            self.transfers.written(user, self.ended);
        }
    }

    fn failed(&mut self, user: u64, error: EngineError) {
        if user & PAGING != 0 {
            self.transfers.failed(user, error, self.ended);
        }
    }
}

impl State {
    pub fn new(
        port: Port,
        pager: Pager,
        memory: Anonymous,
        view: ViewId,
        mapping: MappingId,
        hpa: u64,
        patience: Duration,
    ) -> State {
        let parts = port.into_parts();
        let (now, clock) = (parts.clock.now(), parts.clock.clone());
        State {
            port: Some(parts),
            pager,
            memory,
            view,
            mapping,
            hpa,
            patience,
            transfers: Transfers::new(move || clock.now()),
            ended: Vec::with_capacity(1024),
            now,
            looks: 0,
        }
    }

    /// One round: wishes, what they need to leave, what has arrived, and if nothing has, what nobody waits for. Whether
    /// anything happened.
    #[inline]
    pub fn round(&mut self, counter: &Counter) -> bool {
        let wishes = counter.each(|wish| self.consider(wish));
        let sent = self.send(true);
        let received = self.receive();
        self.finish();
        if received > 0 && wishes > 0 {
            // Who has his page goes on.
            counter.each(|wish| self.consider(wish));
            return true;
        }
        let work = self.turn();
        let sent_besides = self.send(false);
        self.finish();
        received + work + sent + sent_besides > 0
    }

    /// Has transfers go on, all of them or those that somebody waits for, and what they send leave.
    #[inline]
    fn send(&mut self, demand_alone: bool) -> usize {
        let State { port, transfers, pager, ended, .. } = self;
        let Some(Parts { link, engine, .. }) = port else { return 0 };
        let (now, tx, source) = (self.now, link.transmit(), &mut Source(pager.buffers()));
        let sent = if demand_alone {
            transfers.go_on_with_demand(engine, now, tx, source, ended)
        } else {
            transfers.go_on(engine, now, tx, source, ended)
        };
        if sent > 0 {
            // A link that fails is one that is down: transfers wait for it, as long as they may.
            let _ = link.flush();
        }
        sent
    }

    /// Takes what has arrived, and does what time demands.
    #[inline]
    fn receive(&mut self) -> usize {
        let State { port, transfers, pager, ended, now, .. } = self;
        let Some(Parts { link, engine, clock, signals }) = port else { return 0 };
        let mut receiver = Receiver { transfers, buffers: Source(pager.buffers()), ended };
        let received = link.receive(BATCH, &mut |buffer, tx| engine.handle(buffer, *now, tx, &mut receiver));
        let received = received.unwrap_or(0);
        self.looks = self.looks.wrapping_add(1);
        if received > 0 || self.looks.is_multiple_of(SPINS) {
            *now = clock.now();
            signals.poll(engine, || *now);
        }
        let due = *now >= engine.deadline();
        if due {
            engine.poll(*now, link.transmit(), &mut receiver);
        }
        // What was written in answer.
        if received > 0 || due {
            let _ = link.flush();
        }
        received
    }

    /// A round between faults; whether another may be worth while.
    pub fn round_of_keeper(&mut self) -> bool {
        let nobody = Counter::new();
        if let Some(Parts { clock, .. }) = &mut self.port {
            self.now = clock.now();
        }
        let worked = self.round(&nobody);
        // Acknowledgements can wait for the next round; a reader may come for what is read ahead.
        worked || self.transfers.is_reading_ahead()
    }

    /// What happened to the sessions, to be logged without the lock: whoever has it may not allocate, because a thread
    /// that faults within the allocator waits for it.
    pub fn event(&mut self) -> Option<EngineEvent> {
        self.port.as_mut()?.engine.poll_event()
    }

    /// Diffie-Hellman to be done, without the lock, and for which session.
    pub fn handshake(&mut self) -> Option<(usize, HandshakeJob)> {
        self.port.as_mut()?.engine.poll_handshake()
    }

    /// Takes what has come of it.
    pub fn handshake_done(&mut self, session: usize, done: HandshakeDone) {
        if let Some(Parts { engine, clock, .. }) = &mut self.port {
            engine.handshake_done(session, done, clock.now());
        }
    }

    fn turn(&mut self) -> usize {
        let State { pager, memory, transfers, hpa, patience, .. } = self;
        let mut page_io = PageIo { transfers, space: SPACE, hpa: *hpa, patience: *patience };
        pager.turn(&mut Io { memory, store: &mut page_io })
    }

    /// Tells the pager of transfers that have ended.
    #[inline]
    fn finish(&mut self) {
        let State { pager, memory, transfers, ended, hpa, patience, .. } = self;
        while let Some(Ended { buffer, fetch, outcome, .. }) = ended.pop() {
            let mut page_io = PageIo { transfers, space: SPACE, hpa: *hpa, patience: *patience };
            let mut io = Io { memory, store: &mut page_io };
            if fetch {
                pager.fetched(buffer, outcome, &mut io)
            } else {
                pager.written(buffer, outcome, &mut io)
            }
        }
    }

    /// What a thread wants: whether it has it, and if not, what the pager is told.
    #[inline]
    fn consider(&mut self, Wish { page, write, told }: Wish) -> Outcome {
        let (view, mapping) = (self.view, self.mapping);
        let Some(entry) = self.pager.look(view, page) else { return Outcome::Ended(End::Served) };
        use pager::State::*;
        let access = match entry.state() {
            Lost => return Outcome::Ended(End::Lost),
            // A wish that the pager has served, or has let go of because the page left again in the same breath: the
            // thread looks for itself, and asks anew if need be. It would wait for ever otherwise.
            _ if told => {
                let waits = self.pager.owes(mapping, page);
                return if waits { Outcome::Told } else { Outcome::Ended(End::Served) };
            }
            Absent | Fetching | Staged | Installing | Dropping | Zeroing => Access::Missing,
            Clean | Cleaning if write => Access::Protected,
            // It came while the thread was on its way here, or the program has given it back.
            Clean | Cleaning | Dirty if !self.memory.is_present(view, page) => Access::Missing,
            Clean | Cleaning => return Outcome::Ended(End::Served),
            Dirty => {
                let _ = self.memory.unprotect(mapping, page);
                return Outcome::Ended(End::Served);
            }
        };
        let State { pager, memory, transfers, hpa, patience, .. } = self;
        let mut page_io = PageIo { transfers, space: SPACE, hpa: *hpa, patience: *patience };
        pager.fault(Fault { mapping, page, access, write }, &mut Io { memory, store: &mut page_io });
        Outcome::Told
    }

    /// Goes on with writing back what was dirty when that began.
    pub fn clean(&mut self, clean: &mut Clean) -> Cleaned {
        let State { pager, memory, transfers, view, hpa, patience, .. } = self;
        let failures = pager.counters().write_back_failures;
        if clean.failures.replace(failures).is_none_or(|before| before != failures) {
            // What failed is dirty still.
            clean.from = Some(0);
        }
        if let Some(from) = clean.from {
            let mut page_io = PageIo { transfers, space: SPACE, hpa: *hpa, patience: *patience };
            clean.from = pager.clean_from(*view, from, &mut Io { memory, store: &mut page_io });
        } else if pager.buffers().writing() == 0 {
            return Cleaned::Arrived;
        }
        if self.round_of_keeper() { Cleaned::GoesOn } else { Cleaned::Waits }
    }

    /// What the program will do with pages.
    pub fn hint(&mut self, pages: Range<u32>, hint: Hint) {
        self.pager.hint(self.view, pages, hint);
        self.round_of_keeper();
    }

    /// Gives the port back, at the end.
    pub fn give_back(&mut self) -> Option<Port> {
        self.port.take().map(Port::from_parts)
    }
}
