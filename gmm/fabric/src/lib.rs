//! # cxloe-fabric: the types that all sides share
//!
//! Nodes, regions and decoders, as the manager, memory nodes, compute nodes and tools define them in common. These
//! types are in a crate of their own so that none of the programs depends on another.
//!
//! ```text
//!   cxloe-gmm    cxloe-mn    cxloe-cn-core    cxloe-fm    tools
//!       |            |             |              |         |
//!       +------------+------+------+--------------+---------+
//!                           v
//!             client  (feature `client`: the REST interface as calls)
//!                           v
//!              api     bodies of requests and answers
//!                           v
//!             model    nodes, regions, legs, extents, events
//!                           v
//!               hdm    HDM decoders: HPA -> memory node, DPA
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`hdm`] | HDM decoders (CXL 3.1, 8.2.4.20), which spread a range of addresses over several memory nodes |
//! | [`model`] | the nouns: nodes, regions, legs, extents, logical devices, events, commands to nodes |
//! | [`api`] | bodies of requests and answers of the REST interface |
//! | [`follow`] | why a node of either kind registers again |
//! | `client` | the REST interface as typed calls; only with feature `client`, because it needs a network |
//! | `trust` | trust and credentials of a client; only with feature `tls`, which `client` includes |

// The macros `println!` and `eprintln!` panic when the stream is closed, so this crate does not use them.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod api;
#[cfg(feature = "client")]
pub mod client;
mod client_error;
pub mod follow;
pub mod hdm;
pub mod model;
#[cfg(feature = "tls")]
pub mod trust;

#[cfg(feature = "client")]
pub use client::Client;
pub use client_error::{ClientError, Unanswered};
pub use cxloe_wire::named;
