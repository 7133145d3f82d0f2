//! Figures of a run: their values in each round, and the goals that they are compared with.

use std::fmt;

use cxloe_measure::machine::median;
use serde::Serialize;

use super::SurvivalSection;

/// Goal of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Upper bound of the median.
    AtMost(f64),
    /// Upper bound of every value.
    AllAtMost(f64),
    /// Lower bound of the median.
    AtLeast(f64),
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AtMost(bound) => write!(f, "<= {bound}"),
            Goal::AllAtMost(bound) => write!(f, "all <= {bound}"),
            Goal::AtLeast(bound) => write!(f, ">= {bound}"),
        }
    }
}

/// One figure, with a value for each round that measured it.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub section: SurvivalSection,
    pub name: String,
    /// Unit of the values: `us`, `ms`, `MB/s`, `ratio`, …
    pub unit: &'static str,
    pub minimum: f64,
    pub median: f64,
    pub maximum: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// True if the goal is reached; `None` without a goal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached: Option<bool>,
    pub values: Vec<f64>,
}

impl Figure {
    /// Makes a figure with its first value.
    pub fn new(
        section: SurvivalSection,
        name: String,
        unit: &'static str,
        goal: Option<Goal>,
        value: f64,
    ) -> Figure {
        let (minimum, median, maximum) = (value, value, value);
        let mut figure =
            Figure { section, name, unit, minimum, median, maximum, goal, reached: None, values: Vec::new() };
        figure.add(value);
        figure
    }

    /// Adds the value of a further round.
    pub fn add(&mut self, value: f64) {
        self.values.push(value);
        self.minimum = self.minimum.min(value);
        self.maximum = self.maximum.max(value);
        self.median = median(&self.values).unwrap_or(value);
        self.reached = self.goal.map(|goal| match goal {
            Goal::AtMost(bound) => self.median <= bound,
            Goal::AllAtMost(bound) => self.maximum <= bound,
            Goal::AtLeast(bound) => self.median >= bound,
        });
    }

    /// The figure as a line of the table, below [`HEAD`].
    pub fn row(&self) -> String {
        let goal = match (self.goal, self.reached) {
            (Some(goal), Some(true)) => format!("{goal}, reached"),
            (Some(goal), _) => format!("{goal}, missed"),
            (None, _) => String::new(),
        };
        let [minimum, median, maximum] = [self.minimum, self.median, self.maximum].map(shown);
        let line = format!(
            "{:<8} {:<48} {:>10} {minimum:>10} {median:>10} {maximum:>10}  {goal}",
            self.section.name(),
            self.name,
            self.unit
        );
        line.trim_end().to_owned()
    }
}

/// Head of the table of figures.
pub const HEAD: &str = "section  figure                                                 unit    minimum     median    maximum  goal";

/// Writes a value with about three digits.
fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(goal: Option<Goal>, values: &[f64]) -> Figure {
        let mut figure = Figure::new(SurvivalSection::Mirror, "write64".into(), "us", goal, values[0]);
        values[1..].iter().for_each(|value| figure.add(*value));
        figure
    }

    #[test]
    fn values_are_summed_up_as_they_come() {
        let found = figure(None, &[4.0, 1.0, 7.0]);
        assert_eq!((found.minimum, found.median, found.maximum), (1.0, 4.0, 7.0));
        assert_eq!((found.values.len(), found.reached), (3, None));
    }

    #[test]
    fn a_goal_is_compared_with_the_median_or_with_every_value() {
        let values = [0.9, 1.0, 1.2];
        for (goal, reached) in [
            (Goal::AtMost(1.0), true),
            (Goal::AtMost(0.95), false),
            (Goal::AllAtMost(1.2), true),
            (Goal::AllAtMost(1.1), false),
            (Goal::AtLeast(1.0), true),
            (Goal::AtLeast(1.1), false),
        ] {
            assert_eq!(figure(Some(goal), &values).reached, Some(reached), "{goal}");
        }
    }

    #[test]
    fn rows_stand_below_their_head() {
        let reached = figure(Some(Goal::AtMost(1.6)), &[1.25, 1.25]).row();
        assert!(
            reached.starts_with("mirror   write64 ") && reached.ends_with("  <= 1.6, reached"),
            "{reached}"
        );
        let missed = figure(Some(Goal::AllAtMost(50.0)), &[12.0, 123.4]).row();
        assert!(missed.contains(" 123  all <= 50, missed") && missed.contains(" 12.0 "), "{missed}");
        for (heading, value) in [("unit", "us"), ("maximum", "1.25")] {
            let end = |line: &str, word: &str| line.find(word).map(|at| at + word.len());
            let last = |line: &str, word: &str| line.rfind(word).map(|at| at + word.len());
            let found = if heading == "unit" { end(&reached, value) } else { last(&reached, value) };
            assert_eq!(found, end(HEAD, heading), "{heading}");
        }
        assert!(!figure(None, &[1.0]).row().ends_with(' '));
    }

    #[test]
    fn goals_have_names_in_json() {
        let json = serde_json::to_value(figure(Some(Goal::AtLeast(0.7)), &[0.8])).unwrap();
        assert_eq!((&json["goal"]["at_least"], &json["reached"]), (&0.7.into(), &true.into()));
        assert_eq!((&json["section"], &json["values"][0]), (&"mirror".into(), &0.8.into()));
        let plain = serde_json::to_value(figure(None, &[0.8])).unwrap();
        assert!(plain.get("goal").is_none() && plain.get("reached").is_none());
    }
}
