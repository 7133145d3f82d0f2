//! Paging: mapped regions, whose pages come from memory nodes when programs touch them.
//!
//! ```text
//!   program --fault--> userfaultfd --+                          +--> Transfers --bursts--> Engine
//!   program <--page--- ioctls <----- Space: Pager, Memory, members                            |
//!   helper  <--------> socket <------+                          +<--- Sink <-----------------+
//! ```
//!
//! A [`Space`] is one region being paged: its [`Pager`](cxloe_cn_core::pager::Pager), the kernel's side of it ([`memory`]), its
//! [`Ledger`](ledger::Ledger), and the processes that have it mapped ([`member`]). [`Spaces`] are all of them, beside
//! one engine; whoever drives the engine calls [`Spaces::serve`] in each of its rounds. No thread but that one is
//! involved in a fault, and none of its steps waits.

mod claim;
pub mod joining;
pub mod ledger;
pub mod member;
pub mod memory;
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
