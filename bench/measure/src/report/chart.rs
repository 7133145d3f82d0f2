//! Pictures of results as SVG.
//!
//! All pictures are drawn on a canvas of one width, and the page scales them to its own. Their colours are
//! placeholders: the page's style sheet replaces [`INK`], [`GRID`] and the `SERIES` by colours for a light or
//! a dark screen.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::samples::bin_of;
use super::{Latency, ReportError, units};

/// Colour of text and axes; the page's style sheet replaces it.
pub const INK: RGBColor = RGBColor(0x22, 0x26, 0x2B);
/// Colour of grid lines behind the data; the page's style sheet replaces it.
pub const GRID: RGBColor = RGBColor(0xD5, 0xDA, 0xE0);
/// Colours of results; people with the common kinds of colour blindness can distinguish them (the first ones
/// are those of Okabe and Ito).
pub(super) const SERIES: [RGBColor; 14] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xB8, 0x8A, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x8A, 0x4F, 0xD6),
    RGBColor(0x7A, 0x7A, 0x7A),
    RGBColor(0xC2, 0x18, 0x5B),
    RGBColor(0x2E, 0x7D, 0x32),
    RGBColor(0x79, 0x55, 0x48),
    RGBColor(0x00, 0x83, 0x8F),
    RGBColor(0x30, 0x3F, 0x9F),
    RGBColor(0x9E, 0x9D, 0x24),
];

const WIDTH: u32 = 960;
const FONT: f64 = 30.0;
/// Maximum number of bars in a histogram.
const BARS: i32 = 64;

/// Area of a picture on which plotters draws.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Mapping of values to pixel coordinates in one direction.
pub struct Axis {
    /// Value at the first pixel coordinate; above zero if the axis is logarithmic.
    pub low: f64,
    /// Value at the last pixel coordinate.
    pub high: f64,
    pub logarithmic: bool,
    /// Coordinates of the first and the last pixel; the first is the larger one on a vertical axis.
    pub pixels: (i32, i32),
}

impl Axis {
    /// Returns the pixel coordinate of a value, clamped to the axis.
    pub fn at(&self, value: f64) -> i32 {
        let scale = |v: f64| if self.logarithmic { v.max(f64::MIN_POSITIVE).ln() } else { v };
        let share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low));
        let (from, to) = (f64::from(self.pixels.0), f64::from(self.pixels.1));
        (from + share.clamp(0.0, 1.0) * (to - from)).round() as i32
    }

    /// Returns round values along the axis, three to seven where possible. On a logarithmic axis they are the
    /// same in each decade; on a linear axis, or one shorter than a decade, they are evenly spaced.
    pub fn ticks(&self) -> Vec<f64> {
        let inside = |v: &f64| (self.low..=self.high).contains(v);
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let in_each = |steps: &'static [f64]| -> Vec<f64> {
            decades
                .clone()
                .flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)))
                .filter(inside)
                .collect()
        };
        if self.logarithmic {
            let sets: [&[f64]; 4] = [
                &[1.0],
                &[1.0, 2.0, 5.0],
                &[1.0, 2.0, 3.0, 5.0, 7.0],
                &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
            ];
            if let Some(ticks) = sets.map(in_each).into_iter().find(|ticks| (3..=7).contains(&ticks.len())) {
                return ticks;
            }
            if self.high / self.low > 10.0 {
                let all = in_each(&[1.0]);
                return all.iter().copied().step_by(all.len().div_ceil(7).max(1)).collect();
            }
        }
        let rough = (self.high - self.low) / 4.0;
        let decade = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|s| s * decade).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|v| *v <= self.high).take(16).collect()
    }
}

/// Returns the number of samples that the histogram of this result omits: those above 1.3 times the 99.9th
/// percentile.
pub(super) fn beyond(result: &Latency) -> u64 {
    result.distribution.iter().filter(|(time, _)| *time > shown_until(result)).map(|(_, count)| count).sum()
}

