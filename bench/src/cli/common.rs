//! Options, progress bars and reports that all measuring commands share.

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
use cxloe_link::{Backend, Encap, LinkConfig, LinkInfo, Middlewares, UdpConfig};
use cxloe_port::port::Port;
use cxloe_port::rate_control::RateControl;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::Failure;
use cxloe_lab::Interrupt;
use cxloe_measure::MeasuredRegion;
use cxloe_measure::machine::{self, Machine};
use cxloe_measure::report::{Link, Report, Samples, write_histogram_log};
use cxloe_port::connect::{Access, ConnectOptions, Connected, Lease};

/// Name of sessions with sealed frames in reports and output.
pub const SEALED: &str = "sealed";
/// Name of sessions whose frames have a plain checksum only.
pub const INSECURE: &str = "insecure";
/// Interval at which a spinner turns.
const SPINNER_STEP: Duration = Duration::from_millis(100);

/// Options of the link to the memory node.
#[derive(Args, Clone, Debug)]
pub struct LinkArgs {
    /// The network interface; its MAC address is this compute node's CN id
    #[arg(short, long, value_name = "NAME", help_heading = "Link")]
    pub interface: String,

    /// auto selects by interface, auto:latency the fastest for single lines, auto:throughput the one with the most
    /// frames per second; udp puts frames into UDP, which both ends have to do
    #[arg(long, value_name = Backend::VALUES, default_value = "auto", help_heading = "Link")]
    pub link: Backend,

    /// Encapsulation of frames on a raw link: none (Ethernet), or udp (packets like those of link udp, with
    /// headers that this program writes)
    #[arg(long, value_name = Encap::VALUES, default_value_t, help_heading = "Link")]
    pub encap: Encap,

    /// Over UDP: local address of this node, as ADDRESS, ADDRESS:PORT or :PORT [default: the interface's first address,
    /// port 63669]
    #[arg(long, value_name = "ADDRESS", default_value_t, hide_default_value = true, help_heading = "Link")]
    pub udp_address: UdpAddress,

    /// Over UDP: address of the node with this MAC, which takes precedence over the manager's; repeatable
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

    /// Faults to inject, for example drop=1%,reorder=0.5%,seed=7
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

    /// Layers around the link that record frames and inject faults.
    pub fn extras(&self) -> Middlewares {
        Middlewares { faults: self.faults, pcap: None }
    }
}

/// Options of the region that is measured.
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

    /// Size of the chunks in which the new region is spread: 256 to 16K
    #[arg(long, value_name = "BYTES", default_value_t = Granularity::PAGE, conflicts_with = "region", help_heading = "Memory")]
    pub granularity: Granularity,

    /// Pace requests by congestion signals of memory nodes, and by trusted PFC frames
    #[arg(long, value_name = "on|off", default_value = "on", help_heading = "Memory")]
    pub rate_control: Switch,

    /// Whether 802.1Qbb (PFC) frames on the cable slow requests down: ignore, or trust every station on the cable
    #[arg(long, value_name = "ignore|trust", default_value = "ignore", help_heading = "Memory")]
    pub pfc: PfcTrust,

    /// Identity of this compute node at the manager, a file written by `cn-agent join` [default: the one for this
    /// interface in --data-dir, if there is one]
    #[arg(long, env = "CXLOE_IDENTITY", value_name = "FILE", help_heading = "Memory")]
    pub identity: Option<PathBuf>,

    /// Key of this compute node, made if FILE does not exist [default: the key beside the identity; if there
    /// is none, over a Unix socket or TLS, a new key for this run]
    #[arg(long, env = "CXLOE_NODE_KEY", value_name = "FILE", help_heading = "Memory")]
    pub node_key: Option<PathBuf>,

    /// The pre-shared key of the fabric, which seals the sessions of which one end has no key of its own
    #[arg(long, env = "CXLOE_KEY_FILE", value_name = "FILE", help_heading = "Memory")]
    pub key_file: Option<PathBuf>,

    /// Folder into which `cn-agent join` has put identity and key [default: /var/lib/cxloe as root, else
    /// ~/.local/state/cxloe]
    #[arg(long, env = "CXLOE_DATA_DIR", value_name = "DIR", help_heading = "Memory")]
    pub data_dir: Option<PathBuf>,

    /// Without a key of its own: frames carry a checksum and are not sealed, but for --key-file
    #[arg(long, help_heading = "Memory")]
    pub insecure: bool,

    /// The memory node does not answer bare echoes: measure without this lower limit
    #[arg(long, help_heading = "Memory")]
    pub no_echo: bool,
}

/// Files that results are written to besides the terminal.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// Write the results as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,

    /// Write the results as CSV, one row for each measurement
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
    /// Prints the tables of the report and writes the files that the options name.
    pub fn write(&self, report: &Report, samples: &[&Samples]) -> Result<(), Failure> {
        to_stdout!("{}", report.tables());
        put("results:", &self.json, || Ok(report.to_json().into()))?;
        put("table:", &self.csv, || Ok(report.csv().into()))?;
        put("page:", &self.html, || Ok(report.html()?.into()))?;
        self.write_histograms(samples)
    }

    /// Writes the histograms, if an option names their file.
    pub fn write_histograms(&self, samples: &[&Samples]) -> Result<(), Failure> {
        put("histograms:", &self.hdr, || {
            let mut log = Vec::new();
            write_histogram_log(&mut log, samples)?;
            Ok(log)
        })
    }
}

/// Writes a file of results if an option names it, and prints its path.
pub fn put(
    label: &str,
    path: &Option<PathBuf>,
    content: impl FnOnce() -> Result<Vec<u8>, Failure>,
) -> Result<(), Failure> {
    if let Some(path) = path {
        write(path, &content()?)?;
        to_stdout!("{label:<11} {}", path.display());
    }
    Ok(())
}

