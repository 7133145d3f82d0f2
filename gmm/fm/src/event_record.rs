//! Event logs (01xxh) and the 128-byte records in them: links and bindings at a switch, capacity at a device (CXL 3.1,
//! 7.6.8 and 8.2.9.2.1).

use super::bytes::{Payload, Reader, Writer, WrongLength, count_u8, fields};
use super::dcd::Extent;
use super::physical_switch::PortState;
use super::virtual_switch::VppbStatus;

/// Length of a record in bytes.
pub(crate) const RECORD_BYTES: usize = 128;
/// Length in bytes of the part that all kinds of records have in common.
const COMMON_BYTES: usize = 48;
/// Length of the response to Get Event Records before the records, in bytes.
pub(crate) const RECORDS_HEADER_BYTES: usize = 32;

/// Identifies records about ports: 77cf9271-9c02-470b-9fe4-bc7b75f2da97.
const PHYSICAL_SWITCH: [u8; 16] =
    [0x77, 0xcf, 0x92, 0x71, 0x9c, 0x02, 0x47, 0x0b, 0x9f, 0xe4, 0xbc, 0x7b, 0x75, 0xf2, 0xda, 0x97];
/// Identifies records about vPPBs: 40d26425-3396-4c4d-a5da-3d47263af425.
const VIRTUAL_SWITCH: [u8; 16] =
    [0x40, 0xd2, 0x64, 0x25, 0x33, 0x96, 0x4c, 0x4d, 0xa5, 0xda, 0x3d, 0x47, 0x26, 0x3a, 0xf4, 0x25];
/// Identifies records about dynamic capacity: ca95afa7-f183-4018-8c2f-95268e101a2a.
const DYNAMIC_CAPACITY: [u8; 16] =
    [0xca, 0x95, 0xaf, 0xa7, 0xf1, 0x83, 0x40, 0x18, 0x8c, 0x2f, 0x95, 0x26, 0x8e, 0x10, 0x1a, 0x2a];

cxloe_fabric::named! {
    /// Event log of a component, by severity or kind.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Log {
        /// Log number 0.
        Informational = "informational",
        /// Log number 1.
        Warning = "warning",
        /// Log number 2.
        Failure = "failure",
        /// Log number 3.
        Fatal = "fatal",
        /// Log number 4.
        DynamicCapacity = "dynamic capacity",
    }
}

impl Log {
    /// Returns the log with this number; `None` above 4.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    pub fn number(self) -> u8 {
        self as u8
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventContent {
    /// The link of a port changed. The value is the port's new state.
    Link(PortState),
    /// A vPPB was bound or unbound.
    Binding {
        /// Number of the VCS: 0 to 126.
        vcs: u8,
        /// Number of the vPPB of this VCS: 0 to 126.
        vppb: u8,
        /// Status of the vPPB after the change.
        status: VppbStatus,
        /// Number of the port that the vPPB is bound to.
        port: u8,
        /// LD-ID of the LD that the vPPB is bound to.
        ld: u8,
    },
    /// The capacity of a host changed.
    Capacity {
        /// 0 added, 1 to be released, 2 released by force, 3 region configuration changed, 5 release done.
        change: u8,
        /// LD-ID of the host.
        host: u16,
        /// The added or released capacity.
        extent: Extent,
        /// Number of extents that can still be added to the host.
        extents_free: u32,
        /// Number of tags that can still be added to the host.
        tags_free: u32,
    },
    /// Another kind of record, which only other components send.
    Other {
        /// UUID of the kind.
        id: [u8; 16],
        /// Content of the record, not decoded.
        data: [u8; RECORD_BYTES - COMMON_BYTES],
    },
}

/// One record of an event log, encoded in 128 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Handle that identifies the record in Clear Event Records; never 0.
    pub handle: u16,
    /// Severity, bits 1:0: 0 informational, 1 warning, 2 failure, 3 fatal.
    pub severity: u8,
    /// Time of the event, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    pub happening: EventContent,
}

/// Lowest event type: in a physical switch record, the link changed; in a virtual switch record, the binding changed.
const EVENT_TYPE_FIRST: u8 = 0;

impl Payload for EventRecord {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let id = reader.array()?;
        let [_, severity, _, _] = reader.array()?;
        let handle = reader.u16()?;
        reader.skip(2)?;
        let time_ns = reader.u64()?;
        reader.skip(16)?;
        let data: [u8; RECORD_BYTES - COMMON_BYTES] = reader.array()?;
        let happening = EventContent::read(id, data)?;
        Ok(Self { handle, severity: severity & 3, time_ns, happening })
    }

    fn write(&self, writer: &mut Writer) {
        writer.bytes(&self.happening.id()).u8(128).bytes(&[self.severity & 3, 0, 0]);
        writer.u16(self.handle).reserved(2).u64(self.time_ns).reserved(16);
        writer.bytes(&self.happening.data());
    }
}

