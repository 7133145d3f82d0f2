//! Link of measurements that involve an agent: an existing link, or one in a lab made for the measurement.
//!
//! ```text
//!   namespace cn                                         namespace mn
//!     gmm         10.77.0.1:7440
//!     this bench  on cn0  <------------ veth ------------->  mn0  mn-server `mn1`
//!     cn-agent    on cn1  <------------ veth ------------->  mn1  mn-server `mn2`
//!     core 0                                                 core 1
//! ```
//!
//! A third cable is for probes, programs that share no code with this project.
//!
//! The bench has a link of its own for bare frames and for faults that it serves itself; faults through the agent use a
//! second link of the same kind. Of the two memory nodes, and of agent and bench, only those being measured run; the
//! others are stopped.

use std::path::Path;
use std::rc::Rc;

use clap::{ArgMatches, FromArgMatches};
use cxloe_daemon::to_stderr;
use cxloe_fabric::api::CreateRegion;
use cxloe_fabric::model::{CnId, Mac, Name};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Encap};
use cxloe_wire::frame::ETHERTYPE_DEFAULT;
use nix::unistd::Pid;

use super::Failure;
use super::common::{LinkArgs, RegionArgs, Session};
use super::daemons::{self, MANAGER, READY};
use crate::eventually::{eventually, readable};
use cxloe_lab::{Interrupt, Lab, Process};
use cxloe_measure::MeasureError;
use cxloe_measure::fault::Agent;
use cxloe_measure::machine;

/// An existing link, if its options are given.
pub struct OptionalLink(pub Option<LinkArgs>);

