//! One thread around one link and one [`Service`]: takes frames in batches, answers them, sends all answers
//! with one kick, and waits as it was told to.
//!
//! The thread owns its rings, its sessions and its TLB. The rest of the process reaches it through
//! [`WorkerHandle`]: two flags it looks at between batches, and a report it writes when asked.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_daemon::pin;
use cxloe_link::Clock;
use cxloe_link::keys::Handshaker;
use cxloe_link::pfc::PfcSocket;
use cxloe_link::wait::{Idle, WaitStyle, Waiter};
use cxloe_link::{Link, LinkCounters, LinkError, echo};
use cxloe_wire::frame::{Mac, source};
use cxloe_wire::session::{HelloSieve, ResponderCounters, ResponderEvent, SessionStatus};
use cxloe_wire::time::Time;
use serde::{Deserialize, Serialize};

use cxloe_mn_core::congestion::Verdict;
use cxloe_mn_core::service::Service;

/// Frames taken from the ring before the answers are sent.
const BATCH: usize = 64;
/// Looks at an empty ring between two looks at the clock and the flags.
const SPINS: u32 = 64;
/// The longest sleep while answers wait for room in the transmit ring, or frames in it for the device.
const FULL_RING_SLEEP: Duration = Duration::from_micros(100);
/// How often a session's silence is looked at.
const HOUSEKEEPING: Duration = Duration::from_millis(500);
/// How often it is said that a CN is refused.
const REFUSAL_EVERY: Duration = Duration::from_secs(60);
/// Refusals said in that time at most: anybody can call in any name.
const REFUSALS_MAX: usize = 64;
/// How often peers are told of the end, and for how long.
const BYE_EVERY: Duration = Duration::from_millis(20);
const DRAIN_MAX: Duration = Duration::from_millis(500);
/// Frames that answer Echo frames of one batch, at most: half of a transmit ring, so that there is room for the answers
/// of sessions.
const ECHO_REPLIES_MAX: u16 = 256;

/// What a worker has done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Frames and bytes.
    pub link: LinkCounters,
    /// Requests and drops, all sessions together.
    pub requests: ResponderCounters,
    /// TLB hits, misses and purges.
    pub tlb_hits: u64,
    /// Translations that needed the page table.
    pub tlb_misses: u64,
    /// 802.1Qbb frames sent.
    pub pfc_frames: u64,
    /// Whether its receive queue is longer than it may be.
    pub congested: bool,
    /// Why there is no link, when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_down: Option<String>,
    /// Its sessions.
    pub sessions: Vec<SessionStatus>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    report_wanted: AtomicBool,
    report: Mutex<Latest>,
    reported: Condvar,
}

/// The last report.
#[derive(Default)]
struct Latest {
    report: WorkerReport,
    /// When it was made; `None` before the first.
    at: Option<Instant>,
}

/// A running worker.
pub struct WorkerHandle {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<(), LinkError>>,
}

/// Whose Echo frames are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EchoFor {
    /// Those of every CN that has memory here and a session.
    pub sessions: bool,
    /// Those of these stations.
    pub named: Vec<Mac>,
}

impl EchoFor {
    /// Whether any are.
    fn anyone(&self) -> bool {
        self.sessions || !self.named.is_empty()
    }

    /// Whether the sender of this Echo frame is one of them.
    #[inline]
    fn includes(&self, frame: &[u8], service: &Service) -> bool {
        source(frame)
            .is_some_and(|from| self.named.contains(&from) || (self.sessions && service.has_customer(from)))
    }
}

/// How a worker runs.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Its number, from 0.
    pub index: u32,
    /// The CPU it is pinned to.
    pub cpu: Option<usize>,
    /// What it does when no frame comes.
    pub wait: WaitStyle,
    /// Whose Echo frames it answers.
    pub echo: EchoFor,
    /// Whether it talks with compute nodes that have keys.
    pub keyed: bool,
}

