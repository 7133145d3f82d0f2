//! Latencies of lines and pages through a running agent, which is another process. Pages through this
//! process's own line port are measured alternately, for comparison.

use std::hint::black_box;

use cxloe_client::client::Client;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::random::Random;

use super::latency::LatencyPlan;
use super::pages::{PAGE, at_random};
use super::{MeasureError, MeasuredRegion};
use crate::report::Samples;

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
        let mut results = AgentResults::default();
        let mut addresses = Random::new(4096);
        for _ in 0..plan.trials {
            let bounce = target.bounce();
            target.check()?;
            progress("pages, by the line port");
            target.page_reads(pages_of(plan.operations), &mut addresses, &mut results.port_read4k)?;
            results.port_read4k.end_trial(bounce);
            self.trial((plan.operations, bounce), &mut addresses, &mut results, progress)?;
        }
        self.client.flush()?;
        Ok(results)
    }

    /// Makes one trial of operations of each kind through the agent, recorded with the latency `bounce` between cores.
    /// The caller flushes after the last trial. Calls `progress` for three steps.
    ///
    /// # Errors
    /// Returns errors of the agent.
    pub fn trial(
        &mut self,
        (operations, bounce): (u64, Option<f64>),
        addresses: &mut Random,
        results: &mut AgentResults,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), MeasureError> {
        let AgentResults { read64, write64, read4k, .. } = results;
        let region = (self.hpa, self.bytes);
        progress("lines, through the agent");
        at_random(region, LINE_SIZE, operations, addresses, read64, |hpa| {
            black_box(self.client.read(hpa)?);
            Ok(())
        })?;
        progress("lines written, through the agent");
        at_random(region, LINE_SIZE, operations, addresses, write64, |hpa| {
            Ok(self.client.write(hpa, &[hpa as u8; LINE_SIZE])?)
        })?;
        progress("pages, through the agent");
        let mut room = vec![0; PAGE];
        at_random(region, PAGE, pages_of(operations), addresses, read4k, |hpa| {
            Ok(self.client.read_bytes(hpa, black_box(&mut room))?)
        })?;
        [read64, write64, read4k].into_iter().for_each(|samples| samples.end_trial(bounce));
        Ok(())
    }
}

/// Number of page operations that go with a number of line operations.
fn pages_of(lines: u64) -> u64 {
    (lines / LINES_PER_PAGE).max(1)
}
