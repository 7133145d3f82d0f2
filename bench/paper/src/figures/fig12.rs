//! Fig. 12: final stable rate against the initial rate of the link, with a threshold of 50 entries.

use cxloe_cc::GBIT;
use plotters::element::PathElement;
use plotters::style::Color;
use plotters::style::text_anchor::HPos;
use serde::Serialize;

use super::sweep::{gbit, sweep};
use super::{Model, Run, Spread, drawing};
use cxloe_measure::report::chart::{self, Axis};
use cxloe_measure::report::table::new_table;
use cxloe_measure::report::{ReportError, csv};

/// Threshold of Fig. 12 in the paper, in entries.
const THRESHOLD: u32 = 50;
/// Range of the final rates in the paper, in Gbit/s.
const PAPER_RATES: (f64, f64) = (41.0, 42.0);
/// Initial rates, in Gbit/s, of the runs whose rate over time is drawn.
const TRACED: [u64; 4] = [10, 40, 70, 100];
/// Part of each traced run that is drawn, in microseconds from the start of the run.
const TRACED_US: f64 = 3000.0;

/// Final rates against the initial rate, from 10 to 100 Gbit/s in steps of 10.
#[derive(Clone, Debug, Serialize)]
pub struct Fig12 {
    pub model: Model,
    pub threshold: u32,
    /// Results, in ascending order of the initial rate.
    pub points: Vec<InitialPoint>,
    /// Rate of the controller over time, for a few initial rates, with the first seed.
    pub traces: Vec<Trace>,
}

/// Result at one initial rate. Rates are in Gbit/s.
#[derive(Clone, Debug, Serialize)]
pub struct InitialPoint {
    /// Rate of the controller at the start.
    pub initial: u64,
    /// Rate averaged over the last part of the run.
    pub last: Spread,
    /// Number of PFC frames of all seeds together.
    pub pfc: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Trace {
    /// Rate of the controller at the start, in Gbit/s.
    pub initial: u64,
    /// Times in microseconds at which the rate changes, each with the rate in Gbit/s from then on.
    pub rates: Vec<(f64, f64)>,
}

impl Fig12 {
    pub fn simulate(model: &Model) -> Fig12 {
        let initial: Vec<u64> = (10..=100).step_by(10).collect();
        let plan: Vec<_> = initial.iter().map(|rate| (THRESHOLD, rate * GBIT)).collect();
        let runs = sweep(model, &plan);
        let of = |(&initial, runs): (&u64, &Vec<Run>)| {
            let last: Vec<f64> = runs.iter().map(|run| gbit(run.last)).collect();
            Some(InitialPoint {
                initial,
                last: Spread::of(&last)?,
                pfc: runs.iter().map(|run| run.pfc).sum(),
            })
        };
        let traced = initial.iter().zip(&runs).filter(|(initial, _)| TRACED.contains(initial));
        Fig12 {
            model: *model,
            threshold: THRESHOLD,
            points: initial.iter().zip(&runs).filter_map(of).collect(),
            traces: traced.map(|(initial, runs)| Trace::of(*initial, &runs[0])).collect(),
        }
    }

    /// Returns mean and spread of the points' final rates, in Gbit/s.
    pub fn rates(&self) -> Option<Spread> {
        Spread::of(&self.points.iter().map(|point| point.last.mean).collect::<Vec<_>>())
    }

    /// Returns the difference between the highest and the lowest final rate, in percent of their mean.
    pub fn spread_percent(&self) -> Option<f64> {
        self.rates().map(|rates| 100.0 * (rates.max - rates.min) / rates.mean)
    }

    /// Formats the points as a table for a terminal, with the findings below.
    pub fn table(&self) -> String {
        let mut table = new_table(["initial Gbit/s", "PFC frames", "final Gbit/s"]);
        for point in &self.points {
            table.add_row([point.initial.to_string(), point.pfc.to_string(), point.last.text()]);
        }
        let title = format!("Fig. 12: final stable rates over initial rates, threshold {THRESHOLD}");
        format!("{title}\n{table}\n{}\n", self.findings())
    }