/// Writes results as JSON if the option `--json` names a file.
pub fn write_json(path: &Option<PathBuf>, results: &impl Serialize) -> Result<(), Failure> {
    match path {
        Some(path) => write(path, &serde_json::to_vec_pretty(results)?),
        None => Ok(()),
    }
}

/// Runs `measure` with a new folder for the files of its daemons. The folder is kept if the measurement fails, unless by
/// Ctrl-C.
pub fn in_folder<T>(
    prefix: &str,
    interrupt: &Interrupt,
    measure: impl FnOnce(&Path) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let folder = tempfile::Builder::new().prefix(prefix).tempdir()?;
    measure(folder.path()).map_err(|error| match interrupt.check() {
        Ok(()) => format!("{error}; the logs are in {}", folder.keep().display()).into(),
        Err(_) => error,
    })
}

/// Writes a file; an error names the path.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|e| format!("cannot write {}: {e}", path.display()).into())
}

impl RegionArgs {
    /// Options of a connection to the region over `link`.
    pub fn connection(&self, link: &LinkArgs) -> ConnectOptions {
        let rates = RateControl { trust_pfc: self.pfc == PfcTrust::Trust, ..RateControl::default() };
        ConnectOptions {
            name: "bench".into(),
            link: link.config(),
            extras: link.extras(),
            wait: link.wait,
            manager: self.manager.clone(),
            region: self.region.clone(),
            size: self.size.0,
            ways: self.ways,
            granularity: self.granularity,
            timeout: Duration::from_secs(10),
            rate_control: (self.rate_control == Switch::On).then_some(rates),
            access: Access {
                identity: self.identity.clone(),
                node_key: self.node_key.clone(),
                key_file: self.key_file.clone(),
                data_dir: self.data_dir.clone(),
                insecure: self.insecure,
            },
        }
    }
}

/// Measured region, with the resources to release after the measurement.
pub struct Session {
    pub target: MeasuredRegion,
    /// Description of the link for reports.
    pub link: LinkInfo,
    /// Protection of the session's frames, [`SEALED`] or [`INSECURE`].
    pub frames: String,
    lease: Lease,
}

impl Session {
    /// Connects to the memory node and prepares the region.
    pub fn open(link: &LinkArgs, region: &RegionArgs, interrupt: Interrupt) -> Result<Session, Failure> {
        if let Some(cpu) = link.cpu {
            machine::pin(cpu)?;
        }
        let Connected { mut port, region: attached, hpa, peer, lease } =
            Connected::open(&region.connection(link))?;
        let info = port.link().info().clone();
        let frames = frames(&mut port);
        let target = MeasuredRegion {
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

    /// Splits the session into the measured region, which measurements take by value, and a function that
    /// rebuilds the session from it.
    pub fn into_parts(self) -> (MeasuredRegion, impl FnOnce(MeasuredRegion) -> Session) {
        let Session { target, link, frames, lease } = self;
        (target, |target| Session { target, link, frames, lease })
    }

    /// Closes the session and ends the lease of the region, even if closing fails.
    pub fn close(self) -> Result<(), Failure> {
        let closed = self.target.port.close();
        self.lease.end()?;
        Ok(closed?)
    }
}

/// Progress bar of `steps` steps, hidden if standard error is no terminal.
pub fn bar(steps: u64, unit: ProgressUnit) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let template = match unit {
        ProgressUnit::Steps => "{spinner} [{bar:32}] {pos}/{len} {msg}",
        ProgressUnit::Bytes => "{spinner} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Moves a progress bar on by a step, and shows `what` beside it.
pub fn step(bar: &ProgressBar, what: &str) {
    bar.set_message(what.to_owned());
    bar.inc(1);
}

/// Runs `measure` while a spinner shows `what` and the elapsed time. The spinner is hidden if standard error is no
/// terminal.
pub fn shown<T>(what: impl Into<String>, measure: impl FnOnce() -> T) -> T {
    let spinner = ProgressBar::new_spinner().with_message(what.into());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(SPINNER_STEP);
    let measured = measure();
    spinner.finish_and_clear();
    measured
}

/// Unit in which a progress bar shows its steps.
pub enum ProgressUnit {
    Steps,
    Bytes,
}

/// Protection of the frames of the port's sessions, [`SEALED`] or [`INSECURE`].
pub fn frames(port: &mut Port) -> String {
    port.engine().sessions().first().map(|session| session.integrity.clone()).unwrap_or_default()
}

/// Makes an empty report on measurements over `link`; `frames` is the protection of the link's frames, see
/// [`Link::frames`].
pub fn report(
    link: &LinkInfo,
    frames: &str,
    interfaces: Vec<String>,
    wait: WaitStyle,
    bounce: Option<f64>,
) -> Report {
    let machine = Machine { bounce_ns: bounce, ..Machine::describe() };
    let (backend, frames) = (link.backend.into(), frames.to_owned());
    Report::new(machine, Link { backend, interfaces, mtu: link.mtu as u32, wait: style(wait), frames })
}

/// Wait style in reports, without a time.
pub fn style(wait: WaitStyle) -> String {
    wait.to_string().split(':').next().unwrap_or_default().to_owned()
}

/// Parses the link of nodes in a lab. UDP is refused: such nodes have no IP addresses.
pub fn raw_link(text: &str) -> Result<Backend, String> {
    match text.parse()? {
        Backend::Udp => Err("choose a raw link: auto, xdp, packet or pnet".into()),
        link => Ok(link),
    }
}
