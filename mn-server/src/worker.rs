//! A worker: one thread with one link and one [`Service`]. It receives frames in batches, answers them, sends all
//! answers with one system call, and waits as configured. It drives the service by the contract of all machines
//! ([`cxloe_wire::machine`]).
//!
//! The thread owns its rings, sessions and TLB. Other threads use a [`WorkerHandle`]: two flags that the worker reads
//! between batches, and a report that it writes on request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_daemon::pin;
use cxloe_link::Clock;
use cxloe_link::keys::{Handshaker, epoch_ns};
use cxloe_link::pfc::PfcSocket;
use cxloe_link::wait::{Idle, WaitStyle, Waiter};
use cxloe_link::{Link, LinkCounters, LinkError, echo};
use cxloe_wire::frame::{Mac, source};
use cxloe_wire::machine::{self, Deadline, StateMachine};
use cxloe_wire::session::{HelloSieve, ResponderCounters, ResponderEvent, SessionStatus};
use cxloe_wire::time::Time;
use serde::{Deserialize, Serialize};

use cxloe_mn_core::congestion::CongestionSignals;
use cxloe_mn_core::fill::{FillBoard, FillerSettings};
use cxloe_mn_core::service::Service;

/// Maximum number of frames taken from the ring before the answers are sent.
const BATCH: usize = 64;
/// Number of polls of an empty ring between two checks of the clock and the flags.
const SPINS: u32 = 64;
/// Maximum sleep while frames in the transmit ring wait for the device, or a computation has not ended.
const FULL_RING_SLEEP: Duration = Duration::from_micros(100);
/// Interval of the work that the thread does for others: its link, revoked keys, the log.
const HOUSEKEEPING: Duration = Duration::from_millis(500);
/// Interval of log lines about one refused CN.
const REFUSAL_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of log lines about refused CNs in [`REFUSAL_EVERY`]: a host can send Hellos from any
/// address.
const REFUSALS_MAX: usize = 64;
/// Interval of Bye frames when the worker stops, and the time for which they are sent.
const BYE_EVERY: Duration = Duration::from_millis(20);
const DRAIN_MAX: Duration = Duration::from_millis(500);
/// Maximum number of answers to Echo frames in a batch: half of a transmit ring, so that there is room for
/// the answers of sessions.
const ECHO_REPLIES_MAX: u16 = 256;

/// Counters and state of a worker at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkerReport {
    pub link: LinkCounters,
    pub requests: ResponderCounters,
    /// Translations found in the TLB.
    pub tlb_hits: u64,
    /// Translations looked up in the page table.
    pub tlb_misses: u64,
    pub pfc_frames: u64,
    /// Set while the receive queue is too long.
    pub congested: bool,
    /// Reason why the link is down; `None` while it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_down: Option<String>,
    pub sessions: Vec<SessionStatus>,
}

#[derive(Default)]
struct SharedReport {
    stop: AtomicBool,
    report_wanted: AtomicBool,
    report: Mutex<Latest>,
    reported: Condvar,
}

#[derive(Default)]
struct Latest {
    report: WorkerReport,
    /// Time of the report; `None` before the first one.
    at: Option<Instant>,
}

pub struct WorkerHandle {
    shared: Arc<SharedReport>,
    thread: JoinHandle<Result<(), LinkError>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EchoFor {
    /// Set to answer every CN that has memory here and a session.
    pub sessions: bool,
    /// Stations that are answered with or without a session.
    pub named: Vec<Mac>,
}

impl EchoFor {
    fn is_any(&self) -> bool {
        self.sessions || !self.named.is_empty()
    }

