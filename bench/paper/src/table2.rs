//! Table II: latency of each case of the line cache.
//!
//! Cases that the compute node handles alone take less time than reading the clock, so they are timed in batches, with
//! the clock's cost subtracted. Cases that wait for the memory node are timed one by one. Before each batch, the cache
//! is brought into the state in which the case occurs; afterwards the cache's counters must confirm that the case has
//! occurred.

use std::time::{Duration, Instant};

use cxloe_cn_core::cache::CacheConfig;
use cxloe_port::port::PortError;
use cxloe_wire::frame::LINE_SIZE;
use serde::Serialize;

use super::PaperError;
use cxloe_measure::floor::Local;
use cxloe_measure::report::Samples;
use cxloe_measure::{MeasureError, MeasuredRegion, clock_cost_ns};

/// Maximum wait for the acknowledgement of a write-back.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Cases in the order of the table: name of the result, description, the paper's name of the case, and
/// whether the paper's value is that for memory on the same board.
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

/// Cache with which Table II was measured, and the latencies of its cases.
#[derive(Debug, Serialize)]
pub struct Table2 {
    /// Size of the cache in bytes.
    pub cache_bytes: usize,
    /// Number of lines in a set of the cache.
    pub ways: usize,
    /// Names of the latencies in the report.
    pub names: Vec<String>,
    #[serde(skip)]
    pub(super) samples: Vec<Samples>,
}

impl Table2 {
    /// Measures all cases `rounds` times. Leaves the port without a cache. Calls `progress` for each round.
    pub fn measure(
        target: &mut MeasuredRegion,
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
        // Even after an error the cache is switched off, since other measurements use the port.
        target.port.flush().map_err(MeasureError::from)?;
        target.port.engine().set_cache(CacheConfig::OFF)?;
        result?;
        let names = samples.iter().map(|s| s.name().to_owned()).collect();
        Ok(Table2 { cache_bytes: cache.bytes, ways: cache.ways, names, samples })
    }
}

struct Round<'a> {
    target: &'a mut MeasuredRegion,
    cache: CacheConfig,
    /// Cost of reading the clock, in nanoseconds.
    clock: f64,
}

impl Round<'_> {
    fn all(&mut self, samples: &mut [Samples]) -> Result<(), MeasureError> {
        let lines = (self.cache.bytes / LINE_SIZE) as u64;
        // A part is as many consecutive lines as the cache has, so that it fills all ways of all sets. The
        // region is larger than all parts together, so that no line is in two of them.
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
        // All cached lines become dirty, so that each read below replaces a dirty line, which is written
        // back.
        self.write(part(4))?;
        self.read(part(5), Some(&mut samples[8]))
    }

    /// Writes all dirty lines back and empties the cache, by switching it off and on.
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

    /// Times a batch of writes that the cache handles without the memory node.
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

    /// Reads lines, and times each if `samples` is given. A line that a read evicts is written back before
    /// the next read.
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

    /// Writes lines, each of which evicts a dirty line. Times the write, and the time until the memory node
    /// has acknowledged the evicted line.
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

    /// Waits until no request is in flight, so that the next operation is timed alone.
    #[inline]
    fn settle(&mut self) -> Result<(), MeasureError> {
        let start = Instant::now();
        while self.target.port.engine().in_flight() > 0 && start.elapsed() < ANSWER_TIMEOUT {
            self.target.port.idle()?;
        }
        Ok(())
    }
}
