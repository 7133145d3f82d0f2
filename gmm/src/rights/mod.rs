//! Who may do what: decided without I/O, from what the manager keeps of tokens and of nodes that have joined.
//!
//! ```text
//!   connection (TLS key, uid)  \
//!   bearer token                > Directory: who is it? --> Caller --> Right: may they use this route?
//!   session of a browser       /                              `-----> permit: may they give this command?
//! ```
//!
//! | file | what it decides |
//! |---|---|
//! | [`caller`] | who somebody is, as far as they are known |
//! | [`directory`] | who is behind a token, a certificate, a user id or a session |
//! | [`right`] | what a route asks of who uses it |
//! | [`refusals`] | which refused attempts the event log tells of |
//! | [`mod@permit`] | what a command asks of who gives it: whose node, whose region, how much |

pub mod caller;
pub mod directory;
pub mod permit;
pub mod refusals;
pub mod right;

pub use caller::{Caller, May, Tenant};
pub use directory::{Directory, Evidence, SESSION_MS};
pub use permit::permit;
pub use refusals::Refusals;
pub use right::{Denied, Right};
