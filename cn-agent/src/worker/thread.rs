//! The worker: one thread that owns the link, the engine and the clients' rings, and goes round them.
//!
//! A round takes what has arrived from the link, then submissions of every client and the faults of programs that have
//! regions mapped, does what time demands, kicks the link once and wakes who sleeps. Nothing on that path allocates or locks. Between rounds without
//! work it spins or sleeps as [`WaitStyle`] says; asleep, it waits for the link, all clients and control at
//! once. Orders of control are taken when the thread has looked in vain some times, and every few
//! milliseconds under load.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use cxloe_daemon::pin;
use cxloe_link::Clock;
use cxloe_link::wait::{Idle, WaitStyle, Waiter};
use cxloe_link::{Link, LinkError, LinkHealth};
use cxloe_wire::session::SessionEvent;
use cxloe_wire::time::Time;

use super::clients::Clients;
use super::order::{DrainedTickets, Order, Orders, PagingOrder, Report};
use super::placement::{Placement, Thread, cpu_of};
use super::sleeper::{Sleeper, Waker};
use cxloe_client::message::{Counters, Pace, Session};
use cxloe_client::places::this_cpu;
use cxloe_cn_core::attach::Station;
use cxloe_cn_core::attachments::{Attachment, Change};
use cxloe_cn_core::drain::{AttachOutcome, Drained, Drains};
use cxloe_cn_core::engine::{Engine, EngineError, EngineEvent, Sink};
use cxloe_cn_core::events;
use cxloe_paging::{Spaces, is_paging};
use cxloe_port::signals::Signals;

mod ending;

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

/// A running worker.
#[derive(Debug)]
pub struct WorkerHandle {
    stop: Arc<AtomicBool>,
    orders: Orders,
    drained: DrainedTickets,
    thread: JoinHandle<Result<(), LinkError>>,
}

impl WorkerHandle {
    /// Starts a worker over `link`, whose engine hears of pauses by `signals`. `on_end` is called when it has stopped, however it did.
    ///
    /// # Errors
    /// No descriptor for its waker, or no thread.
    pub fn start(
        link: Box<dyn Link>,
        engine: Engine,
        signals: Signals,
        options: WorkerOptions,
        on_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<WorkerHandle> {
        let waker = Waker::new()?;
        let (orders, inbox) = Orders::channel(waker.clone());
        let (tell, drained) = DrainedTickets::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let spaces = Spaces::new()?;
        let paging = Some(spaces.descriptor().as_raw_fd());
        let mut worker = Worker {
            sleeper: Sleeper::new(waker, link.readiness(), paging, options.clients_max),
            parties: Parties { clients: Clients::new(options.clients_max), spaces },
            waiter: Waiter::new(options.wait),
            clock: Clock::new(),
            stop: Arc::clone(&stop),
            refusals: BTreeMap::new(),
            drains: Drains::default(),
            tell,
            housekeeping_at: Time::ZERO,
            backpressured: false,
            beside: false,
            told: false,
            crowded: false,
            yielded: false,
            placement: Placement::default(),
            seat: None,
            reopened: link.reopened(),
            link,
            engine,
            signals,
            options,
            inbox,
        };
        let thread = thread::Builder::new().name("worker".into()).spawn(move || {
            match worker.options.cpu {
                Some(cpu) => pin(cpu),
                None => worker.seat = Thread::this(),
            }
            // However it ends: an agent whose worker is gone must not linger.
            let result = catch_unwind(AssertUnwindSafe(|| worker.run()));
            drop(worker);
            on_end();
            result.unwrap_or_else(|panic| resume_unwind(panic))
        })?;
        Ok(WorkerHandle { stop, orders, drained, thread })
    }

    /// Where to give it orders.
    pub fn orders(&self) -> Orders {
        self.orders.clone()
    }

    /// What it has let go of, as ordered.
    pub fn drained(&self) -> DrainedTickets {
        self.drained.clone()
    }

    /// Asks the worker to write back what is modified, end its sessions and stop.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.orders.wake();
    }

