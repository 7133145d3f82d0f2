//! Control: executes the manager's commands on the page table.
//!
//! ```text
//!   gmm  <-- register, sync (HTTP) -->  manager link (a thread with a small tokio runtime)
//!                                          | commands        ^ results
//!                                          v                 |
//!                                       Follow, Mappings (cxloe-mn-core: they decide; the page table's only writer)
//!                                          | jobs            ^ done
//!                                          v                 |
//!                                       zeroing, waiting for the workers (a thread of its own)
//! ```
//!
//! [`cxloe_mn_core::follow`] decides the next request without I/O, [`cxloe_mn_core::mappings`] the effect of
//! a command. [`ManagerLink`] does the I/O for both. While the manager is unreachable, all mappings are
//! served for 24 hours, counted across restarts ([`LastAnswer`]). Without a manager, a [static
//! map](static_map) lists the mappings.

mod background;
mod copying;
mod kept_memory;
mod kept_shares;
mod key_ring;
mod last_answer;
mod manager_link;
mod report;
pub mod static_map;
mod waiting;

pub use cxloe_mn_core::mappings::Mappings;
pub use kept_memory::KeptMemory;
pub use kept_shares::KeptShares;
pub use key_ring::{KeptKeys, KeyRing};
pub use last_answer::LastAnswer;
pub use manager_link::{ManagerLink, ManagerLinkError, ManagerLinkOptions, Stats};
pub use report::bounded_report;
pub use waiting::carry_out;
