//! Description of a lab, and its construction.
//!
//! The builder only records the description; [`Builder::build`] makes the namespaces and the links in the order given,
//! sets MTU and MAC addresses while all interfaces are down, adds addresses, and brings all interfaces up. If a step
//! fails, dropping the namespaces made so far removes everything.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

use crate::process::Spawner;
use crate::{Lab, LabError, Namespace, ip};

/// Limit on waiting for interfaces to report "running"; a lab works without that report.
const RUNNING_MAX: Duration = Duration::from_secs(3);
/// Interval between two checks whether the interfaces run.
const RUNNING_POLL: Duration = Duration::from_millis(2);
/// Index of the first cable's first interface: far above the indices that the kernel counts from 1 in each
/// namespace.
const FIRST_NUMBER: usize = 1000;

/// Description of a [`Lab`] to build. Interface names are unique in the whole lab, so that a name identifies
/// an interface; an interface must be described before another one refers to it.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    namespaces: Vec<String>,
    here: Option<String>,
    links: Vec<Link>,
    macs: Vec<(String, String)>,
    addresses: Vec<(String, String)>,
    mtu: Option<u32>,
    queues: Option<u32>,
}

/// A link to make; each pair of strings is a namespace and the name of an interface in that namespace.
#[derive(Debug, Clone)]
enum Link {
    Veth { a: (String, String), b: (String, String) },
    Macvlan { parent: String, namespace: String, name: String },
    Bridge { namespace: String, name: String, ports: Vec<String> },
}

