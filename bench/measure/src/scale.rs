//! Throughput against the number of queues. The compute node has one shard for each queue; a shard has a
//! thread, a link, an engine and a session of its own, and accesses a part of the region that no other shard
//! accesses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_port::connect::Shards;
use cxloe_port::port::Port;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::random::Random;

use super::MeasureError;
use super::bare::rate;
use crate::machine;
use crate::report::{Throughput, ThroughputTrial};

/// Number of lines in one call of a shard's port.
const CALL_LINES: usize = 4096;
const CALL_BYTES: usize = 256 << 10;

/// Kinds of access that are measured, in the order of the report.
const NAMES: [&str; 3] = ["lines", "burst_read", "burst_write"];

#[derive(Clone, Debug)]
pub struct ScalePlan {
    pub trials: u32,
    /// Duration of a trial of one kind of access.
    pub each: Duration,
    /// Number of requests of each shard in flight.
    pub depth: usize,
    /// CPUs of the shards' threads; shards beyond the end of the list are not pinned.
    pub cpus: Vec<usize>,
}

struct ShardPart {
    port: Port,
    hpa: u64,
    bytes: u64,
}

impl ShardPart {
    /// Makes one call of the port with the access `NAMES[kind]`; returns the numbers of operations and bytes.
    fn call(
        &mut self,
        kind: usize,
        random: &mut Random,
        buffer: &mut [u8],
    ) -> Result<(u64, u64), MeasureError> {
        let lines = self.bytes / LINE_SIZE as u64;
        if kind == 0 {
            let hpas: Vec<u64> =
                (0..CALL_LINES).map(|_| self.hpa + random.below(lines) * LINE_SIZE as u64).collect();
            self.port.read_batch(&hpas, &mut buffer.as_chunks_mut::<LINE_SIZE>().0[..CALL_LINES])?;
            return Ok((CALL_LINES as u64, (CALL_LINES * LINE_SIZE) as u64));
        }
        let bytes = (CALL_BYTES as u64).min(self.bytes) & !4095;
        let at = self.hpa + random.below((self.bytes - bytes) / 4096 + 1) * 4096;
        let buffer = &mut buffer[..bytes as usize];
        match kind {
            1 => self.port.read_bytes(at, buffer)?,
            _ => self.port.write_bytes(at, buffer)?,
        }
        Ok((bytes / 4096, bytes))
    }
}

/// Measures the total throughput of all `shards`. Returns the shards, and throughputs named `KIND_qN`, where
/// N is the number of shards.
///
/// # Errors
/// Returns the first error of a shard.
pub fn scale(
    shards: Shards,
    plan: &ScalePlan,
    cancelled: &(impl Fn() -> Result<(), MeasureError> + Sync),
) -> Result<(Shards, Vec<Throughput>), MeasureError> {
    let Shards { ports, region, hpa, peer, lease } = shards;
    let count = ports.len();
    // Each part consists of whole pages, so that no page is accessed by two shards.
    let share = (region.size / count as u64) & !4095;
    let mut parts: Vec<ShardPart> = ports
        .into_iter()
        .zip(0..)
        .map(|(mut port, index)| {
            port.set_depth(plan.depth);
            ShardPart { port, hpa: hpa + index * share, bytes: share }
        })
        .collect();
    let mut throughputs = Vec::new();
    for (kind, name) in NAMES.iter().enumerate() {
        let mut trials = Vec::new();
        for _ in 0..plan.trials {
            cancelled()?;
            trials.push(trial(&mut parts, kind, plan)?);
        }
        throughputs.extend(Throughput::from_trials(&format!("{name}_q{count}"), trials));
    }
    let ports = parts.into_iter().map(|part| part.port).collect();
    Ok((Shards { ports, region, hpa, peer, lease }, throughputs))
}

/// Lets all shards access their parts at the same time; the longest duration of a shard counts.
fn trial(parts: &mut [ShardPart], kind: usize, plan: &ScalePlan) -> Result<ThroughputTrial, MeasureError> {
    let (start, stop) = (Barrier::new(parts.len()), Arc::new(AtomicBool::new(false)));
    let started = Instant::now();
    let done: Result<Vec<(u64, u64, Duration)>, MeasureError> = thread::scope(|scope| {
        let threads: Vec<_> = parts
            .iter_mut()
            .enumerate()
            .map(|(index, part)| {
                let (start, stop) = (&start, Arc::clone(&stop));
                scope.spawn(move || {
                    if let Some(cpu) = plan.cpus.get(index) {
                        // If the CPU does not exist, the thread is measured where the scheduler places it.
                        let _ = machine::pin(*cpu);
                    }
                    let mut random = Random::new(4096 + index as u64);
                    let mut buffer = vec![0; CALL_BYTES.max(CALL_LINES * LINE_SIZE)];
                    start.wait();
                    let begun = Instant::now();
                    let (mut operations, mut bytes) = (0, 0);
                    while (begun.elapsed() < plan.each || operations == 0) && !stop.load(Ordering::Relaxed) {
                        let (o, b) = part
                            // A failed shard ends the trial for all shards.
                            .call(kind, &mut random, &mut buffer)
                            .inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                        operations += o;
                        bytes += b;
                    }
                    Ok((operations, bytes, begun.elapsed()))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    });
    let done = done?;
    let took = done.iter().map(|(.., took)| *took).max().unwrap_or_else(|| started.elapsed());
    let sum = |of: fn(&(u64, u64, Duration)) -> u64| done.iter().map(of).sum();
    Ok(rate(sum(|(operations, ..)| *operations), sum(|(_, bytes, _)| *bytes), took, None))
}
