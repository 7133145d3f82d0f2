//! # cxloe-measure: measurements through a line port to a memory node, and their reports
//!
//! A measurement describes the [`machine`] it ran on, and passes its samples to a [`report`], which formats them as
//! JSON, table and page. Access patterns are in [`pattern`]; what else is measured has a file each.
//!
//! Every measurement with a limit alternates with it: a trial of the limit, a trial of the operation, and again, on the
//! same link, in the same two threads on the same two cores. The limit is a bare echo ([`cxloe_link::echo`]): this side
//! drives it over the port's own link, and the memory node's worker answers it from a separate loop.

// `print!` panics when standard output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

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
pub mod machine;
pub mod nbd;
pub mod pattern;
pub mod report;
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

use cxloe_lab::{Interrupt, Interrupted};
use machine::MachineError;

/// Port and region on which measurements are made.
pub struct MeasuredRegion {
    /// Port to the memory node, without a cache unless a measurement enables it.
    pub port: Port,
    /// First HPA of the region used.
    pub hpa: u64,
    /// Length of the region in bytes.
    pub bytes: u64,
    /// MAC address of the memory node, for exchanges without a session.
    pub peer: Mac,
    /// EtherType of the frames.
    pub ethertype: u16,
    /// True if the memory node answers exchanges without a session ([`cxloe_link::echo`]).
    pub echo: bool,
    /// CPUs of this thread and of the memory node's worker; `None` if one is unknown or on another machine.
    pub cores: Option<(usize, usize)>,
    /// Process of the memory node, if this measurement may pause it while its core is needed.
    pub memory_node: Option<Pid>,
    /// Flag that Ctrl-C sets; `None` if Ctrl-C ends the process.
    pub interrupt: Option<Interrupt>,
}

/// Failure of a measurement.
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
    /// Memory differs from the data written.
    #[error(
        "wrong data at HPA {hpa:#x}: byte {index} of the line is {found:#04x}, written was {written:#04x} ({wrong} wrong bytes in all)"
    )]
    WrongData {
        /// HPA of the first wrong line.
        hpa: u64,
        /// Index of the first wrong byte in that line.
        index: usize,
        /// Byte that was read.
        found: u8,
        /// Byte that was written.
        written: u8,
        /// Number of wrong bytes in the whole region.
        wrong: u64,
    },
    /// A page of mapped memory differs from the data written.
    #[error("wrong data: page {page} of the mapped region has {found:#x} where something else was written")]
    WrongPage {
        /// Index of the page in the region.
        page: usize,
        /// First word of the page, as read.
        found: u64,
    },
    /// The agent does not have the region.
    #[error("the agent has no region `{0}` attached; `cn-agent list` shows those it has")]
    NotAttached(String),
    /// The region cannot be mapped through the agent.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Error of the agent.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// The region cannot be mapped with inline faults.
    #[error(transparent)]
    Inline(#[from] InlineError),
    /// userfaultfd is not available.
    #[error(transparent)]
    Userfaultfd(#[from] OpenError),
    /// A fault of a measurement cannot be served.
    #[error("serving a page fault from local memory: {0}")]
    Fault(#[from] UffdError),
    /// Memory for a measurement cannot be had.
    #[error("cannot get memory to measure with: {0}")]
    Memory(#[from] std::io::Error),
    /// A thread cannot be pinned.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Interrupted by Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl MeasuredRegion {
    /// Number of 64-byte lines in the region.
    pub fn lines(&self) -> u64 {
        self.bytes / LINE_SIZE as u64
    }

    /// Returns [`MeasureError::Interrupted`] if the user pressed Ctrl-C.
    pub fn check(&self) -> Result<(), MeasureError> {
        self.interrupt.as_ref().map_or(Ok(()), |i| Ok(i.check()?))
    }

    /// Cache-line round trip between the two cores, in nanoseconds. The memory node is paused during the measurement,
    /// if possible.
    pub fn bounce(&self) -> Option<f64> {
        self.glance().by(machine::bounce_ns)
    }

    /// Cache-line round trip between the two cores, measured in a fraction of a millisecond, for use between batches of
    /// a few milliseconds.
    pub(crate) fn bounce_glance(&self) -> Option<f64> {
        self.glance().take()
    }
}

/// Cost of two reads of the clock in nanoseconds, the median of many pairs.
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
