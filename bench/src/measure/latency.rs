//! One uncached line operation at a time over a region larger than the last-level cache, beside a bare echo of
//! the same frame sizes.

use cxloe_wire::random::Random;
use std::time::Instant;

use cxloe_link::echo::Echo;
use cxloe_wire::frame::{HEADER_LEN, LINE_SIZE, MIN_FRAME, Seal, frame_len};

use super::{MeasureError, Target};
use crate::report::Samples;

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct LatencyPlan {
    /// Rounds; each measures the limit and the operations in turn.
    pub trials: u32,
    /// Operations of each kind in a round.
    pub operations: u64,
}

/// What came out.
pub struct LatencyResults {
    /// Bare echo of a line read's frames; empty if the memory node answers no echoes.
    pub echo64: Samples,
    /// Line reads.
    pub read64: Samples,
    /// Line writes.
    pub write64: Samples,
    /// Half and half.
    pub mixed64: Samples,
}

impl LatencyResults {
    /// Nothing yet; names begin with `prefix`.
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

/// The frames of a line read, as a bare echo.
pub fn read_shape() -> Echo {
    Echo { request_len: MIN_FRAME, reply_len: frame_len(HEADER_LEN + LINE_SIZE, Seal::PLAIN_LEN), replies: 1 }
}

/// Operations of one kind between two looks at how far apart the cores are. Together they take a few milliseconds: cores
/// of a virtual machine change places within a second.
const BATCH_OPERATIONS: u64 = 500;

/// What is done by turns: its name, and for line operations how many of eight are reads.
const KINDS: [(&str, Option<u64>); 4] =
    [("bare echo", None), ("line reads", Some(8)), ("line writes", Some(0)), ("reads and writes", Some(4))];

impl LatencyResults {
    /// What is done, its place among [`KINDS`], and where its times go.
    fn kinds(&mut self) -> [((&'static str, Option<u64>), &mut Samples); 4] {
        let LatencyResults { echo64, read64, write64, mixed64 } = self;
        let [echo, reads, writes, mixed] = KINDS;
        [(echo, echo64), (reads, read64), (writes, write64), (mixed, mixed64)]
    }
}

impl Target {
    /// Measures single operations, limit and operations by turns in batches of some milliseconds; a batch during which the
    /// cores moved is thrown away, and each of the others is a trial of its own. `progress` hears of each step of
    /// `trials * 4`.
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

    /// One trial of so many operations of each kind, the cores being so far apart. `progress` hears of four steps.
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

    /// Operations of one of [`KINDS`]; no bare echoes if the memory node answers none.
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
        // The memory node's worker may still be lingering over echoes, and caches are cold: not counted.
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
