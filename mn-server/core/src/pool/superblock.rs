//! The first 4 KiB of a pool: its geometry, its incarnation, and whether its content is valid.
//!
//! | offset | bytes | field (little-endian) |
//! |---|---|---|
//! | 0 | 8 | magic `CXLoEpol` |
//! | 8 | 4 | version, 2 |
//! | 12 | 4 | number of extents |
//! | 16 | 8 | extent size in bytes |
//! | 24 | 8 | incarnation |
//! | 32 | 16 | boot id of the kernel that served it last |
//! | 48 | 1 | 1 after an orderly close, when everything had reached the file |
//! | 49 | 3 | zero |
//! | 52 | 4 | CRC-32C of bytes 0 to 51 |

use super::layout::Layout;

const MAGIC: &[u8; 8] = b"CXLoEpol";
const VERSION: u32 = 2;
/// Number of bytes of the 4 KiB that are used; the rest is zero.
pub const USED_BYTES: usize = 56;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Geometry of the pool; only the size and the number of extents are stored, and the rest follows from
    /// them.
    pub layout: Layout,
    /// Random number, replaced whenever content may have been lost; never 0.
    pub incarnation: u64,
    /// Boot id of the kernel that opened the pool last.
    pub boot_id: u128,
    /// Set if the pool was closed in order, with everything written to the file.
    pub clean: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum BadSuperblock {
    /// The magic number is missing: the bytes are not those of a pool.
    Foreign,
    /// The superblock is damaged or of a later version, with the reason.
    Damaged(String),
}

impl Superblock {
    pub const BYTES: usize = USED_BYTES;

    pub fn emit(&self) -> [u8; USED_BYTES] {
        let mut bytes = [0; USED_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.layout.extents.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.layout.extent_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.boot_id.to_le_bytes());
        bytes[48] = u8::from(self.clean);
        let crc = crc32c::crc32c(&bytes[..52]);
        bytes[52..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes stored bytes and checks magic, version and checksum.
    pub fn parse(bytes: &[u8; USED_BYTES]) -> Result<Superblock, BadSuperblock> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if &bytes[..8] != MAGIC {
            return Err(BadSuperblock::Foreign);
        }
        if crc32c::crc32c(&bytes[..52]) != u32_at(52) {
            return Err(BadSuperblock::Damaged("its checksum does not match".into()));
        }
        if u32_at(8) != VERSION {
            let why = format!("it is of version {}, this program supports version {VERSION}", u32_at(8));
            return Err(BadSuperblock::Damaged(why));
        }
        let served = u64::from(u32_at(12)).checked_mul(u64_at(16));
        let layout = served.and_then(|served| Layout::serving(served, u64_at(16)).ok());
        Ok(Superblock {
            layout: layout.ok_or_else(|| BadSuperblock::Damaged("its geometry is impossible".into()))?,
            incarnation: u64_at(24),
            boot_id: u128::from_le_bytes(bytes[32..48].try_into().expect("16 bytes")),
            clean: bytes[48] == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Superblock {
        let layout = Layout::serving(64 << 20, 2 << 20).unwrap();
        Superblock { layout, incarnation: 0x1234, boot_id: 0xABCD << 90, clean: true }
    }

    #[test]
    fn reads_back() {
        for clean in [false, true] {
            let superblock = Superblock { clean, ..example() };
            assert_eq!(Superblock::parse(&superblock.emit()), Ok(superblock));
        }
    }

    #[test]
    fn any_damaged_byte_is_noticed() {
        for at in 0..USED_BYTES {
            let mut bytes = example().emit();
            bytes[at] ^= 0x10;
            let error = Superblock::parse(&bytes).unwrap_err();
            assert_eq!(error == BadSuperblock::Foreign, at < 8, "byte {at}: {error:?}");
        }
    }

    #[test]
    fn a_later_version_and_an_impossible_geometry_are_refused() {
        for (at, value) in [(8, 3u32), (12, 0), (16, 3)] {
            let mut bytes = example().emit();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let crc = crc32c::crc32c(&bytes[..52]).to_le_bytes();
            bytes[52..].copy_from_slice(&crc);
            assert!(matches!(Superblock::parse(&bytes), Err(BadSuperblock::Damaged(_))), "at {at}");
        }
    }
}
