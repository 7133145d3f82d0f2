//! Reads a [`DpdkDevice`] from the files of a [`Host`]; the addresses of interfaces are asked of the kernel, and only for
//! the running machine.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

use nix::ifaddrs::getifaddrs;
use nix::unistd::{AccessFlags, Gid, access};

use super::{DpdkDevice, Iommu, KernelInterface, Kind, PageSize, PciCard, VfioFile};
use crate::doctor::Host;

const DEVICES: &str = "sys/bus/pci/devices";
const GROUPS: &str = "sys/kernel/iommu_groups";
const PAGES: &str = "sys/kernel/mm/hugepages";
/// Beginnings of the class of network cards and of bridges, as sysfs shows it.
const NETWORK: &str = "0x02";
const BRIDGE: &str = "0x0604";
/// Name of the groups that vfio makes where there is no IOMMU.
const NO_IOMMU: &str = "vfio-noiommu";
/// Drivers beside which vfio lends the other devices of a group.
const HARMLESS: [&str; 3] = ["", "vfio-pci", "pci-stub"];
/// Group of the devices that only nodes open.
const NODES: &str = "cxloe-nodes";
/// MTU in bytes of a card that the operator has set none for.
const MTU_DEFAULT: u64 = 1500;

/// Address of this machine, behind the name of its interface.
type NamedAddress = (String, String);

/// Reads the device that `interface` names, as in `dpdk:0000:03:00.0,mtu=9000`.
pub fn device(host: &Host, interface: &str) -> DpdkDevice {
    let addresses = if host.is_real() { addresses() } else { Vec::new() };
    let card = pci_address(interface).map(|address| PciCard::read(host, address, &addresses));
    let node = card.as_ref().and_then(|card| card.numa_node);
    let on_machine = page_sizes(host, PAGES);
    let of_node = node.map(|node| page_sizes(host, &format!("sys/devices/system/node/node{node}/hugepages")));
    DpdkDevice {
        card,
        mtu: interface
            .split(',')
            .find_map(|part| part.strip_prefix("mtu=")?.parse().ok())
            .unwrap_or(MTU_DEFAULT),
        without_pages: on_machine.iter().all(|size| size.free == 0),
        pages: of_node.filter(|sizes| !sizes.is_empty()).unwrap_or(on_machine),
    }
}

/// PCI address with its domain that an interface names; `None` for a virtual device.
fn pci_address(interface: &str) -> Option<String> {
    let device = interface.strip_prefix("dpdk:").unwrap_or(interface).split(',').next()?;
    let address = device.strip_prefix("pci:").unwrap_or(device);
    match address.matches(':').count() {
        0 => None,
        1 => Some(format!("0000:{address}")),
        _ => Some(address.to_owned()),
    }
}

fn page_sizes(host: &Host, folder: &str) -> Vec<PageSize> {
    let read = |name: String| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let number = |file: &str| host.number(format!("{folder}/{name}/{file}")).unwrap_or(0);
        Some(PageSize {
            bytes: kib << 10,
            free: number("free_hugepages"),
            all: number("nr_hugepages"),
            file: format!("/{folder}/{name}/nr_hugepages"),
        })
    };
    host.names(folder).into_iter().filter_map(read).collect()
}

impl PciCard {
    fn read(host: &Host, address: String, addresses: &[NamedAddress]) -> PciCard {
        let at = |file: &str| format!("{DEVICES}/{address}/{file}");
        let kind = match host.text(at("class")) {
            None => Kind::Absent(network_cards(host)),
            Some(class) if class.starts_with(NETWORK) => Kind::Network,
            Some(class) => Kind::Other(class),
        };
        let names = interfaces(host, &address);
        let is_elsewhere = |(name, _): &NamedAddress| !names.contains(name);
        PciCard {
            kind,
            driver: driver(host, &address),
            numa_node: host.number(at("numa_node")),
            is_only_way: !addresses.is_empty() && !addresses.iter().any(is_elsewhere),
            interfaces: described(host, &names, addresses),
            verbs: !host.names(at("infiniband")).is_empty(),
            iommu: Iommu::read(host, &address),
            file: host.link_name(at("iommu_group")).and_then(|group| VfioFile::read(host, &group)),
            address,
        }
    }
}