fn shown_until(result: &Latency) -> f64 {
    1.3 * result.p999
}

/// Draws the histogram of one result, with times on a logarithmic axis and marks at p50, p99 and p99.9.
pub(super) fn histogram(result: &Latency, colour: usize) -> Result<String, ReportError> {
    let bins: Vec<_> = result.distribution.iter().filter(|(time, _)| *time <= shown_until(result)).collect();
    let (Some(first), Some(last)) = (bins.first(), bins.last()) else {
        return picture(&result.name, 120, |area| {
            text(area, "no distribution in this report", (480, 60), HPos::Center, VPos::Center)
        });
    };
    // Each bar covers the same whole number of bins, so that the bars are comparable.
    let (from, to) = (bin_of(first.0), bin_of(last.0));
    let per_bar = (to - from + 1).div_euclid(BARS) + 1;
    let bars = (to - from).div_euclid(per_bar) + 1;
    let mut shares = vec![0.0; bars as usize];
    for &&(time, count) in &bins {
        shares[(bin_of(time) - from).div_euclid(per_bar) as usize] += count as f64 / result.count as f64;
    }
    let edge = |bar: i32| super::samples::BIN.powi(from + bar * per_bar);
    let margin = if bars < 8 { (8 - bars) / 2 + 1 } else { 1 };
    picture(&result.name, 440, |area| {
        let x = Axis { low: edge(-margin), high: edge(bars + margin), logarithmic: true, pixels: (110, 905) };
        let top = shares.iter().copied().fold(0.0, f64::max);
        let y = Axis { low: 0.0, high: top * 1.02, logarithmic: false, pixels: (370, 50) };
        let share_text = |share: f64| units::brief(&format!("{:.3} %", 100.0 * share));
        frame(area, &x, |ns| units::brief(&units::time(ns)), &y, share_text)?;
        for (bar, &share) in (0..bars).zip(&shares).filter(|(_, share)| **share > 0.0) {
            let corner = (x.at(edge(bar)), y.at(share).min(y.at(0.0) - 2));
            let opposite = ((x.at(edge(bar + 1)) - 1).max(corner.0 + 1), y.at(0.0));
            area.draw(&Rectangle::new([corner, opposite], series(colour).filled()))?;
        }
        let mut free = i32::MIN;
        for (label, value) in [("p50", result.p50), ("p99", result.p99), ("p99.9", result.p999)] {
            let at = x.at(value);
            area.draw(&PathElement::new(vec![(at, 44), (at, y.at(0.0))], INK.stroke_width(2)))?;
            // Labels of adjacent quantiles would overlap, so only the first of them is drawn.
            if at >= free {
                text(area, label, (at, 38), HPos::Center, VPos::Bottom)?;
                free = at + 84;
            }
        }
        Ok(())
    })
}

/// Draws the times of all results against the percentile, with the tail magnified: 90 %, 99 %, 99.9 % at
/// equal distances.
pub(super) fn percentiles(results: &[Latency]) -> Result<String, ReportError> {
    let drawn: Vec<_> = results.iter().enumerate().filter(|(_, r)| !r.distribution.is_empty()).collect();
    let low = drawn.iter().map(|(_, r)| r.min).fold(f64::INFINITY, f64::min).max(0.1);
    let high = drawn.iter().map(|(_, r)| r.max).fold(low, f64::max);
    let nines = drawn.iter().map(|(_, r)| (r.count as f64).log10()).fold(1.0, f64::max);
    picture("percentiles", 620, |area| {
        let x = Axis { low: 0.0, high: nines, logarithmic: false, pixels: (130, 905) };
        let y = Axis { low: low / 1.3, high: high * 1.3, logarithmic: true, pixels: (550, 30) };
        grid(area, &x, &y, &(0..=nines as i32).map(f64::from).collect::<Vec<_>>(), &percent)?;
        for tick in y.ticks() {
            horizontal(area, &x, y.at(tick), &units::brief(&units::time(tick)))?;
        }
        for &(index, result) in &drawn {
            let mut points = vec![(x.at(0.0), y.at(result.min))];
            let mut passed = 0;
            for &(time, count) in &result.distribution {
                passed += count;
                // After the last bin, the share of slower samples is 0, whose logarithm is infinite. The share of one
                // sample is used instead.
                let left = (result.count.saturating_sub(passed)).max(1) as f64 / result.count as f64;
                points.push((x.at(-left.log10()), y.at(time)));
            }
            area.draw(&PathElement::new(points, series(index).stroke_width(4)))?;
        }
        Ok(())
    })
}

