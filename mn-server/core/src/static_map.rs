//! Service without a manager: a file lists the memory of each CN, and this node chooses the extents.
//!
//! ```toml
//! [[map]]
//! cn = "02:00:00:00:00:01"   # the CN's MAC address
//! base = 0                   # first CMem byte address
//! size = "1GiB"
//! ```

use std::collections::{HashMap, HashSet};

use cxloe_wire::frame::Mac;
use serde::{Deserialize, Serialize};

use crate::job::Job;
use crate::mappings::Mappings;
use crate::pool::{ByteSize, MpExtent};
use crate::translation::Translation;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticMap {
    #[serde(default, rename = "map")]
    pub ranges: Vec<StaticRange>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticRange {
    /// CN id: the CN's MAC address.
    pub cn: Mac,
    /// First CMem byte address, a multiple of the extent size.
    #[serde(default)]
    pub base: ByteSize,
    /// Length in bytes, a multiple of the extent size.
    pub size: ByteSize,
}

#[derive(Debug, thiserror::Error)]
pub enum StaticMapError {
    #[error(
        "base {base} and size {size} of CN {cn} are not multiples of the extent size {extent}, or are too large"
    )]
    Range { cn: Mac, base: ByteSize, size: ByteSize, extent: ByteSize },
    #[error("two ranges of CN {cn} overlap at CMem address {at:#x}")]
    Overlap {
        cn: Mac,
        /// First CMem byte address that lies in both ranges.
        at: u64,
    },
    #[error(
        "the static map asks for {needed}, the pool has {available}; enlarge --pool-size or give out less"
    )]
    Full {
        /// Bytes that the map assigns.
        needed: ByteSize,
        available: ByteSize,
    },
}

impl StaticMap {
    /// Makes `mappings` hold exactly this map. Ranges that are already mapped, in a pool with content, keep their
    /// extents and their content; new ranges read as zeros; ranges no longer listed are removed and zeroed. Pass the
    /// job to [`Mappings::finish`] when it is done.
    ///
    /// # Errors
    /// Any [`StaticMapError`]; nothing has changed then.
    pub fn apply(&self, mappings: &mut Mappings) -> Result<Job, StaticMapError> {
        let table = mappings.table().clone();
        let (pool, shift) = (table.pool(), table.extent_shift());
        let mut addresses = HashSet::new();
        for range in &self.ranges {
            let &StaticRange { cn, base, size } = range;
            let extent = ByteSize(pool.extent_bytes());
            let end = base.0.checked_add(size.0).filter(|end| {
                *end <= 1 << 48 && base.0.is_multiple_of(extent.0) && size.0.is_multiple_of(extent.0)
            });
            let end = end.ok_or(StaticMapError::Range { cn, base, size, extent })?;
            let needed = addresses.len() as u64 + (size.0 >> shift);
            if needed > u64::from(pool.extents()) {
                let needed = ByteSize(needed << shift);
                return Err(StaticMapError::Full { needed, available: ByteSize(pool.bytes()) });
            }
            for cmem_extent in base.0 >> shift..end >> shift {
                if !addresses.insert((cn.to_u64(), cmem_extent)) {
                    return Err(StaticMapError::Overlap { cn, at: cmem_extent << shift });
                }
            }
        }
        let held: HashMap<_, _> = table.iter().map(|t| ((t.cn, t.cmem_extent), t.mp_extent)).collect();
        let kept: HashSet<MpExtent> =
            addresses.iter().filter_map(|address| held.get(address)).copied().collect();
        let mut free = (0..pool.extents()).map(MpExtent).filter(|extent| !kept.contains(extent));
        let mut granted = Vec::new();
        let mut addresses: Vec<_> = addresses.into_iter().collect();
        addresses.sort_unstable();
        let wanted = addresses
            .into_iter()
            .map(|(cn, cmem_extent)| {
                let mp_extent = held.get(&(cn, cmem_extent)).copied().unwrap_or_else(|| {
                    let extent = free.next().expect("as many extents as addresses, as checked above");
                    granted.push(extent);
                    extent
                });
                Translation { cn, cmem_extent, mp_extent, sealed: false }
            })
            .collect();
        Ok(mappings.reconcile(wanted, granted))
    }
}