impl WorkerHandle {
    /// Starts a worker over `link`, which says stop to the other end of the cable by `pfc`. `on_end` is called when
    /// it has stopped, however it did.
    pub fn start(
        link: Box<dyn Link>,
        service: Service,
        pfc: Option<PfcSocket>,
        options: WorkerOptions,
        on_end: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<WorkerHandle> {
        let shared = Arc::new(Shared::default());
        let own = link.info().mac;
        let handshaker = options.keyed.then(Handshaker::start).transpose()?;
        let mut worker = Worker {
            handshaker,
            link,
            service,
            pfc,
            options: options.clone(),
            shared: Arc::clone(&shared),
            clock: Clock::new(),
            echo: options.echo.anyone(),
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

    /// Asks the worker to tell its peers, finish and end.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Waits for its end; the error that ended it, if one did.
    pub fn join(self) -> Result<(), LinkError> {
        self.thread.join().unwrap_or(Ok(()))
    }

    /// The worker's latest report; asks for a fresh one, which is there a moment later.
    pub fn report(&self) -> WorkerReport {
        self.reporter()()
    }

    /// A closure that reports, for others to hold.
    pub fn reporter(&self) -> impl Fn() -> WorkerReport + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            shared.report_wanted.store(true, Ordering::Relaxed);
            shared.report.lock().unwrap_or_else(PoisonError::into_inner).report.clone()
        }
    }

    /// A closure that asks for a report and waits for it, until the given moment at most. What comes then is the last
    /// one there is and its age: a worker that is stuck, or on its way out, has none newer. `None` before the first.
    pub fn patient_reporter(
        &self,
    ) -> impl Fn(Instant) -> Option<(WorkerReport, Duration)> + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move |until| {
            let asked = Instant::now();
            shared.report_wanted.store(true, Ordering::Relaxed);
            let latest = shared.report.lock().unwrap_or_else(PoisonError::into_inner);
            let patience = until.saturating_duration_since(asked);
            let old = |latest: &mut Latest| latest.at.is_none_or(|at| at < asked);
            let (latest, _) = shared
                .reported
                .wait_timeout_while(latest, patience, old)
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
    /// Whether any Echo frames are answered, and from which address.
    echo: bool,
    own: Mac,
    shared: Arc<Shared>,
    clock: Clock,
    waiter: Waiter,
    /// Computes for sessions between keys; `None` without a key.
    handshaker: Option<Handshaker<()>>,
    housekeeping_at: Time,
    /// Whether there is a flood of Hellos, of which the kernel lets a share through.
    flooded: bool,
    /// How often the link had been opened again when this was last looked at.
    reopened: u32,
    /// CNs that were refused for the key that they showed, or for none, and when that was said.
    refused: BTreeMap<(Mac, bool), Time>,
}

impl Worker {
    fn run(&mut self) -> Result<(), LinkError> {
        let mut now = self.clock.now();
        let mut empty = 0;
        loop {
            let received = self.batch(now)?;
            if self.handshaker.is_some() {
                self.shake_hands(now)?;
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
                // On a small machine it may be the compute node that wants this CPU, to ask for something.
                thread::yield_now();
            }
            now = self.clock.now();
            if now >= self.housekeeping_at || self.shared.report_wanted.load(Ordering::Relaxed) {
                self.housekeeping(now);
            }
            if self.shared.stop.load(Ordering::Acquire) {
                return self.drain();
            }
            self.link.flush()?;
            let computing = self.handshaker.as_ref().is_some_and(Handshaker::is_busy);
            let waiting = self.service.is_stalled() || self.link.has_unsent() || computing;
            if let Idle::Sleep(most) = self.waiter.after(0, now, waiting.then(|| now + FULL_RING_SLEEP)) {
                self.service.park();
                self.link.wait(most)?;
            }
        }
    }

    /// Takes what has arrived and answers it.
    #[inline]
    fn batch(&mut self, now: Time) -> Result<usize, LinkError> {
        let (service, echo) = (&mut self.service, self.echo);
        let (whom, mut replies_left) = (&self.options.echo, ECHO_REPLIES_MAX);
        let own = self.own;
        service.begin_batch();
        service.follow_keys(self.link.transmit());
        // Of a single frame too: its line is on its way while the frame is checked and the answer begun.
        self.link.peek(BATCH, &mut |frame| service.prefetch(frame));
        // One that came alone is answered before anything else is done.
        let alone = !self.link.holds(2);
        let received = self.link.receive(BATCH, &mut |frame, tx| {
            if alone {
                tx.hasten();
            }
            if echo && echo::is_echo(frame) && whom.includes(frame, service) {
                replies_left -= echo::answer(frame, own, replies_left, tx);
            } else {
                service.handle(frame, now, tx);
            }
        })?;
        if received > 0 || self.service.is_stalled() {
            self.service.finish_batch(self.link.transmit());
            if received == BATCH || self.service.is_congested() {
                self.watch_queue(now);
            }
            self.link.flush()?;
        }
        Ok(received)
    }

    /// Has Diffie-Hellman done, and answers where it has been.
    #[inline]
    fn shake_hands(&mut self, now: Time) -> Result<(), LinkError> {
        if let Some(sieve) = self.service.responder().hello_sieve() {
            self.sift(sieve.as_ref());
        }
        let Some(handshaker) = &mut self.handshaker else { return Ok(()) };
        while let Some(job) = self.service.responder().poll_handshake() {
            handshaker.compute((), job);
        }
        let mut any = false;
        while let Some(((), done)) = handshaker.finished() {
            self.service.handshake_done(done, now, self.link.transmit());
            any = true;
        }
        if any { self.link.flush() } else { Ok(()) }
    }

    /// Has the kernel drop Hellos of a flood, or none any more, where the link can.
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
            // It is looked at each of them, as before.
            Ok(false) => {}
            Err(error) => tracing::debug!(worker = index, %error, "all Hellos are let through"),
        }
    }

