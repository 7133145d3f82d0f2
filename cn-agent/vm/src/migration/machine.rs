//! A machine of this compute node that can move: its QEMU, and the region that is its memory.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::qmp::{Qmp, QmpError};

/// A machine with its QEMU and its memory.
#[derive(Debug)]
pub struct MovableMachine {
    qmp: Mutex<Qmp>,
    /// Path of the agent's socket.
    pub agent: PathBuf,
    /// Number of the space that is the machine's memory.
    pub space: u64,
    /// Name of the region.
    pub region: String,
    /// Size of the region in bytes.
    pub bytes: u64,
}

impl MovableMachine {
    /// The machine whose QEMU is at the other end of `qmp`.
    ///
    /// # Errors
    /// Any [`QmpError`].
    pub fn new(
        qmp: UnixStream,
        agent: PathBuf,
        space: u64,
        region: String,
        bytes: u64,
    ) -> Result<MovableMachine, QmpError> {
        Ok(MovableMachine { qmp: Mutex::new(Qmp::begin(qmp)?), agent, space, region, bytes })
    }

    /// The connection to QEMU. One step at a time uses it.
    pub fn qmp(&self) -> MutexGuard<'_, Qmp> {
        // A thread that panicked has left whole lines: ids tell answers apart.
        self.qmp.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
