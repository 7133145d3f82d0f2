//! The functions of the C library that this library takes the place of, by their names.
//!
//! Not in its own tests: those are programs too, and have the C library's.

mod heap;
mod lookup;
mod mapping;
mod opening;
mod rights;
