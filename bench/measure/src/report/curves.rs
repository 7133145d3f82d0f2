//! Plots of reports as SVG: curves with a mark at each point.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::ReportError;
use super::chart::{Axis, grid, horizontal, picture, series, text};
use super::plot::{Plot, Scale};

/// Draws the plot as SVG; its curves get the colours of [`series`] in order.
pub(super) fn curves(plot: &Plot) -> Result<String, ReportError> {
    let points = || plot.curves.iter().flat_map(|curve| curve.points.iter());
    let width = axis(&plot.x, points().map(|point| point.0), (150, 905));
    let height = axis(&plot.y, points().map(|point| point.1), (500, 60));
    picture(&plot.title, 620, |area| {
        let (Some(x), Some(y)) = (width, height) else {
            return text(area, "nothing was measured", (480, 300), HPos::Center, VPos::Center);
        };
        grid(area, &x, &y, &x.ticks(), &|value| plot.x.unit.show(value))?;
        for tick in y.ticks() {
            horizontal(area, &x, y.at(tick), &plot.y.unit.show(tick))?;
        }
        text(area, &plot.y.label, (8, 8), HPos::Left, VPos::Top)?;
        text(area, &plot.x.label, (x.pixels.1, 572), HPos::Right, VPos::Top)?;
        for (index, curve) in plot.curves.iter().enumerate() {
            let points: Vec<_> = curve.points.iter().map(|point| (x.at(point.0), y.at(point.1))).collect();
            for point in &points {
                area.draw(&Circle::new(*point, 8, series(index).filled()))?;
            }
            area.draw(&PathElement::new(points, series(index).stroke_width(4)))?;
        }
        Ok(())
    })
}

impl Plot {
    /// Draws the plot as SVG.
    ///
    /// # Errors
    /// Returns [`ReportError::Picture`] when the plot cannot be drawn.
    pub fn picture(&self) -> Result<String, ReportError> {
        curves(self)
    }
}

/// Returns an axis that spans all finite values, and begins at zero if it is linear; `None` if no value is finite.
fn axis(scale: &Scale, values: impl Iterator<Item = f64> + Clone, pixels: (i32, i32)) -> Option<Axis> {
    let finite = || values.clone().filter(|value| value.is_finite());
    let high = finite().fold(f64::NEG_INFINITY, f64::max);
    let low = finite().fold(f64::INFINITY, f64::min);
    if low > high {
        return None;
    }
    let (low, high) = match scale.logarithmic {
        // A logarithmic axis cannot show zero or less.
        true => (low.max(1e-9) / 1.3, high.max(1e-9) * 1.3),
        false => (0.0, high.max(f64::MIN_POSITIVE) * 1.05),
    };
    Some(Axis { low, high, logarithmic: scale.logarithmic, pixels })
}

#[cfg(test)]
mod tests {
    use super::super::plot::{AxisUnit, Curve};
    use super::*;

    fn plot(curves: Vec<Curve>) -> Plot {
        let x = Scale { label: "accesses done".into(), unit: AxisUnit::OpsPerS, logarithmic: false };
        let y = Scale { label: "time <&>".into(), unit: AxisUnit::Ns, logarithmic: true };
        Plot { pattern: "load-latency".into(), title: "over port".into(), x, y, curves }
    }

    #[test]
    fn a_curve_has_a_mark_for_each_point_and_rises_where_it_should() {
        let rising = Curve { name: "p50".into(), points: vec![(1e5, 6e3), (2e5, 7e3), (3e5, 9e5)] };
        let flat = Curve { name: "p99".into(), points: vec![(1e5, 2e6), (3e5, 2e6)] };
        let svg = curves(&plot(vec![rising, flat])).unwrap();
        let marks = |colour: &str| -> Vec<(i32, i32)> {
            let number = |line: &str, name: &str| -> i32 {
                let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap();
                rest.split('"').next().unwrap().parse().unwrap()
            };
            let lines = svg.lines().filter(|l| l.starts_with("<circle") && l.contains(colour));
            lines.map(|l| (number(l, "cx"), number(l, "cy"))).collect()
        };
        let (rising, flat) = (marks("#0072B2"), marks("#D55E00"));
        assert_eq!((rising.len(), flat.len()), (3, 2), "{svg}");
        assert!(rising.is_sorted_by(|a, b| a.0 < b.0 && a.1 > b.1), "to the right and up: {rising:?}");
        assert_eq!(flat[0].1, flat[1].1);
        assert!(svg.contains("time &lt;&amp;&gt;") && svg.contains("accesses done"), "{svg}");
        assert!(svg.contains("200 k/s"), "{svg}");
    }

    #[test]
    fn one_point_or_none_is_drawn_too() {
        let single = |y| curves(&plot(vec![Curve { name: "x".into(), points: vec![(0.0, y)] }])).unwrap();
        assert_eq!(single(0.0).matches("<circle").count(), 1);
        assert!(curves(&plot(vec![])).unwrap().contains("nothing was measured"));
        assert!(single(f64::NAN).contains("nothing was measured"));
    }
}
