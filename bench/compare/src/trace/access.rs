//! One access of a trace, and its line in the text: `r` or `w`, byte offset, length in bytes.

use std::fmt;
use std::ops::RangeInclusive;

/// Maximum length of an access.
const BYTES_MAX: u64 = 16 << 20;

/// Read or write of consecutive bytes of the recorded memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceAccess {
    pub is_write: bool,
    bytes: u32,
    at: u64,
}

impl TraceAccess {
    /// Access to `bytes` bytes from offset `at` on; else the reason why there can be none.
    pub(super) fn new(is_write: bool, at: u64, bytes: u64) -> Result<TraceAccess, String> {
        if bytes == 0 {
            return Err("a length of 0: an access has at least one byte".into());
        }
        if bytes > BYTES_MAX {
            return Err(format!("a length of {bytes}: an access has at most {BYTES_MAX} bytes"));
        }
        if at.checked_add(bytes - 1).is_none() {
            return Err(format!("offset {at:#x}, length {bytes}: the end is beyond 64 bits"));
        }
        Ok(TraceAccess { is_write, bytes: bytes as u32, at })
    }

    /// Access from a line of the text, `None` if the line has none; else the reason why the line is wrong.
    pub(super) fn parsed(line: &str) -> Result<Option<TraceAccess>, String> {
        let text = line.split('#').next().unwrap_or_default();
        let mut words = text.split_whitespace();
        let Some(kind) = words.next() else { return Ok(None) };
        let (Some(at), Some(bytes), None) = (words.next(), words.next(), words.next()) else {
            return Err("not of the form `r` or `w`, byte offset, length".into());
        };
        let is_write = match kind {
            "r" => false,
            "w" => true,
            _ => return Err(format!("`{kind}` is neither `r` nor `w`")),
        };
        TraceAccess::new(is_write, number(at)?, number(bytes)?).map(Some)
    }

    /// Numbers of the touched units of `unit` bytes each, which count from the start of the recorded memory.
    pub(super) fn units(&self, unit: u64) -> RangeInclusive<u64> {
        let last = self.at + (u64::from(self.bytes) - 1);
        self.at / unit..=last / unit
    }
}

impl fmt::Display for TraceAccess {
    /// Writes the access as a line of the text, without its line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_write { 'w' } else { 'r' };
        write!(f, "{kind} {:#x} {}", self.at, self.bytes)
    }
}

/// Number from decimal digits, or from hexadecimal ones after `0x`.
pub(super) fn number(text: &str) -> Result<u64, String> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    let is_plain = digits.chars().all(|digit| digit.is_digit(radix));
    let number = u64::from_str_radix(digits, radix).ok().filter(|_| is_plain);
    number.ok_or_else(|| format!("`{text}` is no number of up to 64 bits, as 4096 or 0x1000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_read_as_it_was_written() {
        for line in ["r 0x0 1", "w 0x7fff3000 4096", "r 0xffffffffffffffff 1"] {
            let access = TraceAccess::parsed(line).unwrap().unwrap();
            assert_eq!(access.to_string(), line);
        }
        assert_eq!(TraceAccess::parsed(" \tr\t64 8 # a comment"), TraceAccess::new(false, 64, 8).map(Some));
        assert_eq!(TraceAccess::parsed(" # r 64 8"), Ok(None));
    }
}
