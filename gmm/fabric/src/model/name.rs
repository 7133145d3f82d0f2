//! Names of memory nodes, compute nodes and regions. A name is part of URL paths and of shell commands, so few
//! characters are permitted; it is checked once, on input, and has its own type from then on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum number of characters of a [`Name`].
pub const NAME_LEN_MAX: usize = 63;

/// A name: 1 to 63 ASCII letters, digits, `.`, `_` or `-`, the first a letter or a digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")))]
pub struct Name(String);

/// A text that cannot be a [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a name: use 1 to {NAME_LEN_MAX} letters, digits, '.', '_' or '-', starting with a letter or a digit"
)]
pub struct NameError(pub String);

impl Name {
    /// Checks that `text` can be a name.
    ///
    /// # Errors
    /// [`NameError`] when `text` is empty, too long, or has characters outside the alphabet.
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        let in_alphabet = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let starts_well = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        if starts_well && text.len() <= NAME_LEN_MAX && text.bytes().all(in_alphabet) {
            Ok(Self(text))
        } else {
            Err(NameError(text))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_kept() {
        for good in ["a", "mn0", "rack-3.node_7", "0", &"x".repeat(NAME_LEN_MAX)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".a", "a/b", "a b", "ä", "02:00:00:00:00:01", &"x".repeat(NAME_LEN_MAX + 1)] {
            assert!(Name::new(bad).is_err(), "{bad:?} was taken for a name");
        }
    }
}
