//! The CN id, by which memory nodes identify a compute node: the source address of its frames. It is written like an
//! Ethernet address, `02:00:00:00:00:01`, in JSON, on the command line and in logs; `-` between octets is also read.

use std::fmt;
use std::str::FromStr;

use cxloe_wire::frame::{Mac, ParseMacError};
use serde::{Deserialize, Serialize};

/// A text that is not an Ethernet address, or an address that no station can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MacError {
    /// The text is not six two-digit hexadecimal octets.
    #[error(transparent)]
    Syntax(#[from] ParseMacError),
    /// Address of all zeros, broadcast or multicast, from which no station sends.
    #[error(
        "{0} cannot be the address of a station: use a unicast address (an even first octet, not all zeros)"
    )]
    NotUnicast(Mac),
}

/// The identity of a compute node: the unicast source address of its frames.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "Mac", into = "Mac")]
#[cfg_attr(feature = "schema", schemars(extend("pattern" = "^(?!00([:-]00){5}$)[0-9A-Fa-f][02468ACEace]([:-][0-9A-Fa-f]{2}){5}$")))]
pub struct CnId(Mac);

impl CnId {
    /// Returns the CN id of the station with this address.
    ///
    /// # Errors
    /// [`MacError::NotUnicast`] for the zero address and for group addresses.
    pub fn new(mac: impl Into<Mac>) -> Result<Self, MacError> {
        let mac = mac.into();
        if mac.is_unicast() { Ok(Self(mac)) } else { Err(MacError::NotUnicast(mac)) }
    }

    pub const fn mac(self) -> Mac {
        self.0
    }

    /// Returns the six octets in the order in which they are sent.
    pub const fn octets(self) -> [u8; 6] {
        self.0.octets()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cn_id_is_a_stations_address() {
        assert!("02:00:00:00:00:01".parse::<CnId>().is_ok());
        for bad in ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:80:c2:00:00:01"] {
            assert!(matches!(bad.parse::<CnId>(), Err(MacError::NotUnicast(_))));
            assert!(serde_json::from_str::<CnId>(&format!("{bad:?}")).is_err());
        }
    }
}
