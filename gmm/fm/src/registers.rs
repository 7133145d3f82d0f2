//! The component registers of an LD (CXL 3.1, 8.2.3), for Send LD CXL.io Memory Request (5302h): the HDM decoder
//! capability, with the decoders whose targets include the LD.
//!
//! | offset | content |
//! |---|---|
//! | 1000h | capability header: one capability follows |
//! | 1004h | HDM decoders at 1100h |
//! | 1100h | HDM decoder capability and global control |
//! | 1110h | 32 bytes for each decoder: base, size, control, skip |
//!
//! Hardware decoders have bases and sizes in units of 256 MiB; those of the fabric can be finer, so all bits of the low
//! halves are used. The manager has no record of the address at which a host attaches a region, so bases are relative
//! to that address.

use super::bytes::Writer;
use super::fabric::DECODERS_MAX;
use cxloe_fabric::hdm::{Control, Decoder, TargetType};

/// Size of the component registers in bytes.
pub(crate) const REGISTERS_BYTES: usize = 64 << 10;

/// Offset of the CXL.cache and CXL.mem registers.
const PRIMARY: usize = 0x1000;
/// Offset of the HDM decoder capability from `PRIMARY`.
const DECODERS: usize = 0x100;
/// Capability ids (CXL 3.1, 8.2.4): 1 is the CXL capability, 5 the HDM decoder capability.
const CAPABILITY_CXL: u32 = 1;
const CAPABILITY_HDM: u32 = 5;
/// Capability register: interleaving on address bits 11:8 and 14:12, and over 3, 6, 12 and 16 ways.
const INTERLEAVES: u32 = 1 << 8 | 1 << 9 | 1 << 11 | 1 << 12;
/// Encoding of 32 decoders in the capability register.
const COUNT_32: u32 = 12;
/// Global control register: decoders are enabled.
const ENABLE: u32 = 1 << 1;

/// Returns `length` bytes from `offset` on; `None` if they exceed the registers.
pub fn read(decoders: &[Decoder], offset: u64, length: usize) -> Option<Vec<u8>> {
    let offset = usize::try_from(offset).ok()?;
    let end = offset.checked_add(length).filter(|end| *end <= REGISTERS_BYTES)?;
    let registers = registers(decoders);
    let at = |place: usize| registers.get(place).copied().unwrap_or(0);
    Some((offset..end).map(at).collect())
}

/// Returns all registers up to the last one that is not 0.
fn registers(decoders: &[Decoder]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.reserved(PRIMARY);
    // Id, version 1, CXL.cachemem version 1, one capability; then its entry: id, version 3, offset.
    writer.u32(CAPABILITY_CXL | 1 << 16 | 1 << 20 | 1 << 24);
    writer.u32(CAPABILITY_HDM | 3 << 16 | (DECODERS as u32) << 20);
    writer.reserved(DECODERS - 8);
    writer.u32(COUNT_32 | INTERLEAVES).u32(ENABLE).reserved(8);
    for decoder in decoders.iter().take(DECODERS_MAX.into()) {
        let [base, size] = [decoder.base, decoder.size].map(|value| [value as u32, (value >> 32) as u32]);
        let control = Control {
            granularity: decoder.granularity,
            ways: decoder.ways,
            lock: false,
            commit: true,
            committed: true,
            commit_error: false,
            target_type: TargetType::HostOnly,
        };
        writer.u32(base[0]).u32(base[1]).u32(size[0]).u32(size[1]).u32(control.bits()).reserved(12);
    }
    writer.finish()
}
