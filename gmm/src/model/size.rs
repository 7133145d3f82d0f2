//! Byte counts as people write and read them. `K`, `M`, `G`, `T` are powers of two, with or without `iB`, as the CXL
//! command-line tools take them; output shows both conventions: `512.00 MiB (536.87 MB)`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes read from a text such as `4096`, `0x1000`, `2M`, `1GiB`; an integer in JSON and TOML is taken as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "SizeInput", into = "u64")]
pub struct ByteSize(pub u64);

/// A text that is no byte count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a size: write bytes (4096, 0x1000) or a whole number with K, M, G or T (powers of 1024), as in 2M or 1GiB"
)]
pub struct SizeError(String);

#[derive(Deserialize)]
#[serde(untagged)]
enum SizeInput {
    Number(u64),
    Text(String),
}

impl TryFrom<SizeInput> for ByteSize {
    type Error = SizeError;

    fn try_from(input: SizeInput) -> Result<Self, SizeError> {
        match input {
            SizeInput::Number(bytes) => Ok(Self(bytes)),
            SizeInput::Text(text) => text.parse(),
        }
    }
}

impl From<ByteSize> for u64 {
    fn from(size: ByteSize) -> Self {
        size.0
    }
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let error = || SizeError(text.to_owned());
        let trimmed = text.trim();
        if let Some(hex) = trimmed.strip_prefix("0x") {
            return u64::from_str_radix(hex, 16).map(Self).map_err(|_| error());
        }
        let digits_end = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(digits_end);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err(error()),
        };
        let number: u64 = digits.parse().map_err(|_| error())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human_bytes(self.0))
    }
}

/// `bytes` in binary and, in brackets, decimal units: `512.00 MiB (536.87 MB)`. Below 1 KiB the bare number.
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
    use super::*;

    #[test]
    fn sizes_are_read() {
        let table =
            [("0", 0), ("4096", 4096), ("0x1000", 4096), ("2M", 2 << 20), ("1GiB", 1 << 30), ("3t", 3 << 40)];
        for (text, bytes) in table {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text}");
        }
        for bad in ["", "G", "1.5G", "-1", "1X", "0xzz", "99999999T", "1 G B"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad:?} was taken for a size");
        }
        assert_eq!(serde_json::from_str::<ByteSize>("\"2M\"").unwrap().0, 2 << 20);
        assert_eq!(serde_json::from_str::<ByteSize>("77").unwrap().0, 77);
    }

    #[test]
    fn sizes_are_shown_in_both_conventions() {
        assert_eq!(human_bytes(512 << 20), "512.00 MiB (536.87 MB)");
        assert_eq!(human_bytes(1 << 30), "1.00 GiB (1.07 GB)");
        assert_eq!(human_bytes(1000), "1000");
        assert_eq!(human_bytes(u64::MAX), "16.00 EiB (18.45 EB)");
    }
}
