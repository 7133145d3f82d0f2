//! Where things lie in a pool:
//!
//! ```text
//! 0          4 KiB                          head (2 MiB aligned)
//! | superblock | hashed page table | unused | extent 0 | extent 1 | ...
//! ```
//!
//! The page table lies in the pool itself, as the paper has it (section III.C), and is sized for the case
//! that every extent is mapped.

use cxloe_fabric::model::ByteSize;

use super::PoolError;

/// Bytes of the superblock, in front of everything.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Bytes of one slot of the page table.
pub const SLOT_BYTES: u64 = 32;
/// What the extents are aligned to, so that huge pages can back them.
pub const HEAD_ALIGN: u64 = 2 << 20;
/// The least extent size, in bytes: extent numbers of a 48-bit CMem address then fit 32 bits.
pub const EXTENT_BYTES_MIN: u64 = 64 << 10;
/// The largest extent size, in bytes.
pub const EXTENT_BYTES_MAX: u64 = 1 << 30;
/// The most extents of a pool.
const EXTENTS_MAX: u32 = u32::MAX / 2;
/// The extent size unless an option says otherwise, in bytes.
pub const EXTENT_BYTES_DEFAULT: u64 = 2 << 20;

/// The geometry of a pool; follows from the number and the size of its extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of an extent, a power of two.
    pub extent_bytes: u64,
    /// How many extents there are; at least 1.
    pub extents: u32,
    /// Slots of the page table, a power of two.
    pub slots: u64,
    /// Where extent 0 starts.
    pub head_bytes: u64,
}

impl Layout {
    /// For `extents` extents. The table has at least four slots for each: one extent takes one, its CN may
    /// take one more, and half of the table stays empty, which keeps probe sequences short.
    pub fn new(extent_bytes: u64, extents: u32) -> Layout {
        let slots = (u64::from(extents) * 4).next_power_of_two();
        let head_bytes = (SUPERBLOCK_BYTES + slots * SLOT_BYTES).next_multiple_of(HEAD_ALIGN);
        Layout { extent_bytes, extents, slots, head_bytes }
    }

    /// The layout that serves `bytes`, with the head on top.
    pub fn serving(bytes: u64, extent_bytes: u64) -> Result<Layout, PoolError> {
        check_extent_bytes(extent_bytes)?;
        if bytes == 0 || !bytes.is_multiple_of(extent_bytes) {
            return Err(PoolError::Size { size: ByteSize(bytes), extent: ByteSize(extent_bytes) });
        }
        let extents = u32::try_from(bytes / extent_bytes).ok().filter(|n| *n <= EXTENTS_MAX);
        let extents = extents.ok_or(PoolError::TooManyExtents { size: ByteSize(bytes) })?;
        Ok(Layout::new(extent_bytes, extents))
    }

    /// The largest layout that, head included, fits into `total` bytes.
    pub fn within(total: u64, extent_bytes: u64) -> Result<Layout, PoolError> {
        check_extent_bytes(extent_bytes)?;
        // The total grows with the number of extents, so the largest that fits is found by halving.
        let at_most = u32::try_from(total / extent_bytes).unwrap_or(EXTENTS_MAX).min(EXTENTS_MAX);
        let (mut fits, mut too_many) = (0, at_most + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if Layout::new(extent_bytes, middle).total_bytes() <= total {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        match fits {
            0 => Err(PoolError::TooSmall { size: ByteSize(total), extent: ByteSize(extent_bytes) }),
            fits => Ok(Layout::new(extent_bytes, fits)),
        }
    }

    /// Bytes that CNs can be given.
    pub fn served_bytes(&self) -> u64 {
        u64::from(self.extents) * self.extent_bytes
    }

    /// Bytes of everything.
    pub fn total_bytes(&self) -> u64 {
        self.head_bytes + self.served_bytes()
    }
}

fn check_extent_bytes(bytes: u64) -> Result<(), PoolError> {
    if bytes.is_power_of_two() && (EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&bytes) {
        Ok(())
    } else {
        Err(PoolError::ExtentSize(ByteSize(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pool_of_16_gib() {
        let layout = Layout::serving(16 << 30, 2 << 20).unwrap();
        assert_eq!(
            layout,
            Layout { extent_bytes: 2 << 20, extents: 8192, slots: 32768, head_bytes: 2 << 20 }
        );
    }

    #[test]
    fn sizes_that_do_not_work_are_named() {
        assert!(matches!(Layout::serving(0, 2 << 20), Err(PoolError::Size { .. })));
        assert!(matches!(Layout::serving(3 << 20, 2 << 20), Err(PoolError::Size { .. })));
        assert!(matches!(Layout::serving(4 << 20, 3 << 20), Err(PoolError::ExtentSize(_))));
        assert!(matches!(Layout::serving(1 << 30, 4096), Err(PoolError::ExtentSize(_))));
        assert!(matches!(Layout::serving(1 << 50, 64 << 10), Err(PoolError::TooManyExtents { .. })));
        assert!(matches!(Layout::within(2 << 20, 2 << 20), Err(PoolError::TooSmall { .. })));
    }

    proptest! {
        #[test]
        fn the_largest_that_fits(total in 0u64..1 << 44, shift in 16u32..=30) {
            if let Ok(layout) = Layout::within(total, 1 << shift) {
                prop_assert!(layout.total_bytes() <= total);
                prop_assert!(layout.slots >= 4 * u64::from(layout.extents));
                prop_assert!(SUPERBLOCK_BYTES + layout.slots * SLOT_BYTES <= layout.head_bytes);
                let next = Layout::new(1 << shift, layout.extents + 1);
                prop_assert!(next.total_bytes() > total, "one extent more would fit");
            }
        }
    }
}
