//! Pictures of the evaluation: latencies as bars on one logarithmic axis, and requests as stacks of their
//! parts.

use plotters::element::{PathElement, Rectangle};
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, VPos};

use super::breakdown::Breakdown;
use cxloe_measure::report::ReportError;
use cxloe_measure::report::chart::{self, Axis, GRID, INK};
use cxloe_measure::report::units;

/// Height of labels in pixels.
const SMALL: f64 = 22.0;
/// Distance from one bar to the next, in pixels.
const ROW: i32 = 38;

/// Bar of a picture, which shows one latency.
pub struct Bar {
    pub name: String,
    /// Length of the bar, in nanoseconds.
    pub ns: f64,
    /// Minimum and maximum in nanoseconds, drawn as a line over the bar.
    pub range: Option<(f64, f64)>,
    /// Index of the bar's colour in [`chart::series`].
    pub colour: usize,
}

/// Draws latencies as bars on a logarithmic axis, as SVG.
pub fn latencies(title: &str, bars: &[Bar]) -> Result<String, ReportError> {
    let longest = bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0) as i32;
    let start = (longest * 11 + 24).min(500);
    let values = || bars.iter().flat_map(|bar| [Some(bar.ns), bar.range.map(|r| r.1)]).flatten();
    let high = values().fold(100.0, f64::max) * 1.2;
    let low = bars.iter().map(|bar| bar.ns).fold(high, f64::min).max(1.0) / 2.0;
    let bottom = ROW * bars.len() as i32 + 12;
    let x = Axis { low, high, logarithmic: true, pixels: (start, 850) };
    let y = Axis { low: 0.0, high: 1.0, logarithmic: false, pixels: (bottom, 4) };
    chart::picture(title, (bottom + 52) as u32, |area| {
        let decades = (low.log10().ceil() as i32)..=(high.log10().floor() as i32);
        let ticks: Vec<f64> = decades.map(|d| 10f64.powi(d)).collect();
        chart::grid(area, &x, &y, &ticks, &|ns| units::brief(&units::time(ns)))?;
        for (row, bar) in (0..).zip(bars) {
            let middle = row * ROW + ROW / 2 + 6;
            let end = x.at(bar.ns).max(start + 2);
            chart::sized_text(area, &bar.name, SMALL, (start - 12, middle), HPos::Right, VPos::Center)?;
            let corners = [(start, middle - 12), (end, middle + 12)];
            area.draw(&Rectangle::new(corners, chart::series(bar.colour).filled()))?;
            let mut behind = end;
            if let Some((from, to)) = bar.range {
                let line = vec![(x.at(from), middle), (x.at(to), middle)];
                area.draw(&PathElement::new(line, INK.stroke_width(3)))?;
                behind = behind.max(x.at(to));
            }
            let words = units::time(bar.ns);
            chart::sized_text(area, &words, SMALL, (behind + 10, middle), HPos::Left, VPos::Center)?;
        }
        Ok(())
    })
}

/// Draws a breakdown as SVG: single requests as stacks with part a at the bottom, and on the left the mean of
/// the middle half.
pub fn stacked(of: &Breakdown) -> Result<String, ReportError> {
    let totals = of.points.iter().map(|point| point.parts.total() as f64);
    // Without this limit of the axis, a single outlier would flatten all other bars.
    let usual = of.middle_ns.iter().sum::<f64>().max(1.0);
    let top = totals.fold(usual, f64::max).min(usual * 4.0) * 1.08;
    let (left, right) = (130, 940);
    let x = Axis { low: 0.0, high: 1.0, logarithmic: false, pixels: (left, right) };
    let y = Axis { low: 0.0, high: top, logarithmic: false, pixels: (420, 30) };
    let points = of.points.iter().map(|p| (p.request.to_string(), p.parts.0.map(|ns| ns as f64)));
    let columns: Vec<(String, [f64; 6])> =
        std::iter::once(("middle".to_owned(), of.middle_ns)).chain(points).collect();
    let step = (right - left) / columns.len().max(1) as i32;
    chart::picture(&of.name, 500, |area| {
        for tick in y.ticks() {
            chart::horizontal(area, &x, y.at(tick), &units::brief(&units::time(tick)))?;
        }
        let floor = vec![(left, y.at(0.0)), (right, y.at(0.0))];
        area.draw(&PathElement::new(floor, INK.stroke_width(2)))?;
        for (index, (name, parts)) in (0..).zip(&columns) {
            let middle = left + index * step + step / 2;
            let (mut from, half) = (0.0, step * 3 / 10);
            for (colour, part) in parts.iter().enumerate() {
                let (low, high) = (y.at(from), y.at(from + part));
                if high < low {
                    let corners = [(middle - half, high), (middle + half, low)];
                    area.draw(&Rectangle::new(corners, chart::series(colour).filled()))?;
                }
                from += part;
            }
            chart::sized_text(area, name, SMALL, (middle, y.at(0.0) + 10), HPos::Center, VPos::Top)?;
            // The label is the sum of the parts; a long one would overlap its neighbour, so it has no
            // decimals.
            let words = format!("{:.*}", if from < 1e5 { 2 } else { 0 }, from / 1e3);
            chart::sized_text(area, &words, SMALL, (middle, y.at(from) - 4), HPos::Center, VPos::Bottom)?;
            if index == 0 {
                let border = vec![(left + step, y.at(top)), (left + step, y.at(0.0))];
                area.draw(&PathElement::new(border, GRID.stroke_width(2)))?;
            }
        }
        let words =
            "middle: mean of the middle half; then the number of the request; above each bar its total in µs";
        chart::sized_text(area, words, SMALL, (right, 462), HPos::Right, VPos::Top)
    })
}

#[cfg(test)]
mod tests {
    use super::super::latency_parts::{NodeTimestamps, RequesterTimestamps};
    use super::*;

    fn rectangles(svg: &str) -> usize {
        svg.matches("<rect").count()
    }

    #[test]
    fn a_bar_for_each_latency() {
        let bar = |name: &str, ns, range| Bar { name: name.into(), ns, range, colour: 0 };
        let svg =
            latencies("x", &[bar("a <b>", 94.0, None), bar("c", 3140.0, Some((2700.0, 4350.0)))]).unwrap();
        assert_eq!(rectangles(&svg), 2, "{svg}");
        assert!(svg.contains("a &lt;b&gt;") && svg.contains("3.14 µs"), "{svg}");
        assert!(latencies("none", &[]).is_ok());
    }

    #[test]
    fn a_column_for_each_point_and_the_mean() {
        let sent = |i: u64| RequesterTimestamps {
            addr: 64 * i,
            write: false,
            asked: 10_000 * i,
            left: 10_000 * i + 500,
            arrived: 10_000 * i + 5_000,
            done: 10_000 * i + 5_500,
        };
        let seen = |i: u64| NodeTimestamps {
            addr: 64 * i,
            write: false,
            arrived: 10_000 * i + 2_000,
            access: 10_000 * i + 2_500,
            left: 10_000 * i + 3_000,
        };
        let (sent, seen): (Vec<_>, Vec<_>) = (1..=20).map(|i| (sent(i), seen(i))).unzip();
        let svg = stacked(&Breakdown::of("fig10", 1, &sent, &seen, None)).unwrap();
        assert_eq!(rectangles(&svg), 12 * 6);
        assert!(stacked(&Breakdown::of("none", 1, &[], &[], None)).is_ok());
    }
}
