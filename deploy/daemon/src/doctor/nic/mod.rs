//! A network interface: how it stands, and whether that suits frames that must neither be lost nor wait.
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

pub use judge::Demand;

/// What was read of an interface. What nobody tells is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// Whether it is there, in this network namespace.
    pub presence: Presence,
    /// Whether it carries Ethernet frames.
    pub ethernet: bool,
    /// Whether it has been brought up.
    pub up: bool,
    /// Whether there is somebody at the other end of the cable.
    pub carrier: bool,
    /// Bytes of a frame without its Ethernet header.
    pub mtu: usize,
    /// Mbit/s.
    pub speed: Option<u32>,
    /// Whether it sends or receives, but not both at a time.
    pub half_duplex: bool,
    /// The bridge or bond it is a member of.
    pub master: Option<String>,
    /// The NUMA node it is on; -1 for none in particular.
    pub numa_node: Option<i32>,
    /// Its driver.
    pub driver: String,
    /// Interrupts put off while somebody polls (`napi_defer_hard_irqs`).
    pub deferred_interrupts: Option<u32>,
    /// How interrupts are moderated.
    pub coalescing: Option<Coalescing>,
    /// Slots of its rings.
    pub rings: Option<Rings>,
    /// Its queues.
    pub queues: Option<Queues>,
    /// Whether it merges received frames in hardware.
    pub merges: Option<bool>,
    /// Whether it heeds, or sends, pauses of the whole link (802.3x).
    pub pauses: Option<bool>,
    /// Classes with PFC, a bit each.
    pub pfc: Option<u8>,
}

/// Whether an interface is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// It is.
    #[default]
    Here,
    /// It is, but `/sys` is that of another network namespace, and tells nothing of it.
    Unseen,
    /// It is not; these are.
    Absent(Vec<String>),
}

/// How interrupts are moderated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// Microseconds that a received frame may wait.
    pub rx_usecs: u32,
    /// Microseconds until what was sent is noticed.
    pub tx_usecs: u32,
    /// Whether the driver changes that by itself.
    pub adaptive_rx: bool,
}

/// Slots of an interface's rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// For received frames.
    pub rx: u32,
    /// The most that there can be.
    pub rx_max: u32,
    /// For frames to be sent.
    pub tx: u32,
    /// The most that there can be.
    pub tx_max: u32,
}

/// Queues of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Those that receive.
    pub rx: u32,
    /// The most that there can be.
    pub rx_max: u32,
}
