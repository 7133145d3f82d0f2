//! Table II: what each case of the line cache costs.
//!
//! Cases that stay on this node take less than reading the clock: they are timed in batches, its cost taken off. Those
//! that wait for the memory node are timed one by one. Before each batch the cache is brought into the state the case
//! begins with; afterwards its counters have to agree that the case was the one meant.

use std::time::{Duration, Instant};

use cxloe_cn_core::cache::CacheConfig;
use cxloe_port::port::PortError;
use cxloe_wire::frame::LINE_SIZE;
use serde::Serialize;

use super::PaperError;
use crate::measure::floor::Local;
use crate::measure::{MeasureError, Target, clock_cost_ns};
use crate::report::Samples;

/// How long a write-back may take to be acknowledged.
const PATIENCE: Duration = Duration::from_secs(10);

/// The cases, in the order of the table: name among the results, what it is, the paper's case, and whether the paper's
/// value is that for memory on the same board.
pub const CASES: [(&str, &str, Option<&str>, bool); 10] = [
    ("hit_write64", "write hit", Some("write_hit"), false),
    ("hit_read64", "read hit", Some("read_hit"), false),
    ("write_miss_free", "write miss, a way is free", Some("write_miss_free"), false),
    ("write_miss_clean", "write miss, clean victim", None, false),
    ("write_miss_dirty", "write miss, dirty victim: the write is done", None, false),
    ("write_miss_dirty_acked", "and its victim is in the memory node", Some("write_miss_replace"), false),
    ("read_miss_free", "read miss, a way is free", Some("read_miss"), false),
    ("read_miss_clean", "read miss, clean victim", Some("read_miss"), false),
    ("read_miss_dirty", "read miss, dirty victim", None, false),
    ("dram64_local", "a line of local memory", Some("read_miss"), true),
];

/// That the table was measured, and with which cache.
#[derive(Debug, Serialize)]
pub struct Table2 {
    /// Bytes of the cache.
    pub cache_bytes: usize,
    /// Its ways.
    pub ways: usize,
    /// Names among the report's results.
    pub names: Vec<String>,
    #[serde(skip)]
    pub(super) samples: Vec<Samples>,
}

impl Table2 {
    /// Measures `rounds` rounds of every case. Leaves the port without a cache. `progress` hears of each round.
    pub fn measure(
        target: &mut Target,
        rounds: u32,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Table2, PaperError> {
        let cache = CacheConfig::default();
        let (reads, writes) = target.hits(rounds, 100)?;
        let mut samples: Vec<Samples> = vec![writes, reads];
        samples.extend(CASES[2..].iter().map(|(name, ..)| match *name {
            "write_miss_free" | "write_miss_clean" | "dram64_local" => Samples::fine(name),
            _ => Samples::new(name),
        }));
        let mut local = Local::new();
        let result = (0..rounds).try_for_each(|_| {
            target.check()?;
            progress("cache cases");
            Round { target, cache, clock: clock_cost_ns() }.all(&mut samples)?;
            local.reads(200, &mut samples[9]);
            samples[2..].iter_mut().for_each(|s| s.end_trial(None));
            Ok::<(), MeasureError>(())
        });
        target.port.flush().map_err(MeasureError::from)?;
        target.port.engine().set_cache(CacheConfig::OFF)?;
        result?;
        let names = samples.iter().map(|s| s.name().to_owned()).collect();
        Ok(Table2 { cache_bytes: cache.bytes, ways: cache.ways, names, samples })
    }
}

/// One round over all cases.
struct Round<'a> {
    target: &'a mut Target,
    cache: CacheConfig,
    /// Reading the clock, in nanoseconds.
    clock: f64,
}

impl Round<'_> {
    fn all(&mut self, samples: &mut [Samples]) -> Result<(), MeasureError> {
        let lines = (self.cache.bytes / LINE_SIZE) as u64;
        // Lines behind each other fill all ways of all sets. The cache is small against the region.
        let part = |n: u64| n * lines..(n + 1) * lines;
        for _ in 0..8 {
            self.empty()?;
            let before = self.target.port.engine().counters();
            self.batch(part(0), &mut samples[2])?;
            self.target.port.flush()?;
            self.read(part(0), None)?;
            self.batch(part(1), &mut samples[3])?;
            let after = self.target.port.engine().counters();
            debug_assert_eq!(after.write_misses - before.write_misses, 2 * lines, "all of them were misses");
            debug_assert_eq!(after.write_backs - before.write_backs, lines, "by the flush alone");
        }
        let (done, acked) = samples.split_at_mut(5);
        self.write_dirty(part(2), &mut done[4], &mut acked[0])?;
        self.empty()?;
        self.read(part(3), Some(&mut samples[6]))?;
        self.read(part(4), Some(&mut samples[7]))?;
        // Every line of the cache becomes dirty, and is written back by the read that takes its place.
        self.write(part(4))?;
        self.read(part(5), Some(&mut samples[8]))
    }

    /// Everything written back, and nothing in the cache.
    fn empty(&mut self) -> Result<(), MeasureError> {
        self.target.port.flush()?;
        for config in [CacheConfig::OFF, self.cache] {
            self.target.port.engine().set_cache(config).map_err(PortError::from)?;
        }
        Ok(())
    }

    fn at(&self, line: u64) -> u64 {
        self.target.hpa + line % self.target.lines() * LINE_SIZE as u64
    }

    /// Writes that stay on this node, timed together.
    fn batch(&mut self, lines: std::ops::Range<u64>, samples: &mut Samples) -> Result<(), MeasureError> {
        let count = lines.end - lines.start;
        let start = Instant::now();
        for line in lines {
            let at = self.at(line);
            self.target.port.write(at, &[line as u8; LINE_SIZE])?;
        }
        samples.record_batch(start.elapsed().as_nanos() as f64 - self.clock, count);
        Ok(())
    }

    fn write(&mut self, lines: std::ops::Range<u64>) -> Result<(), MeasureError> {
        lines.into_iter().try_for_each(|line| {
            let at = self.at(line);
            Ok(self.target.port.write(at, &[line as u8; LINE_SIZE])?)
        })
    }

    /// Reads, each timed if there is somewhere to put it; victims have been written back before the next begins.
    fn read(
        &mut self,
        lines: std::ops::Range<u64>,
        samples: Option<&mut Samples>,
    ) -> Result<(), MeasureError> {
        let mut samples = samples;
        for line in lines {
            let at = self.at(line);
            let start = Instant::now();
            std::hint::black_box(self.target.port.read(at)?);
            if let Some(samples) = &mut samples {
                samples.record_ns(start.elapsed().as_nanos() as u64);
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Writes, each of which drives a modified line out: until it is done, and until the memory node has the victim.
    fn write_dirty(
        &mut self,
        lines: std::ops::Range<u64>,
        done: &mut Samples,
        acked: &mut Samples,
    ) -> Result<(), MeasureError> {
        for line in lines {
            let at = self.at(line);
            let start = Instant::now();
            self.target.port.write(at, &[line as u8; LINE_SIZE])?;
            done.record_ns(start.elapsed().as_nanos() as u64);
            self.settle()?;
            acked.record_ns(start.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    /// Waits until nothing is on its way.
    #[inline]
    fn settle(&mut self) -> Result<(), MeasureError> {
        let start = Instant::now();
        while self.target.port.engine().in_flight() > 0 && start.elapsed() < PATIENCE {
            self.target.port.idle()?;
        }
        Ok(())
    }
}
