//! The script `deploy/tune/nic`, which sets interfaces: on a veth pair with the machine's own tools, and on a fake NIC
//! that supports all settings, whose tools keep their state in files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use cxloe_lab::Lab;
use tempfile::TempDir;

use cxloe_system::command::{answered, output_text, printed};
use cxloe_system::{Outcome, ensure};

use super::deploy;

/// Fake of `ethtool`, which keeps each value in a file: `ring-rx`, `coalesce-rx-usecs` ….
const ETHTOOL: &str = r#"#!/bin/bash
cd "$(dirname "$0")/../state" || exit 1
flag=$1; shift 2
value() { cat "$1"; }
case $flag in
    -g) printf 'Ring parameters for nic0:\nPre-set maximums:\nRX:\t\t4096\nRX Mini:\tn/a\nTX:\t\t4096\nCurrent hardware settings:\nRX:\t\t%s\nRX Mini:\tn/a\nTX:\t\t%s\n' "$(value ring-rx)" "$(value ring-tx)" ;;
    -l) printf 'Channel parameters for nic0:\nPre-set maximums:\nRX:\t\tn/a\nTX:\t\tn/a\nOther:\t\tn/a\nCombined:\t16\nCurrent hardware settings:\nRX:\t\tn/a\nTX:\t\tn/a\nOther:\t\tn/a\nCombined:\t%s\n' "$(value channels-combined)" ;;
    -c) printf 'Coalesce parameters for nic0:\nAdaptive RX: %s  TX: %s\nstats-block-usecs:\tn/a\n\nrx-usecs:\t%s\nrx-frames:\t128\n\ntx-usecs:\t%s\ntx-frames:\t128\n' "$(value coalesce-adaptive-rx)" "$(value coalesce-adaptive-tx)" "$(value coalesce-rx-usecs)" "$(value coalesce-tx-usecs)" ;;
    -k) printf 'Features for nic0:\ngeneric-receive-offload: %s\nlarge-receive-offload: off [fixed]\n' "$(value feature-generic-receive-offload)" ;;
    -a) printf 'Pause parameters for nic0:\nAutonegotiate:\ton\nRX:\t\t%s\nTX:\t\t%s\n' "$(value pause-rx)" "$(value pause-tx)" ;;
    -G) echo "$2" >"ring-$1" ;;
    -L) echo "$2" >"channels-$1" ;;
    -C) [ ! -e broken ] || { echo 'netlink error: Operation not supported' >&2; exit 1; }; echo "$2" >"coalesce-$1" ;;
    -K) echo "$2" >"feature-$1" ;;
    -A) echo "$4" >"pause-$3" ;;
    *) exit 1 ;;
esac
"#;

/// Fake of `dcb`, the tool for the kernel's PFC settings.
const DCB: &str = r#"#!/bin/bash
cd "$(dirname "$0")/../state" || exit 1
case $2 in
    show) echo "pfc-cap 8 macsec-bypass off delay 0"; echo "prio-pfc 0:off 1:off 2:off 3:$(cat pfc-3) 4:off 5:off 6:off 7:off" ;;
    set) echo "${6#3:}" >pfc-3 ;;
esac
"#;

/// Fake of `ip link set dev nic0 mtu N`.
const IP: &str = r#"#!/bin/bash
echo "$6" >"$(dirname "$0")/../sys/class/net/nic0/mtu"
"#;

/// Files of settings, with their values before the script runs.
const VALUES: [(&str, &str); 14] = [
    ("state/ring-rx", "512"),
    ("state/ring-tx", "1024"),
    ("state/channels-combined", "8"),
    ("state/coalesce-adaptive-rx", "on"),
    ("state/coalesce-adaptive-tx", "on"),
    ("state/coalesce-rx-usecs", "50"),
    ("state/coalesce-tx-usecs", "0"),
    ("state/feature-generic-receive-offload", "on"),
    ("state/pause-rx", "on"),
    ("state/pause-tx", "on"),
    ("state/pfc-3", "off"),
    ("sys/class/net/nic0/mtu", "1500"),
    ("proc/irq/41/smp_affinity_list", "0-3"),
    ("proc/irq/42/smp_affinity_list", "0-3"),
];
/// Further files that the script reads or writes, with their content before it runs.
const FILES: [(&str, &str); 11] = [
    ("sys/class/net/nic0/napi_defer_hard_irqs", "0"),
    ("sys/class/net/nic0/gro_flush_timeout", "0"),
    ("sys/class/net/nic0/device/local_cpulist", "2-3"),
    ("sys/class/net/nic0/device/msi_irqs/40", "msix"),
    ("sys/class/net/nic0/device/msi_irqs/41", "msix"),
    ("sys/class/net/nic0/device/msi_irqs/42", "msix"),
    ("sys/devices/system/cpu/cpu2/cpufreq/scaling_available_governors", "performance powersave"),
    ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave"),
    ("proc/irq/40/smp_affinity_list", "0-3"),
    ("proc/sys/vm/nr_hugepages", "16"),
    (
        "proc/interrupts",
        "           CPU0       CPU1\n 40:  1  0  PCI-MSI 0-edge  mlx5_async0@pci:0000:03:00.0\n \
         41:  1  0  PCI-MSI 1-edge  mlx5_comp0@pci:0000:03:00.0\n 42:  1  0  PCI-MSI 2-edge  mlx5_comp1@pci:0000:03:00.0\n \
         43:  1  0  PCI-MSI 3-edge  other0-TxRx-0",
    ),
];

