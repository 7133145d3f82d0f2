//! The control plane: the manager, the network between it and its callers, and the operator who requests
//! regions.
//!
//! ```text
//!   memory nodes   compute nodes   operator
//!        |  calls, answers  |         |
//!        +-------- control network ---+      each message is delayed; it may be lost or repeated
//!                       |
//!                 manager process           killed at any point, even between a commit and its answer
//!                       |
//!                 committed state           survives the process
//! ```

pub mod manager;
pub mod message;
pub mod network;
pub mod operator;
pub mod port;
