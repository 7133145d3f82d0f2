//! `cn-agent top`: what an agent is doing right now.
//!
//! ```text
//!   agent's socket --Snapshot--> sampler (a thread) --> terminal: keys, redraws
//!                                                          |
//!                      two snapshots --Figures::between--> view::draw --> Buffer --> screen, or text (--once)
//!                                            `-----------> JSON (--json)
//! ```
//!
//! What is shown follows from two snapshots and what the user has chosen, and from nothing else: [`figures`] and [`view`]
//! do no I/O. [`terminal`] does, and gives the terminal back as it was, however it ends.

pub mod figures;
pub mod snapshot;
pub mod terminal;
mod units;
pub mod view;

pub use figures::Figures;
pub use snapshot::Snapshot;