impl clap::Args for OptionalLink {
    fn augment_args(command: clap::Command) -> clap::Command {
        let known: Vec<_> = command.get_arguments().map(|arg| arg.get_id().clone()).collect();
        // Without an interface there is no link, so every other link option requires the option for the
        // interface.
        LinkArgs::augment_args(command).mut_args(|arg| match arg.get_id().as_str() {
            "interface" => arg.required(false),
            _ if known.contains(arg.get_id()) => arg,
            _ => arg.requires("interface"),
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OptionalLink {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_named = matches.contains_id("interface");
        Ok(OptionalLink(is_named.then(|| LinkArgs::from_arg_matches(matches)).transpose()?))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Session, optional agent, and link description of a measurement.
pub struct Setup {
    /// Session over which the bench measures.
    pub session: Session,
    /// Agent, or the reason why it cannot map regions; `None` if no agent was requested.
    pub agent: Option<Result<Agent, MeasureError>>,
    /// Names of the interfaces at both ends of the link.
    pub interfaces: Vec<String>,
    /// Wait style of the compute node's end.
    pub wait: WaitStyle,
    /// Lab of the measurement; `None` on an existing link.
    pub lab: Option<Rc<Lab>>,
}

/// The agent of a setup; if it cannot map regions, a line says that faults through it are left out.
pub fn usable(agent: Option<Result<Agent, MeasureError>>) -> Option<Agent> {
    agent?.inspect_err(|error| to_stderr!("faults through an agent are left out: {error}")).ok()
}

/// Cable for probes only: namespace and interface of both ends, and address of the far end.
pub const PROBE_CABLE: ((&str, &str), (&str, &str, &str)) =
    (("cn", "cn2"), ("mn", "mn2", "02:00:00:00:00:22"));

/// Runs `body` on an existing link.
pub fn on_link(
    link: &LinkArgs,
    region: &RegionArgs,
    agent: Option<Agent>,
    interrupt: Interrupt,
    body: impl FnOnce(Setup) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let session = Session::open(link, region, interrupt)?;
    let interfaces = vec![session.link.interface.clone()];
    body(Setup { session, agent: agent.map(Ok), interfaces, wait: link.wait, lab: None })
}

/// Name, sizes and members of a lab.
pub struct LabOptions<'a> {
    /// Name of the lab's folder in the state folder.
    pub name: &'a str,
    /// MTU of the lab's cables, in bytes.
    pub mtu: u32,
    /// Options of the bench's region; the agent's region has the same size.
    pub region: &'a RegionArgs,
    /// True if the lab has an agent.
    pub agent: bool,
}

/// Makes a lab of two namespaces and runs `body` with it.
pub fn in_lab(
    options: &LabOptions<'_>,
    interrupt: &Interrupt,
    body: impl FnOnce(Setup) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let state = tempfile::Builder::new().prefix(&format!("cxloe-{}-", options.name)).tempdir()?;
    let result = in_lab_at(options, interrupt, state.path(), body);
    if result.is_err() && interrupt.check().is_ok() {
        ["", "mn1", "mn2"].iter().for_each(|part| daemons::show_logs(&state.path().join(part)));
    }
    result
}

fn in_lab_at(
    options: &LabOptions<'_>,
    interrupt: &Interrupt,
    state: &Path,
    body: impl FnOnce(Setup) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cores = machine::allowed_cores();
    let pair = cores.first().copied().zip(cores.get(1).copied());
    // On a single core, a thread that spins would keep the other end from running.
    let wait = if pair.is_some() { WaitStyle::Busy } else { WaitStyle::default() };
    let lab = Lab::builder()
        .namespace("cn")
        .namespace("mn")
        .veth("cn", "cn0", "mn", "mn0")
        .veth("cn", "cn1", "mn", "mn1")
        .veth("cn", "cn2", "mn", "mn2")
        .mac("mn2", PROBE_CABLE.1.2)
        .mtu(options.mtu)
        .address("cn0", "10.77.0.1/24")
        .address("mn0", "10.77.0.2/24")
        .build()?;
    let lab = Rc::new(lab);
    let _gmm = daemons::start(&*lab, "cn", state, "gmm", |c| {
        c.args(["serve", "--insecure", "--listen", "10.77.0.1:7440", "--data-dir"]).arg(state.join("gmm"));
    })?;
    let memory_node = |interface: &str, name: &str| {
        // Two mn-servers run, so each has a folder of its own for its files and its log.
        let state = state.join(name);
        std::fs::create_dir(&state)?;
        daemons::start(&*lab, "mn", &state, "mn-server", |c| {
            c.args(["-i", interface, "--name", name, "--manager", MANAGER, "--echo"]);
            c.args(["--wait", &wait.to_string()]);
            c.arg("--pool-size").arg((options.region.size.0 + (32 << 20)).to_string());
            c.arg("--data-dir").arg(state.join("data")).arg("--socket").arg(state.join("socket"));
            daemons::protect(c, options.region.insecure, &state.join("node.key"));
            if let Some((_, theirs)) = pair {
                c.args(["--cpus", &theirs.to_string()]);
            }
        })
    };
    let ours = memory_node("mn0", "mn1")?;
    lab.namespace("cn")?.clone().join()?;
    daemons::wait_for_nodes(MANAGER, interrupt)?;
    let cpu = pair.map(|(ours, _)| ours);
    let mut agent = None;
    if options.agent {
        let others = memory_node("mn1", "mn2")?;
        let (process, started) = start_agent(&lab, state, options.region, (cpu, wait), interrupt, &others)?;
        // Dropping this value resumes the processes, because a stopped process cannot shut down in order.
        agent = Some(StoppedProcesses { agent: started, _process: process, _memory_node: others });
    }
    let checked = agent.as_ref().map(|awake| awake.agent.check().map(|()| awake.agent.clone()));
    region("bench", "cn0", "mn1", options.region.size.0, interrupt)?;

    let link = LinkArgs {
        interface: "cn0".into(),
        link: Backend::default(),
        encap: Encap::None,
        udp_address: Default::default(),
        udp_peer: Vec::new(),
        wait,
        priority: None,
        ethertype: ETHERTYPE_DEFAULT,
        faults: None,
        cpu,
    };
    let region =
        RegionArgs { manager: MANAGER.into(), region: Some("bench".into()), ..options.region.clone() };
    let region = RegionArgs { node_key: Some(state.join("bench.key")), identity: None, ..region };
    let mut session = Session::open(&link, &region, interrupt.clone())?;
    session.target.cores = pair;
    session.target.memory_node = Some(pid(&ours));
    let interfaces = vec!["cn0".into(), "mn0".into()];
    body(Setup { session, agent: checked, interfaces, wait, lab: Some(lab) })
}

/// Processes that are stopped while other processes are measured. They are resumed on drop, so that they can end.
struct StoppedProcesses {
    agent: Agent,
    _process: Process,
    _memory_node: Process,
}

impl Drop for StoppedProcesses {
    fn drop(&mut self) {
        self.agent.resume();
    }
}

fn pid(process: &Process) -> Pid {
    Pid::from_raw(process.id().cast_signed())
}

/// Creates a region for the node behind `interface` on the memory node `on`, after that memory node has registered.
fn region(name: &str, interface: &str, on: &str, size: u64, interrupt: &Interrupt) -> Result<(), Failure> {
    let address = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?;
    let owner = CnId::new(address.trim().parse::<Mac>()?)?;
    let (name, on) = (Name::new(name)?, Name::new(on)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let manager = cxloe_fabric::Client::new(MANAGER)?;
    eventually(&format!("mn-server {on} registers with the manager"), READY, interrupt, || {
        let nodes = runtime.block_on(manager.memory_nodes()).unwrap_or_default();
        nodes.iter().any(|status| status.node.name == on)
    })?;
    let create = CreateRegion { on: vec![on], ..CreateRegion::new(name, size, owner) };
    runtime.block_on(manager.create_region(&create))?;
    Ok(())
}

/// Starts an agent on cn1 and gives it a region. Must be called inside the namespace of cn1.
fn start_agent(
    lab: &Lab,
    state: &Path,
    wanted: &RegionArgs,
    (cpu, wait): (Option<usize>, WaitStyle),
    interrupt: &Interrupt,
    memory_node: &Process,
) -> Result<(Process, Agent), Failure> {
    let socket = state.join("cn-agent.sock");
    let process = daemons::start(lab, "cn", state, "cn-agent", |c| {
        c.args(["run", "-i", "cn1", "--name", "cn1", "--manager", MANAGER, "--wait", &wait.to_string()]);
        c.arg("--socket").arg(&socket).arg("--data-dir").arg(state.join("cn"));
        daemons::protect(c, wanted.insecure, &state.join("cn.key"));
        if let Some(cpu) = cpu {
            c.args(["--cpus", &cpu.to_string()]);
        }
    })?;
    region("mapped", "cn1", "mn2", wanted.size.0, interrupt)?;
    readable(&socket, "mapped", READY, interrupt)?;
    let processes = vec![pid(&process), pid(memory_node)];
    Ok((process, Agent { socket, region: "mapped".into(), processes }))
}
