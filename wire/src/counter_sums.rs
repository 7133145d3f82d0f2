//! Structures of counters that add up: of several sessions, workers or links.

/// Declares a structure of counters, and its method `plus`.
///
/// ```
/// cxloe_wire::counters! {
///     /// Frames of a link.
///     #[derive(Debug, PartialEq)]
///     pub struct Frames {
///         /// Frames received.
///         pub received: u64,
///         /// Frames sent.
///         pub sent: u64,
///     }
/// }
/// let sum = Frames { received: 1, sent: 2 }.plus(&Frames { received: 3, sent: 4 });
/// assert_eq!(sum, Frames { received: 4, sent: 6 });
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$about:meta])*
        pub struct $counters:ident {
            $($(#[$note:meta])* pub $count:ident: $number:ty,)+
        }
    ) => {
        $(#[$about])*
        pub struct $counters {
            $($(#[$note])* pub $count: $number,)+
        }

        impl $counters {
            /// Returns the sums of these counters and `other`.
            #[must_use]
            pub fn plus(&self, other: &$counters) -> $counters {
                $counters { $($count: self.$count + other.$count),+ }
            }
        }
    };
}
