//! PCI configuration space of an LD, 4 KiB, for Send LD CXL.io Configuration Request (5301h). Its content is
//! derived from the LD's properties. Only the command register can be written; writes to anything else are
//! refused. A DVSEC is a designated vendor-specific extended capability.
//!
//! | offset | content |
//! |---|---|
//! | 000h | header type 0, class 050210h (CXL memory device) |
//! | 040h | PCI Express capability |
//! | 100h | CXL device DVSEC (CXL 3.1, 8.1.3): its capabilities, and its memory's size |
//! | 140h | register locator DVSEC (8.1.9): the component registers are at the start of BAR 0 |

use super::bytes::Writer;
use super::fabric::{Device, DeviceKind, LogicalDevice};
use super::header::ReturnCode;
use super::identity::{DEVICE_MEMORY, VENDOR};

/// Size of a configuration space in bytes.
pub(crate) const CONFIG_BYTES: usize = 4096;

/// Vendor id of the CXL Consortium, which marks its DVSECs.
const VENDOR_CXL: u16 = 0x1E98;
const COMMAND: usize = 0x04;
/// Writable bits of the command register: memory space, bus master, parity, SERR#, interrupt disable.
const COMMAND_WRITABLE: u16 = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 8 | 1 << 10;
/// Status register: a list of capabilities is present.
const STATUS_CAPABILITIES: u16 = 1 << 4;
/// Base class memory, subclass CXL, programming interface CXL 2.0 or later memory device.
const CLASS: [u8; 3] = [0x10, 0x02, 0x05];
const PCI_EXPRESS: usize = 0x40;
const CXL_DEVICE: usize = 0x100;
const REGISTER_LOCATOR: usize = 0x140;

#[derive(Debug, Clone)]
pub struct ConfigSpace {
    bytes: Box<[u8; CONFIG_BYTES]>,
}

impl ConfigSpace {
    /// Returns the configuration space of `ld` on `device`, with `command` in the command register.
    pub fn new(device: &Device, ld: &LogicalDevice, command: u16) -> Self {
        let mut space = Self { bytes: Box::new([0; CONFIG_BYTES]) };
        space.put(0, header(command & COMMAND_WRITABLE));
        space.put(PCI_EXPRESS, pci_express());
        // The only LD of a single logical device has all of the device's memory.
        let memory = match device.kind {
            DeviceKind::Mld => ld.reserved.max(ld.capacity.iter().map(|capacity| capacity.bytes).sum()),
            DeviceKind::Sld => device.pool_bytes,
        };
        space.put(CXL_DEVICE, cxl_device(memory, ld.bound));
        space.put(REGISTER_LOCATOR, register_locator());
        space
    }

    /// Returns the four bytes from `offset` on, with zeros for bytes that are not enabled; `None` beyond the
    /// end.
    pub fn read(&self, offset: u16, byte_enables: u8) -> Option<[u8; 4]> {
        let offset = usize::from(offset);
        let mut data: [u8; 4] = self.bytes.get(offset..offset + 4)?.try_into().ok()?;
        for (index, byte) in data.iter_mut().enumerate() {
            if byte_enables & 1 << index == 0 {
                *byte = 0;
            }
        }
        Some(data)
    }

    /// Writes those of the four bytes from `offset` on that are enabled and writable.
    ///
    /// # Errors
    /// [`ReturnCode::InvalidInput`] beyond the end; [`ReturnCode::Unsupported`] if none of the bytes is
    /// writable, because a success would suggest that the write had an effect.
    pub fn write(&mut self, offset: u16, byte_enables: u8, data: [u8; 4]) -> Result<(), ReturnCode> {
        let offset = usize::from(offset);
        self.bytes.get(offset..offset + 4).ok_or(ReturnCode::InvalidInput)?;
        let mut command = self.command().to_le_bytes();
        let mut written = false;
        for (index, byte) in data.into_iter().enumerate() {
            let place = (offset + index).checked_sub(COMMAND);
            if byte_enables & 1 << index != 0
                && let Some(place) = place.and_then(|place| command.get_mut(place))
            {
                *place = byte;
                written = true;
            }
        }
        if !written {
            return Err(ReturnCode::Unsupported);
        }
        let command = u16::from_le_bytes(command) & COMMAND_WRITABLE;
        self.bytes[COMMAND..COMMAND + 2].copy_from_slice(&command.to_le_bytes());
        Ok(())
    }

    pub fn command(&self) -> u16 {
        u16::from_le_bytes([self.bytes[COMMAND], self.bytes[COMMAND + 1]])
    }

    fn put(&mut self, offset: usize, bytes: Vec<u8>) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
}

fn header(command: u16) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u16(VENDOR).u16(DEVICE_MEMORY).u16(command).u16(STATUS_CAPABILITIES);
    // Revision, class, cache line size, latency timer, header type 0, self-test.
    writer.u8(0).bytes(&CLASS).reserved(4);
    // BAR 0 has 64 bits, and the other BARs do not exist; the CardBus pointer follows.
    writer.u32(0b100).reserved(20).reserved(4);
    writer.u16(VENDOR).u16(DEVICE_MEMORY);
    // Expansion ROM, capabilities, interrupts.
    writer.reserved(4).u8(PCI_EXPRESS as u8).reserved(11);
    writer.finish()
}

/// PCI Express capability (id 10h): version 2, an endpoint.
fn pci_express() -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u8(0x10).u8(0).u16(2);
    // Device capabilities: role-based error reporting. The other fields have their reset values.
    writer.u32(1 << 15);
    writer.finish()
}

/// Appends the three headers of a DVSEC of the CXL Consortium.
fn dvsec(writer: &mut Writer, next: usize, revision: u16, length: u16, id: u16) {
    let next = u16::try_from(next).unwrap_or(0);
    // Extended capability 0023h, version 1.
    writer.u16(0x0023).u16(1 | next << 4);
    writer.u16(VENDOR_CXL).u16(revision | length << 4).u16(id);
}

/// CXL device DVSEC (id 0): CXL.io and CXL.mem with one range of memory, which is active once the LD is bound.
fn cxl_device(memory: u64, active: bool) -> Vec<u8> {
    let mut writer = Writer::default();
    dvsec(&mut writer, REGISTER_LOCATOR, 2, 0x3C, 0);
    let (io, mem, hardware_init, one_range) = (1 << 1, 1 << 2, 1 << 3, 1 << 4);
    writer.u16(io | mem | hardware_init | one_range);
    // Control: CXL.io and CXL.mem enabled. Status, control 2, status 2, lock, capability 2.
    writer.u16(io | if active { mem } else { 0 }).reserved(10);
    // Range 1: the size in 256 MiB, whether it is valid and active, volatile memory, base 0.
    let [low, high] = [memory as u32, (memory >> 32) as u32];
    let flags = 1 | u32::from(active) << 1;
    writer.u32(high).u32(low & 0xF000_0000 | flags).reserved(8);
    // These bytes are range 2, which is empty, and capability 3.
    writer.reserved(20);
    writer.finish()
}

/// Register locator DVSEC (id 8): one block, the component registers (1), at offset 0 of BAR 0.
fn register_locator() -> Vec<u8> {
    let mut writer = Writer::default();
    dvsec(&mut writer, 0, 0, 0x14, 8);
    writer.reserved(2).u32(1 << 8).u32(0);
    writer.finish()
}
