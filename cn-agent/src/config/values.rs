//! Values of options that have a spelling of their own, the same on the command line and in the TOML file, and
//! the same as those of the memory node.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Gives a type with `FromStr` and `Display` the same spelling in TOML.
macro_rules! spelled {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

/// An EtherType, written `0x88B5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EtherType(pub u16);

spelled!(EtherType);

impl FromStr for EtherType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
        let value = u16::from_str_radix(digits, 16).ok();
        value.map(EtherType).ok_or_else(|| format!("`{text}` is not an EtherType; write it as in 0x88B5"))
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04X}", self.0)
    }
}

/// A length of time, written with its unit: `5s`, `250ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

spelled!(Span);

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

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// Done.
    On,
    /// Not done.
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_back() {
        assert_eq!("88b5".parse::<EtherType>().unwrap().to_string(), "0x88B5");
        assert_eq!("0x88B6".parse::<EtherType>().unwrap(), EtherType(0x88B6));
        assert_eq!(
            "1500ms".parse::<Span>().unwrap().to_string().parse(),
            Ok(Span(Duration::from_millis(1500)))
        );
    }

    #[test]
    fn the_rest_is_refused_with_an_example() {
        assert!("ether".parse::<EtherType>().unwrap_err().contains("0x88B5"));
        assert!("5".parse::<Span>().unwrap_err().contains("5s"));
    }
}
