//! What the measuring commands share: options for link, region and output; progress; reports.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use cxloe_daemon::to_stdout;
use cxloe_daemon::{PfcTrust, Switch};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::ByteSize;
use cxloe_link::fault::FaultPlan;
use cxloe_link::outer::{Peer, Peers, UdpAddress};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Encap, Extras, LinkConfig, LinkInfo, UdpConfig};
use cxloe_port::port::Port;
use cxloe_port::rate_control::RateControl;
use indicatif::{ProgressBar, ProgressStyle};

use super::Failure;
use crate::connect::{Access, ConnectOptions, Connected, Lease};
use crate::machine::{self, Machine};
use crate::measure::Target;
use crate::report::{Link, Report, Samples, write_histogram_log};
use cxloe_lab::Interrupt;

/// How reports and this program's output call sessions between keys, and those without.
pub const SEALED: &str = "sealed";
/// See [`SEALED`].
pub const INSECURE: &str = "insecure";

/// How frames leave this machine.
#[derive(Args, Clone, Debug)]
pub struct LinkArgs {
    /// The network interface; its MAC address is this compute node's CN id
    #[arg(short, long, value_name = "NAME", help_heading = "Link")]
    pub interface: String,

    /// auto takes what suits the interface, auto:latency the quickest for single lines, auto:throughput the one with the
    /// most frames a second; udp puts frames into UDP, which both ends have to do
    #[arg(long, value_name = Backend::VALUES, default_value = "auto", help_heading = "Link")]
    pub link: Backend,

    /// What frames of a raw link travel in: none (Ethernet), or udp as those of link udp, under headers of our own
    #[arg(long, value_name = Encap::VALUES, default_value_t, help_heading = "Link")]
    pub encap: Encap,

    /// Over UDP: where this node listens, as ADDRESS, ADDRESS:PORT or :PORT [default: the interface's first address, port
    /// 63669]
    #[arg(long, value_name = "ADDRESS", default_value_t, hide_default_value = true, help_heading = "Link")]
    pub udp_address: UdpAddress,

    /// Over UDP: the node with this MAC is at this address, whatever the manager says; give it once for each
    #[arg(long, value_name = "MAC=ADDRESS:PORT", help_heading = "Link")]
    pub udp_peer: Vec<Peer>,

    /// busy (spin), adaptive or adaptive:TIME (spin that long, then sleep) or sleep
    #[arg(long, value_name = "STYLE", default_value = "busy", help_heading = "Link")]
    pub wait: WaitStyle,

    /// Send frames with an 802.1Q tag of this priority (0 to 7)
    #[arg(long, value_name = "PCP", value_parser = clap::value_parser!(u8).range(0..=7), help_heading = "Link")]
    pub priority: Option<u8>,

    /// EtherType of the frames, hexadecimal
    #[arg(long, value_name = "HEX", default_value = "0x88B5", value_parser = ethertype, help_heading = "Link")]
    pub ethertype: u16,

    /// Faults to make on purpose, for example drop=1%,reorder=0.5%,seed=7
    #[arg(long, value_name = "PLAN", help_heading = "Link")]
    pub faults: Option<FaultPlan>,

    /// Pin the measuring thread to this CPU
    #[arg(long, value_name = "CPU", help_heading = "Link")]
    pub cpu: Option<usize>,
}

fn ethertype(text: &str) -> Result<u16, String> {
    let digits = text.trim_start_matches("0x").trim_start_matches("0X");
    u16::from_str_radix(digits, 16)
        .ok()
        .filter(|t| *t >= 0x0600)
        .ok_or_else(|| format!("`{text}` is no EtherType; try 0x88B5"))
}

impl LinkArgs {
    /// The link's configuration.
    pub fn config(&self) -> LinkConfig {
        LinkConfig {
            backend: self.link,
            encap: self.encap,
            ethertype: self.ethertype,
            priority: self.priority,
            busy_poll: self.wait == WaitStyle::Busy,
            udp: UdpConfig { address: self.udp_address, peers: Peers::named(&self.udp_peer) },
            ..LinkConfig::new(&self.interface)
        }
    }

