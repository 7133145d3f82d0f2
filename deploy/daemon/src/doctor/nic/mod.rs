//! Network interface: its settings, judged for frames that must neither be lost nor delayed.
//!
//! ```text
//!   sysfs below a Host ---.
//!   ethtool (ioctl)  -----+--> Nic --+--> judge --> [Check]
//!   DCB (netlink)   -----'   Demand -'
//! ```

mod dcb;
mod ethtool;
mod judge;
mod read;

use cxloe_wire::frame::Mac;
pub use judge::Demand;

/// Settings of an interface; a field is `None` if neither kernel nor driver shows the setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    pub name: String,
    pub presence: Presence,
    pub ethernet: bool,
    /// True if the interface is administratively up.
    pub up: bool,
    pub carrier: bool,
    /// MTU in bytes: the longest frame without its Ethernet header.
    pub mtu: usize,
    /// Speed in Mbit/s.
    pub speed: Option<u32>,
    pub half_duplex: bool,
    /// Bridge or bond that the interface is a member of.
    pub master: Option<String>,
    /// NUMA node of the interface; -1 if it has none.
    pub numa_node: Option<i32>,
    /// Name of the driver; empty if unknown.
    pub driver: String,
    /// Number of polls without frames after which the kernel enables interrupts again (`napi_defer_hard_irqs`); 0:
    /// interrupts are not deferred.
    pub deferred_interrupts: Option<u32>,
    pub coalescing: Option<Coalescing>,
    pub rings: Option<Rings>,
    pub queues: Option<Queues>,
    /// Rules by which the interface chooses a queue for frames to an address.
    pub steering: Option<Vec<SteeringRule>>,
    /// True if the hardware merges received frames (large receive offload).
    pub merges: Option<bool>,
    /// True if the interface honours or sends link-level pause frames (802.3x).
    pub pauses: Option<bool>,
    /// Traffic classes with PFC, a bit each.
    pub pfc: Option<u8>,
    /// Description of the driver and the card; all texts are empty if the driver gives none.
    pub description: DriverInfo,
    /// Offloads that the interface tells of.
    pub offloads: Vec<Offload>,
}

/// Driver and card of an interface, as the driver describes them; a text is empty if it is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverInfo {
    pub name: String,
    /// Version of the driver: that of the kernel for drivers without their own.
    pub version: String,
    /// Version of the card's firmware.
    pub firmware: String,
    /// Place of the card: its PCI address if it is on that bus.
    pub bus: String,
}

/// Work on frames that the card or the kernel does for all users of an interface, by its name in ethtool(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    pub name: &'static str,
    pub is_on: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// Present in this network namespace and in `/sys`.
    #[default]
    Here,
    /// In this network namespace, but missing in `/sys`, which shows another namespace.
    Unseen,
    /// Absent; the names are those of the interfaces present.
    Absent(Vec<String>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// Maximum delay of the interrupt for a received frame, in microseconds.
    pub rx_usecs: u32,
    /// Maximum delay of the interrupt for a sent frame, in microseconds.
    pub tx_usecs: u32,
    /// True if the driver adapts the delay for received frames.
    pub adaptive_rx: bool,
}

/// Ring sizes of an interface, in slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    pub rx: u32,
    pub rx_max: u32,
    pub tx: u32,
    pub tx_max: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Present number of queues that receive.
    pub rx: u32,
    /// Maximum number of queues that receive.
    pub rx_max: u32,
}

/// Rule that puts all frames to one address into one queue (an n-tuple filter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringRule {
    /// Destination MAC address of the frames.
    pub to: Mac,
    pub queue: u32,
}
