//! Device of DPDK that an interface names, judged before DPDK drives it: memory, IOMMU, rights, and what the kernel loses.
//!
//! ```text
//!   /sys, /proc, /dev below a Host ---.
//!   addresses of this machine --------+--> DpdkDevice --+--> judge --> [Check]
//!                                            Process --'
//! ```
//!
//! Whether the plug-in and DPDK start is no matter of this module: a node's doctor starts them.

mod judge;
mod memory;
mod read;

pub use read::device;

/// Script that binds cards and reserves huge pages, where the package `cxloe-dpdk` has it.
const SCRIPT: &str = "/usr/share/cxloe/tune/dpdk";

/// Device that an interface names, and the memory that there is for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DpdkDevice {
    /// `None` for a virtual device.
    card: Option<PciCard>,
    /// MTU in bytes, without the Ethernet header.
    mtu: u64,
    /// Huge pages, an entry for each size: those of the card's NUMA node where the kernel shows them by node.
    pages: Vec<PageSize>,
    /// True if no huge page is free on the whole machine: DPDK takes ordinary memory then.
    without_pages: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PageSize {
    bytes: u64,
    free: u64,
    all: u64,
    /// File that takes another number of pages.
    file: String,
}

/// Network card on the PCI bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PciCard {
    /// Address with its domain, as in `0000:03:00.0`.
    address: String,
    kind: Kind,
    /// Empty if no driver has the card.
    driver: String,
    /// NUMA node; -1 if the card has none.
    numa_node: Option<i32>,
    /// Interfaces of the kernel by the card, with the bonds, bridges and VLANs above them.
    interfaces: Vec<KernelInterface>,
    /// True if no interface but those has an address.
    is_only_way: bool,
    /// True if the kernel shows the card as an RDMA device, by which the drivers of mlx4 and mlx5 reach it.
    verbs: bool,
    iommu: Iommu,
    /// File by which vfio lends the card; `None` while vfio does not have it.
    file: Option<VfioFile>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Network,
    /// A device of another class, as the kernel writes it.
    Other(String),
    /// No device has the address; the cards are those of this machine.
    Absent(Vec<String>),
}

/// Relation of a card's present driver to DPDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Nobody,
    /// The driver lends the card to DPDK.
    Vfio,
    /// The driver lends the card to DPDK, and no IOMMU confines it.
    Uio,
    /// DPDK uses the card beside the kernel (bifurcated driver).
    Shared,
    Kernel,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KernelInterface {
    name: String,
    addresses: Vec<String>,
    default_route: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Iommu {
    /// Number of groups of devices; 0 without an IOMMU.
    groups: usize,
    /// True if vfio also works without an IOMMU (`enable_unsafe_noiommu_mode`).
    unsafe_mode: bool,
    /// Devices of the card's group, with the drivers of the kernel that have them; bridges are left out.
    companions: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct VfioFile {
    path: String,
    /// True if this process may open the file.
    open_to_process: bool,
    /// True if the group of the nodes' devices (`cxloe-nodes`) may open the file.
    open_to_nodes: bool,
}

impl DpdkDevice {
    /// PCI address of a card; `None` for a virtual device.
    pub fn address(&self) -> Option<&str> {
        Some(&self.card.as_ref()?.address)
    }

    /// Commands that give the card to DPDK and take it back; `None` if nothing has to be done for that, or if there is no
    /// card.
    pub fn binding(&self) -> Option<[String; 2]> {
        let card = self.card.as_ref().filter(|card| card.kind == Kind::Network)?;
        matches!(card.hold(), Hold::Kernel | Hold::Nobody).then(|| [card.bind(), card.undo()])
    }

    /// NUMA node of a card, -1 if it has none; `None` for a virtual device.
    pub fn numa_node(&self) -> Option<i32> {
        self.card.as_ref()?.numa_node
    }
}

impl PciCard {
    fn hold(&self) -> Hold {
        match self.driver.as_str() {
            "" => Hold::Nobody,
            "vfio-pci" => Hold::Vfio,
            "uio_pci_generic" | "igb_uio" => Hold::Uio,
            "mlx4_core" | "mlx5_core" | "mana" => Hold::Shared,
            _ => Hold::Kernel,
        }
    }

    fn bind(&self) -> String {
        format!("{SCRIPT} bind {}", self.address)
    }

    fn undo(&self) -> String {
        format!("{SCRIPT} undo {}", self.address)
    }
}
