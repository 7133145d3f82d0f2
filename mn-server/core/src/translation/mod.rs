//! Translation: from (CN id, CMem address) to an MPMem address, as in section III.C of the paper.
//!
//! The complete page table lies in the pool itself, indexed by a hash of CN id and CMem extent number ([`PageTable`]).
//! Each worker keeps the translations it used last in a small table of its own ([`Tlb`]), which answers in a few
//! nanoseconds. The control thread alone changes the page table ([`PageTableWriter`]); by [`Generation`] it detects
//! when no worker uses a removed mapping any more.
//!
//! ```text
//!   control thread                                    worker (one per queue)
//!   unmap -> slot becomes a tombstone                 batch: translate, copy lines, ...
//!   seal  -> generation g                             boundary: sees g, purges its TLB, reports g
//!   passed(g)? zero the extents, confirm to the GMM   next batch
//! ```

mod claim;
mod copies;
mod entry;
mod generation;
mod instances;
mod shares;
mod table;
mod tlb;
mod writer;

pub(crate) use copies::CopySet;
pub use entry::{CnId, mappings_stored};
pub use generation::{Generation, WorkerGeneration};
pub use instances::Instances;
pub use shares::Share;
pub use table::{PageTable, Translation, Unmapped};
pub use tlb::{TLB_ENTRIES_DEFAULT, Tlb, TlbCounters};
pub use writer::{PageTableWriter, Recovery, TableError};