    /// Waits for its end; the error that ended it, if one did.
    ///
    /// # Errors
    /// The link's.
    pub fn join(self) -> Result<(), LinkError> {
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
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
    waiter: Waiter,
    sleeper: Sleeper,
    /// Why memory nodes refuse us, by their address as sessions show it.
    refusals: BTreeMap<String, String>,
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
                self.crowded = self.clock.now().since(left) > YIELD_ALONE;
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
                self.sleep(if self.backpressured { most.min(BACKPRESSURE_SLEEP_MAX) } else { most });
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
            Order::Serve(client) => self.parties.clients.add(client),
            // Who asked may have gone.
            Order::Sign(sign) => drop(sign.try_send(())),
            Order::Report(answer) => drop(answer.send(self.report())),
            Order::Paging(PagingOrder(order)) => order(&mut self.parties.spaces),
        }
    }

    /// Does what the manager's news demand.
    fn follow(&mut self, change: Change) {
        let now = self.clock.now();
        let (engine, drains) = (&mut self.engine, &mut self.drains);
        match change {
            Change::Attach(region) => match drains.attach(engine, Box::new(region)) {
                AttachOutcome::Now(region) => self.attach(&region, now),
                AttachOutcome::Stays { region, from } => {
                    tracing::info!(region = %region.region.name, "region stays attached");
                    self.extend(&region, from, now);
                }
                AttachOutcome::Later => {}
            },
            Change::Extend { attachment, from } => {
                if let Some(attachment) = drains.extend(engine, attachment) {
                    self.extend(&attachment, from, now);
                }
            }
            Change::Move(region) => drains.move_away(engine, region, now),
            Change::Drain { attachment, ticket } => drains.drain(engine, attachment, ticket, now),
            Change::Drop(region) => {
                let Attachment { region: now, hpa, .. } = region;
                engine.end_drain(hpa);
                // On its way out, it is as it was before, and what it has grown by since.
                for region in drains.forget(hpa).map(|before| before.region).iter().chain([&now]) {
                    self.options.station.detach(engine, region, hpa);
                }
                self.parties.spaces.dropped(hpa);
                let region = now;
                tracing::info!(region = %region.name, hpa = format_args!("{hpa:#x}"), "region detached");
            }
            Change::Hold(held) => {
                engine.set_in_reset(held);
                if held {
                    tracing::warn!("the manager holds this node in reset: everything is detached");
                } else {
                    tracing::info!("the manager has released this node from reset");
                }
            }
        }
    }

    /// Makes reachable what a region has grown by since it had `from` bytes, if it has.
    fn extend(&mut self, attachment: &Attachment, from: u64, now: Time) {
        let Attachment { region, hpa, .. } = attachment;
        if region.size == from {
            return;
        }
        match self.options.station.extend(&mut self.engine, attachment, from, now) {
            Ok(()) => {
                self.parties.spaces.grown(*hpa, from, attachment.reach());
                tracing::info!(
                    region = %region.name, hpa = format_args!("{hpa:#x}"), from, bytes = region.size,
                    "region has grown"
                );
            }
            Err(error) => tracing::error!(%error, "what the region has grown by is not attached"),
        }
    }

    fn attach(&mut self, attachment: &Attachment, now: Time) {
        let Attachment { region, hpa, .. } = attachment;
        self.engine.end_drain(*hpa);
        self.parties.spaces.attached(*hpa);
        match self.options.station.attach(&mut self.engine, attachment, now) {
            Ok(()) => tracing::info!(
                region = %region.name, hpa = format_args!("{hpa:#x}"), bytes = region.size,
                state = %region.state, "region attached"
            ),
            Err(error) => tracing::error!(%error, "region not attached"),
        }
    }

    /// Goes on with regions on their way out.
    #[cold]
    fn depart(&mut self, now: Time) {
        let patience = self.options.station.timing.dead_after;
        let (engine, station) = (&mut self.engine, &self.options.station);
        match self.drains.go_on(engine, station, patience, now, self.link.transmit()) {
            // Who gave the order may have ended.
            Some(Drained::Tell(ticket)) => drop(self.tell.send(ticket)),
            Some(Drained::Attach(region)) => self.attach(&region, now),
            None => {}
        }
    }

    fn report(&mut self) -> Report {
        let paces = self.engine.paces(self.clock.now());
        let sessions = self.engine.sessions().into_iter().zip(paces).map(|(status, pace)| {
            let refusal = self.refusals.get(&status.peer).cloned();
            Session { status, refusal, pace: pace.map(Pace::from) }
        });
        Report {
            sessions: sessions.collect(),
            counters: Counters {
                engine: self.engine.counters(),
                link: self.link.counters(),
                backend: self.link.info().backend.to_owned(),
                link_detail: self.link.info().detail.clone(),
                sleeps_by: self.sleeper.way(),
                link_down: self.options.health.down(),
                link_reopened: self.options.health.reopened(),
                clients: self.parties.clients.count(),
                in_flight: self.engine.in_flight(),
                stranded: self.engine.stranded(),
                broken_clients: self.parties.clients.broken(),
                paging: self.parties.spaces.counters(),
                fault_times: self.parties.spaces.fault_times().clone(),
            },
        }
    }
}
