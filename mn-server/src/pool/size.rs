//! Sizes as people write them: `16G`, `512MiB`, `1073741824`.
//!
//! Every option that takes a number of bytes, on the command line or in the TOML file, goes through
//! [`ByteSize`]; so do the sizes in messages and in `--print-config`, which therefore read back as they were.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A size that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ByteSizeError {
    /// Not a number followed by a known unit.
    #[error("`{0}` is not a size; write bytes or a number with a unit, for example 4096, 512MiB, 16G")]
    Syntax(String),
    /// More than 2^64 - 1 bytes.
    #[error("`{0}` is more bytes than 64 bits count")]
    TooLarge(String),
}

const BINARY: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    /// `K`, `M`, `G`, `T` and `KiB`.. are powers of 1024; `KB`, `MB`, `GB`, `TB` powers of 1000. Case does
    /// not matter, and a space may stand before the unit.
    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let syntax = || ByteSizeError::Syntax(text.to_string());
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        if number.is_empty() {
            return Err(syntax());
        }
        let factor: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(syntax()),
        };
        let too_large = || ByteSizeError::TooLarge(text.to_string());
        let number: u64 = number.parse().map_err(|_| too_large())?;
        number.checked_mul(factor).map(ByteSize).ok_or_else(too_large)
    }
}

impl fmt::Display for ByteSize {
    /// The largest binary unit that divides the size without a remainder; plain bytes otherwise.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match BINARY.iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    /// A string in the syntax of [`ByteSize::from_str`], or an integer number of bytes.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"16G\", or a number of bytes")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes).map(ByteSize).map_err(|_| E::custom("a size cannot be negative"))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A size for messages: rounded to two decimals where no unit divides it.
pub(crate) fn approximate(bytes: u64) -> String {
    match BINARY.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, _)) if bytes.is_multiple_of(*unit) => ByteSize(bytes).to_string(),
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("16G", 16 << 30),
            ("16g", 16 << 30),
            ("512MiB", 512 << 20),
            ("512 MiB", 512 << 20),
            ("1TB", 1_000_000_000_000),
            ("64k", 64 << 10),
            (" 2M ", 2 << 20),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in ["", "G", "-1", "1.5G", "16X", "16 G B"] {
            assert!(matches!(text.parse::<ByteSize>(), Err(ByteSizeError::Syntax(_))), "{text}");
        }
        for text in ["18446744073709551616", "16777216T"] {
            assert!(matches!(text.parse::<ByteSize>(), Err(ByteSizeError::TooLarge(_))), "{text}");
        }
    }

    #[test]
    fn messages_round() {
        assert_eq!(approximate(23), "23 bytes");
        assert_eq!(approximate(3 << 29), "1.50 GiB");
        assert_eq!(approximate(2 << 20), "2MiB");
    }

    proptest! {
        #[test]
        fn display_reads_back(bytes: u64) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }

        #[test]
        fn any_text_is_answered(text in ".*") {
            let _ = text.parse::<ByteSize>();
        }
    }
}
