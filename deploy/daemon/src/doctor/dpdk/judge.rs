//! Judgement of a [`DpdkDevice`]: card, driver, IOMMU and rights, with the commands that prepare them.

use super::memory::port_bytes;
use super::{DpdkDevice, Hold, KernelInterface, Kind, PciCard, SCRIPT};
use crate::doctor::permissions::{Process, SYS_ADMIN, SYS_RAWIO};
use crate::doctor::{Check, Group};

/// Steps that switch an IOMMU on.
const IOMMU_ON: &str = "switch it on in the firmware (VT-d, AMD-Vi), and boot with iommu=pt, with a CPU of Intel also intel_iommu=on";

impl KernelInterface {
    fn is_used(&self) -> bool {
        self.default_route || !self.addresses.is_empty()
    }

    fn describe(&self) -> String {
        let route = self.default_route.then(|| "default route".to_owned());
        let all: Vec<String> = self.addresses.iter().cloned().chain(route).collect();
        if all.is_empty() { self.name.clone() } else { format!("{} ({})", self.name, all.join(", ")) }
    }
}

impl DpdkDevice {
    /// Judges the device for a node with `queues` queues. The memory of a node that runs and has the device (`in_use`) is
    /// not judged, because it has been taken.
    pub fn judge(&self, process: &Process, queues: u64, in_use: bool) -> Vec<Check> {
        let needed = port_bytes(self.mtu, queues);
        let mut checks = Vec::new();
        if !in_use {
            checks.push(self.judge_pages(needed));
        }
        checks.extend(self.card.iter().flat_map(|card| card.judge(process, needed)));
        checks
    }
}

impl PciCard {
    fn judge(&self, process: &Process, needed: u64) -> Vec<Check> {
        if let Some(check) = self.judge_kind() {
            return vec![check];
        }
        let all = [
            Some(self.judge_driver()),
            self.judge_verbs(),
            Some(self.judge_interfaces()),
            Some(self.judge_iommu()),
            self.judge_file(process),
            Some(self.judge_rights(process, needed)),
        ];
        all.into_iter().flatten().collect()
    }

    /// A failure if no network card has the address.
    fn judge_kind(&self) -> Option<Check> {
        let (group, name, address) = (Group::Interface, "PCI device", &self.address);
        match &self.kind {
            Kind::Network => None,
            Kind::Other(class) => {
                let found = format!("{address} is no network card (class {class})");
                Some(Check::fail(group, name, found, format!("{SCRIPT} show lists those there are")))
            }
            Kind::Absent(others) => {
                let advice = format!("name one of these with -i: {}", others.join(", "));
                Some(Check::fail(group, name, format!("there is no {address} on this machine"), advice))
            }
        }
    }

    fn judge_driver(&self) -> Check {
        let (group, name, driver) = (Group::Interface, "driver of the card", &self.driver);
        match self.hold() {
            Hold::Vfio => Check::ok(group, name, format!("{driver}, which lends the card to DPDK")),
            Hold::Shared => {
                Check::ok(group, name, format!("{driver}: the kernel keeps the card, and DPDK uses it too"))
            }
            Hold::Uio => {
                let found = format!("{driver}: the card can write anywhere in memory");
                Check::warn(group, name, found, format!("vfio confines it: {}", self.bind()))
            }
            Hold::Nobody => Check::fail(group, name, "none has it", self.bind()),
            Hold::Kernel => {
                let advice = format!("{}; back again: {}", self.bind(), self.undo());
                Check::fail(group, name, format!("{driver}: the kernel has the card"), advice)
            }
        }
    }

    /// Judges whether DPDK's driver finds a card of mlx4 or mlx5, which it reaches by the kernel's RDMA device.
    fn judge_verbs(&self) -> Option<Check> {
        let (group, name) = (Group::Interface, "RDMA device");
        let module = match self.driver.as_str() {
            "mlx4_core" => "mlx4_ib",
            "mlx5_core" => "mlx5_ib",
            _ => return None,
        };
        if self.verbs {
            return Some(Check::ok(group, name, "there"));
        }
        let advice = format!("DPDK reaches the card by it: modprobe -a {module} ib_uverbs");
        Some(Check::fail(group, name, "the kernel shows none for this card", advice))
    }

