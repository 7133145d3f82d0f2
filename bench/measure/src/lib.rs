//! # cxloe-measure: measurements through a line port to a memory node, and their reports
//!
//! A measurement describes the [`machine`] it ran on, and passes its samples to a [`report`], which formats them as
//! JSON, table and page. Access patterns are in [`pattern`]; each other measurement has a module of its own.
//!
//! An operation and its lower limit are measured alternately: a trial of the limit, a trial of the operation, and so
//! on, over the same link, in the same two threads on the same two cores. The limit is a bare echo
//! ([`cxloe_link::echo`]): the measuring thread sends frames over the port's own link, and the memory node's worker
//! answers each from a separate loop.

// `print!` panics when standard output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod agent_port;
pub mod bare;
pub mod costs;
pub mod cycles;
pub mod echo;
pub mod evictions;
pub mod facts;
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
mod pages;
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

/// Port and region on which measurements are made, with information about the other end.
pub struct MeasuredRegion {
    /// Port to the memory node, without a cache unless a measurement enables it.
    pub port: Port,
    pub hpa: u64,
    pub bytes: u64,
    /// MAC address of the memory node, for exchanges without a session.
    pub peer: Mac,
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

#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The memory node does not answer echoes, which are off by default.
    #[error(
        "memory node {0} does not answer bare echoes; start mn-server with --echo, or for `cxloe-bench echo` with --echo-for and this interface's address"
    )]
    NoEcho(Mac),
    /// Memory of the region differs from the data written to it.
    #[error(
        "wrong data at HPA {hpa:#x}: byte {index} of the line is {found:#04x}, written was {written:#04x} ({wrong} wrong bytes in all)"
    )]
    WrongData {
        /// HPA of the first wrong line.
        hpa: u64,
        /// Index of the first wrong byte in the first wrong line.
        index: usize,
        found: u8,
        written: u8,
        /// Number of wrong bytes in the whole region.
        wrong: u64,
    },
    /// A page of mapped memory differs from the data written to it.
    #[error("wrong data: page {page} of the mapped region has {found:#x} where something else was written")]
    WrongPage {
        page: usize,
        /// Wrong word, as read.
        found: u64,
    },
    #[error("the agent has no region `{0}` attached; `cn-agent list` shows those it has")]
    NotAttached(String),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// The region cannot be mapped with faults served by the faulting thread.
    #[error(transparent)]
    Inline(#[from] InlineError),
    /// The kernel or its policy refuses a userfaultfd.
    #[error(transparent)]
    Userfaultfd(#[from] OpenError),
    /// A page fault of a lower limit cannot be served from local memory.
    #[error("serving a page fault from local memory: {0}")]
    Fault(#[from] UffdError),
    /// Memory for a measurement cannot be allocated or mapped.
    #[error("cannot get memory to measure with: {0}")]
    Memory(#[from] std::io::Error),
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Ctrl-C ended the measurement before its end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl MeasuredRegion {
    pub fn lines(&self) -> u64 {
        self.bytes / LINE_SIZE as u64
    }

    /// Returns [`MeasureError::Interrupted`] after Ctrl-C, for use in loops.
    pub fn check(&self) -> Result<(), MeasureError> {
        self.interrupt.as_ref().map_or(Ok(()), |i| Ok(i.check()?))
    }

    /// Returns the duration of a cache-line round trip between the two cores, in nanoseconds. Pauses the
    /// memory node during the measurement, if possible.
    pub fn bounce(&self) -> Option<f64> {
        self.glance().by(machine::bounce_ns)
    }

    /// Measures what [`Self::bounce`] measures, less exactly but in a fraction of a millisecond, for use
    /// between batches of a few milliseconds.
    pub(crate) fn bounce_glance(&self) -> Option<f64> {
        self.glance().take()
    }
}

/// Returns the cost of two reads of the clock in nanoseconds, as the median of many pairs.
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
