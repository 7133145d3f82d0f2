//! Parts that the pictures of both figures share: white ground, title, points with their spread, named lines,
//! and a description of the model below.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{Model, Spread, sweep};
use cxloe_measure::report::chart::{self, Area, Axis, Drawn, INK};

/// Height of a line of text below the picture, in pixels.
const LINE: i32 = 25;
const SMALL: f64 = 19.0;

/// Draws a picture with a title, then what `draw` draws below it, then `definitions` and the model's
/// description. `height` excludes these last lines.
pub(super) fn figure(
    title: &str,
    height: i32,
    model: &Model,
    definitions: &[&str],
    draw: impl FnOnce(&Area) -> Drawn,
) -> Result<String, cxloe_measure::report::ReportError> {
    let mut caption: Vec<String> = definitions.iter().map(|line| (*line).to_owned()).collect();
    caption.extend(description(model));
    chart::picture(title, (height + 16 + LINE * caption.len() as i32) as u32, |area| {
        area.fill(&WHITE)?;
        chart::text(area, title, (480, 12), HPos::Center, VPos::Top)?;
        draw(area)?;
        for (row, line) in (0..).zip(&caption) {
            small(area, line, (30, height + row * LINE), HPos::Left)?;
        }
        Ok(())
    })
}

/// Returns the lines of text that describe the model.
fn description(model: &Model) -> Vec<String> {
    let us = |time: std::time::Duration| time.as_nanos() as f64 / 1000.0;
    vec![
        format!(
            "Model: link of {} Gbit/s; entries are slots of {} bytes; the FIFO's reader takes one in {} ns, once {} have come",
            sweep::gbit(model.link as f64),
            model.slot_bytes,
            model.read.as_nanos(),
            model.window,
        ),
        format!(
            "after it or it has waited {} µs, and stalls for {} µs every {} to {} µs. A PFC frame leaves on rising above the",
            us(model.patience),
            us(model.stall),
            us(model.stall_gap_min),
            us(model.stall_gap_max)
        ),
        format!(
            "threshold, and every {} µs above it; the controller hears of it {} µs later. Bars: least and most of {} seeds.",
            us(model.repeat),
            us(model.feedback),
            sweep::SEEDS.count()
        ),
    ]
}

/// Draws both axes with grid lines at multiples of the steps, and the names of the axes: that of `x` at the
/// lower right, that of `y` at the upper left.
pub(super) fn axes(
    area: &Area,
    (x, x_step, x_name): (&Axis, f64, &str),
    (y, y_step, y_name): (&Axis, f64, &str),
) -> Drawn {
    let ticks = |axis: &Axis, step: f64| -> Vec<f64> {
        let first = (axis.low / step).ceil() as u32;
        (first..).map(|n| f64::from(n) * step).take_while(|tick| *tick <= axis.high).collect()
    };
    chart::grid(area, x, y, &ticks(x, x_step), &|tick| tick.to_string())?;
    for tick in ticks(y, y_step) {
        chart::horizontal(area, x, y.at(tick), &tick.to_string())?;
    }
    small(area, x_name, (x.pixels.1, y.pixels.0 + 48), HPos::Right)?;
    small(area, y_name, (x.pixels.0, y.pixels.1 - 28), HPos::Left)
}

pub(super) fn small(area: &Area, words: &str, at: (i32, i32), horizontal: HPos) -> Drawn {
    chart::sized_text(area, words, SMALL, at, horizontal, VPos::Top)
}

/// Draws means as points joined by a line, each with its spread as a vertical bar; `shift` moves them to the
/// right, so that the bars of two lines do not overlap.
pub(super) fn points(
    area: &Area,
    (x, y): (&Axis, &Axis),
    points: &[(f64, Spread)],
    colour: RGBColor,
    shift: i32,
) -> Drawn {
    let at = |value: f64, spread: f64| (x.at(value) + shift, y.at(spread));
    let line: Vec<_> = points.iter().map(|(value, spread)| at(*value, spread.mean)).collect();
    area.draw(&PathElement::new(line.clone(), colour.stroke_width(3)))?;
    for ((value, spread), middle) in points.iter().zip(line) {
        let bar = vec![at(*value, spread.min), at(*value, spread.max)];
        area.draw(&PathElement::new(bar, colour.stroke_width(2)))?;
        area.draw(&Circle::new(middle, 5, colour.filled()))?;
    }
    Ok(())
}

/// Draws the names of lines, one below the other, each after a piece of the line.
pub(super) fn legend(area: &Area, names: &[(String, RGBColor)], (left, top): (i32, i32)) -> Drawn {
    for (row, (name, colour)) in (0..).zip(names) {
        let y = top + row * LINE;
        area.draw(&PathElement::new(vec![(left, y + 10), (left + 34, y + 10)], colour.stroke_width(4)))?;
        small(area, name, (left + 44, y), HPos::Left)?;
    }
    Ok(())
}

/// Draws a dashed horizontal line at a rate that the paper states.
pub(super) fn mark(area: &Area, (x, y): (&Axis, &Axis), rate: f64) -> Drawn {
    let (left, right) = x.pixels;
    for from in (left..right).step_by(14) {
        let piece = vec![(from, y.at(rate)), ((from + 6).min(right), y.at(rate))];
        area.draw(&PathElement::new(piece, INK.stroke_width(1)))?;
    }
    Ok(())
}
