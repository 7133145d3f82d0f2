//! Fig. 11: first and final stable rate of a sender against the FIFO threshold for PFC frames.

use plotters::style::text_anchor::HPos;
use serde::Serialize;

use super::sweep::{SEEDS, gbit, sweep};
use super::{Model, Run, Spread, drawing};
use cxloe_measure::report::chart::{self, Axis};
use cxloe_measure::report::table::new_table;
use cxloe_measure::report::{ReportError, csv};

/// Average difference between first and final stable rate in the paper, in percent.
const PAPER_DIFFERENCE: f64 = 7.0;
/// Threshold in entries at which the paper sees no PFC frame.
const PAPER_QUIET: u32 = 105;

/// Stable rates against the threshold, from 5 to 120 entries in steps of 5, at an initial rate of 100 Gbit/s.
#[derive(Clone, Debug, Serialize)]
pub struct Fig11 {
    pub model: Model,
    /// Results, in ascending order of the threshold.
    pub points: Vec<ThresholdPoint>,
    /// Difference between first and final stable rate in percent of the final rate, averaged over all
    /// thresholds with PFC frames; the spread is over the seeds.
    pub difference_percent: Option<Spread>,
}

/// Result at one threshold. Rates are in Gbit/s.
#[derive(Clone, Debug, Serialize)]
pub struct ThresholdPoint {
    pub threshold: u32,
    /// First stable rate after a PFC frame; `None` without a PFC frame.
    pub first: Option<Spread>,
    /// Rate averaged over the last part of the run.
    pub last: Spread,
    /// Difference between the first and the final rate in percent of the final rate, as the mean over the
    /// seeds.
    pub difference_percent: Option<f64>,
    /// Number of PFC frames of all seeds together.
    pub pfc: u64,
    /// Maximum number of entries in the FIFO with any seed.
    pub peak: usize,
}

impl Fig11 {
    pub fn simulate(model: &Model) -> Fig11 {
        let thresholds: Vec<u32> = (5..=120).step_by(5).collect();
        let plan: Vec<_> = thresholds.iter().map(|&threshold| (threshold, model.link)).collect();
        let runs = sweep(model, &plan);
        let by_seed: Vec<f64> = (0..SEEDS.count())
            .filter_map(|seed| {
                let differences: Vec<f64> =
                    runs.iter().filter_map(|point| difference(&point[seed])).collect();
                Spread::of(&differences).map(|spread| spread.mean)
            })
            .collect();
        Fig11 {
            model: *model,
            points: thresholds
                .iter()
                .zip(&runs)
                .filter_map(|(t, runs)| ThresholdPoint::of(*t, runs))
                .collect(),
            difference_percent: Spread::of(&by_seed),
        }
    }

    /// Returns the lowest threshold, in entries, from which on no seed has a PFC frame.
    pub fn quiet_from(&self) -> Option<u32> {
        let loud = self.points.iter().rposition(|point| point.pfc > 0).map_or(0, |last| last + 1);
        self.points.get(loud).map(|point| point.threshold)
    }

    /// Formats the points as a table for a terminal, with the findings below.
    pub fn table(&self) -> String {
        let header = ["threshold", "PFC frames", "peak", "first Gbit/s", "final Gbit/s", "difference"];
        let mut table = new_table(header);
        for point in &self.points {
            table.add_row([
                point.threshold.to_string(),
                point.pfc.to_string(),
                point.peak.to_string(),
                point.first.as_ref().map_or("-".into(), Spread::text),
                point.last.text(),
                point.difference_percent.map_or("-".into(), |d| format!("{d:.1} %")),
            ]);
        }
        format!(
            "Fig. 11: stable rates over the threshold of the FIFO\n{table}\n{}\n",
            self.findings().join("\n")
        )
    }

