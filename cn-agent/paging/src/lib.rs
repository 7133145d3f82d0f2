//! # cxloe-paging: mapped regions by userfaultfd
//!
//! Pages of a mapped region come from memory nodes when programs touch them. What decides is the
//! [pager](cxloe_cn_core::pager); this crate is the kernel's side of it.
//!
//! ```text
//!   program --fault--> userfaultfd --+                          +--> Transfers --bursts--> Engine
//!   program <--page--- ioctls <----- Space: Pager, Memory, members                            |
//!   helper  <--------> socket <------+                          +<--- Sink <-----------------+
//! ```
//!
//! **Who owns what.** [`Spaces`] own everything: the [`Transfers`](cxloe_cn_core::transfers::Transfers) that all regions
//! share, and each [`Space`], a region being paged. A space owns its [`Pager`](cxloe_cn_core::pager::Pager), the kernel's
//! side of it ([`memory`]), its [`SharedState`](shared_state::SharedState), and the connections of the processes that have
//! it mapped ([`member`]). What a space does for one event is lent the transfers for that event. Whoever drives the engine
//! calls [`Spaces::serve`] in each of its rounds. No thread but that one is involved in a fault, and none of its steps
//! waits.
//!
//! | module | what it holds |
//! |---|---|
//! | `spaces` | all spaces beside one engine |
//! | `space` | one of them: events, members, ending, want of room, taking over |
//! | [`agent_file`] | files in memory that agents make and find again |
//! | `claim` | whose a space is |
//! | [`joining`] | becoming a member |
//! | [`member`] | the agent's end of a member's connection |
//! | [`memory`] | pages as the kernel has them: shared, private, of virtual machines |
//! | [`process`] | a process, told from all others |
//! | [`shared_state`] | what a space needs to outlive the agent |
//! | [`uffd`] | userfaultfd itself |
//! | [`watchdog`] | frees the thread that serves when it waits for itself |

pub mod agent_file;
mod claim;
pub mod joining;
pub mod member;
pub mod memory;
pub mod process;
pub mod shared_state;
mod space;
mod spaces;
pub mod uffd;
pub mod watchdog;

pub use claim::Claim;
pub use space::{Made, MakeError, Space};
pub use spaces::{Joining, Spaces, is_paging};

/// As much of a text as has room in a [`Welcome`](cxloe_member::wire::Welcome).
pub fn cut(text: &str) -> &str {
    let mut end = text.len().min(cxloe_member::wire::TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
