//! A server of our own: a thread in the far namespace, on the server's core, for one trial.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::error::PeerError;
use super::stage::{FAR, Stage};
use crate::machine;
use cxloe_lab::LabError;

/// The thread.
pub struct Server {
    name: &'static str,
    thread: JoinHandle<Result<io::Result<()>, LabError>>,
}

impl Server {
    /// Opens a socket in the far namespace by `listen`, and lets a thread there `serve` it.
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

    /// Waits for its end, which its client has brought about.
    pub fn end(self) -> Result<(), PeerError> {
        let ended = self.thread.join().expect("a server's thread does not panic")?;
        ended.map_err(PeerError::io(format!("serving {}", self.name)))
    }
}

/// Tells a server without connections to end.
#[derive(Debug, Clone, Default)]
pub struct Bell(Arc<AtomicBool>);

impl Bell {
    /// Rings.
    pub fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it has rung.
    pub fn has_rung(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
