//! Latencies of lines and pages through a running agent, which is another process. Pages through this
//! process's own line port are measured alternately, for comparison.

use std::hint::black_box;
use std::time::Instant;

use cxloe_client::client::Client;
use cxloe_wire::frame::{LINE_SIZE, PAGE_LINES};
use cxloe_wire::random::Random;

use super::latency::LatencyPlan;
use super::{MeasureError, MeasuredRegion};
use crate::report::Samples;

const PAGE: usize = PAGE_LINES * LINE_SIZE;
/// Number of line operations for each page operation; this number of lines takes about as long as one page.
const LINES_PER_PAGE: u64 = 4;

/// Region that a running agent serves, by its address range.
pub struct AgentPort {
    /// Connection to the agent, through which lines and pages are read and written.
    pub client: Client,
    pub hpa: u64,
    pub bytes: u64,
}

/// Latencies of single operations, through the agent and, for comparison, through this process's line port.
pub struct AgentResults {
    pub read64: Samples,
    pub write64: Samples,
    pub read4k: Samples,
    /// Page reads through this process's line port, without an agent.
    pub port_read4k: Samples,
}

impl Default for AgentResults {
    fn default() -> AgentResults {
        AgentResults {
            read64: Samples::new("agent_read64"),
            write64: Samples::new("agent_write64"),
            read4k: Samples::new("agent_read4k"),
            port_read4k: Samples::new("read4k"),
        }
    }
}

impl AgentResults {
    /// Returns all samples in the order of the report.
    pub fn all(self) -> [Samples; 4] {
        [self.port_read4k, self.read64, self.write64, self.read4k]
    }
}

/// Times `operation` `count` times, each at a random multiple of `size` in `region`, which is given as first
/// HPA and length in bytes.
fn at_random(
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

impl AgentPort {
    /// Measures single operations through the agent, in alternation with pages through the port of `target`. Calls
    /// `progress` for each of `trials * 4` steps.
    ///
    /// # Errors
    /// Returns errors of the agent or the port.
    pub fn latency(
        &mut self,
        target: &mut MeasuredRegion,
        plan: LatencyPlan,
        progress: &mut dyn FnMut(&str),
    ) -> Result<AgentResults, MeasureError> {
        let LatencyPlan { trials, operations } = plan;
        let pages = (operations / LINES_PER_PAGE).max(1);
        let mut results = AgentResults::default();
        let mut addresses = Random::new(4096);
        let region = (self.hpa, self.bytes);
        let mut room = vec![0; PAGE];
        for _ in 0..trials {
            let bounce = target.bounce();
            target.check()?;
            let random = &mut addresses;
            progress("pages, by the line port");
            let own = (target.hpa, target.bytes);
            at_random(own, PAGE, pages, random, &mut results.port_read4k, |hpa| {
                Ok(target.port.read_bytes(hpa, black_box(&mut room))?)
            })?;
            progress("lines, through the agent");
            at_random(region, LINE_SIZE, operations, random, &mut results.read64, |hpa| {
                black_box(self.client.read(hpa)?);
                Ok(())
            })?;
            progress("lines written, through the agent");
            at_random(region, LINE_SIZE, operations, random, &mut results.write64, |hpa| {
                Ok(self.client.write(hpa, &[hpa as u8; LINE_SIZE])?)
            })?;
            progress("pages, through the agent");
            at_random(region, PAGE, pages, random, &mut results.read4k, |hpa| {
                Ok(self.client.read_bytes(hpa, black_box(&mut room))?)
            })?;
            let AgentResults { read64, write64, read4k, port_read4k } = &mut results;
            [read64, write64, read4k, port_read4k].into_iter().for_each(|samples| samples.end_trial(bounce));
        }
        self.client.flush()?;
        Ok(results)
    }
}
