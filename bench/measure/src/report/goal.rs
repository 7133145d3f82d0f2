//! Goals beside what was measured: of the time of an operation above its limit, or of a rate.

use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::html::table;
use super::{Report, ReportError, Statistic, units};

pub(super) const HEADS: [&str; 4] = ["goal of", "measured", "goal", ""];

/// Figure of a report, and its goal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FigureGoal {
    /// Name of a rate, or names of a time and of the limit above which it is counted: `read64 above echo64`.
    pub name: String,
    /// Measured value, in the unit of the bound.
    pub value: f64,
    /// Upper bound in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most_ns: Option<f64>,
    /// Lower bound in operations per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least_per_s: Option<f64>,
    pub reached: bool,
}

impl FigureGoal {
    /// Formats the cells of the table row for this goal, in the order of [`HEADS`].
    pub(super) fn cells(&self) -> [String; 4] {
        let (value, bound) = match (self.at_most_ns, self.at_least_per_s) {
            (Some(most), _) => (units::time(self.value), format!("≤ {}", units::time(most))),
            (None, Some(least)) => (units::operations(self.value), format!("≥ {}", units::operations(least))),
            (None, None) => (self.value.to_string(), String::new()),
        };
        let mark = if self.reached { "reached" } else { "missed" };
        [self.name.clone(), value, bound, mark.into()]
    }
}

impl Report {
    /// Adds a goal of the ratio called `ratio`, of medians: the time is at most `most_ns` nanoseconds above its limit.
    ///
    /// # Errors
    /// Returns [`ReportError::NotMeasured`] if the report has no such ratio.
    pub fn add_time_goal(&mut self, ratio: &str, most_ns: f64) -> Result<(), ReportError> {
        let of_it = self.ratios.iter().find(|found| found.name == ratio && found.statistic == Statistic::P50);
        let (above, limit) = ratio.split_once('/').unwrap_or((ratio, "its limit"));
        let Some(value) = of_it.and_then(|found| found.over) else {
            let (ratio, statistic, name) = (ratio.into(), Statistic::P50.name(), above.into());
            return Err(ReportError::NotMeasured { ratio, statistic, name });
        };
        self.goals.push(FigureGoal {
            name: format!("{above} above {limit}"),
            value,
            at_most_ns: Some(most_ns),
            at_least_per_s: None,
            reached: value <= most_ns,
        });
        Ok(())
    }

    /// Adds a goal of the rate called `rate`: at least `least_per_s` operations per second.
    ///
    /// # Errors
    /// Returns [`ReportError::NotMeasured`] if the report has no such rate.
    pub fn add_rate_goal(&mut self, rate: &str, least_per_s: f64) -> Result<(), ReportError> {
        let Some(value) = self.rate(rate).map(|found| found.ops_per_s) else {
            let (ratio, statistic, name) = (rate.into(), Statistic::OpsPerS.name(), rate.into());
            return Err(ReportError::NotMeasured { ratio, statistic, name });
        };
        self.goals.push(FigureGoal {
            name: rate.into(),
            value,
            at_most_ns: None,
            at_least_per_s: Some(least_per_s),
            reached: value >= least_per_s,
        });
        Ok(())
    }

    /// Returns the HTML section with the report's goals.
    pub(super) fn goal_section(&self) -> Markup {
        let row = |goal: &FigureGoal| {
            let [name, value, bound, mark] = goal.cells();
            let class = if goal.reached { "good" } else { "bad" };
            html! { tr { td { (name) } td { (value) } td { (bound) } td class=(class) { (mark) } } }
        };
        html! {
            h2 { "Goals" }
            p {
                "What this kind of link is to reach, and what it reached here. A time above a limit is the difference of \
                 both medians, over the trials that their ratio compares."
            }
            (table(&HEADS, self.goals.iter().map(row)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{latency, rate, report};
    use super::*;

    fn measured() -> Report {
        let mut report = report();
        report.results = vec![latency("echo64", &[(None, 300)]), latency("read64", &[(None, 700)])];
        report.throughput = vec![rate("stream64", &[(None, 4e6)])];
        report.add_ratio("read64/echo64", Statistic::P99, None).unwrap();
        report.add_ratio("read64/echo64", Statistic::P50, None).unwrap();
        report
    }

    #[test]
    fn a_goal_is_reached_or_missed_by_the_measured_value() {
        let mut report = measured();
        for most in [450.0, 350.0] {
            report.add_time_goal("read64/echo64", most).unwrap();
        }
        for least in [4e6, 5e6] {
            report.add_rate_goal("stream64", least).unwrap();
        }
        let reached: Vec<bool> = report.goals.iter().map(|goal| goal.reached).collect();
        assert_eq!(reached, [true, false, true, false]);
        assert_eq!(report.goals[0].value, 400.0);
        for goal in ["read64/write64", "stream64"] {
            let error = report.add_time_goal(goal, 1.0).unwrap_err();
            assert!(matches!(error, ReportError::NotMeasured { .. }), "{error}");
        }
        assert!(report.add_rate_goal("read64", 1.0).is_err());
        assert_eq!(report.goals.len(), 4, "a figure that was not measured has no goal");
    }

    #[test]
    fn goals_are_in_every_form() {
        let mut report = measured();
        assert!(!report.to_json().contains("goals") && !report.html().unwrap().contains("Goals"));
        report.add_time_goal("read64/echo64", 350.0).unwrap();
        report.add_rate_goal("stream64", 5e5).unwrap();
        for text in [report.tables(), report.html().unwrap()] {
            for words in
                ["read64 above echo64", "400 ns", "≤ 350 ns", "missed", "4.00 M/s", "≥ 500 k/s", "reached"]
            {
                assert!(text.contains(words), "no {words} in {text}");
            }
        }
        let read: Report = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(read.goals, report.goals);
    }
}
