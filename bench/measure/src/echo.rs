//! The bare link: exchanges of a line read's frames with an end that only echoes, one at a time and with a window of
//! them. No session, no memory node.

use cxloe_link::Link;
use cxloe_wire::frame::Mac;

use super::MeasureError;
use crate::bare::{Bare, rate};
use crate::latency::read_shape;
use crate::report::{Samples, Throughput};
use cxloe_lab::Interrupt;

/// Number of pipelined exchanges for each single one.
const PIPELINED: u64 = 5;

#[derive(Clone, Copy, Debug)]
pub struct EchoPlan {
    pub trials: u32,
    /// Single exchanges in a trial.
    pub operations: u64,
    /// Frames in flight when pipelined.
    pub depth: u64,
}

/// Times and rate of exchanges on a bare link.
pub struct EchoResults {
    /// Single exchanges.
    pub echo64: Samples,
    /// Exchanges with a window in flight; `None` without trials.
    pub pipelined: Option<Throughput>,
}

/// Measures exchanges with `peer`, which has to echo. Calls `progress` after each trial.
///
/// # Errors
/// Returns [`MeasureError::NoEcho`] if the peer does not answer, and errors of the link.
pub fn echo(
    link: &mut dyn Link,
    (peer, ethertype): (Mac, u16),
    plan: EchoPlan,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(),
) -> Result<EchoResults, MeasureError> {
    let mut echo64 = Samples::new("echo64");
    let mut rates = Vec::new();
    for _ in 0..plan.trials {
        interrupt.check()?;
        let mut bare = Bare::new(link, peer, ethertype);
        bare.wake()?;
        for _ in 0..plan.operations {
            match bare.once(read_shape())? {
                Some(ns) => echo64.record_ns(ns),
                // A late reply would count for the next exchange. `wake` discards such replies before its return.
                None => bare.wake()?,
            }
        }
        echo64.end_trial(None);
        let (frames, took) = bare.pipelined(&[read_shape()], plan.operations * PIPELINED, plan.depth)?;
        rates.push(rate(frames, frames * 64, took, None));
        progress();
    }
    Ok(EchoResults { echo64, pipelined: Throughput::from_trials("echo_pipelined", rates) })
}
