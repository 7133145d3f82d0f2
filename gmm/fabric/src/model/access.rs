//! Roles at the manager, and the tokens that give these roles to people and to nodes that join.
//!
//! ```text
//!   cx1.<id>.<secret>.<hash of the manager's authority>
//!        |     |         `- hash of the authority (CA) that signs the manager's certificate: the bearer trusts it
//!        |     `- 32 random bytes; the manager keeps their hash only
//!        `- names the token in lists and logs
//! ```

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// First part of every token: the version of the format.
const PREFIX: &str = "cx1";
/// Number of characters of a token's id.
const ID_LETTERS: usize = 8;

cxloe_wire::named! {
    /// Rights of a token's bearer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum Role {
        /// Every right.
        #[serde(rename = "admin")]
        Admin = "admin",
        /// Right to look at everything, and to change the regions of the tenant's compute nodes.
        #[serde(rename = "tenant")]
        Tenant = "tenant",
        /// Right to look at everything.
        #[serde(rename = "viewer")]
        Viewer = "viewer",
        /// Right to have one memory node join.
        #[serde(rename = "mn")]
        MemoryNode = "mn",
        /// Right to have one compute node join.
        #[serde(rename = "cn")]
        ComputeNode = "cn",
        /// Right to have one client of the FM API join.
        #[serde(rename = "fm")]
        FmClient = "fm",
    }
}

impl Role {
    /// Returns true if a token of this role serves to join one node or FM client, after which it cannot be
    /// used again.
    pub fn joins(self) -> bool {
        matches!(self, Self::MemoryNode | Self::ComputeNode | Self::FmClient)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no role `{0}`; roles are admin, tenant, viewer, mn, cn, fm")]
pub struct RoleError(pub String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or_else(|| RoleError(text.to_owned()))
    }
}

/// A SHA-256 hash; in JSON and logs, in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns true if both hashes are equal. Compares in constant time, so that the duration reveals nothing
    /// of a secret.
    pub fn matches(&self, other: &Self) -> bool {
        let differing = self.0.iter().zip(&other.0).fold(0, |all, (own, theirs)| all | (own ^ theirs));
        std::hint::black_box(differing) == 0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.as_bytes().chunks_exact(2).map(|pair| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'))?;
            u8::from_str_radix(pair, 16).ok()
        });
        let bytes = digits.collect::<Option<Vec<u8>>>().filter(|_| text.len() == 64);
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(|| format!("`{text}` is no hash"))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// A token with its secret, which its `Debug` text omits.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: [u8; 32],
    authority: Digest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not a token; `gmm token create` prints one, which begins with `cx1.`")]
pub struct TokenError;

impl Token {
    /// Creates a token of the manager whose authority's certificate has this hash. `random` must come from
    /// the operating system.
    pub fn new(random: [u8; 36], authority: Digest) -> Self {
        let (mut id, mut secret) = (String::new(), [0; 32]);
        for byte in &random[..ID_LETTERS / 2] {
            id.push_str(&format!("{byte:02x}"));
        }
        secret.copy_from_slice(&random[ID_LETTERS / 2..]);
        Self { id, secret, authority }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the hash of the token's secret, which the manager stores in place of the secret.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.secret)
    }

    /// Returns the hash of the certificate of the manager's authority, which the token's bearer trusts.
    pub fn authority(&self) -> Digest {
        self.authority
    }

    /// Returns the whole token as text, including its secret.
    pub fn reveal(&self) -> String {
        let (secret, authority) =
            (URL_SAFE_NO_PAD.encode(self.secret), URL_SAFE_NO_PAD.encode(self.authority.0));
        format!("{PREFIX}.{}.{secret}.{authority}", self.id)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("id", &self.id).finish_non_exhaustive()
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let mut parts = text.trim().split('.');
        let mut part = || parts.next().ok_or(TokenError);
        let (prefix, id, secret, authority) = (part()?, part()?, part()?, part()?);
        let bytes = |part: &str| -> Result<[u8; 32], TokenError> {
            URL_SAFE_NO_PAD.decode(part).ok().and_then(|bytes| bytes.try_into().ok()).ok_or(TokenError)
        };
        let hexadecimal = |letter: u8| letter.is_ascii_digit() || (b'a'..=b'f').contains(&letter);
        if prefix != PREFIX
            || id.len() != ID_LETTERS
            || !id.bytes().all(hexadecimal)
            || parts.next().is_some()
        {
            return Err(TokenError);
        }
        Ok(Self { id: id.to_owned(), secret: bytes(secret)?, authority: Digest(bytes(authority)?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token::new(std::array::from_fn(|at| at as u8), Digest::of(b"authority"))
    }

    #[test]
    fn a_token_is_read_as_it_was_written_and_nothing_else_is_one() {
        let written = token().reveal();
        assert!(written.starts_with("cx1.00010203."), "{written}");
        let read: Token = written.parse().unwrap();
        assert_eq!(read, token());
        assert_eq!((read.id(), read.authority()), ("00010203", Digest::of(b"authority")));
        let parts: Vec<&str> = written.split('.').collect();
        let with = |at: usize, part: &str| {
            let mut parts = parts.clone();
            parts[at] = part;
            parts.join(".")
        };
        let longer = format!("{written}.x");
        for wrong in [
            "",
            "cx1",
            "cx1...",
            &written[..written.len() - 1],
            &longer,
            &with(0, "cx2"),
            &with(1, "0001020G"),
            &with(1, "000102"),
            &with(2, "AAAA"),
            &with(3, "?"),
            &with(2, &"A".repeat(44)),
        ] {
            assert_eq!(wrong.parse::<Token>(), Err(TokenError), "{wrong}");
        }
    }

    #[test]
    fn a_token_is_not_shown_by_accident() {
        let written = token().reveal();
        let secret = written.split('.').nth(2).unwrap();
        assert!(!format!("{:?}", token()).contains(secret));
        assert!(!format!("{:?}", token()).contains(&token().digest().to_string()));
    }

    #[test]
    fn hashes_are_hexadecimal() {
        let digest = Digest::of(b"");
        let text = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.to_string(), text);
        assert_eq!(Digest::try_from(text.to_owned()), Ok(digest));
        assert!(Digest::try_from(text[1..].to_owned()).is_err());
        assert!(Digest::try_from(format!("+{}", &text[1..])).is_err());
        assert!(digest.matches(&Digest::of(b"")) && !digest.matches(&Digest::of(b"x")));
    }
}
