//! Shares of a whole, which users write in percent: `50%`.

use std::fmt;
use std::str::FromStr;

/// A share of a whole, 0 to 1, written and read in percent: `0.5%`, `50%`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(f64);

/// Error for a text that is no share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no share; write it in percent, from 0% to 100%, for example 50%")]
pub struct ShareError(String);

impl Share {
    pub const NONE: Share = Share(0.0);

    /// Returns the share of `percent` percent; values outside of 0 to 100 are clamped.
    pub fn percent(percent: f64) -> Share {
        Share((percent / 100.0).clamp(0.0, 1.0))
    }

    pub fn fraction(self) -> f64 {
        self.0
    }

    /// Returns the whole number nearest to this share of `whole`.
    pub fn of(self, whole: u64) -> u64 {
        (self.0 * whole as f64).round() as u64
    }

    /// Returns the percentage without the sign, for names of results: `50` for 50 %.
    pub fn label(self) -> String {
        // Six decimals hide the rounding errors of percentages like 12.3.
        ((self.0 * 1e8).round() / 1e6).to_string()
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Share, ShareError> {
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        percent
            .filter(|p| (0.0..=100.0).contains(p))
            .map(Share::percent)
            .ok_or_else(|| ShareError(text.to_owned()))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_they_are_written() {
        for text in ["0%", "0.5%", "12.25%", "50%", "99.9%", "100%"] {
            assert_eq!(text.parse::<Share>().unwrap().to_string(), text);
        }
        assert_eq!("25%".parse::<Share>().unwrap().of(1000), 250);
        for text in ["", "%", "50", "0.5", "-1%", "101%", "nan%", "x%"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
