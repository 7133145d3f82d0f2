//! Fig. 7: latency of 64-byte operations, of this system and of others on the same cable.
//!
//! Each round measures this system and frames without a session over each kind of link, then sockets. A
//! change of the machine's conditions thus affects all of them alike.

use cxloe_link::Backend;
use cxloe_wire::random::Random;
use serde::Serialize;

use super::PaperError;
use super::sockets::{self, Transport};
use super::testbed::Testbed;
use cxloe_measure::floor::Local;
use cxloe_measure::latency::LatencyResults;
use cxloe_measure::report::Samples;
use cxloe_measure::{MeasureError, MeasuredRegion};

#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Number of rounds, in which this system and the others alternate.
    pub rounds: u32,
    pub operations: u64,
    /// Number of operations in a round over sockets whose ends sleep; such operations take longer.
    pub sleeping: u64,
}

/// Latencies of Fig. 7 by name, and the links that could not be measured.
#[derive(Debug, Default, Serialize)]
pub struct Fig7 {
    /// Links over which this system was measured; the headline figure is of the first.
    pub links: Vec<String>,
    /// Links that could not be measured, each with the reason.
    pub missing: Vec<String>,
    /// Names of the latencies in the report: this system's first, then those for comparison.
    pub names: Vec<String>,
    #[serde(skip)]
    pub(super) samples: Vec<Samples>,
}

/// Kinds of sockets: name, transport, and whether both ends spin instead of sleeping.
const SOCKETS: [(&str, Transport, bool); 4] = [
    ("udp_spinning", Transport::Udp, true),
    ("tcp_spinning", Transport::Tcp, true),
    ("udp_sleeping", Transport::Udp, false),
    ("tcp_sleeping", Transport::Tcp, false),
];

/// Returns the number of `progress` calls in all rounds: four for each link, one for each kind of socket.
pub fn steps(backends: &[Backend], rounds: u32) -> u64 {
    u64::from(rounds) * (4 * backends.len() + SOCKETS.len()) as u64
}

impl Fig7 {
    /// Measures this system and all others, over each of the links `backends`. A link that fails in the first
    /// round is listed as missing.
    pub fn measure(
        ends: &Testbed,
        backends: &[Backend],
        amount: Amount,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Fig7, PaperError> {
        let mut fig = Fig7::default();
        let mut here: Vec<(Backend, LatencyResults)> =
            backends.iter().map(|b| (*b, LatencyResults::of(&format!("{b}_")))).collect();
        let mut others: Vec<Samples> = SOCKETS.map(|(name, ..)| Samples::new(name)).into();
        for round in 0..amount.rounds {
            let mut broken = Vec::new();
            for (backend, results) in &mut here {
                let bounce = ends.bounce();
                let mut random = Random::new(64 + u64::from(round));
                match one_round(ends, *backend, (amount.operations, bounce), &mut random, results, progress) {
                    Ok(()) => {}
                    // A kind of link that this machine lacks fails at its first use.
                    Err(PaperError::Link(error)) if round == 0 => {
                        fig.missing.push(format!("{backend}: {error}"));
                        broken.push(*backend);
                    }
                    Err(error) => return Err(error),
                }
            }
            here.retain(|(backend, _)| !broken.contains(backend));
            for ((name, transport, spin), samples) in SOCKETS.into_iter().zip(&mut others) {
                ends.check()?;
                progress(name);
                let count = if spin { amount.operations } else { amount.sleeping };
                sockets::trial(ends, transport, spin, count, ends.bounce(), samples)?;
            }
        }
        for (backend, results) in here {
            fig.links.push(backend.to_string());
            let LatencyResults { echo64, read64, write64, mixed64 } = results;
            fig.samples.extend([mixed64, read64, write64, echo64]);
        }
        fig.samples.extend(others);
        fig.local()?;
        fig.name();
        Ok(fig)
    }

    /// Measures this system alone, over a link to a memory node that runs already.
    pub(crate) fn over_link(
        target: &mut MeasuredRegion,
        amount: Amount,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Fig7, PaperError> {
        let mut fig = Fig7::default();
        let backend = target.port.link().info().backend;
        let mut results = LatencyResults::of(&format!("{backend}_"));
        let mut random = Random::new(64);
        for _ in 0..amount.rounds {
            target.latency_trial((amount.operations, None), &mut random, &mut results, progress)?;
        }
        fig.links.push(backend.into());
        let LatencyResults { echo64, read64, write64, mixed64 } = results;
        fig.samples.extend([mixed64, read64, write64, echo64]);
        fig.missing.push("sockets: they are measured in a lab of its own only".into());
        fig.local()?;
        fig.name();
        Ok(fig)
    }

    /// Measures reads of lines in local memory, the lower limit for lines in remote memory.
    fn local(&mut self) -> Result<(), MeasureError> {
        let mut local = Samples::fine("dram64");
        Local::new().reads(2_000, &mut local);
        local.end_trial(None);
        self.samples.push(local);
        Ok(())
    }

    fn name(&mut self) {
        // If the memory node's echo is not enabled, there are no samples of echoes; samples without a value
        // are removed.
        self.samples.retain(|samples| samples.summary().is_some());
        self.names = self.samples.iter().map(|s| s.name().to_owned()).collect();
    }
}

/// Measures this system and frames without a session in one round, over a link opened for this round.
fn one_round(
    ends: &Testbed,
    backend: Backend,
    (operations, bounce): (u64, Option<f64>),
    random: &mut Random,
    results: &mut LatencyResults,
    progress: &mut dyn FnMut(&str),
) -> Result<(), PaperError> {
    let _served = ends.serve(backend, ends.wait())?;
    ends.pin()?;
    let (mut target, _) = ends.target(backend, ends.wait())?;
    let mut named = |what: &str| progress(&format!("{what} over {backend}"));
    target.latency_trial((operations, bounce), random, results, &mut named)?;
    Ok(target.port.close()?)
}
