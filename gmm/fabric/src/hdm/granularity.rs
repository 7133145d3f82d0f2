//! Interleave granularity: number of consecutive bytes that go to one target. A [`Granularity`] holds only
//! sizes that the field IG of the HDM decoder control register can encode (CXL 3.1, 8.2.4.20.7), so it needs
//! no further check.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Interleave granularity: 256 bytes to 16 KiB in powers of two, ordered by size. In JSON, it is the number
/// of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub struct Granularity {
    ig: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GranularityError {
    #[error(
        "`{0}` is not a possible interleave granularity; choose a power of two from 256 to 16384 bytes (256, 512, 1K, 2K, 4K, 8K, 16K)"
    )]
    Bytes(String),
    #[error("{0:#x} encodes no interleave granularity; IG is 0 to 6, for 256 bytes to 16 KiB")]
    Encoding(u8),
}

/// Binary logarithm of the finest granularity.
const SHIFT_MIN: u32 = 8;
const IG_MAX: u8 = 6;

impl Granularity {
    /// The finest granularity, 256 bytes.
    pub const MIN: Granularity = Granularity { ig: 0 };
    /// 4 KiB: a page stays on one target.
    pub const PAGE: Granularity = Granularity { ig: 4 };
    /// The coarsest granularity, 16 KiB.
    pub const MAX: Granularity = Granularity { ig: IG_MAX };

    pub fn all() -> impl Iterator<Item = Granularity> {
        (0..=IG_MAX).map(|ig| Granularity { ig })
    }

    /// Size of a chunk in bytes, 256 to 16384.
    #[inline]
    pub const fn bytes(self) -> u32 {
        1 << self.shift()
    }

    /// Binary logarithm of the size in bytes, 8 to 14.
    #[inline]
    pub const fn shift(self) -> u32 {
        SHIFT_MIN + self.ig as u32
    }

    /// Encoding in the field IG, 0 to 6.
    #[inline]
    pub(crate) const fn ig(self) -> u8 {
        self.ig
    }

    /// Decodes the field IG.
    ///
    /// # Errors
    /// [`GranularityError::Encoding`] for values above 6.
    pub(crate) const fn from_ig(ig: u8) -> Result<Granularity, GranularityError> {
        if ig > IG_MAX { Err(GranularityError::Encoding(ig)) } else { Ok(Granularity { ig }) }
    }
}

impl TryFrom<u32> for Granularity {
    type Error = GranularityError;

    fn try_from(bytes: u32) -> Result<Granularity, GranularityError> {
        let found = Self::all().find(|granularity| granularity.bytes() == bytes);
        found.ok_or_else(|| GranularityError::Bytes(bytes.to_string()))
    }
}

impl From<Granularity> for u32 {
    fn from(granularity: Granularity) -> u32 {
        granularity.bytes()
    }
}

impl FromStr for Granularity {
    type Err = GranularityError;

    /// Reads a number of bytes, or of KiB with a suffix, as in `4K`, `4k` or `4KiB`.
    fn from_str(text: &str) -> Result<Granularity, GranularityError> {
        let lower = text.trim().to_ascii_lowercase();
        let kibi = lower.strip_suffix("kib").or_else(|| lower.strip_suffix('k'));
        let (digits, unit) = kibi.map_or((lower.as_str(), 1), |digits| (digits.trim_end(), 1 << 10));
        let bytes = digits.parse().ok().and_then(|number: u32| number.checked_mul(unit));
        let found = bytes.and_then(|bytes| Granularity::try_from(bytes).ok());
        found.ok_or_else(|| GranularityError::Bytes(text.to_string()))
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Granularity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Granularity".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Interleave granularity in bytes.",
            "type": "integer",
            "enum": Self::all().map(Self::bytes).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: [(u32, u8); 7] =
        [(256, 0), (512, 1), (1024, 2), (2048, 3), (4096, 4), (8192, 5), (16_384, 6)];

    #[test]
    fn bytes_and_encodings_belong_together() {
        for ((bytes, ig), granularity) in PAIRS.into_iter().zip(Granularity::all()) {
            assert_eq!((granularity.bytes(), granularity.ig()), (bytes, ig));
            assert_eq!(Granularity::try_from(bytes), Ok(granularity));
            assert_eq!(Granularity::from_ig(ig), Ok(granularity));
            assert_eq!(granularity.to_string().parse(), Ok(granularity));
            assert_eq!(serde_json::to_string(&granularity).unwrap(), bytes.to_string());
            assert_eq!(serde_json::from_str::<Granularity>(&bytes.to_string()).unwrap(), granularity);
        }
        assert_eq!((Granularity::MIN.bytes(), Granularity::MAX.bytes()), (256, 16 << 10));
        assert_eq!(Granularity::PAGE.bytes(), 4096);
    }

    #[test]
    fn kibibytes_are_read() {
        for text in ["4096", "4K", "4k", "4KiB", "4 KiB", " 4k "] {
            assert_eq!(text.parse(), Ok(Granularity::PAGE), "{text}");
        }
    }

    #[test]
    fn nothing_else_is_possible() {
        for bytes in [0, 1, 64, 128, 255, 257, 768, 3072, 32 << 10, 1 << 20, u32::MAX] {
            assert_eq!(Granularity::try_from(bytes), Err(GranularityError::Bytes(bytes.to_string())));
            assert!(serde_json::from_str::<Granularity>(&bytes.to_string()).is_err());
        }
        for text in ["", "K", "0.5K", "32K", "4194304K", "4M", "-256", "four"] {
            assert_eq!(text.parse::<Granularity>(), Err(GranularityError::Bytes(text.to_string())));
        }
        for ig in 7..=u8::MAX {
            assert_eq!(Granularity::from_ig(ig), Err(GranularityError::Encoding(ig)));
        }
    }
}
