//! What the FM API is about: a CXL switch with hosts above it and memory devices below, as [`Fabric`] shows and changes it.
//! Who answers commands knows nothing of how the fabric is managed; who manages it knows nothing of bytes.
//!
//! Here a compute node is a host (a virtual CXL switch), a memory node is a device (a physical port), and what one compute
//! node has on a memory node is a logical device.

use super::dcd::Tag;
use super::event_record::{Happening, Log, Overflow};
use super::header::ReturnCode;
use super::mld_component::QosControl;
use super::opcode::Opcode;
use cxloe_fabric::hdm::Decoder;

/// Devices of one switch: ports 0 to 126.
pub const DEVICES_MAX: u8 = 127;
/// Hosts of one switch: VCSs 0 to 126, at ports 127 to 253.
pub const HOSTS_MAX: u8 = 127;
/// Ports of one switch.
pub const PORTS_MAX: u8 = DEVICES_MAX + HOSTS_MAX;
/// vPPBs of each VCS.
pub const VPPBS_MAX: u8 = 127;
/// LDs of a device in slices.
pub const LDS_MAX: u8 = 16;
/// HDM decoders a host has at its port, and a device for each LD, as registers can show them.
pub const DECODERS_MAX: u8 = 32;
/// Regions' legs one LD can have: as many extents and tags there can be.
pub const EXTENTS_MAX: u32 = 65_536;

/// The upstream port of a VCS.
pub fn upstream_port(vcs: u8) -> u8 {
    DEVICES_MAX + vcs
}

/// A host with its virtual switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Number of its VCS, below [`HOSTS_MAX`].
    pub vcs: u8,
    /// Whether it is heard of.
    pub reachable: bool,
    /// Whether it is held in reset.
    pub held: bool,
    /// Its vPPBs that are not simply free, ascending.
    pub slots: Vec<Slot>,
}

impl Host {
    /// What `vppb` is bound to; `None`: it is free.
    pub fn slot(&self, vppb: u8) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.vppb == vppb)
    }
}

/// A vPPB that is bound, or about to be, or no longer quite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Its number, below [`VPPBS_MAX`].
    pub vppb: u8,
    /// Whether binding or unbinding is under way.
    pub in_progress: bool,
    /// The port; `None`: one of another switch.
    pub port: Option<u8>,
    /// The LD; `None`: the device has none.
    pub ld: Option<u8>,
}

/// How a device is given away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// In up to [`LDS_MAX`] logical devices.
    #[default]
    Mld,
    /// Whole, to one host. It appears as one LD of number 0.
    Sld,
}

/// A memory device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Its port, below [`DEVICES_MAX`].
    pub port: u8,
    /// How it is given away.
    pub kind: DeviceKind,
    /// Whether it is heard of.
    pub reachable: bool,
    /// Serial number.
    pub serial: u64,
    /// Its network ports: the lanes of its link.
    pub lanes: u8,
    /// Bytes of memory.
    pub pool_bytes: u64,
    /// Bytes of the unit in which memory is given away, a power of two.
    pub block_bytes: u64,
    /// Backpressure at its port, 0 to 100 percent.
    pub backpressure: u8,
    /// LDs that have capacity or are bound, ascending.
    pub lds: Vec<LogicalDevice>,
}

impl Device {
    /// How many LDs it can have.
    pub fn ld_count(&self) -> u8 {
        match self.kind {
            DeviceKind::Mld => LDS_MAX,
            DeviceKind::Sld => 1,
        }
    }

    /// LD `id`, which has and is nothing if it is not among [`Self::lds`].
    ///
    /// # Errors
    /// [`ReturnCode::InvalidInput`] when the device cannot have one of that number. FFFFh names the one of a device that is
    /// given away whole.
    pub fn ld(&self, id: u16) -> Result<LogicalDevice, ReturnCode> {
        let id = match (self.kind, u8::try_from(id)) {
            (DeviceKind::Sld, Err(_)) if id == u16::MAX => 0,
            (_, Ok(id)) if id < self.ld_count() => id,
            _ => return Err(ReturnCode::InvalidInput),
        };
        let found = self.lds.iter().find(|ld| ld.id == id).cloned();
        Ok(found.unwrap_or(LogicalDevice { id, ..LogicalDevice::default() }))
    }
}

/// What one host has on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogicalDevice {
    /// Its number.
    pub id: u8,
    /// Bytes that are set aside for it, used or not.
    pub reserved: u64,
    /// Whether it is bound to a host.
    pub bound: bool,
    /// Capacity the host has there, by ascending address.
    pub capacity: Vec<Capacity>,
    /// Changes whenever `capacity` does.
    pub generation: u32,
    /// The decoders that lead there. Their bases count from where the host attaches each region.
    pub decoders: Vec<Decoder>,
}

/// Consecutive device addresses a host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// First device address (CMem).
    pub dpa: u64,
    /// Bytes.
    pub bytes: u64,
    /// Names what was given at once.
    pub tag: Tag,
}

