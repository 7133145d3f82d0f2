//! Network card on the PCI bus: its name, its slot, and what is near it.

use cxloe_daemon::doctor::Host;
use cxloe_daemon::doctor::nic::Nic;

use super::{Fact, FactList};

const DEVICES: &str = "sys/bus/pci/devices";
/// Places of the table of names of PCI devices.
const NAMES: [&str; 2] = ["usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"];

/// PCI address of an interface's card; `None` for an interface without one.
pub fn pci_address(host: &Host, nic: &Nic) -> Option<String> {
    // Of a virtio card, sysfs names the device below the card, and the driver the card.
    let device = host.link_name(format!("sys/class/net/{}/device", nic.name));
    [Some(nic.description.bus.clone()), device].into_iter().flatten().find(|text| is_address(text))
}

/// True for an address as in `0000:03:00.0`.
fn is_address(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let are_digits = parts.iter().all(|part| part.chars().all(|c| c.is_ascii_hexdigit()));
    let is_whole = matches!(lengths[..], [domain, 2, 2, 1] if domain >= 4);
    are_digits && is_whole && text.matches('.').count() == 1
}

/// Facts of the card at a PCI address; only the address if there is none.
pub fn card(host: &Host, address: &str) -> Vec<Fact> {
    let text = |file: &str| host.text(format!("{DEVICES}/{address}/{file}"));
    let number = |file: &str| text(file).map(|text| text.trim_start_matches("0x").to_owned());
    let mut facts = FactList::default();
    facts.add("PCI address", Some(address));
    if let (Some(vendor), Some(device)) = (number("vendor"), number("device")) {
        let name = name(host, &vendor, &device).map_or_else(String::new, |name| format!("{name} "));
        facts.add("card", Some(format!("{name}({vendor}:{device})")));
    }
    if let (Some(vendor), Some(device)) = (number("subsystem_vendor"), number("subsystem_device")) {
        facts.add("board", Some(format!("{vendor}:{device}")));
    }
    let way = |which: &str| {
        let (speed, width) = (text(&format!("{which}_link_speed"))?, text(&format!("{which}_link_width"))?);
        Some(format!("{} x{width}", speed.trim_end_matches(" PCIe")))
    };
    let most = way("max").map_or_else(String::new, |most| format!(" of {most}"));
    facts.add("PCIe link", way("current").map(|now| now + &most));
    facts.add("driver of the card", host.link_name(format!("{DEVICES}/{address}/driver")));
    facts.add("NUMA node", text("numa_node").filter(|node| node != "-1"));
    facts.add("CPUs near it", text("local_cpulist"));
    facts.add("IOMMU group", iommu_group(host, address));
    let functions = |file| host.number::<u32>(format!("{DEVICES}/{address}/{file}"));
    if let (Some(now), Some(most)) = (functions("sriov_numvfs"), functions("sriov_totalvfs")) {
        facts.add("virtual functions", Some(format!("{now} of {most}")));
    }
    facts.add("virtual function of", host.link_name(format!("{DEVICES}/{address}/physfn")));
    facts.0
}

/// Number of the card's IOMMU group, with its kind and the number of its devices.
fn iommu_group(host: &Host, address: &str) -> Option<String> {
    let group = host.link_name(format!("{DEVICES}/{address}/iommu_group"))?;
    let folder = format!("sys/kernel/iommu_groups/{group}");
    let kind = host.text(format!("{folder}/type")).map_or_else(String::new, |kind| format!(", {kind}"));
    let devices = host.names(format!("{folder}/devices")).len();
    Some(format!("{group}{kind}, {devices} devices"))
}

/// Name of a card in the table of PCI names, by hexadecimal numbers: `15b3  Mellanox Technologies` begins the lines of a
/// vendor, `<tab>101d  MT2892 Family` is one of its devices.
fn name(host: &Host, vendor: &str, device: &str) -> Option<String> {
    let table = NAMES.iter().find_map(|place| host.text(place))?;
    let mut lines = table.lines().skip_while(|line| !line.starts_with(vendor));
    let vendor = lines.next()?.split_once("  ")?.1;
    let of_vendor = lines.take_while(|line| line.starts_with(['\t', '#']) || line.is_empty());
    let found = of_vendor.filter_map(|line| line.strip_prefix('\t')).find(|line| line.starts_with(device))?;
    Some(format!("{vendor} {}", found.split_once("  ")?.1))
}

