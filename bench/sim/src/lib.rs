//! The simulation: engines of compute nodes and services of memory nodes, the ones that ship, in virtual time.
//!
//! ```text
//!   Scenario, seed, Overrides --> Plan --> World --> Tally: counts and latencies
//!                                            |
//!              compute nodes: engine, cache, |   memory nodes: service, page table, pool
//!              and a program of operations   |
//!                          \                 v                  /
//!                           +------ simulated network --------+
//!                            loss, reordering, cuts, late copies
//! ```
//!
//! A run is a function of its scenario, its seed and the overrides, down to the last frame, so that whatever a run
//! shows can be looked at again. Nothing waits for a clock: hours of waiting for time-outs take milliseconds.
//!
//! What is checked in every run (and panics of the code under test count as well):
//! * each line reads as a register must: as the last write that ended before the read was made, or one that overlaps
//!   it ([`register`]), whatever is lost, repeated, delayed, cut, paused or restarted on the way;
//! * every operation ends, and fails only with an error that can be true; where only frames go missing, none fails;
//! * after a flush the pools hold what was written last; a killed compute node loses what it had not flushed, and
//!   nothing else;
//! * at the end everything is at rest, and no buffer holds anything.
//!
//! That these checks can fail is shown with a [`Mistake`] planted into the nodes.

mod broken;
mod campaign;
mod compute_node;
pub mod control;
mod fabric;
mod layout;
mod memory_node;
mod mistake;
mod operation;
mod overrides;
mod paces;
mod plan;
mod region;
pub mod register;
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
pub use plan::{CnPlan, FabricPlan, MnPlan, Plan};
pub use scenario::Scenario;
pub use tally::{Class, Figures, Tally};
pub use trace::{Listener, Name, Trace};
pub use trouble::{Trouble, Troubles};
pub use world::{TIMING, World};

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
