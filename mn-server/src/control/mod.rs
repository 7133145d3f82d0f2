//! Control: what the manager wants of this node, carried out on the page table.
//!
//! ```text
//!   gmm  <-- register, sync (HTTP) -->  manager link (a thread with a small tokio runtime)
//!                                          | commands        ^ results
//!                                          v                 |
//!                                       Mappings (decides; the page table's only writer)
//!                                          | jobs            ^ done
//!                                          v                 |
//!                                       zeroing, waiting for the workers (a thread of its own)
//! ```
//!
//! [`Mappings`] decides without I/O: a command becomes a [`Job`], a finished job a result. [`ManagerLink`] is
//! the shell around it. When the manager is away, everything mapped goes on being served for 24 hours,
//! counted across restarts ([`Heard`]). Where there is no
//! manager, a [`StaticMap`] says who gets what.

mod background;
mod heard;
mod job;
mod key_ring;
mod manager_link;
mod mappings;
mod report;
mod static_map;

pub use heard::Heard;
pub use job::{Job, JobError};
pub use key_ring::{KeptKeys, KeyRing};
pub use manager_link::{ManagerLink, ManagerLinkError, ManagerLinkOptions, Stats};
pub use mappings::{AUTHORISATION_MS, Mappings, Refusal};
pub use report::bounded_report;
pub use static_map::{StaticMap, StaticMapError, StaticRange};
