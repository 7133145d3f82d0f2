//! The same text form of a value everywhere: serde reads and writes a type by the type's `FromStr` and
//! `Display`.

use alloc::string::ToString;
use core::fmt::Display;

pub use alloc::string::String as Text;

/// Returns the text that `Display` writes. Public only because the expansion of `spelled!` in other crates
/// calls it.
pub fn text(value: &impl Display) -> Text {
    value.to_string()
}

/// Implements the conversions that `#[serde(try_from = "String", into = "String")]` needs, for a type with
/// `FromStr` and `Display`.
#[macro_export]
macro_rules! spelled {
    ($type:ty) => {
        impl TryFrom<$crate::spelled::Text> for $type {
            type Error = <$type as ::core::str::FromStr>::Err;

            fn try_from(text: $crate::spelled::Text) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for $crate::spelled::Text {
            fn from(value: $type) -> Self {
                $crate::spelled::text(&value)
            }
        }
    };
}