impl Builder {
    /// Adds a network namespace that has only the loopback interface so far.
    #[must_use]
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespaces.push(name.into());
        self
    }

    /// Adds the namespace of the calling thread under `name`, so that programs can be started there. The namespace is
    /// not changed.
    #[must_use]
    pub fn here(mut self, name: &str) -> Self {
        self.here = Some(name.into());
        self
    }

    /// Joins two namespaces by a virtual cable (a veth pair) with an interface at each end.
    #[must_use]
    pub fn veth(mut self, namespace_a: &str, name_a: &str, namespace_b: &str, name_b: &str) -> Self {
        self.links.push(Link::Veth {
            a: (namespace_a.into(), name_a.into()),
            b: (namespace_b.into(), name_b.into()),
        });
        self
    }

    /// Adds a second station with a MAC address of its own on top of `parent`, in the same namespace or another
    /// (macvlan in bridge mode). Raw sockets on `parent` receive the frames of both stations.
    #[must_use]
    pub fn macvlan(mut self, parent: &str, namespace: &str, name: &str) -> Self {
        self.links.push(Link::Macvlan {
            parent: parent.into(),
            namespace: namespace.into(),
            name: name.into(),
        });
        self
    }

    /// Adds a switch: a bridge in `namespace` with `ports` (interfaces already described, in the same namespace).
    /// Spanning tree and multicast snooping are off, so the switch forwards even the first frame and sends no frames of
    /// its own.
    #[must_use]
    pub fn bridge(mut self, namespace: &str, name: &str, ports: &[&str]) -> Self {
        self.links.push(Link::Bridge {
            namespace: namespace.into(),
            name: name.into(),
            ports: ports.iter().map(|&p| p.into()).collect(),
        });
        self
    }

    /// Sets the MTU of every interface, in bytes (the kernel's default is 1500).
    #[must_use]
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Sets the number of transmit and receive queues of every veth end (the kernel's default is one of each).
    #[must_use]
    pub fn queues(mut self, count: u32) -> Self {
        self.queues = Some(count);
        self
    }

    /// Sets the MAC address of `interface`, written `02:00:00:00:00:01` (the kernel's default is random).
    #[must_use]
    pub fn mac(mut self, interface: &str, mac: &str) -> Self {
        self.macs.push((interface.into(), mac.into()));
        self
    }

    /// Gives `interface` an IP address with its prefix length, for example `10.77.0.1/24`.
    #[must_use]
    pub fn address(mut self, interface: &str, address: &str) -> Self {
        self.addresses.push((interface.into(), address.into()));
        self
    }

    /// Makes the lab and returns it once every interface is up.
    ///
    /// # Errors
    /// Fails on names that are unknown or used twice, a missing `ip`, missing rights, or errors of `ip`.
    pub fn build(self) -> Result<Lab, LabError> {
        let mut lab = Lab { namespaces: Vec::new(), interfaces: BTreeMap::new(), spawner: Spawner::start() };
        for name in &self.namespaces {
            if lab.namespace(name).is_ok() {
                return Err(LabError::DuplicateName { name: name.clone() });
            }
            lab.namespaces.push(Namespace::create(name)?);
        }
        for link in &self.links {
            self.add(&mut lab, link)?;
        }
        for (interface, mac) in &self.macs {
            ip::run(lab.home_of(interface)?, &["link", "set", "dev", interface, "address", mac])?;
        }
        for (interface, address) in &self.addresses {
            ip::run(lab.home_of(interface)?, &["address", "add", address, "dev", interface])?;
        }
        // Loopback is down in a new namespace, but programs need it to communicate with other programs on the same
        // node.
        for namespace in &lab.namespaces {
            ip::run(namespace, &["link", "set", "dev", "lo", "up"])?;
        }
        for (_, interface) in self.links.iter().flat_map(Link::interfaces) {
            lab.link_up(interface)?;
        }
        self.wait_until_running(&lab)?;
        if let Some(name) = &self.here {
            lab.namespaces.push(Namespace::current(name)?);
        }
        Ok(lab)
    }

    /// Waits until the kernel reports every interface as running, because it drops frames until then. The
    /// report comes shortly after both ends of a cable are up; on a busy machine, up to a second later.
    fn wait_until_running(&self, lab: &Lab) -> Result<(), LabError> {
        let deadline = Instant::now() + RUNNING_MAX;
        for namespace in &lab.namespaces {
            let home = |name: &str| lab.home_of(name).is_ok_and(|home| home.name() == namespace.name());
            let here: Vec<&str> = self
                .links
                .iter()
                .flat_map(Link::interfaces)
                .map(|(_, name)| name)
                .filter(|name| home(name))
                .collect();
            let all_run = || {
                let running =
                    |interface: &InterfaceAddress| interface.flags.contains(InterfaceFlags::IFF_RUNNING);
                let found: Vec<String> = getifaddrs()
                    .map(|all| all.filter(running).map(|interface| interface.interface_name).collect())
                    .unwrap_or_default();
                here.iter().all(|name| found.iter().any(|running| running == name))
            };
            namespace.enter_network(|| {
                while !all_run() && Instant::now() < deadline {
                    thread::sleep(RUNNING_POLL);
                }
            })?;
        }
        Ok(())
    }

    /// Makes one link and registers its interfaces in the lab; the interfaces stay down.
    fn add(&self, lab: &mut Lab, link: &Link) -> Result<(), LabError> {
        for (namespace, name) in link.interfaces() {
            let home = lab.namespaces.iter().position(|n| n.name() == namespace);
            let home = home.ok_or_else(|| LabError::UnknownNamespace { namespace: namespace.into() })?;
            if lab.interfaces.insert(name.into(), home).is_some() {
                return Err(LabError::DuplicateName { name: name.into() });
            }
        }
        match link {
            Link::Veth { a, b } => {
                let peer = lab.home_of(&b.1)?.path();
                let queues = self.queues.unwrap_or(1).to_string();
                let queues = ["numtxqueues", &queues, "numrxqueues", &queues];
                // The two ends get indices that no other interface has. If an interface has the index of its
                // peer in another namespace, the kernel does not treat it as half of a pair, and reports its
                // carrier once a second instead of at once.
                let number = (FIRST_NUMBER + lab.interfaces.len()).to_string();
                let near = ["link", "add", "name", &a.1, "index", &number];
                let far = ["type", "veth", "peer", "name", &b.1, "netns", &peer];
                ip::run(lab.home_of(&a.1)?, &[&near[..], &queues, &far, &queues].concat())?;
            }
            Link::Macvlan { parent, name, .. } => {
                let target = lab.home_of(name)?.path();
                let what = ["link", "add", "link", parent, "name", name, "netns", &target];
                let kind = ["type", "macvlan", "mode", "bridge"];
                ip::run(lab.home_of(parent)?, &[&what[..], &kind].concat())?;
            }
            Link::Bridge { name, ports, .. } => {
                let home = lab.home_of(name)?;
                let kind = ["type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0"];
                ip::run(home, &[&["link", "add", "name", name][..], &kind].concat())?;
                for port in ports {
                    lab.home_of(port)?;
                    ip::run(home, &["link", "set", "dev", port, "master", name])?;
                }
            }
        }
        if let Some(mtu) = self.mtu.map(|bytes| bytes.to_string()) {
            for (_, name) in link.interfaces() {
                ip::run(lab.home_of(name)?, &["link", "set", "dev", name, "mtu", &mtu])?;
            }
        }
        Ok(())
    }
}

impl Link {
    /// Returns the interfaces that making this link creates, as (namespace, name).
    fn interfaces(&self) -> Vec<(&str, &str)> {
        match self {
            Self::Veth { a, b } => vec![(&a.0, &a.1), (&b.0, &b.1)],
            Self::Macvlan { namespace, name, .. } | Self::Bridge { namespace, name, .. } => {
                vec![(namespace, name)]
            }
        }
    }
}
