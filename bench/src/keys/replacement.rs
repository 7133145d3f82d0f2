//! Times of a program's touches of random pages of a mapped region, while the session of the region is replaced and
//! while it is not.
//!
//! ```text
//!   touches, one by one --fault--> cn-agent --- cable --- mn-server
//!                                     new session every so often
//! ```

#![expect(unsafe_code, reason = "a touch of a page is a volatile read")]

use std::time::{Duration, Instant};

use cxloe_client::mapping::Mapping;
use cxloe_lab::{Interrupt, Interrupted};
use cxloe_wire::random::Random;
use serde::Serialize;

use super::Times;

const PAGE: u64 = 4096;
/// Touches between two checks of the clock.
const LOT: u32 = 64;
/// Number of longest touches that are reported.
const LONGEST: usize = 10;

/// Results for touches of pages through one agent.
#[derive(Clone, Debug, Serialize)]
pub struct Touched {
    /// Wait style of the agent and the memory node.
    pub wait: String,
    /// Number of sessions replaced during the touches.
    pub replacements: u64,
    /// Times of the touches, whether or not they fault.
    pub touches: Times,
    /// Number of touches that took longer than a millisecond.
    pub over_1ms: usize,
    /// Times of the longest touches in microseconds, in descending order.
    pub longest_us: Vec<f64>,
}

/// Touches random pages of `mapping` for this duration. `sessions` returns the number of sessions opened so far.
///
/// # Errors
/// Returns an error of `sessions`, or an error on Ctrl-C.
pub fn touched<E: From<Interrupted>>(
    mapping: &Mapping,
    wait: String,
    length: Duration,
    sessions: impl Fn() -> Result<u64, E>,
    interrupt: &Interrupt,
) -> Result<Touched, E> {
    let pages = mapping.len() as u64 / PAGE;
    let (mut random, mut taken) = (Random::new(3), Vec::new());
    let before = sessions()?;
    let started = Instant::now();
    while started.elapsed() < length {
        interrupt.check()?;
        for _ in 0..LOT {
            let at = random.below(pages) * PAGE;
            let start = Instant::now();
            // SAFETY: the page lies in the mapping, and no code writes to the mapping.
            std::hint::black_box(unsafe { mapping.as_ptr().add(at as usize).read_volatile() });
            taken.push(start.elapsed().as_nanos() as u64);
        }
    }
    let replacements = sessions()? - before;
    let mut longest = taken.clone();
    longest.sort_unstable_by(|one, other| other.cmp(one));
    longest.truncate(LONGEST);
    Ok(Touched {
        wait,
        replacements,
        over_1ms: taken.iter().filter(|ns| **ns > 1_000_000).count(),
        longest_us: longest.into_iter().map(|ns| ns as f64 / 1e3).collect(),
        touches: Times::of(taken),
    })
}
