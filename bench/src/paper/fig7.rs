//! Fig. 7: the latency of 64 bytes, this system beside others on the same cable.
//!
//! Rounds take turns: this system with a bare echo over each kind of link, then the sockets. So a machine whose cores
//! move apart for a while treats all of them alike.

use cxloe_link::Backend;
use cxloe_wire::random::Random;
use serde::Serialize;

use super::PaperError;
use super::ends::Ends;
use super::sockets::{self, Transport};
use crate::measure::floor::Local;
use crate::measure::latency::LatencyResults;
use crate::measure::{MeasureError, Target};
use crate::report::Samples;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Rounds.
    pub rounds: u32,
    /// Operations of each kind in a round.
    pub operations: u64,
    /// Operations over sockets that sleep, which take long.
    pub sleeping: u64,
}

/// What was measured, and what could not be.
#[derive(Debug, Default, Serialize)]
pub struct Fig7 {
    /// Each link on which this system was measured, the one of the headline first.
    pub links: Vec<String>,
    /// What is missing, and why.
    pub missing: Vec<String>,
    /// Names among the report's results: this system's first, then what it is held against.
    pub names: Vec<String>,
    #[serde(skip)]
    pub(super) samples: Vec<Samples>,
}

/// Sockets that are measured: name, transport, spinning.
const SOCKETS: [(&str, Transport, bool); 4] = [
    ("udp_spinning", Transport::Udp, true),
    ("tcp_spinning", Transport::Tcp, true),
    ("udp_sleeping", Transport::Udp, false),
    ("tcp_sleeping", Transport::Tcp, false),
];

/// Steps of one round that `progress` hears of: four for each link, one for each kind of socket.
pub fn steps(backends: &[Backend], rounds: u32) -> u64 {
    u64::from(rounds) * (4 * backends.len() + SOCKETS.len()) as u64
}

impl Fig7 {
    /// Measures all of it, on links of `backends`. One that does not work here is named among what is missing.
    pub fn measure(
        ends: &Ends,
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

    /// Measures this system alone, to a memory node that is there.
    pub fn over_link(
        target: &mut Target,
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

    /// Lines of local memory, which nothing remote can beat.
    fn local(&mut self) -> Result<(), MeasureError> {
        let mut local = Samples::fine("dram64");
        Local::new().reads(2_000, &mut local);
        local.end_trial(None);
        self.samples.push(local);
        Ok(())
    }

    fn name(&mut self) {
        self.samples.retain(|samples| samples.summary().is_some());
        self.names = self.samples.iter().map(|s| s.name().to_owned()).collect();
    }
}

/// This system and a bare echo, once, over a link opened for it.
fn one_round(
    ends: &Ends,
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