/// Draws rates as horizontal bars, each with its name and its value as `show` formats it.
pub(super) fn bars(
    title: &str,
    rates: &[(&str, f64)],
    show: impl Fn(f64) -> String,
) -> Result<String, ReportError> {
    const ROW: i32 = 52;
    let longest = rates.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) as i32;
    let start = (longest * 14 + 30).min(420);
    let top = rates.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let x = Axis { low: 0.0, high: top, logarithmic: false, pixels: (start, 770) };
    picture(title, (ROW * rates.len() as i32 + 16) as u32, |area| {
        for (row, &(name, value)) in (0..).zip(rates) {
            let middle = row * ROW + ROW / 2 + 8;
            text(area, name, (start - 14, middle), HPos::Right, VPos::Center)?;
            let corners = [(start, middle - 17), (x.at(value).max(start + 2), middle + 17)];
            area.draw(&Rectangle::new(corners, series(row as usize).filled()))?;
            text(area, &show(value), (corners[1].0 + 12, middle), HPos::Left, VPos::Center)?;
        }
        Ok(())
    })
}

/// Returns the colour of the result with this index.
pub fn series(index: usize) -> RGBColor {
    SERIES[index % SERIES.len()]
}

/// Formats the percentile for a number of nines: 0 -> 0 %, 1 -> 90 %, 2 -> 99 %, ….
fn percent(nines: f64) -> String {
    let decimals = (nines as usize).saturating_sub(2);
    format!("{:.decimals$} %", 100.0 * (1.0 - 10f64.powf(-nines)))
}

fn frame(
    area: &Area,
    x: &Axis,
    show_x: impl Fn(f64) -> String,
    y: &Axis,
    show_y: impl Fn(f64) -> String,
) -> Drawn {
    grid(area, x, y, &x.ticks(), &show_x)?;
    for tick in y.ticks() {
        horizontal(area, x, y.at(tick), &show_y(tick))?;
    }
    Ok(())
}

/// Draws the horizontal axis, and at each tick a vertical grid line with a label below.
pub fn grid(area: &Area, x: &Axis, y: &Axis, ticks: &[f64], show: &impl Fn(f64) -> String) -> Drawn {
    let (bottom, top) = y.pixels;
    for &tick in ticks {
        let at = x.at(tick);
        area.draw(&PathElement::new(vec![(at, top), (at, bottom + 8)], GRID.stroke_width(2)))?;
        text(area, &show(tick), (at, bottom + 14), HPos::Center, VPos::Top)?;
    }
    area.draw(&PathElement::new(vec![(x.pixels.0, bottom), (x.pixels.1, bottom)], INK.stroke_width(2)))?;
    Ok(())
}

/// Draws a horizontal grid line with its label on the left.
pub fn horizontal(area: &Area, x: &Axis, at: i32, label: &str) -> Drawn {
    area.draw(&PathElement::new(vec![(x.pixels.0, at), (x.pixels.1, at)], GRID.stroke_width(2)))?;
    text(area, label, (x.pixels.0 - 10, at), HPos::Right, VPos::Center)
}

pub fn text(area: &Area, words: &str, at: (i32, i32), horizontal: HPos, vertical: VPos) -> Drawn {
    sized_text(area, words, FONT, at, horizontal, vertical)
}