/// How to unbind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unbind {
    /// Wait until the host is gone by itself.
    WaitLinkDown,
    /// Ask the host to write back and let go.
    Managed,
    /// At once.
    Surprise,
}

/// A background operation, under way or the last one there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Which command.
    pub opcode: Opcode,
    /// How much is done, 0 to 100.
    pub percent: u8,
    /// How it ended; `None`: it is under way.
    pub outcome: Option<ReturnCode>,
}

/// Quality of service of a device. What there is for each LD is by its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Qos {
    /// The telemetry controls.
    pub control: QosControl,
    /// Bandwidth allocated, in 256ths.
    pub allocated: [u8; LDS_MAX as usize],
    /// Bandwidth limits, in 256ths; 0: none.
    pub limit: [u8; LDS_MAX as usize],
}

/// Whose events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The switch.
    Switch,
    /// The device at this port.
    Device(u8),
}

/// An entry of an event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Its number; only grows.
    pub seq: u64,
    /// When: milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// What.
    pub happening: Happening,
}

/// An event log: what was not cleared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventLog {
    /// What was forgotten before it was cleared.
    pub overflow: Option<Overflow>,
    /// What is there, oldest first.
    pub entries: Vec<LogEntry>,
}

/// One switch and everything at its ports. Reading costs nothing and changes nothing; a change is made at once, as far as
/// that can be seen here, and goes on in the background. Refusals are the return code to answer with.
pub trait Fabric {
    /// Serial number of the switch.
    fn serial(&self) -> u64;

    /// Every host, by ascending number.
    fn hosts(&self) -> Vec<Host>;

    /// The host of one virtual switch.
    fn host(&self, vcs: u8) -> Option<Host>;

    /// The ports that have a device, ascending.
    fn devices(&self) -> Vec<u8>;

    /// The device at one port.
    fn device(&self, port: u8) -> Option<Device>;

    /// What goes on in the background, or did last.
    fn operation(&self) -> Option<Operation>;

    /// Quality of service of the device at `port`.
    fn qos(&self, port: u8) -> Qos;

    /// The command register of an LD's configuration space: what was written to it since the LD was bound.
    fn command_register(&self, port: u8, ld: u8) -> u16;

    /// An event log of the switch or of a device.
    fn events(&self, source: Source, log: Log) -> EventLog;

    /// Starts to bind a free vPPB to an LD (`None`: to a device that is given away whole).
    ///
    /// # Errors
    /// A [`ReturnCode`], like all methods from here on.
    fn bind(&mut self, vcs: u8, vppb: u8, port: u8, ld: Option<u8>) -> Result<(), ReturnCode>;

    /// Starts to unbind a vPPB.
    ///
    /// # Errors
    /// A [`ReturnCode`].
    fn unbind(&mut self, vcs: u8, vppb: u8, how: Unbind) -> Result<(), ReturnCode>;

    /// Breaks off what goes on in the background, if anything does.
    ///
    /// # Errors
    /// A [`ReturnCode`].
    fn abort(&mut self) -> Result<(), ReturnCode>;

    /// Has an AER event generated at a vPPB.
    ///
    /// # Errors
    /// A [`ReturnCode`].
    fn generate_aer(&mut self, vcs: u8, vppb: u8, error: u32) -> Result<(), ReturnCode>;

    /// Holds a host in reset, or releases it.
    ///
    /// # Errors
    /// A [`ReturnCode`].
    fn hold(&mut self, vcs: u8, held: bool) -> Result<(), ReturnCode>;

    /// Sets capacity aside for LDs, from `first` on.
    ///
    /// # Errors
    /// A [`ReturnCode`]; then none of them has changed.
    fn reserve(&mut self, port: u8, first: u8, bytes: &[u64]) -> Result<(), ReturnCode>;

    /// Replaces the quality of service of a device.
    ///
    /// # Errors
    /// A [`ReturnCode`].
    fn set_qos(&mut self, port: u8, qos: Qos) -> Result<(), ReturnCode>;

    /// Writes the command register of an LD's configuration space.
    fn set_command_register(&mut self, port: u8, ld: u8, value: u16);

    /// Starts to give the host of an LD capacity that is known as `tag` from then on (all zeros: any tag).
    ///
    /// # Errors
    /// A [`ReturnCode`].
    fn add_capacity(&mut self, port: u8, ld: u8, bytes: u64, tag: Tag) -> Result<(), ReturnCode>;

    /// Starts to take all capacity that is known as `tag`; by force: without asking the host.
    ///
    /// # Errors
    /// A [`ReturnCode`].
    fn release_capacity(&mut self, port: u8, ld: u8, tag: Tag, forced: bool) -> Result<(), ReturnCode>;

    /// Forgets entries of a log up to this number.
    ///
    /// # Errors
    /// A [`ReturnCode`].
    fn clear_events(&mut self, source: Source, log: Log, through: u64) -> Result<(), ReturnCode>;
}
