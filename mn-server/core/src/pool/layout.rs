//! Layout of a pool:
//!
//! ```text
//! 0          4 KiB                          head (2 MiB aligned)
//! | superblock | hashed page table | records of copies | unused | extent 0 | extent 1 | ...
//! ```
//!
//! The page table lies in the pool itself (paper, section III.C), and has room for mappings of all extents. Each extent
//! has a record of the copy that fills it: a word for its source, and one bit for each page copied.

use cxloe_fabric::model::ByteSize;

use super::PoolError;

/// Length in bytes of the superblock, at the start of the pool.
pub const SUPERBLOCK_BYTES: u64 = 4096;
pub(crate) const SLOT_BYTES: u64 = 32;
/// Length in bytes of a page, the unit in which extents are copied.
pub const PAGE_BYTES: u64 = 4096;
/// Alignment of extent 0, so that huge pages can back extents.
pub const HEAD_ALIGN: u64 = 2 << 20;
/// Smallest extent size, in bytes: extent numbers of a 48-bit CMem address then fit 32 bits.
pub const EXTENT_BYTES_MIN: u64 = 64 << 10;
pub(crate) const EXTENT_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of extents of a pool, so that an extent number fits the 31 bits for it in the record of a copy.
const EXTENTS_MAX: u32 = u32::MAX / 2;
pub const EXTENT_BYTES_DEFAULT: u64 = 2 << 20;

/// Geometry of a pool, computed from the number and the size of its extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Length of an extent in bytes, a power of two.
    pub extent_bytes: u64,
    /// Number of extents, at least 1.
    pub extents: u32,
    /// Number of slots of the page table, a power of two.
    pub slots: u64,
    /// Offset of extent 0 in bytes, a multiple of [`HEAD_ALIGN`].
    pub head_bytes: u64,
}

impl Layout {
    /// Computes the layout for `extents` extents. The table has at least four slots per extent: a mapping takes one,
    /// its CN's tenant entry may take another, and half of the table stays empty, which keeps probe sequences short.
    pub fn new(extent_bytes: u64, extents: u32) -> Layout {
        let slots = (u64::from(extents) * 4).next_power_of_two();
        let mut layout = Layout { extent_bytes, extents, slots, head_bytes: 0 };
        let records = u64::from(extents) * layout.record_words() * 8;
        layout.head_bytes = (layout.records_offset() + records).next_multiple_of(HEAD_ALIGN);
        layout
    }

    /// Number of 64-bit words in the record of an extent's copy: one for its source, and one bit for each
    /// page.
    pub fn record_words(&self) -> u64 {
        1 + (self.extent_bytes / PAGE_BYTES).div_ceil(64)
    }

    /// Offset in bytes of the first record of a copy, a multiple of 8.
    pub fn records_offset(&self) -> u64 {
        SUPERBLOCK_BYTES + self.table_bytes()
    }

    /// Computes the layout of a pool with `bytes` for extents, plus the head.
    pub fn serving(bytes: u64, extent_bytes: u64) -> Result<Layout, PoolError> {
        check_extent_bytes(extent_bytes)?;
        if bytes == 0 || !bytes.is_multiple_of(extent_bytes) {
            return Err(PoolError::Size { size: ByteSize(bytes), extent: ByteSize(extent_bytes) });
        }
        let extents = u32::try_from(bytes / extent_bytes).ok().filter(|n| *n <= EXTENTS_MAX);
        let extents = extents.ok_or(PoolError::TooManyExtents { size: ByteSize(bytes) })?;
        Ok(Layout::new(extent_bytes, extents))
    }

    /// Computes the largest layout that fits into `total` bytes, head included.
    pub fn within(total: u64, extent_bytes: u64) -> Result<Layout, PoolError> {
        check_extent_bytes(extent_bytes)?;
        // A binary search finds the largest number of extents, because the total length grows with that number.
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

    pub fn table_bytes(&self) -> u64 {
        self.slots * SLOT_BYTES
    }

    /// Bytes of all extents together, head excluded.
    pub fn served_bytes(&self) -> u64 {
        u64::from(self.extents) * self.extent_bytes
    }

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
                let records = u64::from(layout.extents) * layout.record_words() * 8;
                prop_assert!(layout.records_offset() + records <= layout.head_bytes);
                prop_assert!(layout.record_words() > layout.extent_bytes / PAGE_BYTES / 64);
                let next = Layout::new(1 << shift, layout.extents + 1);
                prop_assert!(next.total_bytes() > total, "one extent more would fit");
            }
        }
    }
}
