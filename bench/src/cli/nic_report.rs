//! `cxloe-bench nic-report`: a card, its machine and its links in one report, by which labs compare cards.

use std::path::PathBuf;

use cxloe_daemon::doctor::machine::{CpuUse, Machine};
use cxloe_daemon::doctor::nic::{Nic, Presence};
use cxloe_daemon::doctor::permissions::{Process, Xdp};
use cxloe_daemon::doctor::{Check, Host, dpdk};
use cxloe_daemon::{is_outside_kernel, to_stdout};
use cxloe_link::dpdk::PREFIX;
use cxloe_link::outer::{Peer, Peers, UdpAddress};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Encap, UdpConfig};
use cxloe_node::doctor::demand;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};

use super::Failure;
use super::common::{LinkArgs, ProgressUnit, RegionArgs, Session, bar, write};
use crate::nic::links::{LinkFinding, LinkKind, LinkTrials, TimeFigures};
use crate::nic::{NicReport, bind_card, tune_interface};
use cxloe_lab::Interrupt;
use cxloe_measure::echo::EchoPlan;
use cxloe_measure::facts;
use cxloe_measure::latency::{LatencyPlan, LatencyResults};
use cxloe_measure::machine;

const EXAMPLES: &str = "\
Examples:
  A card, its settings, and the links that work on it:
    sudo cxloe-bench nic-report -i enp3s0f0

  The same with times to another server, on which the second line runs:
    sudo cxloe-bench nic-report -i enp3s0f0 --cpu 2 --peer 02:00:00:00:00:02 --output report.txt
    sudo cxloe-bench echo -i enp3s0f0 --serve --cpu 2

  With lines of remote memory, from a memory node that was started with --echo:
    sudo cxloe-bench nic-report -i enp3s0f0 --lines --manager https://10.0.0.1:7440 --json --output report.json

Each kind of link is opened for a moment: xdp puts a program on the interface, which passes all other frames, and with
some drivers the interface is away for a second. DPDK is tried only with --dpdk. Over UDP each end has to know the other's
address (--udp-peer). The report names addresses of this machine only in the row of udp, and in commands to run at the
other end.

Exit codes: 0 done (also if a link does not work), 1 no such interface, 2 wrong usage, 130 ended by Ctrl-C.";

/// Report on a network card: settings, what works, times to another server, commands that tune it
///
/// Card, driver, firmware, slot, queues, rings, offloads, PFC, CPUs, idle states, huge pages and IOMMU; what the doctor
/// says of them, for the kernel's links and for DPDK; which kinds of links open, and why others do not; with --peer the
/// times of bare exchanges over each, with --lines those of lines too.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Network interface, or a device of DPDK (dpdk:0000:03:00.0)
    #[arg(short, long, value_name = "NAME")]
    interface: String,

    /// Kinds of links to try, separated by commas [default: packet,xdp,udp]
    #[arg(long, value_name = "KINDS", value_enum, value_delimiter = ',', help_heading = "Links")]
    links: Vec<LinkKind>,

    /// Try DPDK too, with DEVICE or the card of the interface, which the kernel may then be without for a moment
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, help_heading = "Links")]
    dpdk: Option<Option<String>>,

    /// Open no link: report settings only
    #[arg(long, conflicts_with_all = ["links", "dpdk", "peer", "lines"], help_heading = "Links")]
    no_links: bool,

    /// MAC address of the interface of another server that answers echoes: measure to it over each link
    #[arg(long, value_name = "MAC", help_heading = "Links")]
    peer: Option<Mac>,

    /// Over UDP: local address of this node, as ADDRESS, ADDRESS:PORT or :PORT [default: the interface's first address,
    /// port 63669]
    #[arg(long, value_name = "ADDRESS", default_value_t, hide_default_value = true, help_heading = "Links")]
    udp_address: UdpAddress,

    /// Over UDP: address of the node with this MAC; repeatable
    #[arg(long, value_name = "MAC=ADDRESS:PORT", help_heading = "Links")]
    udp_peer: Vec<Peer>,

    /// Send frames with an 802.1Q tag of this priority (0 to 7), and judge PFC for it
    #[arg(long, value_name = "PCP", value_parser = clap::value_parser!(u8).range(0..=7), help_heading = "Links")]
    priority: Option<u8>,

    /// Pin the measuring thread to this CPU, and judge it
    #[arg(long, value_name = "CPU", help_heading = "Links")]
    cpu: Option<usize>,

    /// Trials of each measurement
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Links"
    )]
    trials: u32,

    /// Single exchanges or operations of each kind in a trial
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20_000,
        value_parser = clap::value_parser!(u64).range(1..),
        help_heading = "Links"
    )]
    operations: u64,

    /// Frames in flight when pipelined; beyond 200 a veth loses frames
    #[arg(
        long,
        value_name = "N",
        default_value_t = 128,
        value_parser = clap::value_parser!(u64).range(1..),
        help_heading = "Links"
    )]
    depth: u64,

    /// Measure lines too, over each link by which a memory node of the manager answers
    #[arg(long, help_heading = "Memory")]
    lines: bool,

    #[command(flatten)]
    region: RegionArgs,

    /// Report as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Write the report to FILE
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
}

