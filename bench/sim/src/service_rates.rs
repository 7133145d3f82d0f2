//! Observations of rate control over runs: phases, rates, and fairness between compute nodes.

use std::time::Duration;

use cxloe_cc::{PacerStatus, Phase};
use hdrhistogram::Histogram;

/// Interval between two samples of the pacers, in virtual time.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_micros(10);
/// Maximum recorded rate, in Mbit/s; higher rates count as this one.
const MBIT_MAX: u64 = 1_000_000;
/// A whole, in the unit of recorded shares, which are in thousandths.
const WHOLE: u64 = 1000;

/// Behaviour of the pacers, as sampled during runs.
#[derive(Clone)]
pub struct ServiceRates {
    /// Number of samples in which a pacer was in each phase, in the order of [`Phase::ALL`].
    pub phases: [u64; Phase::ALL.len()],
    /// Rates in the samples, in Mbit/s.
    pub rates_mbit: Histogram<u64>,
    /// Fairness of each run, measured when the first compute node has completed all of its operations: the operations
    /// of the least served node, in thousandths of those of the most served node.
    pub least_share: Histogram<u64>,
}

impl Default for ServiceRates {
    fn default() -> Self {
        let histogram = |max| Histogram::new_with_bounds(1, max, 3).expect("these bounds are sound");
        ServiceRates {
            phases: [0; Phase::ALL.len()],
            rates_mbit: histogram(MBIT_MAX),
            least_share: histogram(WHOLE),
        }
    }
}

impl ServiceRates {
    /// Records the phase and the rate of a pacer at one moment.
    pub(crate) fn sample(&mut self, status: &PacerStatus) {
        self.phases[status.phase as usize] += 1;
        self.rates_mbit.saturating_record((status.rate / 1_000_000).max(1));
    }

    /// Records the operations that each compute node had completed when the first node had completed all of
    /// its own.
    pub(crate) fn served(&mut self, operations: impl Iterator<Item = u64> + Clone) {
        if let (Some(least), Some(most)) = (operations.clone().min(), operations.max()) {
            self.least_share.saturating_record((least * WHOLE / most.max(1)).max(1));
        }
    }

    pub(crate) fn add(&mut self, other: &ServiceRates) {
        self.phases.iter_mut().zip(other.phases).for_each(|(sum, n)| *sum += n);
        for (sum, more) in
            [(&mut self.rates_mbit, &other.rates_mbit), (&mut self.least_share, &other.least_share)]
        {
            sum.add(more).expect("all have the same bounds");
        }
    }

    /// Describes the observations; `None` if no node had rate control.
    pub fn text(&self) -> Option<String> {
        let looks: u64 = self.phases.iter().sum();
        if looks == 0 {
            return None;
        }
        let percent = |n: u64| 100.0 * n as f64 / looks as f64;
        let phases: Vec<_> = Phase::ALL
            .iter()
            .zip(self.phases)
            .map(|(phase, n)| format!("{} {:.0} %", phase.letter(), percent(n)))
            .collect();
        let gbit = |p: f64| self.rates_mbit.value_at_percentile(p) as f64 / 1e3;
        let (low, middle, high) = (gbit(10.0), gbit(50.0), gbit(90.0));
        let phases = phases.join(", ");
        let mut text = format!("phases {phases}; rates p10 {low:.1}, p50 {middle:.1}, p90 {high:.1} Gbit/s");
        if !self.least_share.is_empty() {
            let percent = self.least_share.mean() / WHOLE as f64 * 100.0;
            text += &format!("; least served compute node {percent:.0} % of the most served one");
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_rates_add_up_and_are_printed() {
        let status =
            |phase, rate| PacerStatus { phase, rate, target: rate, pauses: 0, duplicates: 0, delayed: 0 };
        let mut paces = ServiceRates::default();
        assert_eq!(paces.text(), None);
        paces.sample(&status(Phase::Stable, 100_000_000_000));
        let mut more = ServiceRates::default();
        more.sample(&status(Phase::FastRecovery, 50_000_000_000));
        more.served([50, 100].into_iter());
        paces.add(&more);
        let text = paces.text().expect("there were two looks");
        assert!(text.starts_with("phases a 50 %, b 0 %, c 50 %"), "{text}");
        assert!(text.ends_with("least served compute node 50 % of the most served one"), "{text}");
    }
}
