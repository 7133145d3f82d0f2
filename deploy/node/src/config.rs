//! Complete options of a node (memory node or compute node): [`NodeConfig`], which is checked when it is created.

use std::path::PathBuf;
use std::sync::Arc;

use cxloe_daemon::command_line::Failure;
use cxloe_daemon::join::mac_of;
use cxloe_daemon::metrics::MetricsAddress;
use cxloe_daemon::options::{self, Protection, wrong};
use cxloe_daemon::{ConfigError, EtherType, LogFormat, default_paths, is_outside_kernel, log};
use cxloe_fabric::model::{ByteSize, Mac, Name};
use cxloe_link::fault::FaultPlan;
use cxloe_link::keys::{KeyFileError, PeerKey, node_key};
use cxloe_link::outer::{Peer, Peers, UdpAddress};
use cxloe_link::udp::own_mac;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Encap, LinkConfig, UdpConfig};
use cxloe_wire::frame::ETHERTYPE_DEFAULT;
use cxloe_wire::session::NodeKey;

use crate::settings::{DiagnosticsSettings, LinkSettings, NodeSettings};

/// Default size in bytes at which a recording of frames stops.
const PCAP_BYTES_DEFAULT: u64 = 1 << 30;

/// Complete and checked options that both kinds of node have. The manager is not among them: a memory node may have a
/// static map instead.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub name: Name,
    /// Folder of the files that hold the node's state across restarts.
    pub data_dir: PathBuf,
    /// File with this node's certificate for the manager, if it has joined.
    pub identity: Option<PathBuf>,
    pub interface: String,
    /// Kernel interface by which frames are sent and received.
    pub backend: Backend,
    pub encap: Encap,
    pub udp_address: UdpAddress,
    pub peers: Vec<Peer>,
    /// Waiting style of a worker without work.
    pub wait: WaitStyle,
    /// 802.1Q priority, 0 to 7; `None`: untagged.
    pub priority: Option<u8>,
    /// EtherType of the fabric's frames on a raw link.
    pub ethertype: u16,
    /// File with the pre-shared key of all nodes; `None` if there is none.
    pub key_file: Option<PathBuf>,
    /// File with this node's key; `None` if the node has none.
    pub node_key: Option<PathBuf>,
    pub peer_keys: Vec<PeerKey>,
    /// True if frames are not sealed with this node's key even if it has one.
    pub insecure: bool,
    /// Address at which metrics are served; `None`: metrics are not served.
    pub metrics: Option<MetricsAddress>,
    /// Filter of log lines: a level, or one per module.
    pub log: String,
    pub log_format: LogFormat,
    /// Injected faults, as text; see [`NodeConfig::fault_plan`].
    pub faults: Option<String>,
    /// File in which frames are recorded; `None`: no recording.
    pub pcap: Option<PathBuf>,
    /// Size of the recording at which it stops, in bytes.
    pub pcap_bytes_max: u64,
}

impl NodeConfig {
    /// Checks the settings and completes them with defaults. `unnamed` is the name of a node whose settings contain no
    /// name and whose host name is not valid.
    pub fn new(
        unnamed: &str,
        node: NodeSettings,
        link: LinkSettings,
        diagnostics: DiagnosticsSettings,
    ) -> Result<NodeConfig, ConfigError> {
        let name = options::node_name(node.name, unnamed)?;
        let interface = options::interface(link.interface)?;
        let is_chosen =
            !link.link.unwrap_or_default().is_auto() || link.encap.unwrap_or_default() != Encap::None;
        if is_outside_kernel(&interface) && is_chosen {
            return Err(wrong(
                "interface",
                "a device of DPDK is a link of its own: leave --link and --encap out",
            ));
        }
        if let Some(url) = &node.manager {
            cxloe_fabric::Client::new(url).map_err(|error| wrong("manager", error))?;
        }
        if let Some(plan) = &diagnostics.faults {
            plan.parse::<FaultPlan>().map_err(|error| wrong("faults", error))?;
        }
        Ok(NodeConfig {
            name,
            data_dir: node.data_dir.unwrap_or_else(default_paths::data_dir),
            identity: node.identity,
            interface,
            backend: link.link.unwrap_or_default(),
            encap: link.encap.unwrap_or_default(),
            udp_address: link.udp_address.unwrap_or_default(),
            peers: link.udp_peer.unwrap_or_default(),
            wait: link.wait.unwrap_or_default(),
            priority: options::priority(link.priority)?,
            ethertype: options::ethertype(link.ethertype, ETHERTYPE_DEFAULT)?,
            key_file: link.key_file,
            node_key: link.node_key,
            peer_keys: link.peer_key.unwrap_or_default(),
            insecure: link.insecure.unwrap_or(false),
            metrics: diagnostics.metrics,
            log: diagnostics.log.unwrap_or_else(|| log::FILTER_DEFAULT.into()),
            log_format: diagnostics.log_format.unwrap_or_default(),
            faults: diagnostics.faults,
            pcap: diagnostics.pcap,
            pcap_bytes_max: diagnostics.pcap_max.map_or(PCAP_BYTES_DEFAULT, |size| size.0),
        })
    }