impl EventContent {
    fn id(&self) -> [u8; 16] {
        match self {
            Self::Link(_) => PHYSICAL_SWITCH,
            Self::Binding { .. } => VIRTUAL_SWITCH,
            Self::Capacity { .. } => DYNAMIC_CAPACITY,
            Self::Other { id, .. } => *id,
        }
    }

    fn data(&self) -> [u8; RECORD_BYTES - COMMON_BYTES] {
        let mut writer = Writer::default();
        match self {
            Self::Link(state) => {
                // The record has the bytes of Get Physical Port State that follow the port number. In front of them are
                // the event type and 3 unused bytes.
                let state_bytes = state.to_bytes();
                writer.u8(state.port).u8(EVENT_TYPE_FIRST).reserved(3).bytes(&state_bytes[1..15]);
            }
            Self::Binding { vcs, vppb, status, port, ld } => {
                writer.bytes(&[*vcs, *vppb, EVENT_TYPE_FIRST, status.number(), *port, *ld]);
            }
            Self::Capacity { change, host, extent, extents_free, tags_free } => {
                // Flags 3: the two numbers at the end of the record are valid.
                writer.u8(*change).u8(3).u16(*host).reserved(4);
                extent.write(&mut writer);
                writer.reserved(24).u32(*extents_free).u32(*tags_free);
            }
            Self::Other { data, .. } => return *data,
        }
        let mut data = [0; RECORD_BYTES - COMMON_BYTES];
        let bytes = writer.finish();
        data[..bytes.len()].copy_from_slice(&bytes);
        data
    }

    fn read(id: [u8; 16], data: [u8; RECORD_BYTES - COMMON_BYTES]) -> Result<Self, WrongLength> {
        let mut reader = Reader::new(&data);
        Ok(match id {
            PHYSICAL_SWITCH if data[1] == EVENT_TYPE_FIRST => {
                let mut state = [0; 16];
                state[0] = data[0];
                state[1..15].copy_from_slice(&data[5..19]);
                Self::Link(PortState::from_bytes(&state)?)
            }
            VIRTUAL_SWITCH if data[2] == EVENT_TYPE_FIRST => {
                let [vcs, vppb, _, status, port, ld] = reader.array()?;
                Self::Binding { vcs, vppb, status: VppbStatus::from_number(status), port, ld }
            }
            DYNAMIC_CAPACITY => {
                let [change, _] = reader.array()?;
                let host = reader.u16()?;
                reader.skip(4)?;
                let extent = Extent::read(&mut reader)?;
                reader.skip(24)?;
                Self::Capacity { change, host, extent, extents_free: reader.u32()?, tags_free: reader.u32()? }
            }
            id => Self::Other { id, data },
        })
    }
}

/// Request of Get Event Records (0100h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetEvents {
    /// Number of the log: 0 to 4.
    pub log: u8,
}

fields!(GetEvents: log);

/// Number and time of events that were lost because the log was full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Number of lost events; more than 65535 are encoded as 65535.
    pub count: u64,
    /// Time of the first lost event, in nanoseconds since the Unix epoch.
    pub first_ns: u64,
    /// Time of the last lost event, in nanoseconds since the Unix epoch.
    pub last_ns: u64,
}

/// Response to Get Event Records (0100h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events {
    /// True if the log has further records, which are returned after the present ones are cleared; bit 1 of the flags.
    pub more: bool,
    /// Events lost since the log was last cleared; bit 0 of the flags.
    pub overflow: Option<Overflow>,
    /// The oldest records of the log.
    pub records: Vec<EventRecord>,
}

impl Payload for Events {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [flags, _] = reader.array()?;
        let overflow =
            Overflow { count: reader.u16()?.into(), first_ns: reader.u64()?, last_ns: reader.u64()? };
        let count = reader.u16()?;
        reader.skip(10)?;
        let overflow = (flags & 1 != 0).then_some(overflow);
        Ok(Self { more: flags & 2 != 0, overflow, records: reader.list(count.into())? })
    }

    fn write(&self, writer: &mut Writer) {
        let overflow = self.overflow.unwrap_or_default();
        writer.u8(u8::from(self.overflow.is_some()) | u8::from(self.more) << 1).reserved(1);
        writer
            .u16(overflow.count.try_into().unwrap_or(u16::MAX))
            .u64(overflow.first_ns)
            .u64(overflow.last_ns);
        writer.u16(self.records.len().try_into().unwrap_or(u16::MAX)).reserved(10).list(&self.records);
    }
}

/// Request of Clear Event Records (0101h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClearEvents {
    /// Number of the log: 0 to 4.
    pub log: u8,
    /// True to clear the whole log; bit 0 of the flags.
    pub all: bool,
    /// Handles of the records to clear, oldest first.
    pub handles: Vec<u16>,
}

impl Payload for ClearEvents {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [log, flags, count, ..] = reader.array::<6>()?;
        Ok(Self { log, all: flags & 1 != 0, handles: reader.list(count.into())? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(self.log).u8(u8::from(self.all)).u8(count_u8(self.handles.len())).reserved(3);
        writer.list(&self.handles);
    }
}
