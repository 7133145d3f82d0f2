//! `cn-agent top`: live view of an agent's activity.
//!
//! ```text
//!   agent's socket --Snapshot--> sampler (a thread) --> terminal: keys, redraws
//!                                                          |
//!                      two snapshots --Figures::between--> view::draw --> Buffer --> screen, or text (--once)
//!                                            `-----------> JSON (--json)
//! ```
//!
//! The screen depends only on two snapshots and the user's choices: [`figures`] and [`view`] do no I/O. [`terminal`]
//! does I/O, and always restores the terminal.

pub mod figures;
pub mod snapshot;
pub mod terminal;
mod units;
pub mod view;

pub use figures::Figures;
pub use snapshot::Snapshot;
