//! # cxloe-sim: the whole system in virtual time
//!
//! The manager, memory nodes with their mappings, and compute nodes with their attachments and engines: the code that
//! ships, in one thread, over two simulated networks.
//!
//! ```text
//!   Scenario, seed, Overrides --> Plan --> World --> Tally: counts and latencies
//!
//!        operator: asks for regions, grows, binds, disables, destroys them
//!            |
//!   +--------v--------------- control network: loss, delay, repetition ----------------+
//!   |   manager: state machine, committed state        killed before and after commits |
//!   +--------^------------------------------------------------------^------------------+
//!            | registrations, commands, results                     | registrations, regions, what was let go of
//!   memory nodes: mappings, page table,                    compute nodes: attachments, engine, cache, and a program
//!   pool, service                                          of operations; or a pager, and programs over a kernel
//!            |                                                      |
//!            +---------- network: loss, reordering, cuts, late copies ----------+
//! ```
//!
//! A run is a function of its scenario, its seed and the overrides, down to the last frame and message, so that whatever a
//! run shows can be looked at again. Nothing waits for a clock: hours of waiting for time-outs take milliseconds. Scenarios
//! that are about the data path alone have no manager: there, static maps say who has what.
//!
//! What is checked in every run (and panics of the code under test count as well):
//! * each line reads as a register must: as the last write that ended before the read was made, or one that overlaps
//!   it ([`register`]), whatever is lost, repeated, delayed, cut, paused or restarted on the way;
//! * every operation ends, and fails only with an error that can be true; where only frames go missing, none fails;
//! * after a flush, and after a region was let go of, the pools hold what was written last; a killed compute node loses
//!   what it had not flushed, and nothing else;
//! * when everything is at rest, what the manager has committed, what memory nodes serve and what compute nodes have
//!   attached agree; what was promised is there; memory that nobody has is zero;
//! * programs that have a region mapped read what they wrote last, across faults, forks, write-backs and killed agents, or
//!   are told that a page is lost; who waits for a page is woken;
//! * whoever has no key that is known gets no session, forged and repeated frames change nothing, a node whose key was taken
//!   back is served no more, and no nonce leaves twice under one key;
//! * after all regions are destroyed nothing is left of them, and no buffer holds anything.
//!
//! That these checks can fail is shown with a [`Mistake`] planted into the nodes.
//!
//! | modules | what they are |
//! |---|---|
//! | `scenario`, `plan`, `overrides`, `trouble` | what befalls a run |
//! | `world`, `fabric` | the run: who acts when, and what has to hold in the end |
//! | `compute_node`, `operation`, `layout`, `region`, [`register`], `verdict` | programs, and what they may read |
//! | `kernel` | programs' threads, page tables and events, below the pager |
//! | `intruder`, `node_keys` | somebody without a right at the network, and the keys of those who have one |
//! | `memory_node`, `mistake` | memory nodes, and mistakes |
//! | [`control`] | the manager, its network, the operator |
//! | [`scaling`] | shards and workers that take their time: how throughput grows with queues |
//! | `campaign`, `tally`, `trace`, `paces`, `broken` | many runs, and what is told of them |

mod broken;
mod campaign;
mod compute_node;
pub mod control;
mod fabric;
mod intruder;
mod kernel;
mod layout;
mod memory_node;
mod mistake;
mod node_keys;
mod operation;
mod overrides;
mod paces;
mod plan;
mod region;
pub mod register;
pub mod scaling;
mod scenario;
mod surroundings;
mod tally;
mod trace;
mod trouble;
mod verdict;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use broken::Broken;
pub use campaign::{Campaign, Failing, Outcome, Progress};
pub use layout::{Interleave, Layout, Set};
pub use memory_node::{EXTENT, MemoryNode};
pub use mistake::Mistake;
pub use overrides::Overrides;
pub use paces::Paces;
pub use plan::{CnPlan, FabricPlan, MnPlan, PagingPlan, Plan, TIMING};
pub use scenario::Scenario;
pub use tally::{Class, Figures, Tally};
pub use trace::{Listener, Name, Trace};
pub use trouble::{Trouble, Troubles};
pub use world::World;

/// Carries out a run.
///
/// # Errors
/// What did not hold; a panic is one of these things.
pub fn run(plan: &Plan, tally: &mut Tally, trace: &Trace) -> Result<(), Broken> {
    run_while(plan, tally, trace, &|| true)
}

/// Carries out a run for as long as `goes_on` says so, asked now and then.
///
/// # Errors
/// What did not hold; a panic is one of these things, and [`Broken::Stopped`] means that nothing is known.
pub fn run_while(
    plan: &Plan,
    tally: &mut Tally,
    trace: &Trace,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), Broken> {
    let world = || World::new(plan, tally, trace.clone()).run(goes_on);
    catch_unwind(AssertUnwindSafe(world)).unwrap_or_else(|panic| Err(Broken::Panic(text_of(&*panic))))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "without a message".to_owned(),
    }
}
