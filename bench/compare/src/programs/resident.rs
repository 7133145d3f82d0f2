//! Limit of a program's resident memory as users write it: `50%` or `48M`.

use std::fmt;
use std::str::FromStr;

use cxloe_fabric::model::ByteSize;

use cxloe_measure::pattern::Share;

/// Minimum limit in bytes: a smaller number was probably meant as a share.
const LEAST_BYTES: u64 = 1 << 20;

/// Limit of resident memory: a share of what the program needs, or a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resident {
    /// Share of the memory that the program needs.
    Share(Share),
    /// Limit in bytes, whatever the program needs.
    Bytes(u64),
}

impl Resident {
    /// Limit in bytes, in whole pages, for a program that needs `whole` bytes.
    pub fn of(self, whole: u64) -> u64 {
        let bytes = match self {
            Resident::Share(share) => share.of(whole),
            Resident::Bytes(bytes) => bytes,
        };
        bytes.next_multiple_of(4096)
    }

    /// True if `whole` bytes fit the limit.
    pub(crate) fn is_all_of(self, whole: u64) -> bool {
        self.of(whole) >= whole
    }
}

impl FromStr for Resident {
    type Err = String;

    fn from_str(text: &str) -> Result<Resident, String> {
        let wrong = || format!("`{text}` is neither a share nor bytes; write 50% or 48M");
        if text.ends_with('%') {
            let share: Share = text.parse().map_err(|_| wrong())?;
            return (share.fraction() > 0.0).then_some(Resident::Share(share)).ok_or_else(wrong);
        }
        let bytes = text.parse::<ByteSize>().map_err(|_| wrong())?.0;
        if bytes < LEAST_BYTES {
            return Err(format!("`{text}` is less than a MiB; write 50% for half, 48M for bytes"));
        }
        Ok(Resident::Bytes(bytes))
    }
}

impl fmt::Display for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resident::Share(share) => share.fmt(f),
            Resident::Bytes(bytes) => write!(f, "{} MiB", bytes >> 20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_bytes_are_distinguished() {
        let of = |text: &str| text.parse::<Resident>().map(|resident| resident.of(100 << 20));
        assert_eq!(of("50%"), Ok(50 << 20));
        assert_eq!(of("48M"), Ok(48 << 20));
        assert_eq!(of("33%").unwrap() % 4096, 0);
        for text in ["50", "0%", "101%", "x", "0.5"] {
            assert!(of(text).is_err(), "{text}");
        }
        assert!("100%".parse::<Resident>().unwrap().is_all_of(12_345));
        assert!(!"99%".parse::<Resident>().unwrap().is_all_of(100 << 20));
    }
}
