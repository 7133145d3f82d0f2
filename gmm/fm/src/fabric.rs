//! Model of the FM API: a CXL switch with hosts above and memory devices below it, behind the trait
//! [`Fabric`]. The code that answers commands does not depend on how the fabric is managed, and the
//! management does not depend on the byte format.
//!
//! Here a compute node is a host (a virtual CXL switch), a memory node is a device (a physical port), and the part of a
//! memory node that belongs to one compute node is a logical device.

use super::dcd::Tag;
use super::event_record::{EventContent, Log, Overflow};
use super::header::ReturnCode;
use super::mld_component::QosControl;
use super::opcode::Opcode;
use cxloe_fabric::hdm::Decoder;

/// Maximum number of devices on one switch: at ports 0 to 126.
pub const DEVICES_MAX: u8 = 127;
/// Maximum number of hosts on one switch: VCSs 0 to 126, at ports 127 to 253.
pub const HOSTS_MAX: u8 = 127;
pub const PORTS_MAX: u8 = DEVICES_MAX + HOSTS_MAX;
/// Number of vPPBs of each VCS.
pub const VPPBS_MAX: u8 = 127;
/// Number of LDs of a multi-logical device.
pub const LDS_MAX: u8 = 16;
/// Maximum number of HDM decoders in the registers of a host's port, and in those of a device for each LD.
pub const DECODERS_MAX: u8 = 32;
/// Maximum number of legs (parts of regions on one memory node) in one LD, which limits the LD's extents and tags.
pub const EXTENTS_MAX: u32 = 65_536;

/// Returns the number of the upstream port of a VCS.
pub(crate) fn upstream_port(vcs: u8) -> u8 {
    DEVICES_MAX + vcs
}

/// A host with its virtual switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Number of the host's VCS, below [`HOSTS_MAX`].
    pub vcs: u8,
    /// True if the host's agent is reachable.
    pub reachable: bool,
    /// True while the host is held in reset.
    pub held: bool,
    /// Bindings of the host's vPPBs, including those under way, by ascending vPPB.
    pub slots: Vec<Slot>,
}

impl Host {
    /// Returns the binding of `vppb`; `None` if the vPPB is free.
    pub fn slot(&self, vppb: u8) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.vppb == vppb)
    }
}

/// Binding of a vPPB, which may still be in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Number of the vPPB, below [`VPPBS_MAX`].
    pub vppb: u8,
    /// True while the binding or unbinding is under way.
    pub in_progress: bool,
    /// Port of the bound device; `None` if the device is on another switch.
    pub port: Option<u8>,
    /// LD-ID of the bound LD; `None` if the device has no LDs.
    pub ld: Option<u8>,
}

/// Allocation of a device: shared, or to one host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// Multi-logical device: shared, in up to [`LDS_MAX`] LDs.
    #[default]
    Mld,
    /// Single logical device: belongs to one host as a whole; modelled as one LD with the number 0.
    Sld,
}

/// A memory device below the switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Number of the device's port, below [`DEVICES_MAX`].
    pub port: u8,
    /// Allocation of the device: shared, or to one host.
    pub kind: DeviceKind,
    pub reachable: bool,
    pub serial: u64,
    /// Number of the device's network ports, which count as the lanes of its link.
    pub lanes: u8,
    /// Size of the device's memory in bytes.
    pub pool_bytes: u64,
    /// Unit of allocation in bytes, a power of two.
    pub block_bytes: u64,
    /// Backpressure at the device's port, in percent.
    pub backpressure: u8,
    /// The LDs that have capacity or are bound, ascending.
    pub lds: Vec<LogicalDevice>,
}

impl Device {
    /// Maximum number of LDs that the device can have.
    pub fn ld_count(&self) -> u8 {
        match self.kind {
            DeviceKind::Mld => LDS_MAX,
            DeviceKind::Sld => 1,
        }
    }

    /// Returns the LD with this number. If it is not in [`Self::lds`], it has neither capacity nor a binding.
    ///
    /// # Errors
    /// [`ReturnCode::InvalidInput`] if the device cannot have an LD with that number. The number FFFFh means the only
    /// LD of a single logical device.
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

/// Part of a device that belongs to one host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogicalDevice {
    /// LD-ID: 0 to 15.
    pub id: u8,
    /// Bytes that are reserved for the LD, whether used or not.
    pub reserved: u64,
    pub bound: bool,
    /// Capacity that the host has on the device, by ascending address.
    pub capacity: Vec<Capacity>,
    /// Number that changes with each change of `capacity`.
    pub generation: u32,
    /// Decoders with a target on this LD. Each base is relative to the address at which the host attaches the
    /// region.
    pub decoders: Vec<Decoder>,
}

/// Consecutive device addresses of a host's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// First device address (CMem) of the capacity.
    pub dpa: u64,
    pub bytes: u64,
    /// Tag of the request that added the capacity.
    pub tag: Tag,
}

/// Condition on which a host releases an LD that is being unbound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unbind {
    /// Wait until the host has stopped.
    WaitLinkDown,
    /// Ask the host to write back and release the LD, and wait until it has done so.
    Managed,
    /// Take the LD away at once.
    Surprise,
}

