//! A machine of this compute node that can move: its QEMU, and the region that is its memory.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::qmp::{Qmp, QmpError};

#[derive(Debug)]
pub struct MovableMachine {
    qmp: Mutex<Qmp>,
    pub agent: PathBuf,
    /// Number of the space that is the machine's memory.
    pub space: u64,
    pub region: String,
    /// Size of the region in bytes.
    pub bytes: u64,
}

impl MovableMachine {
    /// Creates the machine from a connection to its QEMU.
    pub fn new(
        qmp: UnixStream,
        agent: PathBuf,
        space: u64,
        region: String,
        bytes: u64,
    ) -> Result<MovableMachine, QmpError> {
        Ok(Self::of(Qmp::begin(qmp)?, agent, space, region, bytes))
    }

    pub(super) fn of(qmp: Qmp, agent: PathBuf, space: u64, region: String, bytes: u64) -> MovableMachine {
        MovableMachine { qmp: Mutex::new(qmp), agent, space, region, bytes }
    }

    /// Locks the connection to QEMU, which one step at a time uses.
    pub fn qmp(&self) -> MutexGuard<'_, Qmp> {
        // Usable after a panic: a thread sends whole lines only, and answers carry the ids of their commands.
        self.qmp.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
