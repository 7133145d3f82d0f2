//! Public key of a node (X25519, RFC 7748). The key is the node's identity; the MAC address is only its
//! location. The text form is that of WireGuard: 44 characters of base64.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Public half of a node's X25519 key pair; identifies the node.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(pub [u8; 32]);

/// Error: the text is not a public key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read `{0}` as a public key: write 32 bytes as 44 characters of base64")]
pub struct ParsePublicKeyError(pub String);

impl PublicKey {
    /// Null key: no secret key belongs to it, so no handshake succeeds with it.
    pub const NOBODY: Self = Self([0; 32]);

    /// Length of a key in bytes (RFC 7748).
    pub const LEN: usize = 32;
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = ParsePublicKeyError;

    fn from_str(text: &str) -> Result<Self, ParsePublicKeyError> {
        let bytes = STANDARD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| ParsePublicKeyError(text.to_owned()))
    }
}

crate::spelled!(PublicKey);

#[cfg(feature = "schema")]
impl schemars::JsonSchema for PublicKey {
    fn schema_name() -> alloc::borrow::Cow<'static, str> {
        "PublicKey".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "An X25519 public key: 32 bytes as base64.",
            "type": "string",
            "pattern": "^[A-Za-z0-9+/]{43}=$",
        })
    }

    fn inline_schema() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_give_back_the_key() {
        let key = PublicKey(core::array::from_fn(|n| n as u8 * 7));
        let text = key.to_string();
        assert_eq!((text.len(), text.parse()), (44, Ok(key)));
        for wrong in ["", "AAAA", &text[..43], &format!("{text}="), &text.replace('=', "A")] {
            assert_eq!(wrong.parse::<PublicKey>(), Err(ParsePublicKeyError(wrong.to_owned())));
        }
    }
}