    /// Middlewares around it.
    pub fn extras(&self) -> Extras {
        Extras { faults: self.faults, pcap: None }
    }
}

/// Which memory is measured.
#[derive(Args, Clone, Debug)]
pub struct RegionArgs {
    /// The manager, for example https://10.0.0.1:7440
    #[arg(
        long,
        value_name = "URL",
        env = "CXLOE_MANAGER",
        default_value = "http://127.0.0.1:7440",
        help_heading = "Memory"
    )]
    pub manager: String,

    /// Use this region of this compute node [default: a new one, destroyed afterwards]
    #[arg(long, value_name = "NAME", help_heading = "Memory")]
    pub region: Option<String>,

    /// Size of the new region
    #[arg(long, value_name = "SIZE", default_value = "256M", help_heading = "Memory")]
    pub size: ByteSize,

    /// Memory nodes that the new region is spread over: 1, 2, 3, 4, 6, 8, 12 or 16
    #[arg(long, value_name = "WAYS", default_value_t = Ways::One, conflicts_with = "region", help_heading = "Memory")]
    pub ways: Ways,

    /// In chunks of this size: 256 to 16K
    #[arg(long, value_name = "BYTES", default_value_t = Granularity::PAGE, conflicts_with = "region", help_heading = "Memory")]
    pub granularity: Granularity,

    /// Pace requests by what memory nodes say of their queues, and by trusted PFC frames
    #[arg(long, value_name = "on|off", default_value = "on", help_heading = "Memory")]
    pub rate_control: Switch,

    /// Whether 802.1Qbb (PFC) frames on the cable slow requests down: ignore, or trust whoever is at the cable
    #[arg(long, value_name = "ignore|trust", default_value = "ignore", help_heading = "Memory")]
    pub pfc: PfcTrust,

    /// The file by which this compute node is known to the manager, as `cn-agent join` has written it [default: the one for
    /// this interface in --data-dir, if there is one]
    #[arg(long, env = "CXLOE_IDENTITY", value_name = "FILE", help_heading = "Memory")]
    pub identity: Option<PathBuf>,

    /// This compute node's key, made if there is none in FILE [default: the one beside its identity; else, by a Unix socket or
    /// TLS, one for this run]
    #[arg(long, env = "CXLOE_NODE_KEY", value_name = "FILE", help_heading = "Memory")]
    pub node_key: Option<PathBuf>,

    /// Where `cn-agent join` has put both [default: /var/lib/cxloe as root, else ~/.local/state/cxloe]
    #[arg(long, env = "CXLOE_DATA_DIR", value_name = "DIR", help_heading = "Memory")]
    pub data_dir: Option<PathBuf>,

    /// Without keys: frames carry a checksum and are not sealed
    #[arg(long, help_heading = "Memory")]
    pub insecure: bool,

    /// The memory node does not answer bare echoes: measure without the limit
    #[arg(long, help_heading = "Memory")]
    pub no_echo: bool,
}

/// Where results go besides the terminal.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// Write the results as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,

    /// Write the results as CSV, a row each
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub csv: Option<PathBuf>,

    /// Write a page with pictures
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,

    /// Write the full histograms as an HdrHistogram log
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hdr: Option<PathBuf>,
}

impl OutputArgs {
    /// Prints the tables and writes what was asked for.
    pub fn write(&self, report: &Report, samples: &[&Samples]) -> Result<(), Failure> {
        to_stdout!("{}", report.tables());
        if let Some(path) = &self.json {
            report.write_json(path)?;
            to_stdout!("results:    {}", path.display());
        }
        if let Some(path) = &self.csv {
            write(path, report.csv().as_bytes())?;
            to_stdout!("table:      {}", path.display());
        }
        if let Some(path) = &self.html {
            write(path, report.html()?.as_bytes())?;
            to_stdout!("page:       {}", path.display());
        }
        if let Some(path) = &self.hdr {
            let mut log = Vec::new();
            write_histogram_log(&mut log, samples)?;
            write(path, &log)?;
            to_stdout!("histograms: {}", path.display());
        }
        Ok(())
    }
}