/// Name of the driver that has a device; empty without one.
fn driver(host: &Host, address: &str) -> String {
    host.link_name(format!("{DEVICES}/{address}/driver")).unwrap_or_default()
}

/// Address of each network card, with its driver.
fn network_cards(host: &Host) -> Vec<String> {
    let is_network = |address: &String| {
        host.text(format!("{DEVICES}/{address}/class")).is_some_and(|class| class.starts_with(NETWORK))
    };
    let cards = host.names(DEVICES).into_iter().filter(is_network);
    cards.map(|address| with_driver(host, &address)).collect()
}

fn with_driver(host: &Host, address: &str) -> String {
    match driver(host, address).as_str() {
        "" => address.to_owned(),
        driver => format!("{address} ({driver})"),
    }
}

/// Names of the kernel's interfaces by a card, and of the bonds, bridges and VLANs above them.
fn interfaces(host: &Host, address: &str) -> Vec<String> {
    let device = format!("{DEVICES}/{address}");
    let mut names = host.names(format!("{device}/net"));
    // The interface of a virtio card is that of a device below it.
    for below in host.names(&device).iter().filter(|name| name.starts_with("virtio")) {
        names.extend(host.names(format!("{device}/{below}/net")));
    }
    let mut at = 0;
    while let Some(name) = names.get(at) {
        let entries = host.names(format!("sys/class/net/{name}"));
        let above = entries.iter().filter_map(|entry| entry.strip_prefix("upper_"));
        let new: Vec<String> =
            above.filter(|above| !names.iter().any(|name| name == above)).map(str::to_owned).collect();
        names.extend(new);
        at += 1;
    }
    names
}

fn described(host: &Host, names: &[String], addresses: &[NamedAddress]) -> Vec<KernelInterface> {
    let routes = default_routes(host);
    let describe = |name: &String| KernelInterface {
        name: name.clone(),
        addresses: addresses
            .iter()
            .filter(|(of, _)| of == name)
            .map(|(_, address)| address.clone())
            .collect(),
        default_route: routes.contains(name),
    };
    names.iter().map(describe).collect()
}

/// Addresses of all interfaces of this machine, except those that hold for one link or for the machine alone.
fn addresses() -> Vec<NamedAddress> {
    let all = getifaddrs().into_iter().flatten();
    let read = all.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
        Some((interface.interface_name, v4.or(v6)?))
    });
    read.filter(|(_, address)| reaches_far(address))
        .map(|(name, address)| (name, address.to_string()))
        .collect()
}

fn reaches_far(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}

/// Interfaces of the default routes, of IPv4 and IPv6.
fn default_routes(host: &Host) -> Vec<String> {
    let v4 = host.text("proc/net/route").unwrap_or_default();
    let v6 = host.text("proc/net/ipv6_route").unwrap_or_default();
    // Interface, destination, gateway, flags, two counters, metric, mask.
    let of_v4 = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [name, "00000000", _, _, _, _, _, "00000000", ..] => Some(name.to_owned()),
        _ => None,
    };
    // Destination and the length of its prefix come first, the interface last.
    let of_v6 = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [to, "00", .., name] if to.bytes().all(|digit| digit == b'0') => Some(name.to_owned()),
        _ => None,
    };
    v4.lines().filter_map(of_v4).chain(v6.lines().filter_map(of_v6)).collect()
}

