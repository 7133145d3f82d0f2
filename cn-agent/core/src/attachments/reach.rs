//! How much of a region its addresses reach.

use cxloe_fabric::model::{HdmDecoder, Region};

/// Bytes of a page: what routes consist of.
const PAGE: u64 = 4096;

/// How many bytes of `region` lie in the first `window` bytes of its addresses, in committed decoders.
pub fn reach(region: &Region, window: u64) -> u64 {
    region.decoders.iter().map(|decoder| reach_of(decoder, window)).sum()
}

/// How many bytes of a decoder do: whole turns and pages of each of its targets.
pub fn reach_of(decoder: &HdmDecoder, window: u64) -> u64 {
    if !decoder.committed {
        return 0;
    }
    let turn = u64::from(decoder.ways.count()) * PAGE.max(decoder.granularity.bytes().into());
    decoder.size.min(window.saturating_sub(decoder.offset)) / turn * turn
}
