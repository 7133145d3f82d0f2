//! The worker: one thread that owns the link, the engine and the clients' rings, and goes round them.
//!
//! A round takes what has arrived from the link, then submissions of every client and the faults of programs that have
//! regions mapped, does what time demands, kicks the link once and wakes who sleeps. Nothing on that path allocates or locks. Between rounds without
//! work it spins or sleeps as [`WaitStyle`] says; asleep, it waits for the link, all clients and control at
//! once. Orders of control are taken when the thread has looked in vain some times, and every few
//! milliseconds under load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use cxloe_link::Clock;
use cxloe_link::keys::Handshaker;
use cxloe_link::wait::{Idle, WaitStyle, Waiter};
use cxloe_link::{Link, LinkError, LinkHealth};
use cxloe_wire::session::SessionEvent;
use cxloe_wire::time::Time;

use super::order::{Order, PagingOrder, QuietEvent};
use super::placement::{Placement, Thread, cpu_of};
use super::sleeper::Sleeper;
use cxloe_client::places::this_cpu;
use cxloe_cn_core::attach::Station;
use cxloe_cn_core::drain::Drains;
use cxloe_cn_core::engine::{Engine, EngineError, EngineEvent, Sink};
use cxloe_cn_core::events;
use cxloe_paging::{Spaces, is_paging};
use cxloe_port::signals::Signals;
use cxloe_rings::clients::Clients;

mod ending;
mod handle;
mod regions;
mod report;

pub use handle::WorkerHandle;

/// Frames taken from the ring in one round.
const BATCH: usize = 64;
/// Looks at empty rings between two looks at the clock.
const SPINS: u32 = 64;
/// The same while something is under way: more than a round trip. Then whoever else wants this CPU has it, for what is
/// waited for may come from there: on a small machine from the memory node itself.
const SPINS_UNDER_WAY: u32 = 128;
/// Who was away for so long between two looks at the clock did not have the CPU.
const ABSENCE: Duration = Duration::from_micros(500);
/// Whoever gives the CPU up and has it back sooner was alone there.
const YIELD_ALONE: Duration = Duration::from_micros(2);
/// For how long others are taken to be there who were: the kernel gives the CPU back at once, too, where it thinks that they
/// have had their share. A program whose page has come would wait until this thread has looked for the next fault in vain.
const CROWD_STAYS: Duration = Duration::from_millis(1);
/// How often orders are looked for under load, and clients that end without a word while the thread spins.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(5);
/// The longest sleep while an operation waits for room in the engine.
const BACKPRESSURE_SLEEP_MAX: Duration = Duration::from_micros(200);

/// How a worker runs.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// What its sessions have in common.
    pub station: Station,
    /// How its link is.
    pub health: LinkHealth,
    /// What it does when there is nothing to do.
    pub wait: WaitStyle,
    /// The CPU it is pinned to.
    pub cpu: Option<usize>,
    /// Clients at a time.
    pub clients_max: usize,
}

/// Those on whose behalf the engine is used.
struct Parties {
    clients: Clients,
    spaces: Spaces,
}

impl Sink for Parties {
    #[inline]
    fn read(&mut self, user: u64, data: &[u8]) {
        if is_paging(user) { self.spaces.read(user, data) } else { self.clients.read(user, data) }
    }

    #[inline]
    fn written(&mut self, user: u64) {
        if is_paging(user) { self.spaces.written(user) } else { self.clients.written(user) }
    }

    fn failed(&mut self, user: u64, error: EngineError) {
        if is_paging(user) { self.spaces.failed(user, error) } else { self.clients.failed(user, error) }
    }
}

struct Worker {
    link: Box<dyn Link>,
    engine: Engine,
    signals: Signals,
    parties: Parties,
    options: WorkerOptions,
    inbox: Receiver<Order>,
    stop: Arc<AtomicBool>,
    clock: Clock,
    /// Computes for sessions between keys; `None` without a key.
    handshaker: Option<Handshaker<usize>>,
    waiter: Waiter,
    sleeper: Sleeper,
    /// Why memory nodes refuse us, by their address as sessions show it.
    refusals: BTreeMap<String, String>,
    /// Up to which event no operation of before is on its way; and those that are waited for: the one whose operations are
    /// marked, and the latest.
    quiet: QuietEvent,
    quieting: (Option<u64>, Option<u64>),
    drains: Drains,
    /// Where to say what has been let go of.
    tell: Sender<u64>,
    housekeeping_at: Time,
    backpressured: bool,
    /// Whether a client that is awake was on this thread's CPU when this was last looked at.
    beside: bool,
    /// Whether such a one got completions in the last round.
    told: bool,
    /// Whether others ran on this thread's CPU when it gave that up last: where memory is mapped, most likely the program whose
    /// faults it serves.
    crowded: bool,
    /// Until when that is so, whatever the kernel does.
    crowded_until: Time,
    /// Whether it has given the CPU up since it had something to do.
    yielded: bool,
    /// Where it runs, if that is its own affair.
    placement: Placement,
    seat: Option<Thread>,
    /// How often the link had been opened again when this was last looked at.
    reopened: u32,
}

