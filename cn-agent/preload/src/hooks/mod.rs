//! The functions of the C library that this library interposes, by their names.
//!
//! Left out of this library's own tests: those are programs, too, and use the C library's functions.

mod heap;
mod lookup;
mod mapping;
mod opening;
mod rights;
mod signals;
mod threads;
