//! Interleave ways: number of targets of a range. A [`Ways`] holds only numbers that the field IW of the HDM
//! decoder control register can encode (CXL 3.1, 8.2.4.20.7), so it needs no further check.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Number of interleave ways. The discriminants are the encodings of the field IW: 0 to 4 for powers of two,
/// 8 to 10 for three times a power of two. In JSON, it is the number of ways.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
#[repr(u8)]
pub enum Ways {
    /// One target: no interleaving.
    #[default]
    One = 0,
    /// 2 targets: IW 1.
    Two = 1,
    /// 4 targets: IW 2.
    Four = 2,
    /// 8 targets: IW 3.
    Eight = 3,
    /// 16 targets: IW 4.
    Sixteen = 4,
    /// 3 targets: IW 8.
    Three = 8,
    /// 6 targets: IW 9.
    Six = 9,
    /// 12 targets: IW 10.
    Twelve = 10,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaysError {
    #[error("`{0}` is not a possible number of interleave ways; choose 1, 2, 3, 4, 6, 8, 12 or 16")]
    Count(String),
    #[error(
        "{0:#x} encodes no interleave ways; IW is 0 to 4 (1, 2, 4, 8, 16 ways) or 8 to 10 (3, 6, 12 ways)"
    )]
    Encoding(u8),
}

impl Ways {
    pub const ALL: [Ways; 8] =
        [Self::One, Self::Two, Self::Three, Self::Four, Self::Six, Self::Eight, Self::Twelve, Self::Sixteen];

    /// Number of targets, 1 to 16.
    #[inline]
    pub const fn count(self) -> u32 {
        let factor = if self.is_threefold() { 3 } else { 1 };
        factor << self.shift()
    }

    /// Encoding in the field IW: 0 to 4 or 8 to 10.
    #[inline]
    pub(crate) const fn iw(self) -> u8 {
        self as u8
    }

    /// Decodes the field IW.
    ///
    /// # Errors
    /// [`WaysError::Encoding`] for 5 to 7 and everything above 10.
    pub(crate) const fn from_iw(iw: u8) -> Result<Ways, WaysError> {
        Ok(match iw {
            0 => Self::One,
            1 => Self::Two,
            2 => Self::Four,
            3 => Self::Eight,
            4 => Self::Sixteen,
            8 => Self::Three,
            9 => Self::Six,
            10 => Self::Twelve,
            _ => return Err(WaysError::Encoding(iw)),
        })
    }

    /// True for 3, 6 and 12 ways (IW of 8 and more).
    #[inline]
    pub(crate) const fn is_threefold(self) -> bool {
        self as u8 >= 8
    }

    /// Binary logarithm of the power of two in the number of ways, which is `1 << shift` or `3 << shift`.
    #[inline]
    pub const fn shift(self) -> u32 {
        (self as u8 & 7) as u32
    }
}

impl TryFrom<u32> for Ways {
    type Error = WaysError;

    fn try_from(count: u32) -> Result<Ways, WaysError> {
        let found = Self::ALL.into_iter().find(|ways| ways.count() == count);
        found.ok_or_else(|| WaysError::Count(count.to_string()))
    }
}

impl From<Ways> for u32 {
    fn from(ways: Ways) -> u32 {
        ways.count()
    }
}

impl FromStr for Ways {
    type Err = WaysError;

    fn from_str(text: &str) -> Result<Ways, WaysError> {
        let count: Result<u32, _> = text.trim().parse();
        count.ok().and_then(|n| Ways::try_from(n).ok()).ok_or_else(|| WaysError::Count(text.to_string()))
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.count().fmt(f)
    }
}

impl PartialOrd for Ways {
    fn partial_cmp(&self, other: &Ways) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ways {
    /// Compares the numbers of targets, not the encodings.
    fn cmp(&self, other: &Ways) -> Ordering {
        self.count().cmp(&other.count())
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Ways {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Ways".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Interleave ways.",
            "type": "integer",
            "enum": Self::ALL.map(Self::count),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: [(u32, u8); 8] = [(1, 0), (2, 1), (3, 8), (4, 2), (6, 9), (8, 3), (12, 10), (16, 4)];

    #[test]
    fn numbers_and_encodings_belong_together() {
        for ((count, iw), ways) in PAIRS.into_iter().zip(Ways::ALL) {
            assert_eq!((ways.count(), ways.iw()), (count, iw));
            assert_eq!(Ways::try_from(count), Ok(ways));
            assert_eq!(Ways::from_iw(iw), Ok(ways));
            assert_eq!(ways.to_string().parse(), Ok(ways));
            assert_eq!(serde_json::to_string(&ways).unwrap(), count.to_string());
            assert_eq!(serde_json::from_str::<Ways>(&count.to_string()).unwrap(), ways);
        }
        assert!(Ways::ALL.is_sorted());
    }

    #[test]
    fn nothing_else_is_possible() {
        for count in (0..=40).filter(|n| !PAIRS.iter().any(|(count, _)| count == n)) {
            let refused = WaysError::Count(count.to_string());
            assert_eq!(Ways::try_from(count), Err(refused.clone()));
            assert_eq!(count.to_string().parse::<Ways>(), Err(refused));
            assert!(serde_json::from_str::<Ways>(&count.to_string()).is_err());
        }
        for iw in (0..=u8::MAX).filter(|n| !PAIRS.iter().any(|(_, iw)| iw == n)) {
            assert_eq!(Ways::from_iw(iw), Err(WaysError::Encoding(iw)));
        }
        assert!(
            "four".parse::<Ways>().unwrap_err().to_string().contains("choose 1, 2, 3, 4, 6, 8, 12 or 16")
        );
    }
}