    /// Converts the options back to settings, for the file of a node that registers with `manager`.
    pub fn settings(&self, manager: Option<String>) -> (NodeSettings, LinkSettings, DiagnosticsSettings) {
        let node = NodeSettings {
            name: Some(self.name.to_string()),
            data_dir: Some(self.data_dir.clone()),
            manager,
            identity: self.identity.clone(),
        };
        let link = LinkSettings {
            interface: Some(self.interface.clone()),
            link: Some(self.backend),
            encap: Some(self.encap),
            udp_address: (self.udp_address != UdpAddress::default()).then_some(self.udp_address),
            udp_peer: (!self.peers.is_empty()).then(|| self.peers.clone()),
            wait: Some(self.wait),
            priority: self.priority,
            ethertype: Some(EtherType(self.ethertype)),
            key_file: self.key_file.clone(),
            node_key: self.node_key.clone(),
            peer_key: (!self.peer_keys.is_empty()).then(|| self.peer_keys.clone()),
            insecure: self.insecure.then_some(true),
        };
        let diagnostics = DiagnosticsSettings {
            metrics: self.metrics.clone(),
            log: Some(self.log.clone()),
            log_format: Some(self.log_format),
            faults: self.faults.clone(),
            pcap: self.pcap.clone(),
            pcap_max: Some(ByteSize(self.pcap_bytes_max)),
        };
        (node, link, diagnostics)
    }

    /// Protection of the frames of this node's sessions; `program` is named in the error.
    ///
    /// # Errors
    /// [`ConfigError::Unprotected`]: there is none, and it was not switched off explicitly.
    pub fn protection(&self, program: &'static str) -> Result<Protection, ConfigError> {
        options::protection(program, self.node_key.is_some(), self.key_file.is_some(), self.insecure)
    }

    /// This node's key; `None` if it has none, or if `insecure` is set.
    pub fn own_key(&self) -> Result<Option<Arc<NodeKey>>, KeyFileError> {
        let path = self.node_key.as_deref().filter(|_| !self.insecure);
        path.map(|path| node_key(path).map(Arc::new)).transpose()
    }

    /// True if frames are sent inside UDP datagrams, by the kernel or by the node itself.
    pub fn is_over_udp(&self) -> bool {
        self.backend == Backend::Udp || self.encap == Encap::Udp
    }

    /// Options that only a `udp` link has; each call creates a new table of peers.
    pub fn udp(&self) -> UdpConfig {
        UdpConfig { address: self.udp_address, peers: Peers::named(&self.peers) }
    }

    /// Options of the link, or of its first queue, with the UDP peers of `udp`.
    pub fn link(&self, udp: UdpConfig) -> LinkConfig {
        LinkConfig {
            backend: self.backend,
            encap: self.encap,
            ethertype: self.ethertype,
            priority: self.priority,
            busy_poll: self.wait == WaitStyle::Busy,
            udp,
            ..LinkConfig::new(&self.interface)
        }
    }

    /// Faults to inject into the link; `None` without any.
    pub fn fault_plan(&self) -> Option<FaultPlan> {
        self.faults.as_ref().map(|plan| plan.parse().expect("checked when the options were"))
    }

    /// File for the recording of frames, and the size at which it stops, in bytes.
    pub fn recording(&self) -> Option<(PathBuf, u64)> {
        self.pcap.clone().map(|path| (path, self.pcap_bytes_max))
    }

    /// MAC address that identifies this node.
    ///
    /// # Errors
    /// The interface does not exist, or has no such address.
    pub fn mac(&self) -> Result<Mac, Failure> {
        match self.is_over_udp() {
            true => {
                let link = LinkConfig { udp: self.udp(), ..LinkConfig::new(&self.interface) };
                own_mac(&link).map_err(Failure::failed)
            }
            // Only the DPDK plug-in can read the address.
            false if is_outside_kernel(&self.interface) => {
                cxloe_link::own_mac(&LinkConfig::new(&self.interface)).map_err(Failure::failed)
            }
            false => mac_of(&self.interface),
        }
    }
}