    /// Judges what the kernel loses when DPDK takes the card.
    fn judge_interfaces(&self) -> Check {
        let (group, name) = (Group::Interface, "kernel's interfaces");
        let found: Vec<String> = self.interfaces.iter().map(KernelInterface::describe).collect();
        let found = found.join("; ");
        if self.interfaces.is_empty() {
            return Check::ok(group, name, "none by this card");
        }
        if self.hold() == Hold::Shared {
            return self.judge_kept_interfaces(&found);
        }
        let loss = format!(
            "what the kernel has by the card is gone once that is bound; {} brings it back",
            self.undo()
        );
        if self.is_only_way || self.interfaces.iter().any(|interface| interface.default_route) {
            let advice = format!(
                "take another card, unless you need no network here: this one has the default route, or the only address of \
                 the machine; {loss}"
            );
            return Check::fail(group, name, found, advice);
        }
        if self.interfaces.iter().any(KernelInterface::is_used) {
            let advice =
                format!("see that nobody needs these addresses, and that you do not come by them: {loss}");
            return Check::warn(group, name, found, advice);
        }
        Check::ok(group, name, format!("{found}: without an address"))
    }

    /// Judges the interfaces of a card that the kernel keeps: DPDK's drivers differ in the frames that they leave to it.
    fn judge_kept_interfaces(&self, found: &str) -> Check {
        let (group, name) = (Group::Interface, "kernel's interfaces");
        if self.driver == "mlx5_core" {
            return Check::ok(group, name, format!("{found}: keeps all frames but this node's"));
        }
        if !self.interfaces.iter().any(KernelInterface::is_used) {
            return Check::ok(group, name, format!("{found}: stays, without an address"));
        }
        let advice = "reach the machine by another card: DPDK's driver takes all frames for this card's address while a node \
                      has it";
        Check::warn(group, name, found, advice)
    }

    fn judge_iommu(&self) -> Check {
        let (group, name) = (Group::Machine, "IOMMU");
        let hold = self.hold();
        match self.iommu.groups {
            _ if hold == Hold::Shared => {
                Check::ok(group, name, format!("not needed: the card stays with {}", self.driver))
            }
            0 if self.iommu.unsafe_mode || hold == Hold::Uio => {
                let found = "none: the card can write anywhere in memory, and only root may use it";
                Check::warn(group, name, found, IOMMU_ON)
            }
            0 => {
                let advice = format!(
                    "{IOMMU_ON}; or do without, if nobody else uses this machine: {} --no-iommu",
                    self.bind()
                );
                Check::fail(group, name, "none, without which vfio lends no card", advice)
            }
            _ if !self.iommu.companions.is_empty() => {
                let others = self.iommu.companions.join(", ");
                let advice = "vfio lends a group as a whole: bind the others too, or use a slot with a group of its own";
                Check::fail(group, name, format!("the card's group also has {others}"), advice)
            }
            groups => Check::ok(group, name, format!("on, with {groups} groups")),
        }
    }

    /// Judges whether the node may open the file by which vfio lends the card.
    fn judge_file(&self, process: &Process) -> Option<Check> {
        let (group, name) = (Group::Permissions, "file of the card");
        let file = self.file.as_ref().filter(|_| self.hold() == Hold::Vfio)?;
        let may = if process.unit.is_some() { file.open_to_nodes } else { file.open_to_process };
        if may {
            return Some(Check::ok(group, name, &file.path));
        }
        let advice = format!(
            "{} lets the group cxloe-nodes in; by hand: chgrp cxloe-nodes {path}; chmod 660 {path}",
            self.bind(),
            path = file.path
        );
        Some(Check::warn(group, name, format!("{} is not open to the node", file.path), advice))
    }

