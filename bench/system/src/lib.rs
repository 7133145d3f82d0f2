//! Tests of the whole system: real daemons and frames, in networks that each test makes and removes.
//!
//! The tests are in `tests`, a program for each group of subjects; this crate has the networks and daemons that all of
//! them use.
//!
//! ```text
//!   test program: main -> [`run`] -- one [`Subject`] per folder of tests --> [`Test`]s, as root and as `nobody`
//!
//!   test ---> [`Pair`]  manager, memory node, compute node on one cable ---+
//!        ---> [`Star`]  manager at a switch, any number of nodes ----------+--> [`Rig`]: namespaces, daemons, their logs
//!        ---> [`node::MemoryNode`] and [`node::port`]: a daemon, and a compute node inside the test
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`outcome`] | result of a test, [`ensure`], [`eventually`] and the limit of every wait |
//! | [`suite`] | `main` of a test program: rights, roles, the run as an ordinary user, output of a failed test |
//! | [`copies`] | the test program itself with another function, without rights, or as `nobody` |
//! | [`command`] | programs that run to their end, and their output |
//! | [`rig`] | a network and daemons in it, by name |
//! | [`pair`], [`star`] | the two fabrics that most tests use |
//! | [`lines`] | content that depends on its address and its writer |
//! | [`node`], [`cable`], [`raw`] | a daemon with a static map, a line port, one cable, a raw socket as a neighbour |
//! | [`memif`] | memory between two processes in place of a cable, by DPDK, and processes that splice it to a cable |
//! | [`browser`], [`guest`] | a headless Chromium, a virtual machine |
//!
//! A failing test prints, beside its reason, its last command with output, and the end of each daemon's log.

pub mod browser;
pub mod cable;
pub mod command;
pub mod copies;
pub mod guest;
pub mod lines;
pub mod memif;
pub mod node;
pub mod outcome;
pub mod pair;
pub mod raw;
pub mod rig;
pub mod star;
pub mod suite;

pub use copies::{Role, copy_as};
pub use outcome::{Failed, LIMIT, Outcome, ensure, eventually, within};
pub use pair::Pair;
pub use rig::{Rig, plain};
pub use star::Star;
pub use suite::{Subject, Test, all_are_run, run};

use std::path::{Path, PathBuf};

/// Path of a file of the source tree, given relative to its root.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns a path as an argument of a command.
///
/// # Panics
/// Panics if the path is not UTF-8, which paths of tests are.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are plain text")
}
