//! The measurements: what is timed, and how, given a line port to a memory node.
//!
//! Every measurement that is held against a limit takes turns with it: a trial of the limit, a trial of the
//! thing, and again, on the same link, in the same two threads on the same two cores. The limit is a bare echo
//! ([`cxloe_link::echo`]): this side drives it over the port's own link, and the memory node's worker
//! answers it from a loop of its own.

pub mod agent_port;
pub mod bare;
pub mod costs;
pub mod cycles;
pub mod evictions;
pub mod fault;
mod fault_inline;
mod fault_mapped;
pub mod fault_step;
mod fault_words;
pub mod floor;
pub mod floor_fault;
mod floor_mapping;
mod glance;
pub mod hits;
pub mod latency;
pub mod nbd;
pub mod scale;
pub mod streams;
pub mod verify;

use std::time::Instant;

use cxloe_client::client::ClientError;
use cxloe_client::mapping::MapError;
use cxloe_link::LinkError;
use cxloe_paging::uffd::{OpenError, UffdError};
use cxloe_port::inline::InlineError;
use cxloe_port::port::{Port, PortError};
use cxloe_wire::frame::{LINE_SIZE, Mac};
use nix::unistd::Pid;

use crate::machine::{self, MachineError};
use cxloe_lab::{Interrupt, Interrupted};

/// Where measurements go.
pub struct Target {
    /// The port, uncached unless a measurement says otherwise.
    pub port: Port,
    /// First HPA of the region used.
    pub hpa: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The memory node's address, for bare echoes.
    pub peer: Mac,
    /// EtherType of the frames.
    pub ethertype: u16,
    /// Whether the memory node answers bare echoes.
    pub echo: bool,
    /// This thread's CPU and the memory node's worker's, if both are known and on this machine.
    pub cores: Option<(usize, usize)>,
    /// The memory node's process, if it is ours to pause while something else needs its core.
    pub memory_node: Option<Pid>,
    /// Ctrl-C.
    pub interrupt: Option<Interrupt>,
}

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// An operation failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The memory node does not answer echoes.
    #[error(
        "memory node {0} does not answer bare echoes; start mn-server with --echo, or for `cxloe-bench echo` with --echo-for and this interface's address"
    )]
    NoEcho(Mac),
    /// Memory does not hold what was written.
    #[error(
        "wrong data at HPA {hpa:#x}: byte {index} of the line is {found:#04x}, written was {written:#04x} ({wrong} wrong bytes in all)"
    )]
    WrongData {
        /// HPA of the first wrong line.
        hpa: u64,
        /// First wrong byte in it.
        index: usize,
        /// What it is.
        found: u8,
        /// What it should be.
        written: u8,
        /// Wrong bytes in the whole region.
        wrong: u64,
    },
    /// A page of mapped memory is not what was written.
    #[error("wrong data: page {page} of the mapped region has {found:#x} where something else was written")]
    WrongPage {
        /// The page.
        page: usize,
        /// The word that is wrong.
        found: u64,
    },
    /// The agent does not have the region.
    #[error("the agent has no region `{0}` attached; `cn-agent list` shows those it has")]
    NotAttached(String),
    /// Mapping the region through the agent.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// Mapping the region with faults served in place.
    #[error(transparent)]
    Inline(#[from] InlineError),
    /// No userfaultfd.
    #[error(transparent)]
    Userfaultfd(#[from] OpenError),
    /// A fault that is to be timed cannot be served.
    #[error("serving a page fault from local memory: {0}")]
    Fault(#[from] UffdError),
    /// Memory for a measurement.
    #[error("cannot get memory to measure with: {0}")]
    Memory(#[from] std::io::Error),
    /// A thread cannot be kept where it belongs.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl Target {
    /// Lines of the region.
    pub fn lines(&self) -> u64 {
        self.bytes / LINE_SIZE as u64
    }

    /// Ends the measurement if the user asked for it.
    pub fn check(&self) -> Result<(), MeasureError> {
        self.interrupt.as_ref().map_or(Ok(()), |i| Ok(i.check()?))
    }

    /// How far apart the two cores are just now, in nanoseconds for a cache line there and back. The memory
    /// node is paused meanwhile, if it can be.
    pub fn bounce(&self) -> Option<f64> {
        self.glance().by(machine::bounce_ns)
    }

    /// The same in a fraction of a millisecond, to be asked for between batches of a few milliseconds.
    pub fn bounce_glance(&self) -> Option<f64> {
        self.glance().take()
    }
}

/// What two readings of the clock cost, in nanoseconds: the median of many.
pub fn clock_cost_ns() -> f64 {
    let mut costs: Vec<u128> = (0..1001)
        .map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos()
        })
        .collect();
    costs.sort_unstable();
    costs[costs.len() / 2] as f64
}
