//! Processor cycles per line and per byte, at both ends of the link, with a full window.

use std::time::{Duration, Instant};

use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::random::Random;

use super::cycles::{CycleSource, Meter, Spent};
use super::streams::{CALL_LINES, Streaming};
use super::{MeasureError, MeasuredRegion};
use crate::report::Cost;

#[derive(Clone, Copy, Debug)]
pub struct CostPlan {
    pub trials: u32,
    /// Minimum duration of the counted part of a trial; the trial ends with the first call of the port that ends after
    /// it.
    pub each: Duration,
    pub depth: usize,
}

#[derive(Default)]
struct Sum {
    operations: u64,
    bytes: u64,
    ends: [Spent; 2],
}

impl Sum {
    fn cost(&self, name: &str, (end, meter): (usize, &Meter)) -> Cost {
        let (spent, operations, bytes) = (self.ends[end], self.operations.max(1), self.bytes.max(1));
        Cost {
            name: name.into(),
            end: ["compute node", "memory node"][end].into(),
            cycles_per_operation: spent.cycles / operations as f64,
            cycles_per_byte: spent.cycles / bytes as f64,
            ns_per_operation: spent.ns as f64 / operations as f64,
            source: match meter.source() {
                CycleSource::Counted => "counted by the processor".into(),
                CycleSource::Time(per_ns) => format!("time on a core x {per_ns:.2} GHz"),
            },
        }
    }
}

impl MeasuredRegion {
    /// Measures the cycles that lines and bursts cost this thread, and also the memory node's process if that
    /// runs on this machine. In bursts, each frame counts as an operation. Calls `progress` for each of
    /// `trials * 4` steps.
    pub fn costs(
        &mut self,
        plan: CostPlan,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<Cost>, MeasureError> {
        self.port.set_depth(plan.depth);
        let near = Meter::of_this_thread();
        let far = self.memory_node.map(Meter::of_process);
        let mut addresses = Random::new(4097);
        let mut buffer = vec![0_u8; CALL_LINES * LINE_SIZE];
        let mut sums: [Sum; 4] = Default::default();
        for _ in 0..plan.trials {
            for (streaming, sum) in Streaming::ALL.into_iter().zip(&mut sums) {
                progress(&format!("cycles of {}", streaming.name()));
                self.check()?;
                // An uncounted stream makes the memory node's worker leave its echo loop for normal service.
                self.stream(streaming, &mut addresses, &mut buffer)?;
                let meters = [Some(&near), far.as_ref()];
                let before = meters.map(|meter| meter.map_or_else(Spent::default, Meter::read));
                let start = Instant::now();
                while start.elapsed() < plan.each {
                    let (operations, bytes, _) = self.stream(streaming, &mut addresses, &mut buffer)?;
                    sum.operations += operations;
                    sum.bytes += bytes;
                }
                for ((end, meter), before) in sum.ends.iter_mut().zip(meters).zip(before) {
                    let spent = meter.map_or_else(Spent::default, |meter| meter.read().since(before));
                    end.cycles += spent.cycles;
                    end.ns += spent.ns;
                }
            }
        }
        let ends = [Some(&near), far.as_ref()].into_iter().enumerate();
        let ends: Vec<(usize, &Meter)> = ends.filter_map(|(end, meter)| Some((end, meter?))).collect();
        let of_kind = |(streaming, sum): (Streaming, &Sum)| {
            ends.iter().map(|end| sum.cost(streaming.name(), *end)).collect::<Vec<_>>()
        };
        Ok(Streaming::ALL.into_iter().zip(&sums).flat_map(of_kind).collect())
    }
}
