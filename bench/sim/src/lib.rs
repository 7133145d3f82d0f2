//! # cxloe-sim: the whole system in virtual time
//!
//! The production code of the manager, of memory nodes with their mappings, and of compute nodes with their attachments
//! and engines runs in one thread, over two simulated networks.
//!
//! ```text
//!   Scenario, seed, Overrides --> Plan --> World --> Tally: counts and latencies
//!
//!        operator: requests regions, grows, binds, disables, destroys them
//!            |
//!   +--------v--------------- control network: loss, delay, repetition ----------------+
//!   |   manager: state machine, committed state        killed before and after commits |
//!   +--------^------------------------------------------------------^------------------+
//!            | registrations, commands, results                     | registrations, regions, released ranges
//!   memory nodes: mappings, page table,                    compute nodes: attachments; one to four workers, each with
//!   pool, service                                          an engine, cache, and a program of operations; or a pager,
//!            |                                             and programs over a kernel
//!            |                                                      |
//!            +---------- network: loss, reordering, cuts, late copies ----------+
//! ```
//!
//! A run is a function of its scenario, its seed and the overrides, down to the last frame and message, so that every
//! finding can be repeated. Time is virtual: hours of time-outs take milliseconds. Scenarios of the data path alone
//! have static maps instead of a manager.
//!
//! Every run checks the following; panics of the code under test count as violations too:
//! * A read of a line returns the last write that ended before the read was submitted, or a write that overlaps the
//!   read, as for a register ([`register`]), despite loss, duplication, delay, cuts, pauses and restarts.
//! * Every operation ends, and fails only with an error that is justified; where only frames are lost, no operation
//!   fails.
//! * After a flush, and after a region was released, the pools hold the last writes. A killed compute node loses its
//!   unflushed writes, and nothing else.
//! * When all nodes are idle, the manager's committed state, the mappings of memory nodes and the attachments of
//!   compute nodes agree; acknowledged regions exist; unassigned memory is zero.
//! * Programs with a mapped region read their last writes, across faults, forks, write-backs and killed agents, or get
//!   an error for a lost page; threads that wait for a page are woken.
//! * A station without a registered key gets no session, forged and replayed frames have no effect, a node with a
//!   revoked key is no longer served, and no nonce is used twice under one key.
//! * A line, a region, a mapped region and a session of a compute node are used by one of its workers alone, and no line
//!   is cached by two.
//! * No compute node sleeps while one of its timers is due: its thread sleeps and wakes as an agent's worker does, or
//!   as a program with a port.
//! * After all regions were destroyed, nothing is left of them, and all buffers are empty.
//!
//! A [`PlantedFault`], a rule that nodes break on purpose, shows that these checks can fail.
//!
//! | modules | content |
//! |---|---|
//! | `scenario`, `plan`, `overrides`, `fault` | parameters of a run, and the faults injected into it |
//! | `world`, `fabric` | the run: order of actions, and checks at the end |
//! | `compute_node`, `operation`, `layout`, `region`, [`register`], `verdict` | programs, and the values they may read |
//! | `kernel` | programs' threads, page tables and events, below the pager |
//! | `intruder`, `node_keys` | an unauthorised station in the network, and the keys of authorised nodes |
//! | `memory_node`, `planted_fault` | memory nodes, and planted faults |
//! | [`control`] | the manager, its network, the operator |
//! | [`scaling`] | shards and workers with processing times: throughput against the number of queues |
//! | `campaign`, `tally`, `trace`, `service_rates`, `violation` | many runs, and their results |
//! | `named` | enumerations whose values users select by name |

mod campaign;
mod compute_node;
pub mod control;
mod fabric;
mod fault;
mod intruder;
mod kernel;
mod layout;
mod memory_node;
mod named;
mod node_context;
mod node_keys;
mod operation;
mod overrides;
mod plan;
mod planted_fault;
mod region;
pub mod register;
pub mod scaling;
mod scenario;
mod service_rates;
mod tally;
mod trace;
mod verdict;
mod violation;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use campaign::{Campaign, CampaignResults, FailedSeed, Progress};
pub use fault::{Fault, FaultPlan};
pub use layout::{Interleave, Layout, Set};
pub use memory_node::{EXTENT, MemoryNode};
pub use named::{Named, UnknownName};
pub use overrides::{Overrides, line_cache};
pub use plan::{CnPlan, FabricPlan, MnPlan, PagingPlan, Plan, TIMING};
pub use planted_fault::PlantedFault;
pub use scenario::Scenario;
pub use service_rates::ServiceRates;
pub use tally::{Class, Figures, Tally};
pub use trace::{Name, Trace};
pub use violation::InvariantViolation;
pub use world::World;

/// Makes the run that `plan` describes, adds its counts to `tally`, and writes its events to `trace`.
///
/// # Errors
/// Returns the first violation in the run; a panic counts as one.
pub fn run(plan: &Plan, tally: &mut Tally, trace: &Trace) -> Result<(), InvariantViolation> {
    run_while(plan, tally, trace, &|| true)
}

/// Makes a run. `goes_on` is called from time to time; when it returns false, the run stops.
///
/// # Errors
/// Returns the first violation in the run. A panic counts as one; [`InvariantViolation::Stopped`] means that the run
/// was stopped without a result.
pub(crate) fn run_while(
    plan: &Plan,
    tally: &mut Tally,
    trace: &Trace,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), InvariantViolation> {
    let world = || World::new(plan, tally, trace.clone()).run(goes_on);
    catch_unwind(AssertUnwindSafe(world))
        .unwrap_or_else(|panic| Err(InvariantViolation::Panic(text_of(&*panic))))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "without a message".to_owned(),
    }
}
