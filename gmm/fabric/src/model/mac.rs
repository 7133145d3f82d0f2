//! Ethernet addresses, and the CN id, which is one: a compute node is known to memory nodes by the source address of its
//! frames. Written as `02:00:00:00:00:01` everywhere (JSON, command line, logs); `-` between octets is read too.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A 48-bit Ethernet address (IEEE 802), first octet on the wire first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

/// A text that is no Ethernet address, or an address that cannot be a station's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MacError {
    /// Not six two-digit hexadecimal octets.
    #[error("{0:?} is not an Ethernet address: six hexadecimal octets are needed, as in 02:00:00:00:00:01")]
    Syntax(String),
    /// All zeros, broadcast or multicast: no station sends from it.
    #[error(
        "{0} cannot be the address of a station: use a unicast address (an even first octet, not all zeros)"
    )]
    NotUnicast(Mac),
}

impl Mac {
    /// The six octets, first on the wire first.
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// Whether a station can own this address: neither all zeros nor a group address (IEEE 802: lowest bit of the first
    /// octet).
    pub fn is_unicast(self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }
}

impl From<[u8; 6]> for Mac {
    fn from(octets: [u8; 6]) -> Self {
        Self(octets)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let syntax = || MacError::Syntax(text.to_owned());
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(syntax)?;
            if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(syntax());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| syntax())?;
        }
        if parts.next().is_some() { Err(syntax()) } else { Ok(Self(octets)) }
    }
}

impl TryFrom<String> for Mac {
    type Error = MacError;

    fn try_from(text: String) -> Result<Self, MacError> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

/// The identity of a compute node: the unicast Ethernet address it sends its frames from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Mac", into = "Mac")]
pub struct CnId(Mac);

impl CnId {
    /// The CN id of the station with this address.
    ///
    /// # Errors
    /// [`MacError::NotUnicast`] for the zero address and for group addresses.
    pub fn new(mac: impl Into<Mac>) -> Result<Self, MacError> {
        let mac = mac.into();
        if mac.is_unicast() { Ok(Self(mac)) } else { Err(MacError::NotUnicast(mac)) }
    }

    /// The Ethernet address this id is.
    pub const fn mac(self) -> Mac {
        self.0
    }

    /// The six octets, first on the wire first.
    pub const fn octets(self) -> [u8; 6] {
        self.0.0
    }
}

impl TryFrom<Mac> for CnId {
    type Error = MacError;

    fn try_from(mac: Mac) -> Result<Self, MacError> {
        Self::new(mac)
    }
}

impl From<CnId> for Mac {
    fn from(id: CnId) -> Self {
        id.0
    }
}

impl fmt::Display for CnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for CnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for CnId {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        Self::new(text.parse::<Mac>()?)
    }
}

impl JsonSchema for Mac {
    fn schema_name() -> Cow<'static, str> {
        "Mac".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "An Ethernet address: six hexadecimal octets, the first on the wire first.",
            "type": "string",
            "pattern": "^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_is_read_back() {
        let mac: Mac = "02:0A:ff:00:10:9c".parse().unwrap();
        assert_eq!(mac.octets(), [0x02, 0x0a, 0xff, 0x00, 0x10, 0x9c]);
        assert_eq!(mac.to_string(), "02:0a:ff:00:10:9c");
        assert_eq!("02-0a-ff-00-10-9c".parse::<Mac>().unwrap(), mac);
        assert_eq!(serde_json::to_string(&mac).unwrap(), "\"02:0a:ff:00:10:9c\"");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for bad in [
            "",
            "02",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "02:00:00:00:00:0g",
            "+2:00:00:00:00:00",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad:?} was taken for an address");
        }
    }

    #[test]
    fn a_cn_id_is_a_stations_address() {
        assert!("02:00:00:00:00:01".parse::<CnId>().is_ok());
        for bad in ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:80:c2:00:00:01"] {
            assert!(matches!(bad.parse::<CnId>(), Err(MacError::NotUnicast(_))));
            assert!(serde_json::from_str::<CnId>(&format!("{bad:?}")).is_err());
        }
    }
}
