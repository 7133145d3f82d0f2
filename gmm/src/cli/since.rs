//! A point in time on the command line: absolute, or relative to now.

use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since(SystemTime);

impl Since {
    /// Milliseconds since the Unix epoch.
    pub fn unix_ms(self) -> u64 {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ago = humantime::parse_duration(text).ok().and_then(|ago| SystemTime::now().checked_sub(ago));
        let moment = ago.or_else(|| humantime::parse_rfc3339_weak(text).ok());
        moment.map(Self).ok_or_else(|| {
            format!(
                "{text:?} is no moment: write how long ago (10m, 2h, 1d) or a time (2026-05-01T12:00:00Z)"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_both_ways() {
        let moment: Since = "1970-01-02 00:00:01".parse().unwrap();
        assert_eq!(moment.unix_ms(), 86_401_000);
        let (ago, now): (Since, Since) = ("1h".parse().unwrap(), "0s".parse().unwrap());
        assert!(now.unix_ms() - ago.unix_ms() >= 3_599_000);
        assert!("yesterday".parse::<Since>().unwrap_err().contains("yesterday"));
    }
}