/// The present or latest background operation of the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Opcode of the command that started the operation.
    pub opcode: Opcode,
    /// Progress of the operation in percent.
    pub percent: u8,
    /// Result of the operation; `None`: it is under way.
    pub outcome: Option<ReturnCode>,
}

/// Quality-of-service settings of a device. Arrays are indexed by LD-ID.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Qos {
    /// Telemetry controls of the device.
    pub control: QosControl,
    /// Bandwidth allocated to each LD, in 256ths.
    pub allocated: [u8; LDS_MAX as usize],
    /// Bandwidth limit of each LD, in 256ths; 0: no limit.
    pub limit: [u8; LDS_MAX as usize],
}

/// Component that an event log belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogSource {
    /// The switch itself, for links and bindings.
    Switch,
    /// The device at this port of the switch.
    Device(u8),
}

/// An event with its number: one entry of an event log of the switch or of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Number of the entry, higher than that of every earlier one.
    pub seq: u64,
    /// Time of the event, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    pub happening: EventContent,
}

/// The entries of an event log that are not cleared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventLog {
    /// Entries that were removed before a client cleared them.
    pub overflow: Option<Overflow>,
    /// The entries of the log, oldest first.
    pub entries: Vec<LogEntry>,
}

/// One switch and everything at its ports. Reads are cheap and change nothing. A change is visible here at
/// once; its effects on nodes follow in the background. The error of a method becomes the return code of the
/// response; it is never [`ReturnCode::Success`].
pub trait Fabric {
    fn serial(&self) -> u64;

    /// Returns every host, by ascending VCS number.
    fn hosts(&self) -> Vec<Host>;

    /// Returns the host of a virtual switch; `None` if it has none.
    fn host(&self, vcs: u8) -> Option<Host>;

    /// Returns the numbers of the ports that have a device, ascending.
    fn devices(&self) -> Vec<u8>;

    /// Returns the device at a port; `None` if the port has none.
    fn device(&self, port: u8) -> Option<Device>;

    /// Returns the return code for a request about a port without a device. Implementations may log the ports that have
    /// a device.
    fn no_device(&self, _port: u8) -> ReturnCode {
        ReturnCode::InvalidInput
    }

    /// Returns the return code for a request about a virtual switch without a host. Implementations may log the virtual
    /// switches that have a host.
    fn no_host(&self, _vcs: u8) -> ReturnCode {
        ReturnCode::InvalidInput
    }

    /// Returns the present or latest background operation of the switch.
    fn operation(&self) -> Option<Operation>;

    fn qos(&self, port: u8) -> Qos;

    /// Returns the value last written to the command register of an LD's configuration space since the LD was
    /// bound.
    fn command_register(&self, port: u8, ld: u8) -> u16;

    /// Returns the entries that are not cleared in an event log of the switch or of a device.
    fn events(&self, source: LogSource, log: Log) -> EventLog;

    /// Starts to bind a free vPPB to an LD (`None`: to a single logical device).
    fn bind(&mut self, vcs: u8, vppb: u8, port: u8, ld: Option<u8>) -> Result<(), ReturnCode>;

    /// Starts to unbind a vPPB; `how` is the condition of the release.
    fn unbind(&mut self, vcs: u8, vppb: u8, how: Unbind) -> Result<(), ReturnCode>;

    /// Aborts the background operation. No effect if none is under way.
    fn abort(&mut self) -> Result<(), ReturnCode>;

    /// Generates an AER event at a vPPB; `error` has the bits of the AER registers.
    fn generate_aer(&mut self, vcs: u8, vppb: u8, error: u32) -> Result<(), ReturnCode>;

    /// Holds a host in reset (`true`), or releases it.
    fn hold(&mut self, vcs: u8, held: bool) -> Result<(), ReturnCode>;

    /// Reserves capacity for consecutive LDs, the first of which is `first`. After an error, all LDs are
    /// unchanged.
    fn reserve(&mut self, port: u8, first: u8, bytes: &[u64]) -> Result<(), ReturnCode>;

    fn set_qos(&mut self, port: u8, qos: Qos) -> Result<(), ReturnCode>;

    /// Stores what a client has written to the command register of an LD's configuration space.
    fn set_command_register(&mut self, port: u8, ld: u8, value: u16);

    /// Starts to add capacity to the host of an LD, under `tag`. If all bytes of `tag` are zeros, the fabric chooses a
    /// tag.
    fn add_capacity(&mut self, port: u8, ld: u8, bytes: u64, tag: Tag) -> Result<(), ReturnCode>;

    /// Starts to release all capacity with `tag`; `forced`: without waiting for the host.
    fn release_capacity(&mut self, port: u8, ld: u8, tag: Tag, forced: bool) -> Result<(), ReturnCode>;

    /// Clears the entries of a log up to the number `through`.
    fn clear_events(&mut self, source: LogSource, log: Log, through: u64) -> Result<(), ReturnCode>;
}
