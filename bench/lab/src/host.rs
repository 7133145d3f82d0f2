//! Programs on this machine as it is, without a network of their own: where no lab can be made.

use std::process::Command;

use crate::process::Spawner;
use crate::{LabError, Process};

/// This machine, as a place for programs that end with their guards, as those of a lab do.
#[derive(Debug)]
pub struct Host {
    spawner: Spawner,
}

impl Default for Host {
    fn default() -> Self {
        Host { spawner: Spawner::start() }
    }
}

impl Host {
    /// Starts a program.
    ///
    /// # Errors
    /// [`LabError::Spawn`].
    pub fn spawn(&self, command: Command) -> Result<Process, LabError> {
        self.spawner.spawn_here(command)
    }
}
