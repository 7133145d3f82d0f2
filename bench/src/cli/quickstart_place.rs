//! Where a quickstart takes place: in two namespaces joined by a cable, or, where no namespaces can be had, on this
//! machine's loopback interface, over UDP.

use std::net::UdpSocket;
use std::path::Path;

use cxloe_fabric::model::Mac;
use cxloe_lab::{Host, Lab};
use cxloe_link::outer::UdpAddress;
use cxloe_link::{Backend, LinkConfig, UdpConfig, udp};

use super::Failure;
use super::agent;
use super::daemons::{Ground, MANAGER};

/// The agent's port in a lab, where the bench has the usual one of the same address.
const AGENT_PORT: u16 = 63_670;

/// The place, and what each party is told of it.
pub struct Place {
    /// Where programs are started.
    pub ground: Box<dyn Ground>,
    /// What there is, in words.
    pub words: String,
    /// The manager's address and port.
    pub listen: String,
    /// The memory node's interface, and where it listens over UDP.
    pub memory_node: (String, Option<UdpAddress>),
    /// The agent's interface, and where it listens over UDP.
    agent: (String, Option<UdpAddress>),
    /// The bench's link.
    pub bench: LinkConfig,
}

impl Place {
    /// Two namespaces; the calling thread moves to the compute node's.
    pub fn lab(backend: Backend, mtu: u32) -> Result<Place, Failure> {
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
        Ok(Place {
            ground: Box::new(lab),
            words: format!("namespaces cn and mn, joined by a veth pair (cn0, mn0), MTU {mtu}"),
            listen: MANAGER.trim_start_matches("http://").into(),
            memory_node: ("mn0".into(), None),
            agent: (agent.0.into(), agent.1),
            bench: LinkConfig { backend, ..LinkConfig::new("cn0") },
        })
    }

    /// The loopback interface, at ports that are free now.
    pub fn loopback() -> Result<Place, Failure> {
        // All are held until all are known, so that they differ.
        let sockets: Vec<UdpSocket> =
            (0..4).map(|_| UdpSocket::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
        let mut free = Vec::new();
        for socket in &sockets {
            free.push(socket.local_addr()?);
        }
        let at = |index: usize| UdpAddress { ip: Some(free[index].ip()), port: free[index].port() };
        Ok(Place {
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

    /// The manager's URL on this machine: its socket, in `state`, where who runs all of this is an administrator.
    pub fn manager(state: &Path) -> String {
        format!("unix:{}", state.join("gmm.sock").display())
    }

    /// What the agent is told.
    pub fn agent(&self, state: &Path) -> Result<agent::Place, Failure> {
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
        Ok(agent::Place { interface, link, own, manager: Self::manager(state) })
    }
}
