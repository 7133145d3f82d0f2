//! The script `deploy/tune/dpdk`, which gives cards to DPDK: on a fake machine, whose kernel is a fake `tee` that moves a
//! card between its drivers as files of sysfs are written.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use cxloe_system::command::{answered, output_text, printed};
use cxloe_system::{Outcome, ensure};

use super::deploy;

/// Address of the card in each test.
const CARD: &str = "0000:03:00.0";
const DEVICES: &str = "sys/bus/pci/devices";
const PAGES: &str = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
const UNIT: &str = "etc/systemd/system/cxloe-dpdk-0000:03:00.0.service";
const NO_IOMMU: &str = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
/// An SSH connection to this machine, by the interface `mgmt0`.
const SSH: &str = "192.0.2.9 50000 192.0.2.1 22";

/// Fake of `tee`, by which the script writes all files of sysfs.
const TEE: &str = r#"#!/bin/bash
value=$(cat)
device=$CXLOE_TUNE_ROOT/sys/bus/pci/devices/$value
case $1 in
    */driver_override) echo "${value:-(null)}" >"$1" ;;
    */unbind) rm "$device/driver" ;;
    */drivers_probe)
        [ ! -e "$CXLOE_TUNE_ROOT/broken" ] || { echo 'tee: No such device' >&2; exit 1; }
        driver=$(cat "$device/driver_override")
        ln -s "../../drivers/${driver/(null)/ixgbe}" "$device/driver"
        ;;
    *) echo "$value" >"$1" ;;
esac
"#;

/// Fake of `ip`: the card's interface is a port of the bridge br0; `default` and `way` hold what routes there are.
const IP: &str = r#"#!/bin/bash
case $* in
    *'addr show dev br0 '*) echo '3: br0    inet 10.0.0.2/24 brd 10.0.0.255 scope global br0' ;;
    '-o route show default') cat "$CXLOE_TUNE_ROOT/default" ;;
    *' get 192.0.2.9') cat "$CXLOE_TUNE_ROOT/way" ;;
esac
"#;

/// Files of the machine before the script runs. A path that ends with a slash is a folder.
const FILES: [(&str, &str); 19] = [
    ("sys/bus/pci/devices/0000:03:00.0/class", "0x020000"),
    ("sys/bus/pci/devices/0000:03:00.0/vendor", "0x8086"),
    ("sys/bus/pci/devices/0000:03:00.0/device", "0x1572"),
    ("sys/bus/pci/devices/0000:03:00.0/numa_node", "0"),
    ("sys/bus/pci/devices/0000:03:00.0/driver_override", "(null)"),
    ("sys/bus/pci/devices/0000:03:00.0/net/enp3s0f0/", ""),
    ("sys/bus/pci/devices/0000:04:00.0/class", "0x010802"),
    ("sys/bus/pci/drivers/ixgbe/", ""),
    ("sys/bus/pci/drivers/vfio-pci/", ""),
    ("sys/bus/pci/drivers/mlx5_core/", ""),
    ("sys/class/net/enp3s0f0/upper_br0/", ""),
    ("sys/class/net/br0/", ""),
    ("sys/kernel/iommu_groups/12/devices/0000:03:00.0/", ""),
    (PAGES, "8"),
    (NO_IOMMU, "N"),
    ("dev/vfio/12", ""),
    ("proc/sys/kernel/random/boot_id", "first"),
    ("default", "default via 192.0.2.254 dev mgmt0 proto dhcp"),
    ("way", "192.0.2.9 dev mgmt0 src 192.0.2.1 uid 0"),
];

/// A machine with one card, which the kernel's driver ixgbe has.
struct Machine {
    dir: TempDir,
}