/// A fake NIC that supports all settings.
struct Nic {
    dir: TempDir,
}

impl Nic {
    fn new() -> Outcome<Nic> {
        let dir = tempfile::tempdir()?;
        let put = |path: &str, content: &str| -> Outcome {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            Ok(fs::write(path, content)?)
        };
        for (path, value) in VALUES.iter().chain(&FILES) {
            put(path, &format!("{value}\n"))?;
        }
        for (name, script) in [("ethtool", ETHTOOL), ("dcb", DCB), ("ip", IP)] {
            put(&format!("bin/{name}"), script)?;
            fs::set_permissions(dir.path().join("bin").join(name), fs::Permissions::from_mode(0o755))?;
        }
        Ok(Nic { dir })
    }

    fn run(&self, arguments: &[&str]) -> Outcome<Output> {
        let path = format!("{}:{}", self.dir.path().join("bin").display(), std::env::var("PATH")?);
        let mut command = Command::new(deploy("tune/nic"));
        command.args(["-i", "nic0"]).args(arguments).env("PATH", path);
        for (flag, place) in [("--sysfs-root", "sys"), ("--proc-root", "proc"), ("--state", "kept/nic0")] {
            command.arg(flag).arg(self.dir.path().join(place));
        }
        Ok(command.output()?)
    }

    fn value(&self, path: &str) -> Outcome<String> {
        Ok(fs::read_to_string(self.dir.path().join(path))?.trim().to_owned())
    }

    /// Names and content of all files of settings.
    fn all(&self) -> Outcome<Vec<(String, String)>> {
        let files = VALUES.iter().chain(&FILES).map(|(path, _)| ((*path).to_owned(), self.value(path)));
        files.map(|(path, value)| Ok((path, value?))).collect()
    }
}

const WANTED: [&str; 6] = ["--queues", "2", "--priority", "3", "--hugepages", "64"];

pub fn a_whole_nic_is_changed_and_put_back() -> Outcome {
    let nic = Nic::new()?;
    let before = nic.all()?;
    let shown = nic.run(&[&WANTED[..], &["--check"]].concat())?;
    answered(&shown, 4, &["rx ring", "4096", "512", "PFC for class 3", "would change", "--apply"])?;
    ensure(nic.all()? == before, "showing changes nothing")?;
    let listed: serde_json::Value =
        serde_json::from_slice(&nic.run(&[&WANTED[..], &["--json"]].concat())?.stdout)?;
    let listed = listed.as_array().ok_or("no list")?;
    let mtu = listed.iter().find(|entry| entry["setting"] == "MTU").ok_or("no MTU")?;
    ensure(mtu["now"] == "1500" && mtu["wanted"] == "9000" && mtu["changes"] == true, mtu.to_string())?;
    let fixed = listed.iter().find(|entry| entry["setting"] == "large receive offload").ok_or("no LRO")?;
    ensure(fixed["changes"] == false, "what is fixed is not changed")?;

    let applied = nic.run(&[&WANTED[..], &["--apply"]].concat())?;
    ensure(applied.status.success(), output_text(&applied))?;
    let wanted = [
        ("state/ring-rx", "4096"),
        ("state/ring-tx", "4096"),
        ("state/channels-combined", "2"),
        ("state/coalesce-adaptive-rx", "off"),
        ("state/coalesce-adaptive-tx", "off"),
        ("state/coalesce-rx-usecs", "0"),
        ("state/feature-generic-receive-offload", "off"),
        ("state/pause-rx", "off"),
        ("state/pause-tx", "off"),
        ("state/pfc-3", "on"),
        ("sys/class/net/nic0/mtu", "9000"),
        ("sys/class/net/nic0/napi_defer_hard_irqs", "2"),
        // The queues' interrupts go to the CPUs near the interface; an interrupt that belongs to no queue stays where
        // it is.
        ("proc/irq/40/smp_affinity_list", "0-3"),
        ("proc/irq/41/smp_affinity_list", "2"),
        ("proc/irq/42/smp_affinity_list", "3"),
        ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "performance"),
        ("proc/sys/vm/nr_hugepages", "64"),
    ];
    for (path, value) in wanted {
        let found = nic.value(path)?;
        ensure(found == value, format!("{path} is {found}, not {value}"))?;
    }
    let again = nic.run(&[&WANTED[..], &["--check"]].concat())?;
    answered(&again, 0, &["Nothing to change"])?;
    // Although a second call changes the MTU again, undo restores the values from before the first call.
    ensure(nic.run(&["--mtu", "4000", "--apply"])?.status.success(), "applied")?;
    fs::write(nic.dir.path().join("state/ring-rx"), "2048\n")?;
    let undone = nic.run(&["--undo"])?;
    answered(&undone, 0, &["ring rx is 2048", "left alone"])?;
    fs::write(nic.dir.path().join("state/ring-rx"), "512\n")?;
    ensure(nic.all()? == before, format!("{:?} became {:?}", before, nic.all()?))?;
    answered(&nic.run(&["--undo"])?, 0, &["Nothing to put back"])
}