    /// Whether Echo frames of this frame's sender are answered.
    #[inline]
    fn includes(&self, frame: &[u8], service: &Service) -> bool {
        source(frame)
            .is_some_and(|from| self.named.contains(&from) || (self.sessions && service.serves_cn(from)))
    }
}

#[derive(Clone, Debug)]
pub struct WorkerOptions {
    pub index: u32,
    /// Number of the CPU to pin the worker to; `None`: not pinned.
    pub cpu: Option<usize>,
    pub wait: WaitStyle,
    pub echo: EchoFor,
    /// Set if the node has a key, for sessions with nodes that have one.
    pub keyed: bool,
    /// Orders to copy from other memory nodes; `None`: the worker copies nothing.
    pub fills: Option<Arc<FillBoard>>,
}

impl WorkerHandle {
    /// Starts a worker on `link`; it sends 802.1Qbb frames by `pfc`. `on_end` is called when the worker has ended, for
    /// whatever reason.
    pub fn start(
        link: Box<dyn Link>,
        mut service: Service,
        pfc: Option<PfcSocket>,
        options: WorkerOptions,
        on_end: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<WorkerHandle> {
        let shared = Arc::new(SharedReport::default());
        let own = link.info().mac;
        let handshaker = options.keyed.then(Handshaker::start).transpose()?;
        let clock = Clock::new();
        if let Some(board) = &options.fills {
            let (worker, instance) = (options.index, rand::random());
            let settings = FillerSettings { worker, instance, epoch_ns: epoch_ns(&clock) };
            service.set_fills(Arc::clone(board), settings);
        }
        let mut worker = Worker {
            handshaker,
            link,
            service,
            pfc,
            options: options.clone(),
            shared: Arc::clone(&shared),
            clock,
            echo: options.echo.is_any(),
            own,
            waiter: Waiter::new(options.wait),
            housekeeping_at: Time::ZERO,
            flooded: false,
            reopened: 0,
            refused: BTreeMap::new(),
        };
        let thread = thread::Builder::new().name(format!("worker-{}", options.index)).spawn(move || {
            if let Some(cpu) = options.cpu {
                pin(cpu);
            }
            let result = worker.run();
            drop(worker);
            on_end();
            result
        })?;
        Ok(WorkerHandle { shared, thread })
    }

    /// Makes the worker send Bye to its CNs, answer the last requests, and end.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Waits until the worker has ended; returns the error that ended it, if any.
    pub fn join(self) -> Result<(), LinkError> {
        self.thread.join().unwrap_or(Ok(()))
    }

    /// Returns the worker's latest report; also requests a new one.
    pub fn report(&self) -> WorkerReport {
        self.reporter()()
    }

    /// Makes a function that returns the latest report, for other threads.
    pub fn reporter(&self) -> impl Fn() -> WorkerReport + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            shared.report_wanted.store(true, Ordering::Relaxed);
            shared.report.lock().unwrap_or_else(PoisonError::into_inner).report.clone()
        }
    }

    /// Makes a function that requests a report and waits for it until the given time. Returns the latest report and its
    /// age, `None` before the first one: a worker that is stuck or ending writes no new one.
    pub fn reporter_with_timeout(
        &self,
    ) -> impl Fn(Instant) -> Option<(WorkerReport, Duration)> + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move |until| {
            let asked = Instant::now();
            shared.report_wanted.store(true, Ordering::Relaxed);
            let latest = shared.report.lock().unwrap_or_else(PoisonError::into_inner);
            let wait_limit = until.saturating_duration_since(asked);
            let old = |latest: &mut Latest| latest.at.is_none_or(|at| at < asked);
            let (latest, _) = shared
                .reported
                .wait_timeout_while(latest, wait_limit, old)
                .unwrap_or_else(PoisonError::into_inner);
            latest.at.map(|at| (latest.report.clone(), at.elapsed()))
        }
    }
}

struct Worker {
    link: Box<dyn Link>,
    service: Service,
    pfc: Option<PfcSocket>,
    options: WorkerOptions,
    /// Set if Echo frames of any sender at all are to be answered.
    echo: bool,
    own: Mac,
    shared: Arc<SharedReport>,
    clock: Clock,
    waiter: Waiter,
    /// Thread that computes the Diffie-Hellman steps of handshakes, for the responder (`None`), or for a session for
    /// copies (its number); `None` without a key.
    handshaker: Option<Handshaker<Option<u64>>>,
    housekeeping_at: Time,
    /// Set during a flood of Hellos, when the kernel drops some of them.
    flooded: bool,
    /// Value of [`Link::reopened`] at the last check.
    reopened: u32,
    /// Time of the last log line for each CN refused for a wrong key (`true`) or a missing one.
    refused: BTreeMap<(Mac, bool), Time>,
}

impl Worker {
    fn run(&mut self) -> Result<(), LinkError> {
        let mut now = self.clock.now();
        let mut empty = 0;
        loop {
            let received = self.batch(now)?;
            if self.handshaker.is_some() {
                self.poll_handshakes(now)?;
            }
            if received > 0 {
                empty = 0;
                now = self.clock.now();
                self.waiter.after(received, now, None);
                if now >= self.housekeeping_at {
                    self.housekeeping(now);
                }
                continue;
            }
            empty += 1;
            if empty % SPINS != 0 && self.options.wait != WaitStyle::Sleep {
                std::hint::spin_loop();
                continue;
            }
            if matches!(self.options.wait, WaitStyle::Adaptive { .. }) {
                // On a machine with few CPUs, the compute node's thread may need this CPU to send its request.
                thread::yield_now();
            }
            now = self.clock.now();
            if now >= self.housekeeping_at
                || self.service.undrained().is_some()
                || self.shared.report_wanted.load(Ordering::Relaxed)
            {
                self.housekeeping(now);
            }
            if self.shared.stop.load(Ordering::Acquire) {
                self.service.end_fills(now, self.link.transmit());
                self.link.flush()?;
                return self.drain();
            }
            self.link.flush()?;
            let deadline = self.deadline(now);
            if let Idle::Sleep(most) = self.waiter.after(0, now, Some(deadline.at)) {
                debug_assert_eq!(machine::check(&self.service, now), Ok(()));
                tracing::trace!(worker = self.options.index, ?most, %deadline, "sleeps");
                self.service.park();
                self.link.wait(most)?;
            }
        }
    }