    /// Judges the right to let the card reach memory: by an IOMMU locked memory, else physical addresses.
    fn judge_rights(&self, process: &Process, needed: u64) -> Check {
        let hold = self.hold();
        if hold == Hold::Shared || hold != Hold::Uio && self.iommu.groups > 0 {
            return process.judge_locking("memory for the card", needed, "");
        }
        let (group, name) = (Group::Permissions, "physical addresses");
        match process.lacks(&[SYS_RAWIO, SYS_ADMIN]) {
            None => Check::ok(group, name, "CAP_SYS_RAWIO, CAP_SYS_ADMIN"),
            Some(missing) => {
                let advice = "run the node as root, or on a machine with an IOMMU, where it needs neither";
                Check::fail(group, name, format!("{missing} missing"), advice)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::doctor::dpdk::{Iommu, VfioFile};

    fn card(driver: &str) -> PciCard {
        PciCard {
            address: "0000:03:00.0".into(),
            driver: driver.into(),
            iommu: Iommu { groups: 34, ..Iommu::default() },
            ..PciCard::default()
        }
    }

    fn interface(addresses: &[&str], default_route: bool) -> KernelInterface {
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        KernelInterface { name: "enp3s0f0".into(), addresses, default_route }
    }

    fn advice(check: &Check) -> &str {
        check.advice.as_deref().unwrap_or_default()
    }

    #[test]
    fn a_node_that_runs_has_its_memory_already() {
        let names = |in_use| {
            let checks = DpdkDevice::default().judge(&Process::default(), 1, in_use);
            checks.into_iter().map(|check| check.name).collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["huge pages for DPDK"]);
        assert!(names(true).is_empty());
    }

    #[test]
    fn what_is_no_card_is_not_looked_at_further() {
        let judge = |kind| PciCard { kind, ..card("nvme") }.judge(&Process::default(), 8 << 20);
        let absent = judge(Kind::Absent(vec!["0000:04:00.0 (ixgbe)".into()]));
        assert!(absent.len() == 1 && absent[0].level == Level::Fail, "{absent:?}");
        assert!(advice(&absent[0]).contains("0000:04:00.0 (ixgbe)"), "{absent:?}");
        let disk = judge(Kind::Other("0x010802".into()));
        assert!(disk.len() == 1 && disk[0].found.contains("class 0x010802"), "{disk:?}");
        assert!(judge(Kind::Network).len() > 3);
    }

    #[test]
    fn drivers_lend_the_card_or_keep_it() {
        let level = |driver| card(driver).judge_driver().level;
        assert_eq!([level("vfio-pci"), level("mlx5_core"), level("mana")], [Level::Ok; 3]);
        assert_eq!([level("igb_uio"), level("uio_pci_generic")], [Level::Warn; 2]);
        assert_eq!([level(""), level("ixgbe")], [Level::Fail; 2]);
        let kernel = card("ixgbe").judge_driver();
        assert!(advice(&kernel).contains("tune/dpdk bind 0000:03:00.0; back again:"), "{kernel:?}");
        assert!(card("mlx5_core").judge_driver().found.contains("keeps the card"));
    }

    #[test]
    fn only_a_card_that_the_kernel_has_is_to_be_bound() {
        let binding = |card| DpdkDevice { card, ..DpdkDevice::default() }.binding();
        let [bind, undo] = binding(Some(card("ixgbe"))).unwrap();
        assert!(bind.ends_with("tune/dpdk bind 0000:03:00.0") && undo.ends_with("undo 0000:03:00.0"));
        let disk = PciCard { kind: Kind::Other("0x010802".into()), ..card("nvme") };
        for device in [None, Some(card("vfio-pci")), Some(card("mlx5_core")), Some(disk)] {
            assert_eq!(binding(device.clone()), None, "{device:?}");
        }
    }

    #[test]
    fn cards_of_mlx_need_their_rdma_device() {
        let judge = |driver, verbs| PciCard { verbs, ..card(driver) }.judge_verbs();
        assert_eq!(judge("vfio-pci", false), None);
        assert_eq!(judge("mlx5_core", true).unwrap().level, Level::Ok);
        let none = judge("mlx4_core", false).unwrap();
        assert!(none.level == Level::Fail && advice(&none).contains("mlx4_ib"), "{none:?}");
    }

    #[test]
    fn what_the_kernel_loses_is_named() {
        let judge = |driver, interfaces, is_only_way| {
            PciCard { interfaces, is_only_way, ..card(driver) }.judge_interfaces()
        };
        assert_eq!(judge("vfio-pci", vec![], false).level, Level::Ok);
        assert_eq!(judge("ixgbe", vec![interface(&[], false)], false).level, Level::Ok);
        let used = judge("ixgbe", vec![interface(&["10.0.0.2"], false)], false);
        assert_eq!((used.level, used.found.as_str()), (Level::Warn, "enp3s0f0 (10.0.0.2)"));
        assert!(advice(&used).contains("tune/dpdk undo 0000:03:00.0"), "{used:?}");
        let only = judge("ixgbe", vec![interface(&["10.0.0.2"], false)], true);
        assert!(only.level == Level::Fail && advice(&only).starts_with("take another card"), "{only:?}");
        let default = vec![interface(&[], false), interface(&["10.0.0.2"], true)];
        let found = judge("ixgbe", default.clone(), false);
        assert_eq!(
            (found.level, found.found.as_str()),
            (Level::Fail, "enp3s0f0; enp3s0f0 (10.0.0.2, default route)")
        );
        let kept = judge("mlx5_core", default.clone(), true);
        assert!(
            kept.level == Level::Ok && kept.found.ends_with("keeps all frames but this node's"),
            "{kept:?}"
        );
        // Drivers of DPDK that know no rule for a protocol.
        for driver in ["mlx4_core", "mana"] {
            let lost = judge(driver, default.clone(), false);
            assert!(lost.level == Level::Warn && advice(&lost).contains("by another card"), "{lost:?}");
            assert_eq!(judge(driver, vec![interface(&[], false)], false).level, Level::Ok);
        }
    }

    #[test]
    fn vfio_needs_an_iommu_or_the_permission_to_do_without() {
        let judge = |driver, groups, unsafe_mode, companions: &[&str]| {
            let companions = companions.iter().map(|name| (*name).to_owned()).collect();
            PciCard { iommu: Iommu { groups, unsafe_mode, companions }, ..card(driver) }.judge_iommu()
        };
        assert_eq!(judge("vfio-pci", 34, false, &[]).level, Level::Ok);
        assert_eq!(judge("mlx5_core", 0, false, &["x"]).level, Level::Ok);
        assert_eq!(judge("vfio-pci", 0, true, &[]).level, Level::Warn);
        assert_eq!(judge("igb_uio", 0, false, &[]).level, Level::Warn);
        let none = judge("ixgbe", 0, false, &[]);
        assert!(none.level == Level::Fail && advice(&none).contains("intel_iommu=on"), "{none:?}");
        assert!(advice(&none).ends_with("bind 0000:03:00.0 --no-iommu"), "{none:?}");
        let together = judge("vfio-pci", 34, false, &["0000:03:00.1 (ixgbe)"]);
        assert!(
            together.level == Level::Fail && together.found.contains("0000:03:00.1 (ixgbe)"),
            "{together:?}"
        );
    }

    #[test]
    fn the_card_s_file_is_open_to_the_node() {
        let judge = |unit: Option<&str>, open_to_process, open_to_nodes| {
            let file = Some(VfioFile { path: "/dev/vfio/12".into(), open_to_process, open_to_nodes });
            let process = Process { unit: unit.map(str::to_owned), ..Process::default() };
            PciCard { file, ..card("vfio-pci") }.judge_file(&process).unwrap()
        };
        assert_eq!(
            (judge(None, true, false).level, judge(None, false, true).level),
            (Level::Ok, Level::Warn)
        );
        let unit = Some("mn-server.service");
        assert_eq!(
            (judge(unit, false, true).level, judge(unit, true, false).level),
            (Level::Ok, Level::Warn)
        );
        assert!(advice(&judge(unit, true, false)).contains("chgrp cxloe-nodes /dev/vfio/12"));
        assert_eq!(card("vfio-pci").judge_file(&Process::default()), None);
    }

    #[test]
    fn a_card_reaches_locked_memory_or_physical_addresses() {
        let judge = |driver, groups, lockable, effective| {
            let process = Process { lockable, effective, ..Process::default() };
            PciCard { iommu: Iommu { groups, ..Iommu::default() }, ..card(driver) }
                .judge_rights(&process, 8 << 20)
        };
        assert_eq!(judge("vfio-pci", 34, Some(8 << 20), 0).level, Level::Ok);
        for (driver, groups) in [("vfio-pci", 34), ("mlx5_core", 0)] {
            let little = judge(driver, groups, Some(64 << 10), 0);
            assert!(
                little.level == Level::Fail && advice(&little).contains("LimitMEMLOCK=infinity"),
                "{little:?}"
            );
        }
        for (driver, groups) in [("vfio-pci", 0), ("igb_uio", 34)] {
            let nobody = judge(driver, groups, None, 0);
            assert!(nobody.level == Level::Fail && nobody.found.contains("CAP_SYS_RAWIO"), "{nobody:?}");
            assert_eq!(judge(driver, groups, None, u64::MAX).level, Level::Ok);
        }
    }
}
