//! MAC address and public key of a node, in the syntax of options.

use std::fmt;
use std::str::FromStr;

use cxloe_wire::frame::{Mac, PublicKey};
use serde::{Deserialize, Serialize};

/// MAC address and public key of a node. Written `02:00:00:00:00:01=KEY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PeerKey {
    /// MAC address of the node; never a group address.
    pub mac: Mac,
    /// Public key that the node must prove.
    pub key: PublicKey,
}

/// Error: the text is not a [`PeerKey`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read `{0}` as the key of a node: write MAC=KEY, for example 02:00:00:00:00:01= and 44 characters of base64"
)]
pub struct PeerKeyError(String);

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.mac, self.key)
    }
}

impl FromStr for PeerKey {
    type Err = PeerKeyError;

    fn from_str(text: &str) -> Result<Self, PeerKeyError> {
        let error = || PeerKeyError(text.to_owned());
        let (mac, key) = text.split_once('=').ok_or_else(error)?;
        let mac: Mac = mac.trim().parse().map_err(|_| error())?;
        let key = key.trim().parse().map_err(|_| error())?;
        if mac.is_unicast() { Ok(PeerKey { mac, key }) } else { Err(error()) }
    }
}

cxloe_wire::spelled!(PeerKey);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_give_back_the_key() {
        let peer = PeerKey { mac: Mac([2, 0, 0, 0, 0, 1]), key: PublicKey([9; 32]) };
        assert_eq!(peer.to_string().parse(), Ok(peer));
        for wrong in
            ["", "02:00:00:00:00:01", "02:00:00:00:00:01=", "ff:ff:ff:ff:ff:ff=x", &peer.key.to_string()]
        {
            assert!(wrong.parse::<PeerKey>().is_err(), "{wrong}");
        }
    }
}