    fn findings(&self) -> String {
        let (Some(rates), Some(spread)) = (self.rates(), self.spread_percent()) else { return String::new() };
        let (from, to) = PAPER_RATES;
        format!(
            "final rates from {:.1} to {:.1} Gbit/s, {spread:.1} % apart; the paper: {from} to {to}",
            rates.min, rates.max
        )
    }

    /// Formats the points as comma-separated values: one line for each initial rate, rates in Gbit/s.
    pub fn csv(&self) -> String {
        let row = |InitialPoint { initial, last, pfc }: &InitialPoint| {
            let mut cells = vec![initial.to_string(), pfc.to_string()];
            cells.extend([last.mean, last.min, last.max].map(|rate| format!("{rate:.3}")));
            cells
        };
        let heads = ["initial", "pfc_frames", "final", "final_min", "final_max"].map(str::to_owned).to_vec();
        csv::text(std::iter::once(heads).chain(self.points.iter().map(row)))
    }

    /// Draws the figure as SVG: the final rates above, the rates over time of some runs below.
    ///
    /// # Errors
    /// Returns [`ReportError::Picture`] when the figure cannot be drawn.
    pub fn svg(&self) -> Result<String, ReportError> {
        let findings = self.findings();
        let definitions = [
            "Above: what arrives, averaged from 3 to 12 ms; dashed: the paper. Below: the controller's rate, one seed.",
            &findings,
        ];
        let title = format!("Fig. 12: final stable rates over initial rates, threshold {THRESHOLD}");
        drawing::figure(&title, 920, &self.model, &definitions, |area| {
            let x = Axis { low: 5.0, high: 105.0, logarithmic: false, pixels: (100, 920) };
            let y = Axis { low: 0.0, high: 104.0, logarithmic: false, pixels: (410, 90) };
            drawing::axes(area, (&x, 10.0, "initial rate, Gbit/s"), (&y, 20.0, "final rate, Gbit/s"))?;
            drawing::mark(area, (&x, &y), PAPER_RATES.0)?;
            drawing::mark(area, (&x, &y), PAPER_RATES.1)?;
            let points: Vec<_> = self.points.iter().map(|p| (p.initial as f64, p.last)).collect();
            drawing::points(area, (&x, &y), &points, chart::series(0), 0)?;

            let x = Axis { low: 0.0, high: TRACED_US, logarithmic: false, pixels: (100, 920) };
            let y = Axis { low: 0.0, high: 104.0, logarithmic: false, pixels: (840, 520) };
            drawing::axes(area, (&x, 500.0, "time, µs"), (&y, 20.0, "rate over time, Gbit/s"))?;
            for (index, trace) in self.traces.iter().enumerate() {
                let line: Vec<_> =
                    trace.steps(TRACED_US).map(|(time, rate)| (x.at(time), y.at(rate))).collect();
                area.draw(&PathElement::new(line, chart::series(index).stroke_width(2)))?;
            }
            let name = |(index, trace): (usize, &Trace)| {
                (format!("from {} Gbit/s", trace.initial), chart::series(index))
            };
            let names: Vec<_> = self.traces.iter().enumerate().map(name).collect();
            drawing::small(area, "seed 1", (900, 530), HPos::Right)?;
            drawing::legend(area, &names, (640, 530))
        })
    }
}

impl Trace {
    fn of(initial: u64, run: &Run) -> Trace {
        let rates = run
            .rates
            .iter()
            .map(|(time, rate)| (time.as_nanos() as f64 / 1000.0, gbit(*rate as f64)))
            .take_while(|(time, _)| *time <= TRACED_US)
            .collect();
        Trace { initial, rates }
    }

    /// Returns the corners of the step line: the rate is constant between changes, and from the last change
    /// to `end`.
    fn steps(&self, end: f64) -> impl Iterator<Item = (f64, f64)> {
        let until = self.rates.iter().skip(1).map(|(time, _)| *time).chain([end]);
        self.rates.iter().zip(until).flat_map(|(&(from, rate), until)| [(from, rate), (until, rate)])
    }
}
