//! Network of a quickstart: two namespaces joined by a cable, or the loopback interface with UDP if namespaces are not
//! permitted.

use std::net::UdpSocket;
use std::path::Path;

use cxloe_fabric::model::Mac;
use cxloe_lab::{Host, Lab};
use cxloe_link::outer::UdpAddress;
use cxloe_link::{Backend, LinkConfig, UdpConfig, udp};

use super::Failure;
use super::agent;
use super::daemons::{DaemonHost, MANAGER};

/// UDP port of the agent in a lab; the bench has the same address and the default port.
const AGENT_PORT: u16 = 63_670;

/// Network of a quickstart, with the addresses of manager, memory node, agent and bench.
pub struct QuickstartNetwork {
    /// Place in which the daemons are started.
    pub ground: Box<dyn DaemonHost>,
    /// Description of the network for the user, as text.
    pub words: String,
    /// Address and port at which the manager listens.
    pub listen: String,
    /// Interface of the memory node, and its address over UDP; `None` for raw frames.
    pub memory_node: (String, Option<UdpAddress>),
    /// Interface of the agent, and its address over UDP; `None` for raw frames.
    agent: (String, Option<UdpAddress>),
    pub bench: LinkConfig,
}

impl QuickstartNetwork {
    /// Makes two namespaces and moves the calling thread to that of the compute node.
    pub fn lab(backend: Backend, mtu: u32) -> Result<QuickstartNetwork, Failure> {
        let lab = Lab::builder()
            .namespace("cn")
            .namespace("mn")
            .veth("cn", "cn0", "mn", "mn0")
            .macvlan("cn0", "cn", "cn1")
            .mtu(mtu)
            .address("cn0", "10.77.0.1/24")
            .address("mn0", "10.77.0.2/24")
            .build()?;
        lab.namespace("cn")?.clone().join()?;
        let agent = match backend {
            Backend::Udp => ("cn0", Some(UdpAddress { port: AGENT_PORT, ..UdpAddress::default() })),
            _ => ("cn1", None),
        };
        Ok(QuickstartNetwork {
            ground: Box::new(lab),
            words: format!("namespaces cn and mn, joined by a veth pair (cn0, mn0), MTU {mtu}"),
            listen: MANAGER.trim_start_matches("http://").into(),
            memory_node: ("mn0".into(), None),
            agent: (agent.0.into(), agent.1),
            bench: LinkConfig { backend, ..LinkConfig::new("cn0") },
        })
    }

    /// Uses the loopback interface, with free UDP ports.
    pub fn loopback() -> Result<QuickstartNetwork, Failure> {
        // All sockets stay open until every port is chosen, so that the ports differ.
        let sockets: Vec<UdpSocket> =
            (0..4).map(|_| UdpSocket::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
        let mut free = Vec::new();
        for socket in &sockets {
            free.push(socket.local_addr()?);
        }
        let at = |index: usize| UdpAddress { ip: Some(free[index].ip()), port: free[index].port() };
        Ok(QuickstartNetwork {
            ground: Box::new(Host::default()),
            words: "the loopback interface of this machine, frames in UDP".into(),
            listen: free[0].to_string(),
            memory_node: ("lo".into(), Some(at(1))),
            agent: ("lo".into(), Some(at(2))),
            bench: LinkConfig {
                backend: Backend::Udp,
                udp: UdpConfig { address: at(3), ..UdpConfig::default() },
                ..LinkConfig::new("lo")
            },
        })
    }

    /// URL of the manager's socket in `state`, which gives the user who runs the quickstart administrator
    /// rights.
    pub fn manager(state: &Path) -> String {
        format!("unix:{}", state.join("gmm.sock").display())
    }

    /// Options of the agent in this network.
    pub fn agent(&self, state: &Path) -> Result<agent::AgentSetup, Failure> {
        let (interface, address) = self.agent.clone();
        let (link, own) = match address {
            Some(address) => {
                let config = LinkConfig {
                    backend: Backend::Udp,
                    udp: UdpConfig { address, ..UdpConfig::default() },
                    ..LinkConfig::new(&interface)
                };
                let arguments = ["--link", "udp", "--udp-address", &address.to_string()];
                (arguments.map(String::from).to_vec(), Mac::from(udp::own_mac(&config)?.0))
            }
            None => {
                let own = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?;
                (["--link", "packet"].map(String::from).to_vec(), own.trim().parse()?)
            }
        };
        Ok(agent::AgentSetup { interface, link, own, manager: Self::manager(state) })
    }
}