impl Machine {
    fn new() -> Outcome<Machine> {
        let machine = Machine { dir: tempfile::tempdir()? };
        for (path, content) in FILES {
            match path.strip_suffix('/') {
                Some(folder) => fs::create_dir_all(machine.path(folder))?,
                None => machine.put(path, &format!("{content}\n"))?,
            }
        }
        fs::create_dir_all(machine.path("run/systemd/system"))?;
        let device = machine.path(DEVICES).join(CARD);
        symlink("../../../../kernel/iommu_groups/12", device.join("iommu_group"))?;
        machine.have_driver("ixgbe")?;
        let nothing = "#!/bin/sh\n";
        let tools =
            [("tee", TEE), ("ip", IP), ("modprobe", nothing), ("systemctl", nothing), ("getent", nothing)];
        for (name, script) in tools.into_iter().chain([("chgrp", nothing)]) {
            machine.put(&format!("bin/{name}"), script)?;
            fs::set_permissions(machine.path("bin").join(name), fs::Permissions::from_mode(0o755))?;
        }
        Ok(machine)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn put(&self, path: &str, content: &str) -> Outcome {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        Ok(fs::write(path, content)?)
    }

    /// Content of a file, without the end of its line.
    fn value(&self, path: &str) -> Outcome<String> {
        Ok(fs::read_to_string(self.path(path))?.trim_end().to_owned())
    }

    fn have_driver(&self, driver: &str) -> Outcome {
        let link = self.path(DEVICES).join(CARD).join("driver");
        let _ = fs::remove_file(&link);
        Ok(symlink(format!("../../drivers/{driver}"), link)?)
    }

    /// Driver of the card.
    fn driver(&self) -> Outcome<String> {
        let target = fs::read_link(self.path(DEVICES).join(CARD).join("driver"))?;
        Ok(target.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }

    fn run_from(&self, ssh: &str, arguments: &[&str]) -> Outcome<Output> {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH")?);
        let mut command = Command::new(deploy("tune/dpdk"));
        command.args(arguments).env("PATH", path).env("CXLOE_TUNE_ROOT", self.dir.path());
        Ok(command.env("SSH_CONNECTION", ssh).output()?)
    }

    fn run(&self, arguments: &[&str]) -> Outcome<Output> {
        self.run_from(SSH, arguments)
    }
}

pub fn a_card_is_taken_and_put_back() -> Outcome {
    let machine = Machine::new()?;
    let shown = machine.run(&["show"])?;
    answered(&shown, 0, &[CARD, "8086:1572", "ixgbe", "enp3s0f0; br0 (10.0.0.2/24)", "IOMMU: 1 groups"])?;
    ensure(!output_text(&shown).contains("0000:04:00.0"), "a disk is listed as a network card")?;

    let bound = machine.run(&["bind", "03:00.0", "--hugepages", "16", "--persist"])?;
    answered(
        &bound,
        0,
        &["br0 (10.0.0.2/24)", "ixgbe -> vfio-pci", "8 -> 24", "open to the group cxloe-nodes"],
    )?;
    let found = [machine.driver()?, machine.value(PAGES)?];
    ensure(found == ["vfio-pci", "24"], format!("{found:?}"))?;
    let mode = fs::metadata(machine.path("dev/vfio/12"))?.permissions().mode();
    ensure(mode & 0o777 == 0o660, format!("mode {mode:o}"))?;
    let unit = machine.value(UNIT)?;
    let starts = "bind 0000:03:00.0 --card 8086:1572 --group cxloe-nodes --hugepages 16";
    ensure(unit.contains(starts) && unit.contains("Before=network-pre.target"), &unit)?;

    // After a reboot the kernel's driver has the card until the unit runs; pages of the earlier boot are gone.
    machine.put("proc/sys/kernel/random/boot_id", "second\n")?;
    machine.put(PAGES, "4\n")?;
    machine.have_driver("ixgbe")?;
    let words: Vec<&str> = starts.split(' ').collect();
    answered(&machine.run(&words)?, 0, &["ixgbe -> vfio-pci", "4 -> 20"])?;
    answered(&machine.run(&words)?, 0, &["vfio-pci keeps it"])?;
    ensure(machine.value(PAGES)? == "20", "a second call adds no pages")?;

    let undone = machine.run(&["undo", CARD])?;
    answered(&undone, 0, &["no longer at each boot", "vfio-pci -> ixgbe", "20 -> 4"])?;
    let found = [
        machine.driver()?,
        machine.value(PAGES)?,
        machine.value(&format!("{DEVICES}/{CARD}/driver_override"))?,
    ];
    ensure(found == ["ixgbe", "4", "(null)"] && !machine.path(UNIT).exists(), format!("{found:?}"))?;
    ensure(fs::read_dir(machine.path("var/lib/cxloe"))?.next().is_none(), "notes are left")?;
    answered(&machine.run(&["undo", CARD])?, 0, &["Nothing to put back"])?;

    // What somebody else has changed since stays.
    answered(&machine.run(&["bind", CARD, "--hugepages", "16"])?, 0, &["4 -> 20"])?;
    machine.put(PAGES, "64\n")?;
    machine.have_driver("mlx5_core")?;
    answered(&machine.run(&["undo", CARD])?, 0, &["has mlx5_core", "is 64, not 20", "left alone"])?;
    let found = [machine.driver()?, machine.value(PAGES)?];
    ensure(found == ["mlx5_core", "64"], format!("{found:?}"))?;
    // A driver that leaves the card to the kernel is not replaced, also if the card has the default route.
    machine.put("default", "default via 10.0.0.1 dev enp3s0f0\n")?;
    answered(&machine.run(&["bind", CARD, "--hugepages", "1"])?, 0, &["mlx5_core keeps it", "64 -> 65"])?;
    ensure(machine.driver()? == "mlx5_core", "it has another driver")
}

pub fn the_way_to_the_network_stays() -> Outcome {
    let machine = Machine::new()?;
    let refused = |why: &str, ssh: &str| {
        answered(&machine.run_from(ssh, &["bind", CARD])?, 4, &[why, "--force"])?;
        ensure(machine.driver()? == "ixgbe", "it was taken nevertheless")
    };
    refused("br0 has the address 10.0.0.2", "192.0.2.9 50000 10.0.0.2 22")?;
    machine.put("way", "192.0.2.9 via 10.0.0.1 dev br0 src 10.0.0.2\n")?;
    refused("this SSH connection comes by br0", SSH)?;
    machine.put("way", "192.0.2.9 dev mgmt0\n")?;
    machine.put("default", "default via 192.0.2.254 dev mgmt0\ndefault via 10.0.0.1 dev br0 metric 200\n")?;
    refused("br0 has the default route", SSH)?;
    answered(&machine.run(&["bind", CARD, "--force"])?, 0, &["default route", "ixgbe -> vfio-pci"])
}

pub fn what_cannot_be_is_said() -> Outcome {
    let machine = Machine::new()?;
    answered(&machine.run(&["bind", "0000:09:00.0"])?, 3, &["no card 0000:09:00.0", CARD])?;
    answered(&machine.run(&["bind", "0000:04:00.0"])?, 2, &["no network card (class 0x010802)"])?;
    answered(&machine.run(&["bind", CARD, "--card", "8086:1"])?, 3, &["8086:1572, not 8086:1"])?;
    answered(&machine.run(&["bind", CARD, "--hugepages", "many"])?, 2, &["--hugepages", "many"])?;
    answered(&machine.run(&["bind", "enp3s0f0"])?, 2, &["no PCI address", CARD])?;
    answered(&machine.run(&["bind"])?, 2, &["which card", CARD])?;
    answered(&machine.run(&["bind", CARD, "--turbo"])?, 2, &["--turbo", "--help"])?;
    ensure(printed(Command::new(deploy("tune/dpdk")).arg("--help"))?.contains("Examples"), "help teaches")?;

    // The kernel refuses: its driver has the card again.
    machine.put("broken", "")?;
    answered(&machine.run(&["bind", CARD])?, 1, &["vfio-pci has not taken", "No such device"])?;
    fs::remove_file(machine.path("broken"))?;
    machine.have_driver("ixgbe")?;
    // A device of the same group keeps the card from being used.
    let other = "0000:03:00.1";
    fs::create_dir_all(machine.path("sys/kernel/iommu_groups/12/devices").join(other))?;
    machine.put(&format!("{DEVICES}/{other}/class"), "0x020000\n")?;
    symlink("../../drivers/ixgbe", machine.path(DEVICES).join(other).join("driver"))?;
    answered(&machine.run(&["bind", CARD])?, 0, &["0000:03:00.1 (ixgbe) is in the same IOMMU group"])?;
    answered(&machine.run(&["undo", CARD])?, 0, &["vfio-pci -> ixgbe"])?;

    fs::remove_dir_all(machine.path("sys/kernel/iommu_groups/12"))?;
    answered(&machine.run(&["bind", CARD])?, 3, &["there is no IOMMU", "--no-iommu"])?;
    answered(&machine.run(&["bind", CARD, "--no-iommu"])?, 0, &["N -> Y", "ixgbe -> vfio-pci"])?;
    answered(&machine.run(&["undo", CARD])?, 0, &["Y -> N"])?;
    ensure(machine.value(NO_IOMMU)? == "N", "it is still allowed")
}
