//! MLD port commands (53xxh): messages to the device behind a port, and accesses to the configuration and register space
//! of its LDs.

use super::bytes::{Payload, Reader, Writer, WrongLength, fields};
use super::header::Dialect;
use super::mctp::TYPE_CCI;

/// Maximum number of bytes of one memory request.
pub const MEMORY_REQUEST_MAX: u16 = 4096;

/// Request of Tunnel Management Command (5300h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// Number of the port that the device is behind.
    pub port: u8,
    /// Target behind the port; 0 is the device itself.
    pub target: u8,
    /// The message for the device: header and payload.
    pub message: Vec<u8>,
}

impl Tunnel {
    /// Decodes a request.
    ///
    /// # Errors
    /// [`WrongLength`] if there are fewer bytes than the size field states, or if the message type is missing in a
    /// dialect that has one.
    pub fn from_bytes(bytes: &[u8], dialect: Dialect) -> Result<Self, WrongLength> {
        let mut reader = Reader::new(bytes);
        let [port, target] = reader.array()?;
        let size = reader.u16()?;
        Ok(Self { port, target, message: inner(&mut reader, size, dialect)? })
    }

    pub fn to_bytes(&self, dialect: Dialect) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u8(self.port).u8(self.target).u16(size(&self.message, dialect));
        put_inner(&mut writer, &self.message, dialect);
        writer.finish()
    }
}

/// Response to Tunnel Management Command (5300h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnelled {
    /// The message of the device: header and payload.
    pub message: Vec<u8>,
}

impl Tunnelled {
    /// Decodes a response.
    ///
    /// # Errors
    /// [`WrongLength`] as with [`Tunnel::from_bytes`].
    pub fn from_bytes(bytes: &[u8], dialect: Dialect) -> Result<Self, WrongLength> {
        let mut reader = Reader::new(bytes);
        let size = reader.u16()?;
        reader.skip(2)?;
        Ok(Self { message: inner(&mut reader, size, dialect)? })
    }

    pub fn to_bytes(&self, dialect: Dialect) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u16(size(&self.message, dialect)).reserved(2);
        put_inner(&mut writer, &self.message, dialect);
        writer.finish()
    }
}

/// Returns the tunnelled message of `size` bytes without the message type, which one dialect includes in the
/// size.
fn inner(reader: &mut Reader<'_>, size: u16, dialect: Dialect) -> Result<Vec<u8>, WrongLength> {
    let message = reader.take(size.into())?;
    match dialect {
        Dialect::Spec => Ok(message.to_vec()),
        Dialect::Tools => match message.split_first() {
            Some((&TYPE_CCI, message)) => Ok(message.to_vec()),
            _ => Err(WrongLength),
        },
    }
}

fn size(message: &[u8], dialect: Dialect) -> u16 {
    let before = usize::from(dialect == Dialect::Tools);
    u16::try_from(message.len() + before).unwrap_or(u16::MAX)
}

fn put_inner(writer: &mut Writer, message: &[u8], dialect: Dialect) {
    if dialect == Dialect::Tools {
        writer.u8(TYPE_CCI);
    }
    writer.bytes(message);
}

/// Request of Send LD CXL.io Configuration Request (5301h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigRequest {
    /// Number of the physical port.
    pub port: u8,
    /// Offset of the first byte in the configuration space: 0 to 4095. Bits 7:0 are the register number, bits 11:8 the
    /// extended one.
    pub offset: u16,
    /// Enabled bytes of the four bytes from `offset` on, bits 3:0.
    pub byte_enables: u8,
    /// True for a write, false for a read.
    pub write: bool,
    /// LD-ID: 0 to 15.
    pub ld: u16,
    /// Bytes to write; ignored for reads.
    pub data: [u8; 4],
}

impl Payload for ConfigRequest {
    /// Decodes a request; a read may lack the data.
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [port, low, high, transaction] = reader.array()?;
        let ld = reader.u16()?;
        reader.skip(2)?;
        let write = transaction & 0x80 != 0;
        let data = if reader.is_empty() && !write { [0; 4] } else { reader.array()? };
        let offset = u16::from(low) | u16::from(high & 0xF) << 8;
        Ok(Self { port, offset, byte_enables: high >> 4, write, ld, data })
    }

    fn write(&self, writer: &mut Writer) {
        let [low, high] = self.offset.to_le_bytes();
        writer.u8(self.port).u8(low).u8(high & 0xF | self.byte_enables << 4).u8(u8::from(self.write) << 7);
        writer.u16(self.ld).reserved(2).bytes(&self.data);
    }
}

/// Response to Send LD CXL.io Configuration Request (5301h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigResponse {
    /// Result of a read: the enabled bytes, zeros for the others.
    pub data: [u8; 4],
}

fields!(ConfigResponse: data);

/// Request of Send LD CXL.io Memory Request (5302h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Number of the physical port.
    pub port: u8,
    /// Enabled bytes of the first 32 bits, bits 3:0.
    pub first_enables: u8,
    /// Enabled bytes of the last 32 bits, bits 3:0.
    pub last_enables: u8,
    /// True for a write, false for a read.
    pub write: bool,
    /// LD-ID: 0 to 15.
    pub ld: u16,
    /// Number of bytes, at most [`MEMORY_REQUEST_MAX`].
    pub length: u16,
    /// Offset of the first byte in the device's register space.
    pub offset: u64,
    /// Bytes to write. In a read, clients send as many bytes as they request, and these bytes are ignored.
    pub data: Vec<u8>,
}

impl Payload for MemoryRequest {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let [port, _, first, last] = reader.array()?;
        Ok(Self {
            port,
            first_enables: first >> 4,
            last_enables: last & 0xF,
            write: last & 0x80 != 0,
            ld: reader.u16()?,
            length: reader.u16()?,
            offset: reader.u64()?,
            data: reader.rest().to_vec(),
        })
    }

    fn write(&self, writer: &mut Writer) {
        let last = self.last_enables & 0xF | u8::from(self.write) << 7;
        writer.u8(self.port).reserved(1).u8(self.first_enables << 4).u8(last);
        writer.u16(self.ld).u16(self.length).u64(self.offset).bytes(&self.data);
    }
}

/// Response to Send LD CXL.io Memory Request (5302h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryResponse {
    /// Result of a read: the requested bytes.
    pub data: Vec<u8>,
}

impl Payload for MemoryResponse {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let length = reader.u16()?;
        reader.skip(2)?;
        Ok(Self { data: reader.take(length.into())?.to_vec() })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u16(u16::try_from(self.data.len()).unwrap_or(u16::MAX)).reserved(2).bytes(&self.data);
    }
}
