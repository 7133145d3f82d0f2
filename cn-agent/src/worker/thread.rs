//! A worker: one thread that drives a link, an engine and the rings of clients in rounds.
//!
//! A round ([`node::round`]) handles frames from the link, then submissions of clients and faults of programs that map
//! regions, runs due timers, flushes the link and wakes sleeping clients. `EngineUsers` implements these steps, which
//! neither allocate nor lock. Between rounds without work the thread spins, yields or sleeps as [`IdlePolicy`] decides;
//! asleep, it waits for the link, all clients and control at once. Orders of the agent's other threads (control) are
//! carried out after some rounds without work, and every few milliseconds under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;
use cxloe_cn_core::user_shares::UserShares;
use cxloe_link::Clock;
use cxloe_link::wait::WaitStyle;
use cxloe_link::wait::idle::{IdlePolicy, Rest, Seen};
use cxloe_link::{Link, LinkError, LinkHealth};
use cxloe_wire::machine;
use cxloe_wire::time::Time;

use super::order::{LegReport, PagingOrder, QuietEvent, WorkerOrder, WorkerResults};
use super::placement::{Placement, Thread, cpu_of};
use super::sleeper::Sleeper;
use cxloe_client::defaults::this_cpu;
use cxloe_cn_core::attach::SessionSettings;
use cxloe_cn_core::engine::{Engine, EngineEvent};
use cxloe_cn_core::events;
use cxloe_cn_core::node;
use cxloe_cn_core::quiet::QuietMark;
use cxloe_cn_core::refusals::{LogAs, Refusals};
use cxloe_port::frames::Stamped;
use users::EngineUsers;

mod handle;
mod regions;
mod report;
mod shutdown;
#[cfg(test)]
mod tests;
mod users;
mod waiting_moves;

pub use handle::WorkerHandle;

/// Limit of frames taken from the link in one round.
const BATCH: usize = 64;

#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Number of the worker, from 0.
    pub index: usize,
    /// Parameters that the worker's sessions with all memory nodes share.
    pub station: SessionSettings,
    /// State of the link, shared with reports.
    pub health: LinkHealth,
    /// Preference between polling and sleeping.
    pub wait: WaitStyle,
    /// CPU to which the thread is pinned; `None` for no pinning.
    pub cpu: Option<usize>,
    /// Limit of clients at a time.
    pub clients_max: usize,
    /// Maximum use of each resource by one user.
    pub shares: UserShares,
}

struct Worker {
    link: Box<dyn Link>,
    engine: Engine,
    users: EngineUsers,
    /// State of the link, for reports.
    health: LinkHealth,
    inbox: Receiver<WorkerOrder>,
    stop: Arc<AtomicBool>,
    clock: Clock,
    /// Decides between polling, yielding and sleeping.
    idle: IdlePolicy,
    sleeper: Sleeper,
    /// Reasons for which memory nodes refuse this node.
    refusals: Refusals,
    /// Channels for reports of drained regions and of legs (copies of mirrored regions), which go to the manager.
    results: WorkerResults,
    /// Last event of the manager for which no operation is in flight that began before the event's changes were
    /// applied. Read by other threads.
    quiet: QuietEvent,
    quiet_mark: QuietMark,
    /// Whether an awake client was on this thread's CPU at the last check.
    client_on_our_cpu: bool,
    /// Decides on the CPU of the thread, unless it is pinned.
    placement: Placement,
    seat: Option<Thread>,
    /// The link's number of reopenings at the last check.
    reopened: u32,
}

impl Worker {
    fn run(&mut self) -> Result<(), LinkError> {
        let mut now = self.clock.now();
        loop {
            let seen = self.round(now)?;
            if self.idle.spins(seen, self.client_on_our_cpu) {
                std::hint::spin_loop();
                continue;
            }
            if seen.work == 0 {
                self.check_cpu();
            }
            if self.idle.yields(self.client_on_our_cpu) {
                let left = self.clock.now();
                thread::yield_now();
                self.idle.yielded(left, self.clock.now());
            }
            now = self.clock.now();
            let (engine, users, link) = (&self.engine, &self.users, &mut self.link);
            match self.idle.rest(now, || users.pending(engine, link.has_unsent())) {
                Rest::Round => continue,
                Rest::Housekeeping => {
                    self.housekeeping(now);
                    if self.stop.load(Ordering::Acquire) {
                        return self.finish();
                    }
                }
                Rest::Sleep(most) => {
                    self.take_events();
                    debug_assert_eq!(machine::check(&self.engine, now), Ok(()));
                    let deadline = self.users.deadline(&self.engine);
                    tracing::trace!(?most, %deadline, "sleeps");
                    self.sleep(most.min(self.link.sleep_max()));
                }
            }
            now = self.clock.now();
        }
    }

    /// Runs one round, with `now` as the time of arrival of its frames.
    #[inline]
    fn round(&mut self, now: Time) -> Result<Seen, LinkError> {
        let mut link = Stamped { link: &mut *self.link, stamp: || now };
        let found = node::round(&mut self.engine, &mut link, &mut self.users, Some(now), BATCH)?;
        Ok(self.users.seen(&self.engine, found))
    }

