//! Throughput of single lines and bursts with a full window. The limit is a pipeline, equally deep, of frames
//! of the same sizes without a session.

use cxloe_wire::random::Random;
use std::time::{Duration, Instant};

use cxloe_link::echo::Echo;
use cxloe_wire::frame::{HEADER_LEN, LINE_SIZE, MIN_FRAME, PAGE_LINES, Seal, frame_len};

use super::bare::rate;
use super::latency::read_shape;
use super::{MeasureError, MeasuredRegion};
use crate::report::{Throughput, ThroughputTrial};

#[derive(Clone, Copy, Debug)]
pub struct StreamPlan {
    /// Number of trials; each measures limits and streams alternately.
    pub trials: u32,
    /// Approximate duration of each measurement in a trial.
    pub each: Duration,
    pub depth: usize,
}

/// Number of lines in one call of the port, large enough that filling and draining the window takes a
/// negligible part of the time.
pub(super) const CALL_LINES: usize = 32_768;

/// Names of the throughputs in the order of measurement: each limit is followed by its streams.
const NAMES: [&str; 7] = [
    "echo_pipelined",
    "stream64",
    "stream64_write",
    "echo_pipelined_burst_read",
    "burst_read",
    "echo_pipelined_burst_write",
    "burst_write",
];

/// Returns the frames that carry a page in bursts, for exchanges without a session, each with its number of
/// line data bytes.
fn page_shapes(lines_max: usize, read: bool) -> Vec<(Echo, usize)> {
    let mut left = PAGE_LINES;
    let mut shapes = Vec::new();
    while left > 0 {
        let lines = left.min(lines_max.max(1));
        left -= lines;
        let data = lines * LINE_SIZE;
        let echo = if read {
            let reply_len = frame_len(HEADER_LEN + 1 + data, Seal::PLAIN_LEN);
            Echo { request_len: MIN_FRAME, reply_len, replies: 1 }
        } else {
            let request_len = frame_len(HEADER_LEN + 8 + data, Seal::PLAIN_LEN);
            Echo { request_len, reply_len: MIN_FRAME, replies: 1 }
        };
        shapes.push((echo, data));
    }
    shapes
}

cxloe_wire::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Streaming {
        Reads = "stream64",
        Writes = "stream64_write",
        BurstReads = "burst_read",
        BurstWrites = "burst_write",
    }
}

impl MeasuredRegion {
    /// Makes one call of a stream; returns the numbers of operations and bytes, and the time.
    pub(super) fn stream(
        &mut self,
        streaming: Streaming,
        addresses: &mut Random,
        buffer: &mut [u8],
    ) -> Result<(u64, u64, Duration), MeasureError> {
        let read_lines = self.port.engine().burst_read_lines_max(self.hpa);
        let write_lines = self.port.engine().burst_write_lines_max(self.hpa);
        match streaming {
            Streaming::Reads => self.line_reads(addresses, buffer),
            Streaming::Writes => self.line_writes(addresses),
            Streaming::BurstReads => self.bursts(addresses, buffer, read_lines, true),
            Streaming::BurstWrites => self.bursts(addresses, buffer, write_lines, false),
        }
    }

    /// Measures the throughput of all kinds and their limits. Calls `progress` for each of `trials * 7`
    /// steps.
    pub fn streams(
        &mut self,
        plan: StreamPlan,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<Throughput>, MeasureError> {
        self.port.set_depth(plan.depth);
        let depth = plan.depth as u64;
        let read_lines = self.port.engine().burst_read_lines_max(self.hpa);
        let write_lines = self.port.engine().burst_write_lines_max(self.hpa);
        let mut trials: Vec<Vec<ThroughputTrial>> = vec![Vec::new(); NAMES.len()];
        let mut addresses = Random::new(4096);
        let mut buffer = vec![0_u8; CALL_LINES * LINE_SIZE];
        for _ in 0..plan.trials {
            let bounce = self.bounce();
            for (index, name) in NAMES.iter().enumerate() {
                self.check()?;
                progress(name);
                let start = Instant::now();
                let (mut operations, mut bytes, mut took) = (0, 0, Duration::ZERO);
                let mut warm = true;
                // On a slow machine, a call may last longer than the trial; even then, one call has to count.
                while start.elapsed() < plan.each || (operations == 0 && start.elapsed() < plan.each * 20) {
                    let (o, b, t) = match index {
                        0 if self.echo => {
                            self.echo_stream_trial(&[(read_shape(), LINE_SIZE)], CALL_LINES as u64, depth)?
                        }
                        1 => self.stream(Streaming::Reads, &mut addresses, &mut buffer)?,
                        2 => self.stream(Streaming::Writes, &mut addresses, &mut buffer)?,
                        3 if self.echo => {
                            self.echo_stream_trial(&page_shapes(read_lines, true), 6000, depth)?
                        }
                        4 => self.stream(Streaming::BurstReads, &mut addresses, &mut buffer)?,
                        5 if self.echo => {
                            self.echo_stream_trial(&page_shapes(write_lines, false), 6000, depth)?
                        }
                        6 => self.stream(Streaming::BurstWrites, &mut addresses, &mut buffer)?,
                        _ => break,
                    };
                    // The first call does not count: during it, the memory node's worker leaves its echo
                    // loop.
                    if !std::mem::take(&mut warm) {
                        operations += o;
                        bytes += b;
                        took += t;
                    }
                }
                if operations > 0 {
                    trials[index].push(rate(operations, bytes, took, bounce));
                }
            }
        }
        let named = NAMES.iter().zip(trials);
        Ok(named.filter_map(|(name, trials)| Throughput::from_trials(name, trials)).collect())
    }

    fn line_reads(
        &mut self,
        addresses: &mut Random,
        buffer: &mut [u8],
    ) -> Result<(u64, u64, Duration), MeasureError> {
        let hpas: Vec<u64> =
            (0..CALL_LINES).map(|_| self.hpa + addresses.below(self.lines()) * LINE_SIZE as u64).collect();
        let start = Instant::now();
        self.port.read_batch(&hpas, buffer.as_chunks_mut::<LINE_SIZE>().0)?;
        Ok((CALL_LINES as u64, (CALL_LINES * LINE_SIZE) as u64, start.elapsed()))
    }

    fn line_writes(&mut self, addresses: &mut Random) -> Result<(u64, u64, Duration), MeasureError> {
        let lines: Vec<(u64, [u8; LINE_SIZE])> = (0..CALL_LINES)
            .map(|i| (self.hpa + addresses.below(self.lines()) * LINE_SIZE as u64, [i as u8; LINE_SIZE]))
            .collect();
        let start = Instant::now();
        self.port.write_batch(&lines)?;
        Ok((CALL_LINES as u64, (CALL_LINES * LINE_SIZE) as u64, start.elapsed()))
    }

    fn bursts(
        &mut self,
        addresses: &mut Random,
        buffer: &mut [u8],
        lines_max: usize,
        read: bool,
    ) -> Result<(u64, u64, Duration), MeasureError> {
        let bytes = buffer.len().min(self.bytes as usize) & !4095;
        let pages = (self.bytes - bytes as u64) / 4096 + 1;
        let at = self.hpa + addresses.below(pages) * 4096;
        let start = Instant::now();
        if read {
            self.port.read_bytes(at, &mut buffer[..bytes])?;
        } else {
            self.port.write_bytes(at, &buffer[..bytes])?;
        }
        let took = start.elapsed();
        let frames = bytes / 4096 * PAGE_LINES.div_ceil(lines_max.max(1));
        Ok((frames as u64, bytes as u64, took))
    }
}