    fn findings(&self) -> Vec<String> {
        let difference = self.difference_percent.map_or("no PFC frame at any threshold".into(), |d| {
            format!(
                "first and final rate differ by {:.1} % on average ({:.1} - {:.1} with single seeds)",
                d.mean, d.min, d.max
            )
        });
        let quiet = match self.quiet_from() {
            Some(threshold) => format!("no PFC frame from {threshold} entries on"),
            None => "PFC frames at every threshold".into(),
        };
        vec![
            format!("{difference}; the paper: {PAPER_DIFFERENCE} %"),
            format!("{quiet}; the paper: at {PAPER_QUIET}"),
        ]
    }

    /// Formats the points as comma-separated values: one line for each threshold, rates in Gbit/s.
    pub fn csv(&self) -> String {
        let heads = "threshold pfc_frames peak_entries first first_min first_max final final_min final_max \
                     difference_percent";
        let number = |value: f64| format!("{value:.3}");
        let row = |point: &ThresholdPoint| {
            let mut cells =
                [point.threshold.to_string(), point.pfc.to_string(), point.peak.to_string()].to_vec();
            cells.extend(match &point.first {
                Some(first) => [first.mean, first.min, first.max].map(number),
                None => [const { String::new() }; 3],
            });
            cells.extend([point.last.mean, point.last.min, point.last.max].map(number));
            cells.push(point.difference_percent.map_or_else(String::new, |percent| format!("{percent:.2}")));
            cells
        };
        let heads = heads.split_whitespace().map(str::to_owned).collect();
        csv::text(std::iter::once(heads).chain(self.points.iter().map(row)))
    }

    /// Draws the figure as SVG.
    ///
    /// # Errors
    /// Returns [`ReportError::Picture`] when the figure cannot be drawn.
    pub fn svg(&self) -> Result<String, ReportError> {
        let findings = self.findings();
        let definitions = [
            "First: the rate when it is first stable (phase a) after a PFC frame. Final: what arrives, averaged from 3 to 12 ms.",
            &findings[0],
            &findings[1],
        ];
        drawing::figure(
            "Fig. 11: stable rates over FIFO thresholds",
            560,
            &self.model,
            &definitions,
            |area| {
                let x = Axis { low: 0.0, high: 122.0, logarithmic: false, pixels: (100, 920) };
                let y = Axis { low: 0.0, high: 104.0, logarithmic: false, pixels: (480, 90) };
                drawing::axes(area, (&x, 10.0, "threshold, entries"), (&y, 20.0, "Gbit/s"))?;
                let rates = |of: fn(&ThresholdPoint) -> Option<Spread>| -> Vec<_> {
                    self.points.iter().filter_map(|p| Some((f64::from(p.threshold), of(p)?))).collect()
                };
                let (first, last) = (chart::series(1), chart::series(0));
                drawing::points(area, (&x, &y), &rates(|p| p.first), first, 3)?;
                drawing::points(area, (&x, &y), &rates(|p| Some(p.last)), last, -3)?;
                let names = [("first stable rate".into(), first), ("final stable rate".into(), last)];
                drawing::legend(area, &names, (130, 110))?;
                if let Some(quiet) = self.quiet_from() {
                    let words = format!("no PFC from {quiet}");
                    drawing::small(area, &words, (x.pixels.1, y.at(97.0)), HPos::Right)?;
                }
                Ok(())
            },
        )
    }
}

impl ThresholdPoint {
    fn of(threshold: u32, runs: &[Run]) -> Option<ThresholdPoint> {
        let first: Vec<f64> = runs.iter().filter_map(|run| run.first.map(gbit)).collect();
        let last: Vec<f64> = runs.iter().map(|run| gbit(run.last)).collect();
        let differences: Vec<f64> = runs.iter().filter_map(difference).collect();
        Some(ThresholdPoint {
            threshold,
            first: Spread::of(&first),
            last: Spread::of(&last)?,
            difference_percent: Spread::of(&differences).map(|spread| spread.mean),
            pfc: runs.iter().map(|run| run.pfc).sum(),
            peak: runs.iter().map(|run| run.peak).max()?,
        })
    }
}

/// Returns the difference between the first and the final rate in percent of the final rate; `None` without a
/// first rate.
fn difference(run: &Run) -> Option<f64> {
    run.first.map(|first| 100.0 * (first - run.last).abs() / run.last)
}
