//! The running agent in the quickstart: started, given a region, and measured from outside by its port.

use cxloe_wire::random::Random;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cxloe_client::client::{Client, regions};
use cxloe_fabric::api::CreateRegion;
use cxloe_fabric::model::{CnId, Mac, Name};

use super::Failure;
use super::daemons::{self, Ground, READY};
use crate::measure::agent_port::{AgentPort, AgentResults};
use crate::measure::latency::LatencyPlan;
use crate::measure::nbd::NbdClient;
use crate::measure::{MeasureError, Target, fault, fault_step};
use crate::report::{Samples, Throughput, ThroughputTrial};
use cxloe_lab::{Interrupt, Process};

/// Name of the agent's region.
const NAME: &str = "quickstart";
/// Its size.
const SIZE: u64 = 32 << 20;
/// Operations on lines of each kind.
const OPERATIONS: u64 = 5_000;
/// Reads of a block, and its size in bytes.
const BLOCKS: u64 = 1_000;
const BLOCK: usize = 4096;

/// Bytes of a stretch.
const STRETCH: usize = 1 << 20;

/// The rate of reading all of the region by stretches, one at a time.
fn stretches(
    name: &str,
    target: &Target,
    trials: u32,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Failure>,
) -> Result<Throughput, Failure> {
    let mut room = vec![0; STRETCH];
    let mut rates = Vec::new();
    for _ in 0..trials {
        let bounce_ns = target.bounce();
        target.check()?;
        let start = Instant::now();
        for at in (0..SIZE).step_by(STRETCH) {
            read(at, &mut room)?;
        }
        let ops_per_s = (SIZE / STRETCH as u64) as f64 / start.elapsed().as_secs_f64();
        rates.push(ThroughputTrial { bounce_ns, ops_per_s, bytes_per_s: ops_per_s * STRETCH as f64 });
    }
    Ok(Throughput::from_trials(name, rates).ok_or("no trials")?)
}

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
        // By the socket of a manager on this machine it joins; without rights there is nothing to join.
        match place.manager.starts_with("unix:") {
            true => c.args(["join", &place.manager, "--run", "--config"]).arg(state.join("cn-agent.toml")),
            false => c.args(["run", "--manager", &place.manager]),
        };
        c.args(["-i", &place.interface, "--name", "cn1"]);
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
    /// Its socket, and where its region begins.
    pub fn region(&self) -> (&Path, u64) {
        (&self.socket, self.hpa)
    }

    /// Lines and pages through the agent's port: shared-memory rings to it, its own link from there; pages by the port of
    /// `target` beside them.
    pub fn measure(&self, target: &mut Target, trials: u32) -> Result<AgentResults, Failure> {
        let mut port = AgentPort { client: Client::connect(&self.socket)?, hpa: self.hpa, bytes: SIZE };
        let plan = LatencyPlan { trials, operations: OPERATIONS / u64::from(trials.max(1)) };
        Ok(port.latency(target, plan, &mut |_| {})?)
    }

    /// Stretches of the agent's region, by its port.
    pub fn bulk(&self, target: &Target, trials: u32) -> Result<Throughput, Failure> {
        let mut client = Client::connect(&self.socket)?;
        stretches("agent_bulk_read", target, trials, |at, out| Ok(client.read_bytes(self.hpa + at, out)?))
    }

    /// The agent's region as a block device: pages and stretches of it, one read at a time.
    pub fn nbd(
        &self,
        ground: &dyn Ground,
        state: &Path,
        target: &Target,
        trials: u32,
    ) -> Result<(Samples, Throughput), Failure> {
        let socket = state.join("nbd.sock");
        let _server = daemons::start(ground, "cn", state, "cn-agent nbd", |c| {
            c.args(["nbd", "--region", NAME, "--socket"]).arg(&socket).arg("--agent").arg(&self.socket);
        })?;
        let started = Instant::now();
        let mut client = loop {
            target.check()?;
            match NbdClient::connect(&socket) {
                Ok(client) => break client,
                Err(error) if started.elapsed() > READY => {
                    return Err(format!("the block device has not come up: {error}").into());
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut samples = Samples::new("nbd_read4k");
        let (mut addresses, mut block) = (Random::new(2), [0; BLOCK]);
        for _ in 0..trials {
            let bounce = target.bounce();
            target.check()?;
            for _ in 0..BLOCKS / u64::from(trials.max(1)) {
                let at = addresses.below(client.size() / BLOCK as u64) * BLOCK as u64;
                let start = Instant::now();
                client.read(at, &mut block)?;
                samples.record_ns(start.elapsed().as_nanos() as u64);
            }
            samples.end_trial(bounce);
        }
        let rate = stretches("nbd_bulk_read", target, trials, |at, out| Ok(client.read(at, out)?))?;
        Ok((samples, rate))
    }

    /// Page faults of this process in the agent's region.
    pub fn faults(&self, target: &Target) -> Result<Samples, MeasureError> {
        let region = fault::Agent { socket: self.socket.clone(), region: NAME.into(), processes: Vec::new() };
        fault_step::through_agent(&region, target)
    }
}
