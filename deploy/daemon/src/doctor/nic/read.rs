//! Reads the settings of a [`Nic`]: from sysfs if they are there, the others from the driver and the kernel.

use nix::net::if_::if_nametoindex;

use super::{Nic, Presence, Queues, dcb, ethtool::Ethtool};
use crate::doctor::Host;
use crate::interface_name;

/// Hardware type of Ethernet (ARPHRD_ETHER) and the flag of an interface that is up (IFF_UP).
const ETHERNET: u32 = 1;
const UP: u32 = 1;

impl Nic {
    /// Reads the interface `name`. If `host` is the running machine, `name` may be an alternative name, and
    /// the settings that the driver and the kernel have are read as well, in the network namespace of this
    /// thread.
    pub fn read(host: &Host, name: &str) -> Nic {
        let name = &if host.is_real() { interface_name(name) } else { name.to_owned() };
        let nic = Nic { presence: presence(host, name), ..Nic::of_sysfs(host, name) };
        if nic.presence != Presence::Here || !host.is_real() { nic } else { nic.with_driver() }
    }

    fn of_sysfs(host: &Host, name: &str) -> Nic {
        let at = |file: &str| format!("sys/class/net/{name}/{file}");
        let flags =
            host.text(at("flags")).and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok());
        let queues = host.names(at("queues")).iter().filter(|queue| queue.starts_with("rx-")).count() as u32;
        Nic {
            name: name.to_owned(),
            presence: Presence::Here,
            ethernet: host.number::<u32>(at("type")) == Some(ETHERNET),
            up: flags.is_some_and(|flags| flags & UP != 0),
            // The kernel refuses to read `carrier` while the interface is down.
            carrier: host.number::<u32>(at("carrier")) == Some(1),
            mtu: host.number(at("mtu")).unwrap_or(0),
            // The kernel reports -1 for an unknown speed.
            speed: host
                .number::<i64>(at("speed"))
                .and_then(|speed| u32::try_from(speed).ok())
                .filter(|speed| *speed > 0),
            half_duplex: host.text(at("duplex")).is_some_and(|duplex| duplex == "half"),
            master: host.link_name(at("master")),
            numa_node: host.number(at("device/numa_node")),
            driver: host.link_name(at("device/driver")).unwrap_or_default(),
            deferred_interrupts: host.number(at("napi_defer_hard_irqs")),
            queues: (queues > 0).then_some(Queues { rx: queues, rx_max: queues }),
            ..Nic::default()
        }
    }

    fn with_driver(mut self) -> Nic {
        self.pfc = dcb::pfc(&self.name);
        let Ok(ethtool) = Ethtool::open(&self.name) else { return self };
        self.description = ethtool.driver().unwrap_or_default();
        if self.driver.is_empty() {
            self.driver = self.description.name.clone();
        }
        self.offloads = ethtool.offloads();
        self.coalescing = ethtool.coalescing();
        self.rings = ethtool.rings();
        self.queues = ethtool.queues().or(self.queues);
        self.steering = ethtool.steering();
        self.merges = ethtool.merges();
        self.pauses = ethtool.pauses();
        self
    }
}

fn presence(host: &Host, name: &str) -> Presence {
    let there = host.names("sys/class/net");
    if there.iter().any(|other| other == name) {
        return Presence::Here;
    }
    if host.is_real() && if_nametoindex(name).is_ok() { Presence::Unseen } else { Presence::Absent(there) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::host::described;

    #[test]
    fn sysfs_tells_most() {
        let (root, host) = described(&[
            ("sys/class/net/eth9/type", "1\n"),
            ("sys/class/net/eth9/flags", "0x1003\n"),
            ("sys/class/net/eth9/carrier", "1\n"),
            ("sys/class/net/eth9/mtu", "9000\n"),
            ("sys/class/net/eth9/speed", "100000\n"),
            ("sys/class/net/eth9/duplex", "full\n"),
            ("sys/class/net/eth9/device/numa_node", "1\n"),
            ("sys/class/net/eth9/napi_defer_hard_irqs", "2\n"),
            ("sys/class/net/eth9/queues/rx-0/rps_cpus", "0\n"),
            ("sys/class/net/eth9/queues/rx-1/rps_cpus", "0\n"),
            ("sys/class/net/eth9/queues/tx-0/xps_cpus", "0\n"),
            ("sys/class/net/lo/mtu", "65536\n"),
        ]);
        let at = root.path().join("sys/class/net/eth9");
        std::os::unix::fs::symlink("../br0", at.join("master")).unwrap();
        std::os::unix::fs::symlink("../../bus/pci/drivers/mlx5_core", at.join("device/driver")).unwrap();
        let expected = Nic {
            name: "eth9".into(),
            ethernet: true,
            up: true,
            carrier: true,
            mtu: 9000,
            speed: Some(100_000),
            master: Some("br0".into()),
            numa_node: Some(1),
            driver: "mlx5_core".into(),
            deferred_interrupts: Some(2),
            queues: Some(Queues { rx: 2, rx_max: 2 }),
            ..Nic::default()
        };
        assert_eq!(Nic::read(&host, "eth9"), expected);
        let Presence::Absent(others) = Nic::read(&host, "eth8").presence else { panic!("it is not there") };
        assert_eq!(others, ["eth9", "lo"]);
    }

    #[test]
    fn the_loopback_interface_of_this_machine_is_no_ethernet() {
        let lo = Nic::read(&Host::default(), "lo");
        assert!(lo.offloads.iter().any(|offload| offload.name == "gro"), "{lo:?}");
        assert_eq!((lo.presence, lo.ethernet, lo.pfc), (Presence::Here, false, None));
    }
}
