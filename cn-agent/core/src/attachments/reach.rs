//! The part of a region that fits its window of addresses.

use cxloe_fabric::model::{HdmDecoder, Region};

/// Page size in bytes: routes consist of whole pages.
const PAGE: u64 = 4096;

/// Bytes of `region` in committed decoders that lie in the first `window` bytes of its addresses.
pub fn reach(region: &Region, window: u64) -> u64 {
    region.decoders.iter().map(|decoder| reach_of(decoder, window)).sum()
}

/// Returns how many bytes of `decoder` lie in the first `window` bytes of the region, rounded down to whole interleave
/// rounds over all memory nodes, and to whole pages on each. Returns 0 for a decoder that is not committed.
pub(crate) fn reach_of(decoder: &HdmDecoder, window: u64) -> u64 {
    if !decoder.committed {
        return 0;
    }
    let turn = u64::from(decoder.ways.count()) * PAGE.max(decoder.granularity.bytes().into());
    decoder.size.min(window.saturating_sub(decoder.offset)) / turn * turn
}
