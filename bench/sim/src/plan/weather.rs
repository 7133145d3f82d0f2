//! Networks: what happens to frames on their way, drawn from a few choices for each kind of trouble.

use std::time::Duration;

use cxloe_link::impairment::{Burst, Faults};
use cxloe_link::sim::Path;
use cxloe_wire::random::{Probability, Random};

use super::{MS, US};
use crate::trouble::pick;

/// One of these probabilities.
pub(super) fn chance(random: &mut Random, choices: &[f64]) -> Probability {
    Probability::new(pick(random, choices)).expect("these are probabilities")
}

/// A network in which anything goes wrong more often than any program could bear.
pub(crate) fn storm(random: &mut Random) -> Path {
    let mut p = |choices: &[f64]| chance(random, choices);
    let (drop, corrupt) = (p(&[0.0, 0.001, 0.01, 0.05, 0.2]), p(&[0.0, 0.0, 0.01, 0.05]));
    let (enter, leave) = (p(&[0.0, 0.0, 0.001, 0.01]), p(&[0.5, 0.1, 0.02]));
    let mut path = weather(random);
    path.faults.burst = Some(Burst { enter, leave, loss: Probability::ALWAYS });
    (path.faults.drop, path.faults.corrupt, path.faults.gap) = (drop, corrupt, 1 + random.below(20) as u32);
    path
}

/// A network in which anything may go wrong.
pub(crate) fn weather(random: &mut Random) -> Path {
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
