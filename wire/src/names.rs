//! Enumerations whose values have names: for options, files and output.

/// Declares an enumeration with the constant `ALL`, the method `name`, and `Display`, which writes the name.
///
/// ```
/// cxloe_wire::named! {
///     /// Colours.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Colour {
///         /// As the sky.
///         Blue = "blue",
///         /// As the grass.
///         Green = "green",
///     }
/// }
/// assert_eq!(Colour::ALL.map(Colour::name), ["blue", "green"]);
/// assert_eq!(Colour::Blue.to_string(), "blue");
/// ```
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        $visible:vis enum $type:ident {
            $($(#[$note:meta])* $value:ident = $name:literal,)+
        }
    ) => {
        $(#[$about])*
        $visible enum $type {
            $($(#[$note])* $value,)+
        }

        impl $type {
            /// Every value, in the order of the declaration.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// The value's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl ::core::fmt::Display for $type {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
