//! A server for one trial: a thread in the far namespace, on the server's core.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::error::PeerError;
use super::stage::{FAR, Stage};
use cxloe_lab::LabError;
use cxloe_measure::machine;

/// Running server, in a thread of its own.
pub struct Server {
    name: &'static str,
    thread: JoinHandle<Result<io::Result<()>, LabError>>,
}

impl Server {
    /// Opens a socket in the far namespace by `listen`, and runs `serve` with it in a thread there.
    pub fn start<S: Send + 'static>(
        stage: &Stage,
        name: &'static str,
        listen: impl FnOnce() -> io::Result<S> + Send,
        serve: impl FnOnce(S) -> io::Result<()> + Send + 'static,
    ) -> Result<Server, PeerError> {
        let listening = format!("listening for {name} in namespace {FAR}");
        let socket = stage.lab.enter(FAR, listen)?.map_err(PeerError::io(listening))?;
        let core = stage.core(false);
        let thread = stage.lab.namespace(FAR)?.thread(name, move || {
            if let Some(core) = core {
                machine::pin(core).map_err(io::Error::other)?;
            }
            serve(socket)
        })?;
        Ok(Server { name, thread })
    }

    /// Waits for the thread, which ends when its client closes the connection or sets the stop flag.
    pub fn end(self) -> Result<(), PeerError> {
        let ended = self.thread.join().expect("a server's thread does not panic")?;
        ended.map_err(PeerError::io(format!("serving {}", self.name)))
    }
}

/// Flag by which a client stops a server whose protocol has no connections (UDP); other servers stop when their
/// connection is closed.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