    /// Time at which the thread has to be awake again, and the reason.
    fn deadline(&mut self, now: Time) -> Deadline {
        let soon = |reason| Deadline::new(now + FULL_RING_SLEEP, reason);
        let mut deadline = self.service.deadline();
        if self.link.has_unsent() {
            deadline.keep_earlier(soon("frames that the device has not taken"));
        }
        if self.handshaker.as_ref().is_some_and(Handshaker::is_busy) {
            deadline.keep_earlier(soon("the end of a computation"));
        }
        deadline
    }

    /// Receives the frames that have arrived, and answers them; returns their number.
    #[inline]
    fn batch(&mut self, now: Time) -> Result<usize, LinkError> {
        let (service, echo) = (&mut self.service, self.echo);
        let (whom, mut replies_left) = (&self.options.echo, ECHO_REPLIES_MAX);
        let own = self.own;
        service.begin_batch();
        service.follow_keys(self.link.transmit());
        service.follow_fills(now, self.link.transmit());
        let copies = service.has_fills();
        // Prefetching is useful for a single frame too: its line is fetched while the frame is checked.
        self.link.peek(BATCH, &mut |frame| service.prefetch(frame));
        // If only one frame waits, its answer is sent before any other work.
        let alone = !self.link.holds(2);
        let received = self.link.receive(BATCH, &mut |frame, tx| {
            if alone {
                tx.hasten();
            }
            if echo && echo::is_echo(frame) && whom.includes(frame, service) {
                replies_left -= echo::answer(frame, own, replies_left, tx);
            } else if !copies || !service.handle_fill(frame, now, tx) {
                service.handle(frame, now, tx);
            }
        })?;
        if received > 0 || self.service.is_stalled() || self.service.deadline().is_due(now) {
            self.service.poll(now, self.link.transmit());
            // After a full batch, more frames may wait in the queue.
            if received == BATCH || self.service.is_congested() {
                self.watch_queue(now);
            }
            self.link.flush()?;
        }
        Ok(received)
    }

    /// Passes handshake jobs to the Diffie-Hellman thread, and their results to the responder or the session for
    /// copies.
    #[inline]
    fn poll_handshakes(&mut self, now: Time) -> Result<(), LinkError> {
        if let Some(sieve) = self.service.responder().hello_sieve() {
            self.sift(sieve.as_ref());
        }
        let Some(handshaker) = &mut self.handshaker else { return Ok(()) };
        let mut any = false;
        loop {
            while let Some(job) = self.service.responder().poll_handshake() {
                handshaker.compute(None, job);
            }
            while let Some((number, job)) = self.service.poll_fill_handshake() {
                handshaker.compute(Some(number), job);
            }
            // A result may lead to another computation.
            match handshaker.finished() {
                Some((None, done)) => self.service.handshake_done(done, now, self.link.transmit()),
                Some((Some(number), done)) => self.service.fill_handshake_done(number, done, now),
                None => break,
            }
            any = true;
        }
        if any { self.link.flush() } else { Ok(()) }
    }

    /// During a flood of Hellos, makes the kernel drop some of them by `sieve`; without a `sieve`, makes the kernel
    /// drop no more. Does nothing if the link does not support it.
    #[cold]
    fn sift(&mut self, sieve: Option<&HelloSieve>) {
        let index = self.options.index;
        match self.link.sift(sieve) {
            Ok(true) => {
                let flooded = sieve.is_some();
                if flooded != self.flooded {
                    self.flooded = flooded;
                    if flooded {
                        tracing::warn!(
                            worker = index,
                            "a flood of Hellos: the kernel lets a share of them through until it is over; sessions go on, and \
                             nodes that call get through"
                        );
                    } else {
                        tracing::info!(worker = index, "the flood of Hellos is over");
                    }
                }
            }
            // This link cannot drop Hellos in the kernel, so the worker checks each one.
            Ok(false) => {}
            Err(error) => tracing::debug!(worker = index, %error, "all Hellos are let through"),
        }
    }

    #[inline]
    fn watch_queue(&mut self, now: Time) {
        let link = &mut self.link;
        let verdict = self.service.check_queue(|count| link.holds(count), now);
        if verdict == CongestionSignals::Quiet {
            return;
        }
        let vector = self.service.send_signals(verdict, self.link.transmit());
        if let (Some(pfc), Some(vector)) = (&mut self.pfc, vector) {
            // An error is ignored: a pause frame that the kernel refuses is lost, as any frame may be lost.
            let _ = pfc.send(&vector);
        }
    }

