//! What all peers have in common: a name, what their figures mean, what they need, and a trial.

use super::error::PeerError;
use super::measured::Measured;
use super::pattern::Plan;
use super::stage::{Stage, find};
use cxloe_lab::Standing;

/// A way to reach the memory of another machine.
pub trait Peer: Sync {
    /// Its name in reports: letters, digits, `-`. What stands in front of the first `-` names its group.
    fn name(&self) -> &'static str;

    /// What its figures mean.
    fn facts(&self) -> Facts;

    /// Programs it needs.
    fn tools(&self) -> &'static [Tool] {
        &[]
    }

    /// Why it cannot run here although its tools are there.
    fn hindrance(&self, _site: &Site) -> Option<String> {
        None
    }

    /// One trial of all patterns it has: starts what it takes in the far namespace, measures, and ends it. Runs on a
    /// thread in the near namespace that is kept on the client's core.
    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError>;
}

/// What there is on this machine.
#[derive(Debug, Clone)]
pub struct Site {
    /// Where the rights to make a network come from.
    pub standing: Standing,
    /// Two verbs devices that reach each other.
    pub rdma: Option<(String, String)>,
}

/// What has to be known to read a figure.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// What it is.
    pub what: &'static str,
    /// What both ends do until something comes.
    pub waits: &'static str,
    /// Who copies a line or page on its way, kernel included.
    pub copies: &'static str,
    /// What is compared with what was written.
    pub verified: &'static str,
    /// What the patterns are in its terms, and what is different from the others.
    pub figures: &'static str,
}

/// A program of another package.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// The program.
    pub program: &'static str,
    /// The package of Debian and Ubuntu that brings it.
    pub package: &'static str,
}

/// The packages that a peer lacks; empty when all its tools are here.
pub fn missing(peer: &dyn Peer) -> Vec<&'static str> {
    let mut packages: Vec<&'static str> =
        peer.tools().iter().filter(|tool| find(tool.program).is_none()).map(|tool| tool.package).collect();
    packages.dedup();
    packages
}

/// Whether a word of `--only` means this peer: its name, or its group.
pub fn is_meant(peer: &dyn Peer, word: &str) -> bool {
    peer.name() == word || peer.name().split('-').next() == Some(word)
}
