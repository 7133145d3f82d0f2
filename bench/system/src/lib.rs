//! Tests of the whole system: real daemons, real frames, in networks that each test makes and that are gone with it.
//!
//! The tests lie in `tests`, a program for each group of subjects; here is the rig that all of them stand on.
//!
//! ```text
//!   test program: main -> [`run`] -- one [`Subject`] per folder of tests --> [`Test`]s, as root and as `nobody`
//!
//!   test ---> [`Pair`]  manager, memory node, compute node on one cable ---+
//!        ---> [`Star`]  manager at a switch, any number of nodes ----------+--> [`Rig`]: namespaces, daemons, their logs
//!        ---> [`node::MemoryNode`] and [`node::port`]: a daemon, and a compute node inside the test
//! ```
//!
//! | module | what it has |
//! |---|---|
//! | [`outcome`] | what a test returns, [`ensure`], [`eventually`] and the bound of every wait |
//! | [`suite`] | `main` of a test program: rights, roles, the run as an ordinary user, what a failed test says |
//! | [`copies`] | the test program itself in another role, without rights, or as `nobody` |
//! | [`command`] | programs that run to their end, and what they have to say |
//! | [`rig`] | a network and daemons in it, by name |
//! | [`pair`], [`star`] | the two fabrics that most tests use |
//! | [`lines`] | content that says where it belongs and who wrote it |
//! | [`node`], [`cable`], [`raw`] | parts: a daemon with a static map, a line port, `ip`, a neighbour that keeps to no protocol |
//! | [`browser`], [`guest`] | a headless Chromium, a kernel of its own |
//!
//! A test that fails prints, beside its reason, the last command it ran with its output and the end of each daemon's log.

pub mod browser;
pub mod cable;
pub mod command;
pub mod copies;
pub mod guest;
pub mod lines;
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

/// A file of the source tree, from its top.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A path as text.
///
/// # Panics
/// If it is none: paths of tests are.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are plain text")
}
