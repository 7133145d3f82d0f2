//! Enumerations whose values users select by name. The name and the description of each variant are stated
//! once.

use std::fmt;

/// An enumeration whose values users select by name on the command line.
pub trait Named: Sized + Copy + 'static {
    /// All values, in the order of their declaration.
    const ALL: &'static [Self];

    /// Returns the name of the value, as users write it on the command line.
    fn name(self) -> &'static str;

    /// Returns the description of the value, which is the doc comment of its variant.
    fn description(self) -> &'static str;
}

/// Error for a name that no value of the enumeration has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such name: {0}")]
pub struct UnknownName(pub String);

pub(crate) fn find<T: Named>(name: &str) -> Result<T, UnknownName> {
    T::ALL.iter().copied().find(|value| value.name() == name).ok_or_else(|| UnknownName(name.to_owned()))
}

/// Writes the name of a value, for an implementation of `Display`.
pub(crate) fn write<T: Named>(value: T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.pad(value.name())
}

/// Declares an enumeration with [`Named`], `Display` and `FromStr`. Each variant has a doc comment, which is
/// its description for users, and a name.
macro_rules! named {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident {
            $($(#[doc = $description:literal])+ $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        pub enum $type {
            $($(#[doc = $description])+ $variant,)+
        }

        impl $crate::named::Named for $type {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            fn description(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($description),+).trim_start(),)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::named::write(*self, f)
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::named::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                $crate::named::find(name)
            }
        }
    };
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted_fault::PlantedFault;
    use crate::scenario::Scenario;

    fn check<T: Named + fmt::Display + std::str::FromStr<Err = UnknownName> + PartialEq + fmt::Debug>() {
        for value in T::ALL {
            assert_eq!(value.to_string().parse(), Ok(*value));
            assert!(!value.description().starts_with(' ') && !value.description().contains("  "));
        }
        assert_eq!("nothing".parse::<T>(), Err(UnknownName("nothing".into())));
    }

    #[test]
    fn names_read_back() {
        check::<Scenario>();
        check::<PlantedFault>();
        assert_eq!((Scenario::ALL.len(), Scenario::Mixed.name()), (17, "mixed"));
        assert_eq!(
            PlantedFault::LosesWrites.description(),
            "Acknowledges a line write now and then without storing it"
        );
    }
}