/// Writes a file; the error names it.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|e| format!("cannot write {}: {e}", path.display()).into())
}

impl RegionArgs {
    /// By what this compute node is known, and what its sessions are sealed with.
    pub fn access(&self) -> Access {
        Access {
            identity: self.identity.clone(),
            node_key: self.node_key.clone(),
            data_dir: self.data_dir.clone(),
            insecure: self.insecure,
        }
    }

    /// How requests are paced.
    pub fn rates(&self) -> Option<RateControl> {
        let rates = RateControl { trust_pfc: self.pfc == PfcTrust::Trust, ..RateControl::default() };
        (self.rate_control == Switch::On).then_some(rates)
    }
}

/// A target on this thread, and what has to be given back after it.
pub struct Session {
    /// What is measured.
    pub target: Target,
    /// The link it goes over.
    pub link: LinkInfo,
    /// How its frames are protected.
    pub frames: String,
    lease: Lease,
}

impl Session {
    /// Connects and readies the target.
    pub fn open(link: &LinkArgs, region: &RegionArgs, interrupt: Interrupt) -> Result<Session, Failure> {
        if let Some(cpu) = link.cpu {
            machine::pin(cpu)?;
        }
        let Connected { mut port, region: attached, hpa, peer, lease } = Connected::open(&ConnectOptions {
            name: "bench".into(),
            link: link.config(),
            extras: link.extras(),
            wait: link.wait,
            manager: region.manager.clone(),
            region: region.region.clone(),
            size: region.size.0,
            ways: region.ways,
            granularity: region.granularity,
            timeout: Duration::from_secs(10),
            rate_control: region.rates(),
            access: region.access(),
        })?;
        let info = port.link().info().clone();
        let frames = frames(&mut port);
        let target = Target {
            port,
            hpa,
            bytes: attached.size,
            peer,
            ethertype: link.ethertype,
            echo: !region.no_echo,
            cores: None,
            memory_node: None,
            interrupt: Some(interrupt),
        };
        Ok(Session { target, link: info, frames, lease })
    }

    /// The target, and the session to be put together again with it.
    pub fn into_parts(self) -> (Target, impl FnOnce(Target) -> Session) {
        let Session { target, link, frames, lease } = self;
        (target, |target| Session { target, link, frames, lease })
    }

    /// Ends the session in order and gives everything back.
    pub fn close(self) -> Result<(), Failure> {
        let closed = self.target.port.close();
        self.lease.end()?;
        Ok(closed?)
    }
}

/// A bar for `steps` steps, on a terminal only.
pub fn bar(steps: u64, unit: Unit) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let template = match unit {
        Unit::Steps => "{spinner} [{bar:32}] {pos}/{len} {msg}",
        Unit::Bytes => "{spinner} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// What a bar counts.
pub enum Unit {
    /// Steps of a measurement.
    Steps,
    /// Bytes.
    Bytes,
}

/// How the frames of a port's sessions are protected.
pub fn frames(port: &mut Port) -> String {
    port.engine().sessions().first().map(|session| session.integrity.clone()).unwrap_or_default()
}

/// An empty report about `link`, over which `frames` went; see [`Link::frames`].
pub fn report(
    link: &LinkInfo,
    frames: &str,
    interfaces: Vec<String>,
    wait: WaitStyle,
    bounce: Option<f64>,
) -> Report {
    let machine = Machine { bounce_ns: bounce, ..Machine::describe() };
    let wait = wait.to_string();
    let style = wait.split(':').next().unwrap_or_default().to_owned();
    let (backend, frames) = (link.backend.into(), frames.to_owned());
    Report::new(machine, Link { backend, interfaces, mtu: link.mtu as u32, wait: style, frames })
}
