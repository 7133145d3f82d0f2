//! Agent process of a quickstart: starts it, gives it a region, and measures the region from this process through the
//! agent's port.

use cxloe_wire::random::Random;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cxloe_client::client::Client;
use cxloe_client::mapping::{MapOptions, Mapping};
use cxloe_fabric::api::CreateRegion;
use cxloe_fabric::model::{CnId, Mac, Name};

use super::Failure;
use super::daemons::{self, DaemonHost, READY};
use crate::eventually::readable;
use cxloe_lab::{Interrupt, Process};
use cxloe_measure::agent_port::{AgentPort, AgentResults};
use cxloe_measure::latency::LatencyPlan;
use cxloe_measure::nbd::NbdClient;
use cxloe_measure::report::{Samples, Throughput, ThroughputTrial};
use cxloe_measure::{MeasureError, MeasuredRegion, fault, fault_step};

const NAME: &str = "quickstart";
/// Size of the agent's region in bytes.
pub(super) const SIZE: u64 = 32 << 20;
/// Line operations of each kind, per trial.
const OPERATIONS: u64 = 5_000;
/// Total number of single block reads in all trials, and the size of a block in bytes.
const BLOCKS: u64 = 1_000;
const BLOCK: usize = 4096;

/// Bytes that one bulk call reads.
const STRETCH: usize = 1 << 20;

/// Throughput of bulk reads of the whole region in order, one call at a time.
fn stretches(
    name: &str,
    target: &MeasuredRegion,
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

/// Link and manager with which an agent is started.
pub struct AgentSetup {
    pub interface: String,
    /// `--link` and the options it requires.
    pub link: Vec<String>,
    /// MAC address of the agent on that interface.
    pub own: Mac,
    /// URL of the manager, or the path of its socket as `unix:PATH`.
    pub manager: String,
}

/// Starts an agent and gives it a region. Must be called inside the namespace of its interface.
pub fn start(
    ground: &dyn DaemonHost,
    place: &AgentSetup,
    state: &Path,
    interrupt: &Interrupt,
) -> Result<Agent, Failure> {
    let socket = state.join("cn-agent.sock");
    let process = daemons::start(ground, "cn", state, "cn-agent", |c| {
        // `join` requires administrator rights, which the manager's local socket grants.
        match place.manager.starts_with("unix:") {
            true => c.args(["join", &place.manager, "--run", "--config"]).arg(state.join("cn-agent.toml")),
            false => c.args(["run", "--manager", &place.manager]),
        };
        c.args(["-i", &place.interface, "--name", "cn1"]);
        c.args(&place.link);
        // The agent runs without its cache, as the port in this process does.
        c.args(["--cache-size", "0", "--socket"]).arg(&socket);
        c.arg("--data-dir").arg(state.join("cn"));
    })?;
    let owner = CnId::new(place.own)?;
    let name = Name::new(NAME)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let manager = cxloe_fabric::Client::new(&place.manager)?;
    runtime.block_on(manager.create_region(&CreateRegion::new(name, SIZE, owner)))?;
    let hpa = readable(&socket, NAME, READY, interrupt)?;
    Ok(Agent { _process: process, socket, hpa })
}

impl Agent {
    /// Socket of the agent, and address of its region.
    pub fn region(&self) -> (&Path, u64) {
        (&self.socket, self.hpa)
    }

    /// Maps the agent's region without a prefetcher; at most `limit` bytes of it are resident.
    pub fn map(&self, limit: u64) -> Result<Mapping, Failure> {
        let options = MapOptions { limit, prefetch: false, ..MapOptions::default() };
        Ok(Mapping::open(&self.socket, NAME, options)?)
    }

    /// Times lines and pages through the agent's port: requests pass through shared-memory rings to the agent, which
    /// sends them over its link. Page reads through the port of `target` are timed alternately.
    pub fn measure(&self, target: &mut MeasuredRegion, trials: u32) -> Result<AgentResults, Failure> {
        let mut port = AgentPort { client: Client::connect(&self.socket)?, hpa: self.hpa, bytes: SIZE };
        let plan = LatencyPlan { trials, operations: OPERATIONS / u64::from(trials.max(1)) };
        Ok(port.latency(target, plan, &mut |_| {})?)
    }

    /// Times lines and pages through the agent's port, without a port of this process beside it. `before` returns the
    /// latency between cores, before each trial.
    pub fn measure_alone(
        &self,
        trials: u32,
        mut before: impl FnMut() -> Result<Option<f64>, Failure>,
    ) -> Result<AgentResults, Failure> {
        let mut port = AgentPort { client: Client::connect(&self.socket)?, hpa: self.hpa, bytes: SIZE };
        let (mut results, mut addresses) = (AgentResults::default(), Random::new(4096));
        let operations = OPERATIONS / u64::from(trials.max(1));
        for _ in 0..trials {
            let bounce = before()?;
            port.trial((operations, bounce), &mut addresses, &mut results, &mut |_| {})?;
        }
        port.client.flush()?;
        Ok(results)
    }

    /// Throughput of bulk reads of the agent's region through its port.
    pub fn bulk(&self, target: &MeasuredRegion, trials: u32) -> Result<Throughput, Failure> {
        let mut client = Client::connect(&self.socket)?;
        stretches("agent_bulk_read", target, trials, |at, out| Ok(client.read_bytes(self.hpa + at, out)?))
    }

    /// Times single pages and bulk reads of the agent's region as a block device, one read at a time.
    pub fn nbd(
        &self,
        ground: &dyn DaemonHost,
        state: &Path,
        target: &MeasuredRegion,
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

    /// Times page faults of this process in the agent's region.
    pub fn faults(&self) -> Result<Samples, MeasureError> {
        let region = fault::Agent { socket: self.socket.clone(), region: NAME.into(), processes: Vec::new() };
        fault_step::through_agent(&region)
    }
}
