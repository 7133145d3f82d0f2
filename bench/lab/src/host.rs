//! Programs started on this machine without a lab, for use where no lab can be made.

use std::process::Command;

use crate::process::Spawner;
use crate::{LabError, Process};

/// This machine as a place to start programs. As in a lab, a program ends when its [`Process`] is dropped.
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
    /// Starts a program outside of any namespace; the program ends when the returned value is dropped.
    ///
    /// # Errors
    /// Returns [`LabError::Spawn`].
    pub fn spawn(&self, command: Command) -> Result<Process, LabError> {
        self.spawner.spawn_here(command)
    }
}