impl Iommu {
    fn read(host: &Host, address: &str) -> Iommu {
        let is_real =
            |group: &String| host.text(format!("{GROUPS}/{group}/name")).is_none_or(|name| name != NO_IOMMU);
        let own = format!("{DEVICES}/{address}/iommu_group/devices");
        let is_in_the_way = |other: &String| {
            let class = host.text(format!("{DEVICES}/{other}/class")).unwrap_or_default();
            other != address
                && !class.starts_with(BRIDGE)
                && !HARMLESS.contains(&driver(host, other).as_str())
        };
        Iommu {
            groups: host.names(GROUPS).iter().filter(|group| is_real(group)).count(),
            unsafe_mode: host
                .text("sys/module/vfio/parameters/enable_unsafe_noiommu_mode")
                .is_some_and(|mode| mode == "Y"),
            companions: host
                .names(own)
                .iter()
                .filter(|other| is_in_the_way(other))
                .map(|other| with_driver(host, other))
                .collect(),
        }
    }
}

impl VfioFile {
    /// Reads the file of an IOMMU group; `None` while vfio has no card of it.
    fn read(host: &Host, group: &str) -> Option<VfioFile> {
        let places = [format!("dev/vfio/{group}"), format!("dev/vfio/noiommu-{group}")];
        let place = places.iter().find(|place| host.path(place).exists())?;
        let path = host.path(place);
        let about = fs::metadata(&path).ok()?;
        let group = nix::unistd::Group::from_gid(Gid::from_raw(about.gid())).ok().flatten();
        Some(VfioFile {
            path: format!("/{place}"),
            open_to_process: access(&path, AccessFlags::R_OK | AccessFlags::W_OK).is_ok(),
            open_to_nodes: about.mode() & 0o060 == 0o060 && group.is_some_and(|group| group.name == NODES),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::host::described as machine;

    fn link(host: &Host, target: &str, path: &str) {
        std::os::unix::fs::symlink(target, host.path(path)).unwrap();
    }

    const CARD: &str = "sys/bus/pci/devices/0000:03:00.0";

    #[test]
    fn cards_have_addresses_and_virtual_devices_have_none() {
        for (interface, address) in [
            ("dpdk:0000:03:00.0", Some("0000:03:00.0")),
            ("dpdk:0000:03:00.0,mtu=9000", Some("0000:03:00.0")),
            ("dpdk:03:00.0", Some("0000:03:00.0")),
            ("dpdk:pci:10000:03:00.0", Some("10000:03:00.0")),
            ("dpdk:net_memif0,role=client,mac=02:00:00:00:00:01", None),
        ] {
            assert_eq!(pci_address(interface).as_deref(), address, "{interface}");
        }
    }

    #[test]
    fn a_card_is_read_from_sysfs() {
        let (_root, host) = machine(&[
            (&format!("{CARD}/class"), "0x020000\n"),
            (&format!("{CARD}/numa_node"), "1\n"),
            (&format!("{CARD}/infiniband/mlx5_0/node_type"), "1\n"),
            (&format!("{CARD}/virtio0/net/eth7/mtu"), "1500\n"),
            ("sys/class/net/eth7/upper_bond0/mtu", "1500\n"),
            ("sys/class/net/bond0/upper_bond0.7/mtu", "1500\n"),
            ("sys/bus/pci/devices/0000:03:00.1/class", "0x020000\n"),
            ("sys/bus/pci/devices/0000:02:00.0/class", "0x060400\n"),
            ("sys/kernel/iommu_groups/12/devices/0000:03:00.1/x", ""),
            ("sys/kernel/iommu_groups/12/devices/0000:03:00.0/x", ""),
            ("sys/kernel/iommu_groups/12/devices/0000:02:00.0/x", ""),
            ("sys/kernel/iommu_groups/13/name", "vfio-noiommu\n"),
            ("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n"),
            ("dev/vfio/12", ""),
            (
                "proc/net/route",
                "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                 bond0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                 bond0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
            ),
        ]);
        link(&host, "../../drivers/mlx5_core", &format!("{CARD}/driver"));
        link(&host, "../../../../kernel/iommu_groups/12", &format!("{CARD}/iommu_group"));
        link(&host, "../../drivers/ixgbe", "sys/bus/pci/devices/0000:03:00.1/driver");
        link(&host, "../../drivers/pcieport", "sys/bus/pci/devices/0000:02:00.0/driver");
        let addresses = [("bond0.7", "10.0.0.2"), ("lo7", "10.9.9.9")];
        let addresses: Vec<NamedAddress> =
            addresses.map(|(name, address)| (name.to_owned(), address.to_owned())).into();
        let card = PciCard::read(&host, "0000:03:00.0".into(), &addresses);
        let interface = |name: &str, addresses: &[&str], default_route| KernelInterface {
            name: name.into(),
            addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
            default_route,
        };
        let file = card.file.clone().unwrap();
        assert!(file.path == "/dev/vfio/12" && file.open_to_process && !file.open_to_nodes, "{file:?}");
        let expected = PciCard {
            address: "0000:03:00.0".into(),
            kind: Kind::Network,
            driver: "mlx5_core".into(),
            numa_node: Some(1),
            interfaces: vec![
                interface("eth7", &[], false),
                interface("bond0", &[], true),
                interface("bond0.7", &["10.0.0.2"], false),
            ],
            is_only_way: false,
            verbs: true,
            iommu: Iommu { groups: 1, unsafe_mode: true, companions: vec!["0000:03:00.1 (ixgbe)".into()] },
            file: Some(file),
        };
        assert_eq!(card, expected);
        assert!(PciCard::read(&host, "0000:03:00.0".into(), &addresses[..1]).is_only_way);
    }

    #[test]
    fn what_is_no_card_says_so() {
        let (_root, host) = machine(&[
            (&format!("{CARD}/class"), "0x020000\n"),
            ("sys/bus/pci/devices/0000:04:00.0/class", "0x010802\n"),
        ]);
        let kind = |interface: &str| device(&host, interface).card.unwrap().kind;
        assert_eq!(kind("dpdk:0000:04:00.0"), Kind::Other("0x010802".into()));
        assert_eq!(kind("dpdk:0000:05:00.0"), Kind::Absent(vec!["0000:03:00.0".into()]));
        assert_eq!(device(&host, "dpdk:net_memif0").card, None);
    }

    #[test]
    fn huge_pages_are_those_of_the_node() {
        let of = |folder: &str, file: &str| format!("{folder}/hugepages-2048kB/{file}_hugepages");
        let node = "sys/devices/system/node/node1/hugepages";
        let (_root, host) = machine(&[
            (&of(PAGES, "nr"), "24\n"),
            (&of(PAGES, "free"), "8\n"),
            (&of(node, "nr"), "16\n"),
            (&of(node, "free"), "0\n"),
            (&format!("{CARD}/class"), "0x020000\n"),
            (&format!("{CARD}/numa_node"), "1\n"),
        ]);
        let card = device(&host, "dpdk:0000:03:00.0,mtu=9000");
        let file = format!("/{}", of(node, "nr"));
        assert_eq!(card.pages, [PageSize { bytes: 2 << 20, free: 0, all: 16, file }]);
        assert_eq!((card.mtu, card.without_pages, card.numa_node()), (9000, false, Some(1)));
        let shared = device(&host, "dpdk:net_memif0");
        assert_eq!((shared.pages[0].free, shared.mtu, shared.numa_node()), (8, 1500, None));
        assert!(device(&Host::at("/nonexistent"), "dpdk:net_memif0").without_pages);
    }

    #[test]
    fn routes_to_everywhere_are_found() {
        let zeros = "0".repeat(32);
        let v6 = format!(
            "{zeros} 00 {zeros} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth1\n\
             20010db8000000000000000000000000 40 {zeros} 00 {zeros} 00000100 00000001 00000000 00000001 eth2\n"
        );
        let (_root, host) = machine(&[("proc/net/ipv6_route", &v6)]);
        assert_eq!(default_routes(&host), ["eth1"]);
    }

    #[test]
    fn an_address_for_one_link_is_no_way_to_a_machine() {
        for (address, far) in [
            ("10.0.0.2", true),
            ("2001:db8::1", true),
            ("127.0.0.1", false),
            ("fe80::1", false),
            ("::1", false),
        ] {
            assert_eq!(reaches_far(&address.parse().unwrap()), far, "{address}");
        }
    }
}