    /// Updates the state that depends on the link after it was reopened.
    #[cold]
    fn follow_link(&mut self, now: Time) {
        self.reopened = self.link.reopened();
        let info = self.link.info();
        self.own = info.mac;
        self.service.set_max_frame(info.max_frame, now);
        // The new socket has no filter yet.
        self.service.responder().forget_sieve();
        if let Some(Err(error)) = self.pfc.as_mut().map(|pfc| pfc.reopen(&info.interface)) {
            tracing::warn!(worker = self.options.index, %error, "no PFC frames are sent until the link is opened again");
        }
    }

    #[cold]
    fn housekeeping(&mut self, now: Time) {
        self.housekeeping_at = now + HOUSEKEEPING;
        let index = self.options.index;
        if self.link.reopened() != self.reopened {
            self.follow_link(now);
        }
        if self.service.responder().dismiss_outgrown(self.link.transmit()) > 0 {
            // Frames that cannot be sent now are sent in the next round.
            let _ = self.link.flush();
        }
        self.service.end_revoked(self.link.transmit());
        let responder = self.service.responder();
        let mut refused = Vec::new();
        while let Some(event) = responder.poll_event() {
            match event {
                ResponderEvent::Started { cn, replaced } => {
                    tracing::info!(worker = index, peer = %cn, replaced, "session started");
                }
                ResponderEvent::Ended(cn) => tracing::info!(worker = index, peer = %cn, "session ended"),
                ResponderEvent::Expired(cn) => {
                    tracing::warn!(worker = index, peer = %cn, "session dropped: no frames from the CN");
                }
                ResponderEvent::Conflict(cn) => tracing::warn!(
                    worker = index, peer = %cn,
                    "refused a second agent with this CN id while the first is running; \
                     end one of them, or give its interface another MAC address"
                ),
                ResponderEvent::VersionMismatch { cn, version } => tracing::warn!(
                    worker = index, peer = %cn, theirs = version, ours = cxloe_wire::frame::PROTOCOL_VERSION,
                    "refused a CN of another protocol version; upgrade the older of the two"
                ),
                ResponderEvent::KeyRefused { cn, shown } => refused.push((cn, shown)),
                ResponderEvent::Revoked(cn) => tracing::warn!(
                    worker = index, peer = %cn, "session ended: the CN's registered key was changed or added"
                ),
            }
        }
        for (cn, shown) in refused {
            // The CN is refused at every Hello, but logged only once a minute.
            let kind = (cn, shown.is_some());
            let is_new = self.refused.get(&kind).is_none_or(|at| now - *at > REFUSAL_EVERY);
            if is_new && self.refused.len() < REFUSALS_MAX {
                self.refused.insert(kind, now);
                match shown {
                    Some(key) => tracing::warn!(
                        worker = index, peer = %cn, %key,
                        "refused a CN with a key that is not registered for it; register keys with the manager or `mn-server --peer-key`"
                    ),
                    None => tracing::warn!(
                        worker = index, peer = %cn,
                        "refused a CN without a key, although one is registered for it: it runs with --insecure, is of an older release, or another node uses its address"
                    ),
                }
            }
        }
        self.refused.retain(|_, at| now - *at <= REFUSAL_EVERY);
        if self.shared.report_wanted.swap(false, Ordering::Relaxed) {
            let tlb = self.service.tlb_counters();
            let report = WorkerReport {
                link: self.link.counters(),
                requests: self.service.responder().totals(),
                tlb_hits: tlb.hits,
                tlb_misses: tlb.misses,
                pfc_frames: self.pfc.as_ref().map_or(0, PfcSocket::sent),
                congested: self.service.is_congested(),
                // The caller fills in this field, because the process has the state of the links.
                link_down: None,
                sessions: self.service.responder().statuses(now),
            };
            let latest = Latest { report, at: Some(Instant::now()) };
            *self.shared.report.lock().unwrap_or_else(PoisonError::into_inner) = latest;
            self.shared.reported.notify_all();
        }
    }

    /// Sends Bye to all CNs and answers requests that still arrive, until no session is left or [`DRAIN_MAX`]
    /// is over.
    fn drain(&mut self) -> Result<(), LinkError> {
        let end = self.clock.now() + DRAIN_MAX;
        let mut bye_at = Time::ZERO;
        loop {
            let now = self.clock.now();
            if self.service.responder().sessions() == 0 || now >= end {
                return Ok(());
            }
            if now >= bye_at {
                bye_at = now + BYE_EVERY;
                self.service.responder().drain(self.link.transmit());
                self.link.flush()?;
            }
            self.batch(now)?;
            self.link.wait(Duration::from_millis(1))?;
        }
    }
}