impl Worker {
    fn run(&mut self) -> Result<(), LinkError> {
        let mut empty: u32 = 0;
        let mut now = self.clock.now();
        loop {
            let work = self.round(now)?;
            empty = if work > 0 { 0 } else { empty.wrapping_add(1) };
            let rests = self.engine.in_flight() == 0 && !self.backpressured;
            // Nobody says where programs run whose memory is mapped: that is found out.
            let maps = rests && !self.parties.spaces.is_empty();
            if work == 0 {
                let looks = if rests { SPINS } else { SPINS_UNDER_WAY };
                let yields_at_once = (self.beside && rests) || (self.crowded && maps);
                if !yields_at_once && !empty.is_multiple_of(looks) && self.waiter.style() != WaitStyle::Sleep
                {
                    std::hint::spin_loop();
                    continue;
                }
                self.look_around();
            }
            // What is waited for comes from a client that only runs when this thread does not, or from nobody knows where.
            let elsewhere = !rests && matches!(self.waiter.style(), WaitStyle::Adaptive { .. });
            let asked = if work == 0 { self.beside || elsewhere } else { self.beside && rests && self.told };
            let sleeps = work == 0 && maps && self.crowded && self.yielded;
            self.yielded = !sleeps && (asked || (maps && (work == 0 || self.crowded)));
            if self.yielded {
                let left = self.clock.now();
                thread::yield_now();
                let back = self.clock.now();
                if back.since(left) > YIELD_ALONE {
                    self.crowded_until = back + CROWD_STAYS;
                }
                self.crowded = back < self.crowded_until;
            }
            let before = std::mem::replace(&mut now, self.clock.now());
            if now >= self.housekeeping_at || now.since(before) > ABSENCE {
                self.housekeeping(now);
                if self.stop.load(Ordering::Acquire) {
                    return self.finish();
                }
            }
            let deadline = self.engine.deadline();
            let deadline = self.parties.spaces.deadline().map_or(deadline, |due| due.min(deadline));
            let idle = match self.waiter.after(work, now, Some(deadline)) {
                // Faults wake it at once, which a program that goes on computing would not let it see before long.
                Idle::Poll if sleeps && deadline > now => {
                    Idle::Sleep(deadline.since(now).min(Waiter::SLEEP_MAX))
                }
                idle => idle,
            };
            if let Idle::Sleep(most) = idle {
                let soon = self.backpressured || self.handshaker.as_ref().is_some_and(Handshaker::is_busy);
                self.sleep(if soon { most.min(BACKPRESSURE_SLEEP_MAX) } else { most });
                now = self.clock.now();
            }
        }
    }

    /// Takes what has arrived from the link and from clients; how much that was.
    #[inline]
    fn round(&mut self, now: Time) -> Result<usize, LinkError> {
        self.signals.poll(&mut self.engine, || now);
        // What all clients want in this round travels together.
        self.engine.hold();
        let (engine, parties) = (&mut self.engine, &mut self.parties);
        let received = self.link.receive(BATCH, &mut |frame, tx| engine.handle(frame, now, tx, parties))?;
        let Parties { clients, spaces } = &mut self.parties;
        let served = clients.serve(&mut self.engine, spaces.mapped(), now, self.link.transmit());
        let mut paged = spaces.serve(&mut self.engine, now, self.link.transmit());
        if paged > 0 {
            // What faults wait for leaves before pages are made ready that nobody waits for.
            self.link.flush()?;
        }
        paged += spaces.turn(&mut self.engine, now, self.link.transmit());
        if now >= self.engine.deadline() {
            self.engine.poll(now, self.link.transmit(), &mut self.parties);
        }
        if self.handshaker.is_some() {
            self.shake_hands(now);
        }
        if !self.drains.is_empty() {
            self.depart(now);
        }
        self.backpressured = served.backpressured
            || (!self.drains.is_empty() && self.drains.gets_on())
            || self.parties.spaces.has_work();
        self.engine.release(now, self.link.transmit());
        self.link.flush()?;
        self.told = self.parties.clients.wake();
        Ok(received + served.taken + paged)
    }

