//! Access control of the manager, decided without I/O from the stored tokens and joined nodes.
//!
//! ```text
//!   connection (TLS key, uid)  \
//!   bearer token                > Directory: who is it? --> Caller --> Right: may they use this route?
//!   session of a browser       /                              `-----> permit: may they give this command?
//! ```
//!
//! | file | content |
//! |---|---|
//! | [`caller`] | identity and rights of a caller |
//! | [`directory`] | the caller with a token, a certificate, a user id or a session |
//! | [`right`] | the right required by a route |
//! | [`refusals`] | selection of refused requests for the event log |
//! | [`mod@permit`] | requirements of a command to its caller: node, owner of a region, quota |

pub mod caller;
pub mod directory;
pub mod permit;
pub mod refusals;
pub mod right;

pub use caller::{Caller, CallerRights, Tenant};
pub use directory::{Directory, Evidence};
pub use permit::permit;
pub use refusals::Refusals;
pub use right::{Denied, Right};