/// Draws text at a point, in letters of `size` pixels.
pub fn sized_text(
    area: &Area,
    words: &str,
    size: f64,
    at: (i32, i32),
    horizontal: HPos,
    vertical: VPos,
) -> Drawn {
    let style = ("sans-serif", size).into_font().color(&INK).pos(Pos::new(horizontal, vertical));
    Ok(area.draw_text(words, &style, at)?)
}

/// Draws an SVG picture `height` pixels high; `name` identifies the picture in an error.
pub fn picture(name: &str, height: u32, draw: impl FnOnce(&Area) -> Drawn) -> Result<String, ReportError> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    let drawn = draw(&area).and_then(|()| Ok(area.present()?));
    drop(area);
    match drawn {
        Ok(()) => Ok(svg),
        Err(error) => Err(ReportError::Picture { name: name.into(), message: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Samples;
    use super::super::fixture::latency;
    use super::*;

    fn elements(svg: &str, tag: &str, colour: RGBColor) -> usize {
        let colour = format!("\"#{:02X}{:02X}{:02X}\"", colour.0, colour.1, colour.2);
        svg.lines().filter(|l| l.starts_with(&format!("<{tag} ")) && l.contains(&colour)).count()
    }

    #[test]
    fn a_histogram_has_a_bar_per_group_of_times() {
        let mut samples = Samples::new("x");
        for (time, count) in [(1000, 600), (2000, 390), (4000, 9), (900_000, 1)] {
            (0..count).for_each(|_| samples.record_ns(time));
        }
        let summary = samples.summary().unwrap();
        let svg = histogram(&summary, 1).unwrap();
        assert_eq!(elements(&svg, "rect", SERIES[1]), 3, "{svg}");
        assert!(svg.contains("p99.9"), "{svg}");
        assert_eq!(beyond(&summary), 1);
    }

    #[test]
    fn one_value_and_no_distribution_are_drawn_too() {
        let mut one = latency("one", &[(None, 500)]);
        assert_eq!(elements(&histogram(&one, 0).unwrap(), "rect", SERIES[0]), 1);
        one.distribution.clear();
        assert!(histogram(&one, 0).unwrap().contains("no distribution"));
    }

    #[test]
    fn percentiles_have_a_curve_per_result() {
        let results =
            [latency("a", &[(None, 500)]), latency("b", &[(None, 900)]), latency("zero", &[(None, 0)])];
        let svg = percentiles(&results).unwrap();
        for colour in &SERIES[..3] {
            assert_eq!(elements(&svg, "polyline", *colour), 1);
        }
        assert!(svg.contains("90 %"), "{svg}");
        assert!(percentiles(&[]).is_ok());
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let svg = bars("rates", &[("half", 50.0), ("full <b>", 100.0)], |v| format!("{v}")).unwrap();
        let width = |colour| {
            let line = svg.lines().find(|l| l.starts_with("<rect") && l.contains(colour)).unwrap();
            let (_, rest) = line.split_once("width=\"").unwrap();
            rest.split('"').next().unwrap().parse::<i32>().unwrap()
        };
        assert!((2 * width("#0072B2") - width("#D55E00")).abs() <= 2, "{svg}");
        assert!(svg.contains("full &lt;b&gt;"), "{svg}");
    }

    #[test]
    fn ticks_are_few_and_inside() {
        for (low, high) in
            [(1.0, 1.04), (3.9, 6.1), (1900.0, 5200.0), (4.0, 2e6), (0.1, 1e11), (95.0, 1050.0), (12.7, 93.0)]
        {
            let ticks = Axis { low, high, logarithmic: true, pixels: (0, 100) }.ticks();
            assert!((2..=7).contains(&ticks.len()), "{low}..{high}: {ticks:?}");
            assert!(ticks.iter().all(|t| (low..=high).contains(t)), "{low}..{high}: {ticks:?}");
        }
    }
}
