//! Plots of several curves, for pictures and JSON.

use serde::{Deserialize, Serialize};

use super::units;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    pub pattern: String,
    pub title: String,
    /// Label, unit and scale of the horizontal axis.
    pub x: Scale,
    /// Label, unit and scale of the vertical axis.
    pub y: Scale,
    /// Curves, in the order of the report's colours.
    pub curves: Vec<Curve>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Label of the axis, without its unit.
    pub label: String,
    /// Unit of the values, which the labels of the ticks contain.
    pub unit: AxisUnit,
    pub logarithmic: bool,
}

/// Unit by which the ticks of an axis are labelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AxisUnit {
    Ns,
    OpsPerS,
    BytesPerS,
    /// Fraction from 0 to 1, shown in percent.
    Share,
    /// Multiples of a reference value.
    Times,
}

impl AxisUnit {
    /// Formats `value` with this unit.
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pub name: String,
    /// Points, in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
}
