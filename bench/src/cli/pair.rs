//! Where measurements run that come with an agent: on a link that is there, or in a lab of their own.
//!
//! ```text
//!   namespace cn                                         namespace mn
//!     gmm         10.77.0.1:7440
//!     this bench  on cn0  <------------ veth ------------->  mn0  mn-server `mn1`
//!     cn-agent    on cn1  <------------ veth ------------->  mn1  mn-server `mn2`
//!     core 0                                                 core 1
//! ```
//!
//! A third cable is for probes, programs that share nothing with this one.
//!
//! The bench has a link of its own for bare frames and for faults that it serves itself; faults through the agent go over
//! the other one, which is of the same kind. Of the two memory nodes, and of agent and bench, only those that are measured
//! run at a time.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::{ArgMatches, FromArgMatches};
use cxloe_client::client::{Client, regions};
use cxloe_fabric::api::CreateRegion;
use cxloe_fabric::model::{CnId, Mac, Name};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Encap};
use cxloe_wire::frame::ETHERTYPE_DEFAULT;
use nix::unistd::Pid;

use super::Failure;
use super::common::{LinkArgs, RegionArgs, Session};
use super::daemons::{self, MANAGER, READY};
use crate::machine;
use crate::measure::MeasureError;
use crate::measure::fault::Agent;
use cxloe_lab::{Interrupt, Lab, Process};

/// A link that is there, if one is named.
pub struct OptionalLink(pub Option<LinkArgs>);

impl clap::Args for OptionalLink {
    fn augment_args(command: clap::Command) -> clap::Command {
        let known: Vec<_> = command.get_arguments().map(|arg| arg.get_id().clone()).collect();
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

/// What a measurement gets: a session, perhaps an agent, and what to say of the link in its report.
pub struct Place {
    /// The bench's own session.
    pub session: Session,
    /// The agent, if one is wanted, or why it cannot map regions.
    pub agent: Option<Result<Agent, MeasureError>>,
    /// The interfaces at the ends of the link.
    pub interfaces: Vec<String>,
    /// How this side waits.
    pub wait: WaitStyle,
    /// The network, if it was made for this.
    pub lab: Option<Rc<Lab>>,
}

/// A cable that nothing of ours listens on: namespace and interface of both ends, and the address of the far one.
pub const PROBE_CABLE: ((&str, &str), (&str, &str, &str)) =
    (("cn", "cn2"), ("mn", "mn2", "02:00:00:00:00:22"));

/// Does `body` on a link that is there.
pub fn on_link(
    link: &LinkArgs,
    region: &RegionArgs,
    agent: Option<Agent>,
    interrupt: Interrupt,
    body: impl FnOnce(Place) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let session = Session::open(link, region, interrupt)?;
    let interfaces = vec![session.link.interface.clone()];
    body(Place { session, agent: agent.map(Ok), interfaces, wait: link.wait, lab: None })
}

/// What a lab is to be like.
pub struct LabOptions<'a> {
    /// What names its folder.
    pub name: &'a str,
    /// MTU of its cables.
    pub mtu: u32,
    /// The region of the bench, and the size of the agent's.
    pub region: &'a RegionArgs,
    /// Whether there is an agent.
    pub agent: bool,
}

/// Does `body` between two namespaces.
pub fn in_lab(
    options: &LabOptions<'_>,
    interrupt: &Interrupt,
    body: impl FnOnce(Place) -> Result<(), Failure>,
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
    body: impl FnOnce(Place) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cores = machine::allowed_cores();
    let pair = cores.first().copied().zip(cores.get(1).copied());
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
        // Two programs of one name, each with its own log.
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
        // However this ends, what is stopped cannot end in order.
        agent = Some(Awake { agent: started, _process: process, _memory_node: others });
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
    body(Place { session, agent: checked, interfaces, wait, lab: Some(lab) })
}

/// Processes that are stopped in between, and go on when they are to end.
struct Awake {
    agent: Agent,
    _process: Process,
    _memory_node: Process,
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.agent.go_on();
    }
}

fn pid(process: &Process) -> Pid {
    Pid::from_raw(process.id().cast_signed())
}

/// Creates a region for the node behind `interface` on the memory node `on`, as soon as that has registered.
fn region(name: &str, interface: &str, on: &str, size: u64, interrupt: &Interrupt) -> Result<(), Failure> {
    let address = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?;
    let owner = CnId::new(address.trim().parse::<Mac>()?)?;
    let (name, on) = (Name::new(name)?, Name::new(on)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let manager = cxloe_fabric::Client::new(MANAGER)?;
    let started = Instant::now();
    loop {
        let nodes = runtime.block_on(manager.memory_nodes())?;
        if nodes.iter().any(|status| status.node.name == on) {
            break;
        }
        interrupt.check()?;
        if started.elapsed() > READY {
            return Err(format!("mn-server {on} has not registered with the manager").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
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
            c.args(["--cpu", &cpu.to_string()]);
        }
    })?;
    region("mapped", "cn1", "mn2", wanted.size.0, interrupt)?;
    let started = Instant::now();
    loop {
        interrupt.check()?;
        let attached = regions(&socket).unwrap_or_default();
        if let Some(region) = attached.iter().find(|r| r.region.as_str() == "mapped")
            && Client::connect(&socket)?.read(region.hpa).is_ok()
        {
            let processes = vec![pid(&process), pid(memory_node)];
            return Ok((process, Agent { socket, region: "mapped".into(), processes }));
        }
        if started.elapsed() > READY {
            return Err("cn-agent has not attached its region".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
