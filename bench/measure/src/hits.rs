//! Line cache hits: chains of dependent addresses within the cache, timed in batches with the cost of the clock
//! subtracted, because a hit takes less time than reading the clock.

use std::time::Instant;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_port::port::PortError;
use cxloe_wire::frame::LINE_SIZE;

use super::{MeasureError, MeasuredRegion, clock_cost_ns};
use crate::report::Samples;

/// Number of cache hits timed together, so that the cost of reading the clock is negligible.
const BATCH: u64 = 1000;

impl MeasuredRegion {
    /// Times `hit_read64` and `hit_write64`, `batches` batches of each in a trial. Leaves the port without a
    /// cache.
    pub fn hits(&mut self, trials: u32, batches: u64) -> Result<(Samples, Samples), MeasureError> {
        let cache = CacheConfig::default();
        // A change of the cache is refused while it has modified lines.
        self.port.flush()?;
        self.port.engine().set_cache(cache).map_err(PortError::from)?;
        let result = self.chase(trials, batches, (cache.bytes / LINE_SIZE) as u64);
        self.port.flush()?;
        self.port.engine().set_cache(CacheConfig::OFF).map_err(PortError::from)?;
        result
    }

    fn chase(&mut self, trials: u32, batches: u64, lines: u64) -> Result<(Samples, Samples), MeasureError> {
        let (mut reads, mut writes) = (Samples::fine("hit_read64"), Samples::fine("hit_write64"));
        // Each line contains the index of the next one. A stride coprime to the number of lines visits all
        // lines, and not in the order of their addresses.
        let next = |i: u64| (i + 167) % lines;
        for i in 0..lines {
            let mut line = [0; LINE_SIZE];
            line[..8].copy_from_slice(&next(i).to_le_bytes());
            self.port.write(self.hpa + i * LINE_SIZE as u64, &line)?;
        }
        let clock = clock_cost_ns();
        let before = self.port.engine().counters();
        for _ in 0..trials {
            self.check()?;
            let bounce = self.bounce();
            let mut at = 0_u64;
            for _ in 0..batches {
                let start = Instant::now();
                for _ in 0..BATCH {
                    let line = self.port.read(self.hpa + at * LINE_SIZE as u64)?;
                    at = u64::from_le_bytes(line[..8].try_into().unwrap_or_default());
                }
                reads.record_batch(start.elapsed().as_nanos() as f64 - clock, BATCH);
            }
            reads.end_trial(bounce);
            for _ in 0..batches {
                let mut line = [0; LINE_SIZE];
                let start = Instant::now();
                for _ in 0..BATCH {
                    let after = next(at);
                    line[..8].copy_from_slice(&after.to_le_bytes());
                    self.port.write(self.hpa + at * LINE_SIZE as u64, &line)?;
                    at = std::hint::black_box(after);
                }
                writes.record_batch(start.elapsed().as_nanos() as f64 - clock, BATCH);
            }
            writes.end_trial(bounce);
        }
        let after = self.port.engine().counters();
        debug_assert_eq!(after.read_misses, before.read_misses, "everything was a hit");
        Ok((reads, writes))
    }
}
