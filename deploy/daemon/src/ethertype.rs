//! EtherTypes as options, in hexadecimal as protocol tables write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An EtherType, written `0x88B5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EtherType(pub u16);

cxloe_wire::spelled!(EtherType);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_and_prefix_do_not_matter_and_it_reads_back() {
        assert_eq!("0x88b5".parse::<EtherType>().unwrap().to_string(), "0x88B5");
        assert_eq!("88B5".parse(), Ok(EtherType(0x88B5)));
        assert_eq!("0X88B6".parse(), Ok(EtherType(0x88B6)));
    }

    #[test]
    fn the_rest_is_refused_with_an_example() {
        for text in ["ether", "0x188B5", "", "-1"] {
            assert!(text.parse::<EtherType>().unwrap_err().contains("0x88B5"), "{text}");
        }
    }
}