    /// Has Diffie-Hellman done, and takes what has been.
    #[inline]
    fn shake_hands(&mut self, now: Time) {
        let Some(handshaker) = &mut self.handshaker else { return };
        while let Some((session, job)) = self.engine.poll_handshake() {
            handshaker.compute(session, job);
        }
        while let Some((session, done)) = handshaker.finished() {
            self.engine.handshake_done(session, done, now);
        }
    }

    /// Looks on which CPU this thread runs, and whether a client is on the same.
    fn look_around(&mut self) {
        let Some(cpu) = this_cpu() else { return };
        self.parties.clients.set_cpu(cpu);
        self.beside = self.parties.clients.cpus().any(|client| client == cpu);
    }

    /// The link has been opened again: what depends on it is brought up to date.
    #[cold]
    fn follow_link(&mut self, now: Time) {
        self.reopened = self.link.reopened();
        let info = self.link.info();
        self.options.station.max_frame = info.max_frame;
        self.engine.set_max_frame(info.max_frame, now);
        self.signals.reopen(&info.interface);
    }

    fn sleep(&mut self, most: Duration) {
        self.sleeper.watch_link(self.link.readiness(), self.link.reopened());
        let clients = &mut self.parties.clients;
        if let Some(sockets) = clients.changed_sockets() {
            self.sleeper.watch(sockets);
        }
        if !clients.doze() && self.sleeper.sleep(most) {
            let sleeper = &self.sleeper;
            clients.listen(|position| sleeper.is_ready(position));
        }
        if let Some(cpu) = this_cpu() {
            clients.set_cpu(cpu);
        }
        clients.set_asleep(false);
        if self.sleeper.was_rung() {
            // Whoever rang wants to be heard now.
            self.housekeeping_at = Time::ZERO;
        }
    }

    #[cold]
    fn housekeeping(&mut self, now: Time) {
        self.housekeeping_at = now + HOUSEKEEPING_INTERVAL;
        if self.waiter.style() == WaitStyle::Busy {
            self.parties.clients.listen(|_| true);
        }
        self.parties.spaces.housekeeping(now);
        if self.placement.is_due(now) {
            self.place(now);
        }
        if self.link.reopened() != self.reopened {
            self.follow_link(now);
        }
        while let Some(event) = self.engine.poll_event() {
            self.note(&event);
        }
        while let Ok(order) = self.inbox.try_recv() {
            self.obey(order);
        }
        self.go_on_quieting();
    }

    /// Goes to another CPU, if that is better.
    fn place(&mut self, now: Time) {
        let Some(seat) = &self.seat else { return };
        let (Some(waited), Some(own)) = (seat.waited(), this_cpu()) else { return };
        let client = self.parties.clients.cpus().next();
        // One that never gives its CPU up is best on another.
        let may_share = self.waiter.style() != WaitStyle::Busy;
        let faulting = self.parties.spaces.take_faulting().filter(|_| may_share);
        let program = faulting.and_then(|(process, thread)| cpu_of(process, thread));
        if let Some(to) = self.placement.decide(now, waited, own, client, program) {
            seat.go(to);
            self.crowded |= program.is_some();
            self.look_around();
        }
    }

    fn note(&mut self, event: &EngineEvent) {
        let refusal = events::refusal(event);
        if let (EngineEvent::Session { mac, .. }, Some(why)) = (event, &refusal)
            && self.refusals.get(&mac.to_string()) == Some(why)
        {
            // It goes on being refused, at every call: `cn-agent sessions` shows it, the log has it once.
            return;
        }
        events::log(event);
        if let EngineEvent::Session { mac, event: session } = event {
            match (session, refusal) {
                (_, Some(why)) => drop(self.refusals.insert(mac.to_string(), why)),
                (SessionEvent::Opened { .. }, None) => drop(self.refusals.remove(&mac.to_string())),
                _ => {}
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Follow(change) => self.follow(*change),
            Order::Quiet(event) => {
                self.quieting.1 = Some(event);
                self.go_on_quieting();
            }
            Order::Serve(client) => self.parties.clients.add(client),
            // Who asked may have gone.
            Order::Sign(sign) => drop(sign.try_send(())),
            Order::Report(answer) => drop(answer.send(self.report())),
            Order::Paging(PagingOrder(order)) => order(&mut self.parties.spaces),
        }
    }

    /// Says when the last operation has ended that was begun before an event was heard of; of several events, when it has
    /// for the first, and then for the last.
    #[cold]
    fn go_on_quieting(&mut self) {
        if let Some(event) = self.quieting.0.filter(|_| self.engine.marked() == 0) {
            self.quiet.set(event);
            self.quieting.0 = None;
        }
        if self.quieting.0.is_none() && self.quieting.1.is_some() {
            self.engine.mark();
            self.quieting = (self.quieting.1, None);
        }
    }
}
