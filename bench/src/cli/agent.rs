//! The running agent in the quickstart: started, given a region, and measured from outside by its port.

use cxloe_wire::random::Random;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cxloe_client::client::{Client, regions};
use cxloe_fabric::api::CreateRegion;
use cxloe_fabric::model::{CnId, Mac, Name};
use cxloe_wire::frame::LINE_SIZE;

use super::Failure;
use super::daemons::{self, Ground, READY};
use crate::measure::{MeasureError, Target, fault, fault_step};
use crate::report::Samples;
use cxloe_lab::{Interrupt, Process};

/// Name of the agent's region.
const NAME: &str = "quickstart";
/// Its size.
const SIZE: u64 = 32 << 20;
/// Operations of each kind.
const OPERATIONS: u64 = 5_000;

/// A running agent with a region of its own.
pub struct Agent {
    _process: Process,
    socket: PathBuf,
    hpa: u64,
}

/// Where an agent finds its link and its manager.
pub struct Place {
    /// Its interface.
    pub interface: String,
    /// Its link, with what else that needs.
    pub link: Vec<String>,
    /// Its MAC there, by which it is told from others.
    pub own: Mac,
    /// The manager's URL.
    pub manager: String,
}

/// Starts an agent and gives it a region. Must be called inside the namespace of its interface.
pub fn start(
    ground: &dyn Ground,
    place: &Place,
    state: &Path,
    interrupt: &Interrupt,
) -> Result<Agent, Failure> {
    let socket = state.join("cn-agent.sock");
    let process = daemons::start(ground, "cn", state, "cn-agent", |c| {
        c.args(["run", "-i", &place.interface, "--name", "cn1", "--manager", &place.manager]);
        c.args(&place.link);
        // The port is measured without its cache, as the one in this process is.
        c.args(["--cache-size", "0", "--socket"]).arg(&socket);
        c.arg("--data-dir").arg(state.join("cn"));
    })?;
    let owner = CnId::new(place.own)?;
    let name = Name::new(NAME)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let manager = cxloe_fabric::Client::new(&place.manager)?;
    runtime.block_on(manager.create_region(&CreateRegion::new(name, SIZE, owner)))?;
    let started = Instant::now();
    loop {
        interrupt.check()?;
        let attached = regions(&socket).unwrap_or_default();
        if let Some(region) = attached.iter().find(|r| r.region.as_str() == NAME) {
            let mut client = Client::connect(&socket)?;
            if client.read(region.hpa).is_ok() {
                return Ok(Agent { _process: process, socket, hpa: region.hpa });
            }
        }
        if started.elapsed() > READY {
            return Err("cn-agent has not attached its region".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Agent {
    /// Line operations through the agent's port: shared-memory rings to it, its own link from there.
    pub fn measure(&self, interrupt: &Interrupt) -> Result<Vec<Samples>, Failure> {
        let mut client = Client::connect(&self.socket)?;
        let mut all = Vec::new();
        for (name, writes) in [("agent_read64", false), ("agent_write64", true)] {
            interrupt.check()?;
            let mut samples = Samples::new(name);
            let mut addresses = Random::new(1);
            for i in 0..OPERATIONS {
                let at = self.hpa + addresses.below(SIZE / LINE_SIZE as u64) * LINE_SIZE as u64;
                let start = Instant::now();
                if writes {
                    client.write(at, &[i as u8; LINE_SIZE])?;
                } else {
                    std::hint::black_box(client.read(at)?);
                }
                samples.record_ns(start.elapsed().as_nanos() as u64);
            }
            samples.end_trial(None);
            all.push(samples);
        }
        client.flush()?;
        Ok(all)
    }

    /// Page faults of this process in the agent's region.
    pub fn faults(&self, target: &Target) -> Result<Samples, MeasureError> {
        let region = fault::Agent { socket: self.socket.clone(), region: NAME.into(), processes: Vec::new() };
        fault_step::through_agent(&region, target)
    }
}