#[cfg(test)]
mod tests {
    use super::super::{described, value};
    use super::*;
    use cxloe_daemon::doctor::nic::DriverInfo;

    const CARD: &str = "sys/bus/pci/devices/0000:03:00.0";

    #[test]
    fn a_card_is_named_with_its_slot() {
        let at = |file: &str| format!("{CARD}/{file}");
        let (_root, host) = described(&[
            (&at("vendor"), "0x15b3\n"),
            (&at("device"), "0x101d\n"),
            (&at("subsystem_vendor"), "0x15b3\n"),
            (&at("subsystem_device"), "0x0016\n"),
            (&at("current_link_speed"), "8.0 GT/s PCIe\n"),
            (&at("current_link_width"), "8\n"),
            (&at("max_link_speed"), "16.0 GT/s PCIe\n"),
            (&at("max_link_width"), "16\n"),
            (&at("numa_node"), "1\n"),
            (&at("local_cpulist"), "8-15\n"),
            (&at("sriov_numvfs"), "0\n"),
            (&at("sriov_totalvfs"), "8\n"),
            ("sys/kernel/iommu_groups/12/type", "DMA\n"),
            ("sys/kernel/iommu_groups/12/devices/0000:03:00.0/x", ""),
            (
                "usr/share/misc/pci.ids",
                "# names\n15b2  Others\n\t101d  Wrong\n15b3  Mellanox Technologies\n\t1013  MT27700\n\
                 \t101d  MT2892 Family [ConnectX-6 Dx]\n\t\t15b3 0016  a board\n15b4  More\n\t101d  Wrong\n",
            ),
        ]);
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, host.path(format!("{CARD}/{name}"))).unwrap();
        };
        link("../../../../kernel/iommu_groups/12", "iommu_group");
        link("../../../bus/pci/drivers/mlx5_core", "driver");
        let facts = card(&host, "0000:03:00.0");
        for (name, expected) in [
            ("PCI address", "0000:03:00.0"),
            ("card", "Mellanox Technologies MT2892 Family [ConnectX-6 Dx] (15b3:101d)"),
            ("board", "15b3:0016"),
            ("PCIe link", "8.0 GT/s x8 of 16.0 GT/s x16"),
            ("driver of the card", "mlx5_core"),
            ("NUMA node", "1"),
            ("CPUs near it", "8-15"),
            ("IOMMU group", "12, DMA, 1 devices"),
            ("virtual functions", "0 of 8"),
        ] {
            assert_eq!(value(&facts, name), Some(expected), "{name} in {facts:?}");
        }
        assert_eq!(value(&facts, "virtual function of"), None);
        assert_eq!(card(&Host::at("/nonexistent"), "0000:04:00.0").len(), 1, "only its address");
    }

    #[test]
    fn the_card_of_an_interface_is_found_by_driver_or_sysfs() {
        let (_root, host) = described(&[("sys/class/net/eth9/x", ""), ("sys/class/net/eth7/x", "")]);
        let link = |name: &str, target: &str| {
            std::os::unix::fs::symlink(target, host.path(format!("sys/class/net/{name}/device"))).unwrap();
        };
        link("eth9", "../../../0000:03:00.0");
        link("eth7", "../../../virtio0");
        let nic = |name: &str, bus: &str| Nic {
            name: name.into(),
            description: DriverInfo { bus: bus.into(), ..DriverInfo::default() },
            ..Nic::default()
        };
        assert_eq!(pci_address(&host, &nic("eth9", "")).as_deref(), Some("0000:03:00.0"));
        assert_eq!(pci_address(&host, &nic("eth7", "0000:00:05.0")).as_deref(), Some("0000:00:05.0"));
        assert_eq!(pci_address(&host, &nic("veth0", "")), None);
        for wrong in ["virtio0", "usb-0000:00:14.0-2", "03:00.0", "0000:03:00:0"] {
            assert!(!is_address(wrong), "{wrong}");
        }
    }
}
