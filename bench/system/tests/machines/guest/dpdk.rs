//! Cards that DPDK drives without the kernel: emulated ones behind an emulated IOMMU. `deploy/tune/dpdk` takes each from
//! its driver of the kernel and gives it back, `doctor` judges one, and a memory node and a compute node use them.

use cxloe_system::guest::*;
use cxloe_system::{Outcome, ensure, source};

/// Emulated network card.
pub struct Card {
    /// Device of QEMU, with the properties that the IOMMU requires.
    model: &'static str,
    /// Module of the kernel that makes the card an interface.
    module: &'static str,
    /// The kernel's driver that has the card on the PCI bus.
    kernel: &'static str,
    /// Driver of DPDK.
    dpdk: &'static str,
}

pub const E1000E: Card = Card { model: "e1000e", module: "e1000e", kernel: "e1000e", dpdk: "net_e1000_em" };
pub const VIRTIO: Card = Card {
    model: "virtio-net-pci,iommu_platform=on,disable-legacy=on",
    module: "virtio_net",
    kernel: "virtio-pci",
    dpdk: "net_virtio",
};
pub const VMXNET3: Card =
    Card { model: "vmxnet3", module: "vmxnet3", kernel: "vmxnet3", dpdk: "net_vmxnet3" };

/// Options of QEMU for an IOMMU, and for the cards of a memory node and a compute node on one wire.
fn hardware(mn: &Card, cn: &Card) -> String {
    let card = |card: &Card, name: &str, mac: u8, slot: u8| {
        let place = format!("bus=pcie.0,addr={slot:#x},romfile=,mac=02:00:00:00:00:{mac:02}");
        format!("-netdev hubport,id={name},hubid=1 -device {},netdev={name},{place}", card.model)
    };
    // A device that goes by the IOMMU has to come after it.
    format!("-device intel-iommu,aw-bits=48 {} {}", card(mn, "mn", 9, 0x10), card(cn, "cn", 1, 0x11))
}

/// Commands with the cards at `$mn` and `$cn`; `$tune` is the script that gives cards to DPDK.
const USE: &str = r#"
    mn=0000:00:10.0 cn=0000:00:11.0
    modprobe -a vfio-pci vfio_iommu_type1
    for card in $mn $cn; do $tune bind $card --hugepages 32; done
    $programs/mn-server doctor --json -i dpdk:$mn --static-map /dev/null --pool-size 32M --socket /run/none.sock \
        >/run/doctor 2>/run/doctor.log || true
    grep -o 'vfio-pci, which lends the card to DPDK' /run/doctor
    grep -o 'on, with [0-9]* groups' /run/doctor
    echo opened: $(grep -o '"02:00:00:00:00:09' /run/doctor)

    agent=$programs/cn-agent
    POOL=32M fabric_on dpdk:$mn dpdk:$cn $programs 8M --cache-size 0
    head -c 256K /dev/urandom >/run/image
    $agent write scratch --file /run/image --flush
    $agent read scratch --lines 4096 --raw | cmp - /run/image
    grep -o 'driver net_[a-z0-9_]*' $FABRIC/mn.log | sort -u
    $agent counters | grep -o 'driver net_[a-z0-9_]*' | sort -u
    echo written

    kill -KILL $(pidof cn-agent)
    start_cn
    until_true 60 $agent read scratch
    $agent read scratch --lines 4096 --raw | cmp - /run/image
    echo read again

    for program in cn-agent mn-server; do
        kill $(pidof $program)
        until_true 30 sh -c "! pidof $program"
    done
    for card in $cn $mn; do $tune undo $card; done
"#;

/// Lines pass, also after the agent was killed; afterwards the kernel has both cards and all memory again.
pub fn nodes_have_cards_of_their_own(mn: &Card, cn: &Card) -> Outcome {
    let (tune, hardware) = (source("deploy/tune/dpdk"), hardware(mn, cn));
    let start = format!("tune={}; modprobe -a {} {}", tune.display(), mn.module, cn.module);
    let options = ["--memory", "1536", "--append", "intel_iommu=on iommu=pt", "--qemu", &hardware];
    let output_text = ended(guest_with_fabric(&options, &(start + USE))?, 0)?;
    let cards = [mn, cn];
    let words: Vec<String> = ["which lends the card to DPDK", "on, with", "opened: \"02:00:00:00:00:09"]
        .map(str::to_owned)
        .into_iter()
        .chain(cards.map(|card| format!("{} -> vfio-pci", card.kernel)))
        .chain(cards.map(|card| format!("driver {}", card.dpdk)))
        .chain(["written", "read again", "32 -> 0"].map(str::to_owned))
        .chain(cards.map(|card| format!("vfio-pci -> {}", card.kernel)))
        .collect();
    let missing: Vec<&String> = words.iter().filter(|word| !output_text.contains(*word)).collect();
    ensure(missing.is_empty(), format!("no {missing:?} in:\n{output_text}"))
}
