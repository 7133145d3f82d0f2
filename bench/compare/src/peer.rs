//! Interface of all peers: name, facts, required tools, and a trial.

use super::error::PeerError;
use super::measured::Measured;
use super::pattern::Pattern;
use super::plan::Plan;
use super::site::Site;
use super::stage::{Stage, find};

/// System that gives access to the memory of another machine.
pub trait Peer: Sync {
    /// Name in reports: letters, digits, `-`. The part before the first `-` is the name of its group.
    fn name(&self) -> &'static str;

    /// Facts that explain the peer's figures.
    fn facts(&self) -> Facts;

    /// Programs of other projects that the peer requires.
    fn tools(&self) -> &'static [Tool] {
        &[]
    }

    /// Reason why the peer cannot run here although its tools are installed; `None` if it can.
    fn hindrance(&self, _site: &Site) -> Option<String> {
        None
    }

    /// Reason why the peer has no figure of this pattern; `None` if it has one.
    fn lacks(&self, _pattern: Pattern) -> Option<&'static str> {
        None
    }

    /// Runs one trial of those patterns of the plan that the peer has: starts the peer's server in the far namespace,
    /// measures, and ends the server. The calling thread is in the near namespace and pinned to the client's core.
    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError>;
}

/// Facts about a peer that explain its figures.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// Description of the peer.
    pub what: &'static str,
    /// Wait style of both ends.
    pub waits: &'static str,
    /// Copies of a line or page on its path, those of the kernel included.
    pub copies: &'static str,
    /// Data that the trial compares with the data written.
    pub verified: &'static str,
    /// Meaning of the patterns for this peer, and differences from the other peers.
    pub figures: &'static str,
}

/// Program of another project that a peer requires.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// Name of the program, to be found in the PATH.
    pub program: &'static str,
    /// Package in Debian and Ubuntu that contains the program.
    pub package: &'static str,
}

/// Packages of those tools of a peer that are missing; empty if all are installed.
pub fn missing(peer: &dyn Peer) -> Vec<&'static str> {
    let mut packages: Vec<&'static str> =
        peer.tools().iter().filter(|tool| find(tool.program).is_none()).map(|tool| tool.package).collect();
    packages.dedup();
    packages
}

/// True if `word`, a value of `--only`, is the name of this peer or of its group.
pub fn is_meant(peer: &dyn Peer, word: &str) -> bool {
    peer.name() == word || peer.name().split('-').next() == Some(word)
}