    /// Checks on which CPU this thread runs, and whether an awake client shares it.
    fn check_cpu(&mut self) {
        let Some(cpu) = this_cpu() else { return };
        self.users.clients.set_cpu(cpu);
        self.client_on_our_cpu = self.users.clients.cpus().any(|client| client == cpu);
    }

    /// Updates the state that depends on the link, after the link was reopened.
    #[cold]
    fn follow_link(&mut self, now: Time) {
        self.reopened = self.link.reopened();
        let info = self.link.info();
        self.users.station.max_frame = info.max_frame;
        self.engine.set_max_frame(info.max_frame, now);
        self.users.signals.reopen(&info.interface);
    }

    fn sleep(&mut self, most: Duration) {
        self.sleeper.watch_link(self.link.readiness(), self.link.reopened());
        let clients = &mut self.users.clients;
        if let Some(sockets) = clients.changed_sockets() {
            self.sleeper.watch(sockets);
        }
        if !clients.prepare_sleep() && self.sleeper.sleep(most) {
            let sleeper = &self.sleeper;
            clients.drain_wakeups(|position| sleeper.is_ready(position));
        }
        if let Some(cpu) = this_cpu() {
            clients.set_cpu(cpu);
        }
        clients.set_asleep(false);
        if self.sleeper.was_rung() {
            // Another thread has woken the worker because of an order, so orders are taken at once.
            self.idle.keep_house_soon();
        }
    }

    #[cold]
    fn housekeeping(&mut self, now: Time) {
        // Other workers read wake-ups off the sockets after a sleep; a busy worker does not sleep, so it does that
        // here.
        if self.idle.style() == WaitStyle::Busy {
            self.users.clients.drain_wakeups(|_| true);
        }
        self.users.spaces.housekeeping(now);
        if self.placement.is_due(now) {
            self.place(now);
        }
        if self.link.reopened() != self.reopened {
            self.follow_link(now);
        }
        self.take_events();
        while let Ok(order) = self.inbox.try_recv() {
            self.apply(order);
        }
        self.poll_quiet();
    }

    /// Moves this thread to another CPU, if the placement decides so.
    fn place(&mut self, now: Time) {
        let Some(seat) = &self.seat else { return };
        let (Some(waited), Some(own)) = (seat.waited(), this_cpu()) else { return };
        let client = self.users.clients.cpus().next();
        // A worker that never yields runs best if it does not share its CPU, so it does not move to the CPU of the
        // program.
        let may_share = self.idle.style() != WaitStyle::Busy;
        let faulting = self.users.spaces.take_faulting().filter(|_| may_share);
        let program = faulting.and_then(|(process, thread)| cpu_of(process, thread));
        if let Some(to) = self.placement.decide(now, waited, own, client, program) {
            seat.go(to);
            if program.is_some() {
                self.idle.share_with_program();
            }
            self.check_cpu();
        }
    }

    #[inline]
    fn take_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            self.note(&event);
        }
    }

    #[cold]
    fn note(&mut self, event: &EngineEvent) {
        let report = match *event {
            EngineEvent::LegSilent { hpa, mac, epoch } => Some(LegReport { hpa, mac, epoch, filled: None }),
            EngineEvent::LegFilled { hpa, mac, cmem, epoch } => {
                Some(LegReport { hpa, mac, epoch, filled: Some(cmem) })
            }
            _ => None,
        };
        // An error is ignored: if the channel is full, or there is no link to the manager, the engine repeats the
        // report.
        if let Some(report) = report {
            let _ = self.results.legs.try_send(report);
        }
        match self.refusals.record(event, self.clock.now()) {
            LogAs::Event => events::log(event),
            LogAs::Error => events::log_lasting(event),
            // Not logged again: `cn-agent sessions` shows the refusal.
            LogAs::Nothing => {}
        }
    }

    fn apply(&mut self, order: WorkerOrder) {
        match order {
            WorkerOrder::Follow(change) => self.users.follow(*change, &mut self.engine, self.clock.now()),
            WorkerOrder::OpenSessions(region) => {
                let now = self.clock.now();
                self.users.station.open_sessions(&mut self.engine, &region, now);
            }
            WorkerOrder::Quiet(event) => {
                self.quiet_mark.follow(event);
                self.poll_quiet();
            }
            WorkerOrder::Serve(client) => self.users.clients.add(client),
            // Errors of these answers are ignored: the thread that requested one may have ended.
            WorkerOrder::Sign(sign) => drop(sign.try_send(())),
            WorkerOrder::Report(answer) => drop(answer.send(self.report())),
            WorkerOrder::Paging(PagingOrder(order)) => order(&mut self.users.spaces),
        }
    }

    #[cold]
    fn poll_quiet(&mut self) {
        if let Some(event) = self.quiet_mark.poll(&mut self.engine) {
            self.quiet.set(event);
        }
    }
}
