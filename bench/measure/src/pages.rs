//! Latency of single page reads through the line port, in as many frames as carry a page.

use std::hint::black_box;
use std::time::Instant;

use cxloe_link::echo::Echo;
use cxloe_wire::frame::{LINE_SIZE, PAGE_LINES};
use cxloe_wire::random::Random;

use super::floor::page_shape;
use super::{MeasureError, MeasuredRegion};
use crate::report::Samples;

pub(crate) const PAGE: usize = PAGE_LINES * LINE_SIZE;

/// Times `operation` `count` times, each at a random multiple of `size` in `region`, which is given as first
/// HPA and length in bytes.
pub(crate) fn at_random(
    region: (u64, u64),
    size: usize,
    count: u64,
    addresses: &mut Random,
    samples: &mut Samples,
    mut operation: impl FnMut(u64) -> Result<(), MeasureError>,
) -> Result<(), MeasureError> {
    let (first, bytes) = region;
    let mut next = || first + addresses.below((bytes / size as u64).max(1)) * size as u64;
    // Untimed operations warm the caches and let threads settle on their cores.
    for _ in 0..count / 20 + 10 {
        operation(next())?;
    }
    for _ in 0..count {
        let at = next();
        let start = Instant::now();
        operation(at)?;
        samples.record_ns(start.elapsed().as_nanos() as u64);
    }
    Ok(())
}

impl MeasuredRegion {
    /// Times `count` reads of random pages into `samples`, whose trial the caller ends.
    pub fn page_reads(
        &mut self,
        count: u64,
        addresses: &mut Random,
        samples: &mut Samples,
    ) -> Result<(), MeasureError> {
        let (own, port) = ((self.hpa, self.bytes), &mut self.port);
        let mut room = vec![0; PAGE];
        at_random(own, PAGE, count, addresses, samples, |hpa| Ok(port.read_bytes(hpa, black_box(&mut room))?))
    }

    /// Returns the frames of a page read, for an exchange without a session.
    pub fn page_frames(&mut self) -> Echo {
        page_shape(self.port.engine().burst_read_lines_max(self.hpa))
    }
}
