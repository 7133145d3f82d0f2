//! Commands of every component: Identify, Background Operation Status, Response Message Limit (00xxh), logs (04xxh).

use super::bytes::{Payload, Reader, Writer, WrongLength, fields};
use super::header::ReturnCode;

/// Component type of a switch in [`Identity`].
pub const TYPE_SWITCH: u8 = 0;
/// Component type of a type 3 device in [`Identity`].
pub const TYPE_3: u8 = 3;
/// The smallest response message limit: 256 bytes.
pub const LIMIT_MIN: u8 = 8;
/// Length of a log's identifier in bytes.
pub(crate) const LOG_ID_BYTES: usize = 16;
/// Identifier of the Command Effects Log: 0da9c0b5-bf41-4b78-8f79-96b1623b3f17.
pub const COMMAND_EFFECTS_LOG: [u8; LOG_ID_BYTES] =
    [0x0d, 0xa9, 0xc0, 0xb5, 0xbf, 0x41, 0x4b, 0x78, 0x8f, 0x79, 0x96, 0xb1, 0x62, 0x3b, 0x3f, 0x17];

/// Response to Identify (0001h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// PCI vendor id of the component.
    pub vendor: u16,
    /// PCI device id of the component.
    pub device: u16,
    pub subsystem_vendor: u16,
    pub subsystem: u16,
    /// Serial number of the component, unique among those of its vendor.
    pub serial: u64,
    /// Binary logarithm of the longest message in bytes, header included.
    pub message_max: u8,
    /// [`TYPE_SWITCH`] for a switch, or [`TYPE_3`] for a device.
    pub component_type: u8,
}

fields!(Identity: vendor, device, subsystem_vendor, subsystem, serial, message_max, component_type);

/// Response to Background Operation Status (0002h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackgroundStatus {
    pub running: bool,
    /// Progress of the operation in percent, 0 to 100.
    pub percent: u8,
    /// Opcode of the present or latest operation; 0: no operation yet.
    pub opcode: u16,
    /// Return code of the latest operation.
    pub code: ReturnCode,
    /// Vendor-specific status; 0 here.
    pub vendor: u16,
}

impl Payload for BackgroundStatus {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let status = reader.u8()?;
        reader.skip(1)?;
        Ok(Self {
            running: status & 1 != 0,
            percent: status >> 1,
            opcode: reader.u16()?,
            code: ReturnCode::from_number(reader.u16()?),
            vendor: reader.u16()?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(self.percent << 1 | u8::from(self.running)).reserved(1);
        writer.u16(self.opcode).u16(self.code.number()).u16(self.vendor);
    }
}

/// Request of Set Response Message Limit (0004h); response to Set and to Get Response Message Limit (0003h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseLimit {
    /// Binary logarithm of the longest response in bytes, header included.
    pub n: u8,
}

fields!(ResponseLimit: n);

/// Identifier and size of one log in [`SupportedLogs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEntry {
    pub id: [u8; LOG_ID_BYTES],
    /// Size of the log in bytes.
    pub size: u32,
}

fields!(LogEntry: id, size);

/// Response to Get Supported Logs (0400h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupportedLogs {
    /// One entry per log, in any order.
    pub logs: Vec<LogEntry>,
}

impl Payload for SupportedLogs {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let count = reader.u16()?;
        reader.skip(6)?;
        Ok(Self { logs: reader.list(count.into())? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u16(u16::try_from(self.logs.len()).unwrap_or(u16::MAX)).reserved(6).list(&self.logs);
    }
}

/// Request of Get Log (0401h). The response consists of the requested bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetLog {
    /// Identifier of the log, from [`SupportedLogs`].
    pub id: [u8; LOG_ID_BYTES],
    /// Offset of the first requested byte in the log.
    pub offset: u32,
    /// Number of requested bytes.
    pub length: u32,
}

fields!(GetLog: id, offset, length);
