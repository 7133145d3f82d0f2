//! State shared by a port and the regions mapped over it, and the keeper thread that drives the port between faults.

#![expect(unsafe_code, reason = "the state is dropped by hand, in the process that made it")]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_cn_core::engine::{Engine, Route, RouteError};
use cxloe_wire::frame::Mac;

use super::core::{Core, CoreState};
use super::{InlineError, masks, system};
use crate::port::{NO_SESSION, Port, PortError};

/// Sleep of the keeper when it has no work.
const KEEPER_INTERVAL: Duration = Duration::from_micros(500);
/// Interval at which a thread checks whether a session has opened.
const CONNECT_INTERVAL: Duration = Duration::from_micros(200);

/// The port's state behind its lock, and the keeper thread, which ends when this is dropped.
#[derive(Debug)]
pub struct SharedPort {
    pub core: Arc<Core>,
    keeper: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<AtomicBool>,
    /// Reason for which a memory node last refused a session.
    refusal: Arc<Mutex<Option<String>>>,
}

/// A reference to the shared port. In a forked child, dropping it does nothing: keeper and link are the parent's, and
/// closing the link would end the parent's sessions.
#[derive(Debug)]
pub struct SharedPortRef {
    inner: ManuallyDrop<Arc<SharedPort>>,
    process: u32,
}

impl std::ops::Deref for SharedPortRef {
    type Target = SharedPort;

    fn deref(&self) -> &SharedPort {
        &self.inner
    }
}

impl Clone for SharedPortRef {
    fn clone(&self) -> SharedPortRef {
        SharedPortRef { inner: self.inner.clone(), process: self.process }
    }
}

impl Drop for SharedPortRef {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: `inner` is dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

impl Drop for SharedPort {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let keeper = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            let _ = keeper.join();
        }
    }
}

impl SharedPortRef {
    /// Takes over `port`, and starts a keeper thread that drives it between faults.
    ///
    /// # Errors
    /// [`InlineError::System`]: the thread cannot be started.
    pub fn new(port: Port) -> Result<SharedPortRef, InlineError> {
        let core = Arc::new(Core::new(CoreState::new(port)));
        let (stop, refusal) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let keeper = {
            let (core, stop, refusal) = (Arc::clone(&core), Arc::clone(&stop), Arc::clone(&refusal));
            thread::Builder::new().name("keeper".into()).spawn(move || keep(&core, &stop, &refusal))
        };
        let keeper = Mutex::new(Some(keeper.map_err(system("start the keeper"))?));
        let inner = ManuallyDrop::new(Arc::new(SharedPort { core, keeper, stop, refusal }));
        Ok(SharedPortRef { inner, process: std::process::id() })
    }

    /// Whether this process made the shared port, and not its parent before a fork.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns the port, if this is the only reference to it.
    ///
    /// # Errors
    /// [`InlineError::InUse`] if there are others; [`InlineError::Inherited`] in a child of the process that made the
    /// port.
    pub fn into_port(self) -> Result<Port, InlineError> {
        if !self.is_ours() {
            return Err(InlineError::Inherited);
        }
        let shared = ManuallyDrop::new(self);
        // SAFETY: `shared` is not dropped, and not used afterwards.
        let inner = ManuallyDrop::into_inner(unsafe { std::ptr::read(&shared.inner) });
        let core = Arc::clone(&Arc::try_unwrap(inner).map_err(|_| InlineError::InUse)?.core);
        // The keeper thread has ended, so no other thread uses the port.
        core.with(CoreState::take_port).ok_or(InlineError::InUse)
    }

    /// Moves peers, routes and policies of `ready` into the engine.
    ///
    /// # Errors
    /// The errors of [`Engine::adopt`].
    pub fn adopt(&self, mut ready: Engine) -> Result<(), RouteError> {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.core.with(|state| state.adopt(&mut ready))
    }

    /// Removes the routes of the `bytes` bytes from `hpa` on, at most `routes` of them.
    pub fn part(&self, hpa: u64, bytes: u64, routes: usize) {
        // Allocated before the lock is taken, whose holder must not allocate.
        let mut parted: Vec<Route> = Vec::with_capacity(routes);
        self.core.with(|state| state.part(hpa, bytes, &mut parted));
    }

    /// Waits until each of these memory nodes has an open session.
    ///
    /// # Errors
    /// [`PortError::ConnectTimeout`].
    pub fn connect(&self, macs: &[Mac], limit: Duration) -> Result<(), PortError> {
        let until = Instant::now() + limit;
        let is_missing = |mac: &&Mac| !self.core.with(|state| state.is_connected_to(**mac));
        loop {
            let is_late = Instant::now() >= until;
            let missing: Vec<String> = macs.iter().filter(is_missing).map(Mac::to_string).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if is_late {
                let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
                let hint = refusal.unwrap_or_else(|| NO_SESSION.into());
                return Err(PortError::ConnectTimeout { peers: missing.join(", "), limit, hint });
            }
            thread::sleep(CONNECT_INTERVAL);
        }
    }
}

/// Body of the keeper: keeps sessions alive, evicts pages in advance and installs pages read ahead, while no thread
/// faults.
fn keep(core: &Core, stop: &AtomicBool, refusal: &Mutex<Option<String>>) {
    masks::block_all();
    let mut idle = 0_u32;
    while !stop.load(Ordering::Acquire) {
        // The keeper leaves the port to a thread that waits for a page, because that thread drives the port itself.
        let worked = !core.is_wanted() && core.with_signals_held(CoreState::round_of_keeper);
        // The computation is done without the lock, for which faulting threads wait.
        while let Some((session, job)) = core.with_signals_held(CoreState::handshake) {
            let mut done = Some(job.run());
            core.with_signals_held(|state| {
                done.take().into_iter().for_each(|done| state.handshake_done(session, done))
            });
        }
        while let Some(event) = core.with_signals_held(CoreState::event) {
            if let Some(text) = cxloe_cn_core::events::refusal(&event) {
                *refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
            }
            cxloe_cn_core::events::log(&event);
        }
        idle = if worked { 0 } else { idle.saturating_add(1) };
        if idle > 64 {
            thread::sleep(KEEPER_INTERVAL);
        } else if idle > 8 {
            thread::yield_now();
        }
    }
}
