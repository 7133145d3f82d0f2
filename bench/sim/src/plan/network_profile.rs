//! Network profiles: delays, and probabilities of loss and other faults, each drawn from a few values.

use std::time::Duration;

use cxloe_net::impairment::{Burst, Faults};
use cxloe_net::sim::Path;
use cxloe_wire::random::{Probability, Random};

use super::{MS, US};
use crate::fault::pick;

/// Draws one of these values as a probability.
pub(super) fn chance(random: &mut Random, choices: &[f64]) -> Probability {
    Probability::new(pick(random, choices)).expect("these are probabilities")
}

/// Draws a network profile with more loss than any program could bear.
pub(crate) fn overload(random: &mut Random) -> Path {
    let mut p = |choices: &[f64]| chance(random, choices);
    let (drop, corrupt) = (p(&[0.0, 0.001, 0.01, 0.05, 0.2]), p(&[0.0, 0.0, 0.01, 0.05]));
    let (enter, leave) = (p(&[0.0, 0.0, 0.001, 0.01]), p(&[0.5, 0.1, 0.02]));
    let mut path = network_profile(random);
    path.faults.burst = Some(Burst { enter, leave, loss: Probability::ALWAYS });
    (path.faults.drop, path.faults.corrupt, path.faults.gap) = (drop, corrupt, 1 + random.below(20) as u32);
    path
}

/// Draws a network profile with all kinds of faults.
pub(crate) fn network_profile(random: &mut Random) -> Path {
    let mut p = |choices: &[f64]| chance(random, choices);
    let mut faults = Faults {
        drop: p(&[0.0, 0.001, 0.01, 0.1]),
        duplicate: p(&[0.0, 0.01, 0.1]),
        reorder: p(&[0.0, 0.01, 0.1]),
        corrupt: p(&[0.0, 0.0, 0.02]),
        ..Faults::NONE
    };
    let (enter, leave) = (p(&[0.0, 0.001, 0.01]), p(&[0.5, 0.1]));
    faults.burst = Some(Burst { enter, leave, loss: Probability::ALWAYS });
    faults.gap = 1 + random.below(10) as u32;
    faults.hold = pick(random, &[50 * US, MS, 5 * MS]);
    Path {
        delay: pick(random, &[US, 10 * US, 100 * US]),
        jitter: pick(random, &[Duration::ZERO, 2 * US, 50 * US]),
        faults,
        late: Probability::NEVER,
    }
}
