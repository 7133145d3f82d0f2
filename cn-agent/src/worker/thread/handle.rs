//! Handle by which the rest of the agent starts the worker, gives it orders, and stops it.

use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use cxloe_cn_core::engine::Engine;
use cxloe_cn_core::quiet::QuietMark;
use cxloe_cn_core::refusals::Refusals;
use cxloe_daemon::pin;
use cxloe_link::keys::{Handshaker, epoch_ns};
use cxloe_link::wait::idle::IdlePolicy;
use cxloe_link::{Clock, Link, LinkError};
use cxloe_paging::Spaces;
use cxloe_port::signals::Signals;
use cxloe_rings::clients::Clients;

use super::users::EngineUsers;
use super::{Worker, WorkerOptions};
use crate::worker::order::{Orders, WorkerResults};
use crate::worker::placement::{Placement, Thread};
use crate::worker::sleeper::{Sleeper, Waker};

#[derive(Debug)]
pub struct WorkerHandle {
    stop: Arc<AtomicBool>,
    orders: Orders,
    thread: JoinHandle<Result<(), LinkError>>,
}

impl WorkerHandle {
    /// Starts a worker over `link`, with pause signals from `signals`. The worker reports to `results`.
    /// `on_end` is called when the worker has stopped for any reason.
    ///
    /// # Errors
    /// Failure to create the worker's waker or thread.
    pub fn start(
        link: Box<dyn Link>,
        engine: Engine,
        signals: Signals,
        options: WorkerOptions,
        results: WorkerResults,
        on_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<WorkerHandle> {
        let waker = Waker::new()?;
        let (orders, inbox) = Orders::channel(waker.clone());
        let clock = Clock::new();
        let WorkerOptions { index, mut station, health, wait, cpu, clients_max, shares } = options;
        station.keys.epoch_ns = epoch_ns(&clock);
        let handshaker = station.keys.own.is_some().then(Handshaker::start).transpose()?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut spaces = Spaces::new()?;
        spaces.set_shares(shares);
        let paging = Some(spaces.descriptor().as_raw_fd());
        let mut worker = Worker {
            sleeper: Sleeper::new(waker, link.readiness(), paging, clients_max),
            users: EngineUsers::new(
                Clients::new(clients_max),
                spaces,
                signals,
                handshaker,
                results.drained.clone(),
                station,
            ),
            idle: IdlePolicy::new(wait),
            clock,
            stop: Arc::clone(&stop),
            refusals: Refusals::default(),
            results,
            quiet: orders.quiet().clone(),
            quiet_mark: QuietMark::default(),
            client_on_our_cpu: false,
            placement: Placement::default(),
            seat: None,
            reopened: link.reopened(),
            link,
            engine,
            health,
            inbox,
        };
        // A single worker keeps the plain name, which tools and the book use.
        let name = if index == 0 { "worker".into() } else { format!("worker-{index}") };
        let thread = thread::Builder::new().name(name).spawn(move || {
            match cpu {
                Some(cpu) => pin(cpu),
                // Opened on the worker's own thread, since it reads the records of the calling thread.
                None => worker.seat = Thread::this(),
            }
            // `on_end` is called also after a panic, since an agent without a worker must end.
            let result = catch_unwind(AssertUnwindSafe(|| worker.run()));
            drop(worker);
            on_end();
            result.unwrap_or_else(|panic| resume_unwind(panic))
        })?;
        Ok(WorkerHandle { stop, orders, thread })
    }

    /// Sender of orders to the worker.
    pub fn orders(&self) -> Orders {
        self.orders.clone()
    }

    /// Makes the worker write back dirty lines, end its sessions and stop.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.orders.wake();
    }

    /// Waits for the end of the worker.
    ///
    /// # Errors
    /// The error of the link that ended the worker.
    pub fn join(self) -> Result<(), LinkError> {
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}
