//! Curves: numbers against numbers, to be drawn and to be read by programs.

use serde::{Deserialize, Serialize};

use super::units;

/// One picture of curves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// The access pattern it belongs to.
    pub pattern: String,
    /// What it shows.
    pub title: String,
    /// What runs to the right.
    pub x: Scale,
    /// What runs upwards.
    pub y: Scale,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// What runs along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// In words.
    pub label: String,
    /// In what it is counted.
    pub unit: Unit,
    /// Whether equal ratios, not equal differences, are equally long.
    pub logarithmic: bool,
}

/// What numbers are counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Operations per second.
    OpsPerS,
    /// Bytes per second.
    BytesPerS,
    /// A share of 1.
    Share,
    /// How many times something else.
    Times,
}

impl Unit {
    /// A number in this unit, as people read it.
    pub(super) fn show(self, value: f64) -> String {
        units::brief(&match self {
            Unit::Ns => units::time(value),
            Unit::OpsPerS => units::operations(value),
            Unit::BytesPerS => units::bytes(value),
            Unit::Share => format!("{:.2} %", 100.0 * value),
            Unit::Times => format!("{value:.2} times"),
        })
    }
}

/// One curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// What it is of.
    pub name: String,
    /// Its points, in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
}