    /// Has others told if too many frames wait.
    #[inline]
    fn watch_queue(&mut self, now: Time) {
        let link = &mut self.link;
        let verdict = self.service.look_at_queue(|count| link.holds(count), now);
        if verdict == Verdict::Quiet {
            return;
        }
        let vector = self.service.tell(verdict, self.link.transmit());
        if let (Some(pfc), Some(vector)) = (&mut self.pfc, vector) {
            // One that the kernel refuses is lost, as any frame may be.
            let _ = pfc.send(&vector);
        }
    }

    /// The link has been opened again: what depends on it is brought up to date.
    #[cold]
    fn follow_link(&mut self) {
        self.reopened = self.link.reopened();
        let info = self.link.info();
        self.own = info.mac;
        self.service.responder().set_max_frame(info.max_frame);
        // Its socket is another one.
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
            self.follow_link();
        }
        if self.service.responder().dismiss_outgrown(self.link.transmit()) > 0 {
            // What cannot be sent now is tried again at the next turn.
            let _ = self.link.flush();
        }
        self.service.end_revoked(self.link.transmit());
        let responder = self.service.responder();
        responder.poll(now);
        let mut refused = Vec::new();
        while let Some(event) = responder.poll_event() {
            match event {
                ResponderEvent::Started { cn, replaced } => {
                    tracing::info!(worker = index, peer = %cn, replaced, "session started");
                }
                ResponderEvent::Ended(cn) => tracing::info!(worker = index, peer = %cn, "session ended"),
                ResponderEvent::Expired(cn) => {
                    tracing::warn!(worker = index, peer = %cn, "session forgotten: nothing heard from the CN");
                }
                ResponderEvent::Conflict(cn) => tracing::warn!(
                    worker = index, peer = %cn,
                    "refused a second agent with this CN id while the first is alive; \
                     end one of them, or give its interface another MAC address"
                ),
                ResponderEvent::VersionMismatch { cn, version } => tracing::warn!(
                    worker = index, peer = %cn, theirs = version, ours = cxloe_wire::frame::PROTOCOL_VERSION,
                    "refused a CN of another protocol version; upgrade the older of the two"
                ),
                ResponderEvent::KeyRefused { cn, shown } => refused.push((cn, shown)),
                ResponderEvent::Revoked(cn) => tracing::warn!(
                    worker = index, peer = %cn, "session ended: the CN's key is another by now, or is known by now"
                ),
            }
        }
        for (cn, shown) in refused {
            // It goes on being refused, at every call: the log has it once a minute.
            let kind = (cn, shown.is_some());
            let is_new = self.refused.get(&kind).is_none_or(|at| now - *at > REFUSAL_EVERY);
            if is_new && self.refused.len() < REFUSALS_MAX {
                self.refused.insert(kind, now);
                match shown {
                    Some(key) => tracing::warn!(
                        worker = index, peer = %cn, %key,
                        "refused a CN that showed a key which is not the one known for it, or for which none is known; \
                         `mn-server --peer-key` or the manager says whose is whose"
                    ),
                    None => tracing::warn!(
                        worker = index, peer = %cn,
                        "refused a CN that showed no key, although one is known for it: it runs with --insecure, is of an \
                         older release, or somebody else speaks in its name"
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
                link_down: None,
                sessions: self.service.responder().statuses(now),
            };
            let latest = Latest { report, at: Some(Instant::now()) };
            *self.shared.report.lock().unwrap_or_else(PoisonError::into_inner) = latest;
            self.shared.reported.notify_all();
        }
    }

    /// Tells every CN that this node is going, and answers what is still on its way.
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
