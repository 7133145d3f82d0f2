//! The worker as the rest of the agent has it: started, given orders, stopped.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use cxloe_cn_core::drain::Drains;
use cxloe_cn_core::engine::Engine;
use cxloe_daemon::pin;
use cxloe_link::keys::{Handshaker, epoch_ns};
use cxloe_link::wait::Waiter;
use cxloe_link::{Clock, Link, LinkError};
use cxloe_paging::Spaces;
use cxloe_port::signals::Signals;
use cxloe_rings::clients::Clients;
use cxloe_wire::time::Time;

use super::{Parties, Worker, WorkerOptions};
use crate::worker::order::{DrainedTickets, Orders};
use crate::worker::placement::{Placement, Thread};
use crate::worker::sleeper::{Sleeper, Waker};

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
        mut options: WorkerOptions,
        on_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<WorkerHandle> {
        let waker = Waker::new()?;
        let (orders, inbox) = Orders::channel(waker.clone());
        let (tell, drained) = DrainedTickets::channel();
        let clock = Clock::new();
        options.station.keys.epoch_ns = epoch_ns(&clock);
        let handshaker = options.station.keys.own.is_some().then(Handshaker::start).transpose()?;
        let stop = Arc::new(AtomicBool::new(false));
        let spaces = Spaces::new()?;
        let paging = Some(spaces.descriptor().as_raw_fd());
        let mut worker = Worker {
            sleeper: Sleeper::new(waker, link.readiness(), paging, options.clients_max),
            parties: Parties { clients: Clients::new(options.clients_max), spaces },
            waiter: Waiter::new(options.wait),
            clock,
            handshaker,
            stop: Arc::clone(&stop),
            refusals: BTreeMap::new(),
            drains: Drains::default(),
            quiet: orders.quiet().clone(),
            quieting: (None, None),
            tell,
            housekeeping_at: Time::ZERO,
            backpressured: false,
            beside: false,
            told: false,
            crowded: false,
            crowded_until: Time::ZERO,
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
