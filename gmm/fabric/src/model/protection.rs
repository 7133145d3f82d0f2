//! Protection of a region's content against the loss of a memory node.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

cxloe_wire::named! {
    /// Protection of a region's content.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum Protection {
        /// One copy: the content is lost with the memory node that holds it.
        #[default]
        None = "none",
        /// Two copies on different memory nodes: the content survives the loss of either.
        Mirror = "mirror",
    }
}

impl Protection {
    /// Number of copies of each position of a region's decoders.
    pub const fn copies(self) -> u8 {
        match self {
            Self::None => 1,
            Self::Mirror => 2,
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// A text that is not the name of a protection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no protection `{0}`; write none (one copy) or mirror (two copies)")]
pub struct ProtectionError(pub String);

impl FromStr for Protection {
    type Err = ProtectionError;

    fn from_str(text: &str) -> Result<Self, ProtectionError> {
        let found = Self::ALL.into_iter().find(|protection| protection.name() == text);
        found.ok_or_else(|| ProtectionError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_in_json() {
        for protection in Protection::ALL {
            assert_eq!(protection.to_string().parse(), Ok(protection));
            assert_eq!(serde_json::to_value(protection).unwrap(), protection.name());
        }
        assert!("raid".parse::<Protection>().unwrap_err().to_string().contains("mirror (two copies)"));
    }
}