pub fn an_interface_is_changed_and_put_back() -> Outcome {
    let lab = Lab::builder().namespace("node").veth("node", "nic0", "node", "peer0").build()?;
    let dir = tempfile::tempdir()?;
    let state = dir.path().join("state").display().to_string();
    let run = |arguments: &[&str]| -> Outcome<Output> {
        let all = [&["-i", "nic0", "--state", &state, "--governor", "keep"], arguments].concat();
        Ok(lab.enter("node", || Command::new(deploy("tune/nic")).args(&all).output())??)
    };
    let read = |name: &str| -> Outcome<String> {
        Ok(lab
            .enter("node", || fs::read_to_string(format!("/sys/class/net/nic0/{name}")))??
            .trim()
            .to_owned())
    };
    answered(&run(&["--check"])?, 4, &["MTU", "1500", "9000", "not here"])?;
    ensure(read("mtu")? == "1500", "showing changes nothing")?;
    answered(&run(&["--apply"])?, 0, &["MTU: 1500 -> 9000"])?;
    let found = [read("mtu")?, read("napi_defer_hard_irqs")?, read("gro_flush_timeout")?];
    ensure(found == ["9000", "2", "200000"], format!("{found:?}"))?;
    answered(&run(&["--check"])?, 0, &["Nothing to change"])?;
    answered(&run(&["--undo"])?, 0, &["9000 -> 1500"])?;
    let found = [read("mtu")?, read("napi_defer_hard_irqs")?, read("gro_flush_timeout")?];
    ensure(found == ["1500", "0", "0"] && !Path::new(&state).exists(), format!("{found:?}"))
}

pub fn what_cannot_be_is_said() -> Outcome {
    let nic = Nic::new()?;
    answered(&nic.run(&["--mtu", "big"])?, 2, &["--mtu", "big"])?;
    answered(&nic.run(&["--priority", "8"])?, 2, &["0 to 7"])?;
    answered(&nic.run(&["--governor", "fast"])?, 2, &["fast", "powersave"])?;
    answered(&nic.run(&["--turbo"])?, 2, &["--turbo", "--help"])?;
    let missing = Command::new(deploy("tune/nic")).args(["-i", "nowhere0"]).output()?;
    answered(&missing, 3, &["nowhere0", "lo"])?;
    ensure(printed(Command::new(deploy("tune/nic")).arg("--help"))?.contains("Examples"), "help teaches")?;
    // One change fails: the error names that change; the other changes are made and can be undone.
    let before = nic.all()?;
    fs::write(nic.dir.path().join("state/broken"), "")?;
    answered(&nic.run(&["--apply"])?, 1, &["interrupt delay, rx", "not supported", "MTU: 1500 -> 9000"])?;
    fs::remove_file(nic.dir.path().join("state/broken"))?;
    answered(&nic.run(&["--undo"])?, 0, &["9000 -> 1500"])?;
    ensure(nic.all()? == before, "everything is put back")
}