impl Args {
    /// Kinds of links to try.
    fn kinds(&self) -> Vec<LinkKind> {
        if self.no_links {
            return Vec::new();
        }
        if is_outside_kernel(&self.interface) {
            return vec![LinkKind::Dpdk];
        }
        let named = if self.links.is_empty() { LinkKind::USUAL.to_vec() } else { self.links.clone() };
        let dpdk = (self.dpdk.is_some() && !named.contains(&LinkKind::Dpdk)).then_some(LinkKind::Dpdk);
        named.into_iter().chain(dpdk).collect()
    }

    /// Device of DPDK to try; `card` is that of the interface.
    fn device(&self, card: Option<&str>) -> Option<String> {
        match &self.dpdk {
            Some(Some(device)) if is_outside_kernel(device) => Some(device.clone()),
            Some(Some(device)) => Some(format!("{PREFIX}{device}")),
            _ => card.map(str::to_owned),
        }
    }

    fn trials(&self, card: Option<&str>, interrupt: Interrupt) -> LinkTrials {
        LinkTrials {
            interface: self.interface.clone(),
            device: self.device(card),
            udp: UdpConfig { address: self.udp_address, peers: Peers::named(&self.udp_peer) },
            priority: self.priority,
            peer: self.peer,
            plan: EchoPlan { trials: self.trials, operations: self.operations, depth: self.depth },
            interrupt,
        }
    }
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    if let Some(cpu) = args.cpu {
        machine::pin(cpu)?;
    }
    let host = Host::default();
    let nic = (!is_outside_kernel(&args.interface)).then(|| Nic::read(&host, &args.interface));
    if let Some(Nic { presence: Presence::Absent(there), name, .. }) = &nic {
        let there = there.join(", ");
        return Err(
            format!("there is no interface {name} in this network namespace; there are {there}").into()
        );
    }
    // Device of DPDK that the interface is, or that its card would be.
    let card = match &nic {
        None => Some(args.interface.clone()),
        Some(nic) => facts::pci_address(&host, nic).map(|address| format!("{PREFIX}{address}")),
    };
    let device = card.as_deref().map(|card| dpdk::device(&host, card));
    let address = device.as_ref().and_then(|device| device.address());
    let process = Process::read(&host);
    let trials = args.trials(card.as_deref(), interrupt);
    let kinds = args.kinds();
    let is_opened = nic.is_some() && !kinds.is_empty();
    let mut commands =
        nic.as_ref().map_or_else(Vec::new, |nic| tune_interface(&nic.name, args.cpu, args.priority));
    commands.extend(device.as_ref().and_then(|device| device.binding()).into_iter().flat_map(bind_card));
    let report = NicReport {
        version: env!("CARGO_PKG_VERSION"),
        interface: args.interface.clone(),
        card: address.map(|address| facts::card(&host, address)).unwrap_or_default(),
        settings: nic.as_ref().map(|nic| facts::interface(&host, nic)).unwrap_or_default(),
        machine: facts::platform(&host),
        checks: checks(args, &host, &process, nic.as_ref()),
        dpdk: device.as_ref().map(|device| device.judge(&process, 1, false)).unwrap_or_default(),
        auto: is_opened.then(|| trials.automatic()),
        links: findings(args, &trials, &kinds)?,
        commands,
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => report.text(),
    };
    match &args.output {
        Some(path) => {
            write(path, text.as_bytes())?;
            to_stdout!("report: {}", path.display());
        }
        None => to_stdout!("{}", text.trim_end()),
    }
    Ok(())
}

