//! Byte counts as text. A [`ByteSize`] is an option, an argument or a size in a message: a whole number with at most
//! one unit, so that the text can be read back exactly. [`human_bytes`] writes sizes for display only, in binary and
//! decimal units.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes, written `4096`, `0x1000`, `2M`, `1GiB` or `1TB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text is not a number followed by a known unit.
    #[error(
        "`{0}` is not a size; write bytes (4096, 0x1000) or a whole number with a unit: K, M, G, T (powers of 1024) as in 512MiB or 16G, KB to TB (powers of 1000)"
    )]
    Syntax(String),
    /// More than 2^64 - 1 bytes.
    #[error("`{0}` is more bytes than 64 bits count; write a smaller size")]
    TooLarge(String),
}

const BINARY: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

impl FromStr for ByteSize {
    type Err = SizeError;

    /// Reads `K`, `M`, `G`, `T` and `KiB`.. as powers of 1024; `KB`, `MB`, `GB`, `TB` as powers of 1000. Case does not
    /// matter, and a space may precede the unit. The prefix `0x` marks a hexadecimal number of bytes.
    fn from_str(text: &str) -> Result<Self, SizeError> {
        let syntax = || SizeError::Syntax(text.to_string());
        let too_large = || SizeError::TooLarge(text.to_string());
        let trimmed = text.trim();
        if let Some(digits) = trimmed.strip_prefix("0x") {
            let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
            let value = if all_digits { u64::from_str_radix(digits, 16) } else { return Err(syntax()) };
            return value.map(ByteSize).map_err(|_| too_large());
        }
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
        let number: u64 = number.parse().map_err(|_| too_large())?;
        number.checked_mul(factor).map(ByteSize).ok_or_else(too_large)
    }
}

impl fmt::Display for ByteSize {
    /// Writes the size in the largest binary unit that divides it without a remainder, or in bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match BINARY.iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl ByteSize {
    /// Returns text for a message: exact if a unit divides the size, or else rounded to two decimals, as in
    /// `1.50 GiB`.
    pub fn approximate(self) -> String {
        match BINARY.iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, _)) if self.0.is_multiple_of(*unit) => self.to_string(),
            Some((unit, name)) => format!("{:.2} {name}", self.0 as f64 / *unit as f64),
            None => format!("{} bytes", self.0),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    /// Reads a string in the syntax of [`ByteSize::from_str`], or an integer number of bytes.
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

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ByteSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A number of bytes, or a text with a unit: 4096, \"0x1000\", \"2M\", \"1GiB\".",
            "type": ["string", "integer"],
            "minimum": 0,
            "maximum": u64::MAX,
            // Every text that matches the pattern is a number of bytes below 2^64.
            "pattern": "^(0x0*[0-9A-Fa-f]{1,16}|0*[0-9]{1,19} ?[bB]?|0*[0-9]{1,7} ?[kKmMgGtT]([iI]?[bB])?)$",
        })
    }
}

/// Returns `bytes` as text in binary units and, in brackets, decimal units: `512.00 MiB (536.87 MB)`. Below 1
/// KiB, only the number.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let scaled = |step: f64| {
        let (mut value, mut unit) = (bytes as f64 / step, 0);
        while value >= step && unit + 1 < UNITS.len() {
            value /= step;
            unit += 1;
        }
        (value, UNITS[unit])
    };
    let ((binary, binary_unit), (decimal, decimal_unit)) = (scaled(1024.0), scaled(1000.0));
    format!("{binary:.2} {binary_unit}iB ({decimal:.2} {decimal_unit}B)")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("0x1000", 4096),
            ("0xffffffffffffffff", u64::MAX),
            ("16G", 16 << 30),
            ("16g", 16 << 30),
            ("512MiB", 512 << 20),
            ("512 MiB", 512 << 20),
            ("1TB", 1_000_000_000_000),
            ("64k", 64 << 10),
            ("3t", 3 << 40),
            (" 2M ", 2 << 20),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in ["", "G", "-1", "1.5G", "16X", "16 G B", "0xzz", "0x", "0x+1"] {
            assert!(matches!(text.parse::<ByteSize>(), Err(SizeError::Syntax(_))), "{text}");
        }
        for text in ["18446744073709551616", "16777216T", "0x10000000000000000"] {
            assert!(matches!(text.parse::<ByteSize>(), Err(SizeError::TooLarge(_))), "{text}");
        }
    }

    #[test]
    fn numbers_and_texts_are_taken_and_texts_given() {
        assert_eq!(serde_json::from_str::<ByteSize>("\"2M\"").unwrap(), ByteSize(2 << 20));
        assert_eq!(serde_json::from_str::<ByteSize>("77").unwrap(), ByteSize(77));
        assert!(serde_json::from_str::<ByteSize>("-77").unwrap_err().to_string().contains("negative"));
        assert_eq!(serde_json::to_string(&ByteSize(2 << 20)).unwrap(), "\"2MiB\"");
    }

    #[test]
    fn messages_round() {
        assert_eq!(ByteSize(23).approximate(), "23 bytes");
        assert_eq!(ByteSize(3 << 29).approximate(), "1.50 GiB");
        assert_eq!(ByteSize(2 << 20).approximate(), "2MiB");
    }

    #[test]
    fn sizes_are_shown_in_both_conventions() {
        assert_eq!(human_bytes(512 << 20), "512.00 MiB (536.87 MB)");
        assert_eq!(human_bytes(1 << 30), "1.00 GiB (1.07 GB)");
        assert_eq!(human_bytes(1000), "1000");
        assert_eq!(human_bytes(u64::MAX), "16.00 EiB (18.45 EB)");
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
