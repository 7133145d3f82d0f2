//! Copies of legs (parts of regions) from other memory nodes, by order of the manager: regions that nobody uses are
//! copied by the memory node that they move to. It reads them as a compute node would, in a session with the memory
//! node that has them. Both sides are mapped for this node at the same CMem addresses, so it reaches nothing else, and
//! nobody else reaches what is copied.
//!
//! ```text
//!   manager -- list of orders --> FillBoard <-- progress -- Filler, one for each worker
//!                                                             | reads            ^ answers
//!                                                             v                  |
//!                                                           Requester: the other memory node
//! ```
//!
//! Lines are written by the worker that receives them, between two batch boundaries and through the page table, like
//! those of a compute node. So an order that was withdrawn changes nothing any more when the manager has the result of
//! the command that unmaps its extents.

mod board;
mod filler;
#[cfg(test)]
mod tests;

pub use board::FillBoard;
pub use filler::FillerSettings;
pub(crate) use filler::{FillMemory, Filler};
