//! Latency of single uncached line operations over a region larger than the last-level cache, one at a time.
//! The limit is an exchange of frames of the same sizes without a session.

use cxloe_wire::random::Random;
use std::time::Instant;

use cxloe_link::echo::Echo;
use cxloe_wire::frame::{HEADER_LEN, LINE_SIZE, MIN_FRAME, Seal, frame_len};

use super::{MeasureError, MeasuredRegion};
use crate::report::Samples;

#[derive(Clone, Copy, Debug)]
pub struct LatencyPlan {
    /// Number of rounds; in each, the lower limit and the operations alternate.
    pub trials: u32,
    pub operations: u64,
}

/// Latencies of line operations, and of the exchange that is their lower limit.
pub struct LatencyResults {
    /// Exchanges of a line read's frames without a session; empty if the memory node's echo is not enabled.
    pub echo64: Samples,
    pub read64: Samples,
    pub write64: Samples,
    /// Reads and writes of lines in equal parts, in random order.
    pub mixed64: Samples,
}

impl LatencyResults {
    /// Returns empty samples, each with a name that begins with `prefix`.
    pub fn of(prefix: &str) -> LatencyResults {
        let samples = |name| Samples::new(&format!("{prefix}{name}"));
        LatencyResults {
            echo64: samples("echo64"),
            read64: samples("read64"),
            write64: samples("write64"),
            mixed64: samples("mixed64"),
        }
    }
}

/// Returns the frame sizes of a line read, for an exchange without a session.
pub fn read_shape() -> Echo {
    Echo { request_len: MIN_FRAME, reply_len: frame_len(HEADER_LEN + LINE_SIZE, Seal::PLAIN_LEN), replies: 1 }
}

/// Number of operations of one kind between two measurements of the latency between cores. They take a few
/// milliseconds in all; virtual CPUs migrate within a second.
const BATCH_OPERATIONS: u64 = 500;

/// Kinds of operations that alternate: name, and for line operations the number of reads among eight.
const KINDS: [(&str, Option<u64>); 4] =
    [("bare echo", None), ("line reads", Some(8)), ("line writes", Some(0)), ("reads and writes", Some(4))];

impl LatencyResults {
    /// Returns each of [`KINDS`] with its samples.
    fn kinds(&mut self) -> [((&'static str, Option<u64>), &mut Samples); 4] {
        let LatencyResults { echo64, read64, write64, mixed64 } = self;
        let [echo, reads, writes, mixed] = KINDS;
        [(echo, echo64), (reads, read64), (writes, write64), (mixed, mixed64)]
    }
}

impl MeasuredRegion {
    /// Measures single operations and their lower limit alternately, in batches of some milliseconds. A batch
    /// during which the latency between cores changed is discarded; each of the others is a trial of its own.
    /// Calls `progress` for each of `trials * 4` steps.
    pub fn latency(
        &mut self,
        plan: LatencyPlan,
        progress: &mut dyn FnMut(&str),
    ) -> Result<LatencyResults, MeasureError> {
        let mut results = LatencyResults::of("");
        let mut addresses = Random::new(64);
        for _ in 0..plan.trials {
            let mut left = plan.operations;
            let mut bounce = self.bounce_glance();
            while left > 0 {
                let count = left.min(BATCH_OPERATIONS);
                for ((name, reads_of_8), samples) in results.kinds() {
                    if left == plan.operations && (reads_of_8.is_some() || self.echo) {
                        progress(name);
                    }
                    self.operations(count, reads_of_8, &mut addresses, samples)?;
                    let before = std::mem::replace(&mut bounce, self.bounce_glance());
                    samples.end_steady_trial(before, bounce);
                }
                left -= count;
            }
        }
        Ok(results)
    }

    /// Makes one trial of `operations` operations of each kind, recorded with the latency `bounce` between
    /// cores. Calls `progress` for four steps.
    pub fn latency_trial(
        &mut self,
        (operations, bounce): (u64, Option<f64>),
        addresses: &mut Random,
        results: &mut LatencyResults,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), MeasureError> {
        for ((name, reads_of_8), samples) in results.kinds() {
            if reads_of_8.is_some() || self.echo {
                progress(name);
            }
            self.operations(operations, reads_of_8, addresses, samples)?;
            samples.end_trial(bounce);
        }
        Ok(())
    }

    /// Makes `count` operations of one of [`KINDS`]. Does nothing for exchanges if the memory node's echo is
    /// not enabled.
    fn operations(
        &mut self,
        count: u64,
        reads_of_8: Option<u64>,
        addresses: &mut Random,
        samples: &mut Samples,
    ) -> Result<(), MeasureError> {
        match reads_of_8 {
            Some(reads_of_8) => self.line_operations(count, reads_of_8, addresses, samples),
            None if self.echo => self.echo_trial(read_shape(), count, samples),
            None => Ok(()),
        }
    }

    fn line_operations(
        &mut self,
        count: u64,
        reads_of_8: u64,
        addresses: &mut Random,
        samples: &mut Samples,
    ) -> Result<(), MeasureError> {
        // Untimed operations: the memory node's worker has to leave its echo loop, and caches are cold.
        for _ in 0..count / 20 + 10 {
            let at = self.hpa + addresses.below(self.lines()) * LINE_SIZE as u64;
            self.port.read(at)?;
        }
        self.check()?;
        let mut line = [0_u8; LINE_SIZE];
        for i in 0..count {
            let at = self.hpa + addresses.below(self.lines()) * LINE_SIZE as u64;
            let reads = addresses.bits() % 8 < reads_of_8;
            line[..8].copy_from_slice(&i.to_le_bytes());
            let start = Instant::now();
            if reads {
                std::hint::black_box(self.port.read(at)?);
            } else {
                self.port.write(at, &line)?;
            }
            samples.record_ns(start.elapsed().as_nanos() as u64);
        }
        Ok(())
    }
}
