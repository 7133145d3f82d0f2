//! Figures that a comparison does not have although their peers were measured, with the reasons.

use serde::Serialize;

use super::pattern::Pattern;
use super::peer::Peer;
use super::plan::Plan;
use super::run::Figure;

/// Pattern of a measured peer without a figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AbsentFigure {
    pub peer: String,
    /// Name of the pattern.
    pub pattern: &'static str,
    pub reason: String,
}

/// Patterns of the plan of which these peers have no figure.
pub fn absent_figures(peers: &[&dyn Peer], plan: &Plan, figures: &[Figure]) -> Vec<AbsentFigure> {
    let mut absent = Vec::new();
    for peer in peers {
        let has_figure = |pattern: &Pattern| {
            figures.iter().any(|figure| figure.peer == peer.name() && figure.pattern == pattern.name())
        };
        for pattern in plan.patterns.iter().filter(|pattern| !has_figure(pattern)) {
            let reason = plan.omission(*pattern).or(peer.lacks(*pattern));
            let reason = reason.unwrap_or("the peer has not measured it").to_owned();
            absent.push(AbsentFigure { peer: peer.name().to_owned(), pattern: pattern.name(), reason });
        }
    }
    absent
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::libfabric::Libfabric;
    use super::super::plan::tests::plan;
    use super::super::redis::Redis;
    use super::super::report::tests::figure;
    use super::*;

    #[test]
    fn each_figure_is_there_or_has_a_reason() {
        let plan = plan(65536, Duration::ZERO);
        let figures = [figure("redis", Pattern::Read64), figure("libfabric-tcp", Pattern::Read64)];
        let absent = absent_figures(&[&Redis, &Libfabric], &plan, &figures);
        assert_eq!(absent.len(), 2 * (plan.patterns.len() - 1));
        let reason = |peer: &str, pattern: Pattern| {
            let mut found = absent.iter().filter(|one| one.peer == peer && one.pattern == pattern.name());
            found.next().map(|one| one.reason.clone()).unwrap_or_default()
        };
        assert_eq!(reason("redis", Pattern::Read64), "", "it has a figure");
        assert!(reason("redis", Pattern::Read1m).contains("smaller than 1 MiB"));
        assert!(reason("libfabric-tcp", Pattern::Load90).contains("nothing else"));
        assert!(reason("redis", Pattern::Load90).contains("has not measured it"));
    }
}
