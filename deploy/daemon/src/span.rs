//! Durations as option values. A number without a unit is refused: seconds and milliseconds are too easily mixed up.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A duration, written with its unit: `5s`, `250ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

cxloe_wire::spelled!(Span);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span = humantime::parse_duration(text);
        span.map(Span)
            .map_err(|_| format!("`{text}` is not a time; write a number and its unit, as in 5s or 250ms"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back() {
        assert_eq!("250ms".parse(), Ok(Span(Duration::from_millis(250))));
        assert_eq!("5s".parse::<Span>().unwrap().to_string(), "5s");
        let odd = Span(Duration::from_millis(1500));
        assert_eq!(odd.to_string().parse(), Ok(odd));
    }

    #[test]
    fn a_number_needs_its_unit() {
        assert!("5".parse::<Span>().unwrap_err().contains("5s"));
    }
}
