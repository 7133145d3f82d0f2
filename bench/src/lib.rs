//! # cxloe-bench: the command line of all measurements
//!
//! ```text
//!                    .--> cxloe-paper ----.
//!   cli: commands ---+--> cxloe-compare --+--> cxloe-measure: measurements, samples, reports
//!                    '--------------------'
//! ```
//!
//! A measurement runs in a [`cxloe_lab::Lab`]: network namespaces joined by virtual cables, removed when the
//! process ends. Measurements of whole nodes are here: of sessions between [`keys`], of [`outages`], of a
//! fabric whose daemons are killed at random ([`chaos`]), of copies, drains and clones ([`survival`]), of virtual
//! machines that move ([`moves`]), of the manager ([`fabric`]), and the [`standard`] report's own parts. A report on a
//! network card and its links is made by [`nic`].

// `print!` panics when standard output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod chaos;
pub mod cli;
mod eventually;
pub mod fabric;
pub mod keys;
pub mod moves;
pub mod nic;
pub mod outages;
pub mod standard;
mod star;
pub mod survival;
mod versions;
pub mod workers;