/// Checks of the doctor for a node with one worker that spins, on the CPU that was named.
fn checks(args: &Args, host: &Host, process: &Process, nic: Option<&Nic>) -> Vec<Check> {
    let machine = Machine::read(host);
    let mut checks = machine.judge();
    checks.extend(machine.judge_cpus(&CpuUse {
        workers: 1,
        spinning: true,
        pinned: args.cpu.into_iter().collect(),
        flag: "--cpu",
        near: nic.and_then(|nic| nic.numa_node),
    }));
    if let Some(nic) = nic {
        checks.extend(process.judge_links("mn-server", Xdp::May, 1));
        checks.push(process.judge_udp(host));
        checks.extend(nic.judge(&demand(1, Backend::Auto, true, args.priority)));
    }
    checks
}

/// Tries all kinds of links, one after the other.
fn findings(args: &Args, trials: &LinkTrials, kinds: &[LinkKind]) -> Result<Vec<LinkFinding>, Failure> {
    let measured = if args.peer.is_some() { u64::from(args.trials) } else { 0 };
    let progress = bar(kinds.len() as u64 * (1 + measured + u64::from(args.lines)), ProgressUnit::Steps);
    let mut found = Vec::new();
    for kind in kinds {
        progress.set_message(kind.name());
        let mut finding = trials.attempt(*kind, &mut || progress.inc(1))?;
        progress.inc(1);
        if args.lines && finding.works {
            match lines(args, trials, *kind) {
                Ok(results) => {
                    finding.read64 = TimeFigures::of(&results.read64);
                    finding.write64 = TimeFigures::of(&results.write64);
                    // Measured in alternation with the lines.
                    finding.echo64 = TimeFigures::of(&results.echo64).or(finding.echo64);
                }
                Err(error) => finding.unmeasured.push(format!("no lines: {error}")),
            }
            progress.inc(1);
            trials.interrupt.check()?;
        }
        found.push(finding);
    }
    progress.finish_and_clear();
    Ok(found)
}

/// Measures lines over a link of this kind.
fn lines(args: &Args, trials: &LinkTrials, kind: LinkKind) -> Result<LatencyResults, Failure> {
    let interface = trials.config(kind).map(|config| config.interface).ok_or("there is no device of DPDK")?;
    let link = LinkArgs {
        interface,
        link: kind.backend(),
        encap: Encap::None,
        udp_address: args.udp_address,
        udp_peer: args.udp_peer.clone(),
        wait: WaitStyle::Busy,
        priority: args.priority,
        ethertype: ETHERTYPE_DEFAULT,
        faults: None,
        cpu: args.cpu,
    };
    let mut session = Session::open(&link, &args.region, trials.interrupt.clone())?;
    let plan = LatencyPlan { trials: args.trials, operations: args.operations };
    let results = session.target.latency(plan, &mut |_| ());
    // The region is given back whatever has failed.
    session.close()?;
    Ok(results?)
}
