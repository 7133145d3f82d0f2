//! One spelling for a value wherever it is written: a type that clap reads by `FromStr` and shows by `Display` is read
//! and written the same way by serde, so that a flag's value can be copied into the TOML file.

/// Gives a type with `FromStr<Err = String>` and `Display` what `#[serde(try_from = "String", into = "String")]` asks for.
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

pub(super) use spelled;
