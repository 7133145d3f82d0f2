//! Curves of numbers, for pictures and JSON.

use serde::{Deserialize, Serialize};

use super::units;

/// Picture with one or several curves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Name of the access pattern, for example `gups`.
    pub pattern: String,
    /// Title above the picture.
    pub title: String,
    /// Label, unit and scale of the horizontal axis.
    pub x: Scale,
    /// Label, unit and scale of the vertical axis.
    pub y: Scale,
    /// Curves in the order of their colours.
    pub curves: Vec<Curve>,
}

/// Label, unit and kind of an axis, linear or logarithmic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Label of the axis, without its unit.
    pub label: String,
    /// Unit of the values, which the ticks show.
    pub unit: AxisUnit,
    /// True if the axis is logarithmic.
    pub logarithmic: bool,
}

/// Unit by which the ticks of an axis are labelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AxisUnit {
    /// Times in nanoseconds.
    Ns,
    /// Operations per second.
    OpsPerS,
    /// Bytes per second.
    BytesPerS,
    /// A fraction from 0 to 1.
    Share,
    /// Multiples of a reference value.
    Times,
}

impl AxisUnit {
    /// Text of `value` with this unit.
    pub(super) fn show(self, value: f64) -> String {
        units::brief(&match self {
            AxisUnit::Ns => units::time(value),
            AxisUnit::OpsPerS => units::operations(value),
            AxisUnit::BytesPerS => units::bytes(value),
            AxisUnit::Share => format!("{:.2} %", 100.0 * value),
            AxisUnit::Times => format!("{value:.2} times"),
        })
    }
}

/// Line through points in a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Name of the curve in the legend.
    pub name: String,
    /// Points, in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
}
