//! # cxloe-paging: mapped regions by userfaultfd
//!
//! Pages of a mapped region are fetched from memory nodes on first touch. The [pager](cxloe_cn_core::pager)
//! decides which pages to fetch, map and evict; this crate carries that out with system calls.
//!
//! ```text
//!   program --fault--> userfaultfd --+                          +--> Transfers --bursts--> Engine
//!   program <--page--- ioctls <----- Space: Pager, Memory, members                            |
//!   helper  <--------> socket <------+                          +<--- Sink <-----------------+
//! ```
//!
//! **Ownership.** [`Spaces`] own everything: the [`Transfers`](cxloe_cn_core::transfers::Transfers) that all
//! regions share, and each [`Space`], a region being paged. A space owns its
//! [`Pager`](cxloe_cn_core::pager::Pager), the kernel's side of it ([`memory`]), its
//! [`SharedState`](shared_state::SharedState), and the connections of its members ([`member`]). It borrows
//! the transfers to handle an event. The driver of the engine calls [`Spaces::serve`] in each of its rounds.
//! That thread alone serves faults, and it never waits for a node or for another thread.
//!
//! | module | what it holds |
//! |---|---|
//! | `spaces` | all spaces of one engine |
//! | `space` | one space: events, members, lack of room, takeover from a dead agent, end |
//! | [`agent_file`] | memory files that agents create and recognise |
//! | [`descriptor_kinds`] | what kind of file a client has passed |
//! | `claim` | ownership of spaces |
//! | [`joining`] | joining as a member |
//! | [`member`] | the agent's end of a member's connection |
//! | [`memory`] | pages in the kernel: shared, private, of virtual machines |
//! | [`process`] | identity of a process |
//! | [`shared_state`] | state of a space that outlives the agent |
//! | [`spare_files`] | files that the agent keeps free for itself |
//! | [`uffd`] | userfaultfd itself |
//! | [`watchdog`] | ends a wait of the serving thread that only this thread itself could end |

pub mod agent_file;
mod claim;
pub mod descriptor_kinds;
pub mod joining;
pub mod member;
pub mod memory;
pub mod process;
pub mod shared_state;
mod space;
mod spaces;
pub mod spare_files;
mod suspension;
pub mod uffd;
pub mod watchdog;

pub use claim::MapClaim;
pub use space::suspension::{OnSuspended, PageNotes};
pub use space::{MakeError, NewSpace, Space};
pub use spaces::{JoinAttempt, Spaces};

/// Returns the longest prefix of `text` that fits into a [`JoinReply`](cxloe_member::wire::JoinReply).
pub fn cut(text: &str) -> &str {
    let mut end = text.len().min(cxloe_member::wire::TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
