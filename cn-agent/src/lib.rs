//! # cxloe-cn: the compute node
//!
//! Gives programs on this machine memory that lies in memory nodes.

pub mod attach;
pub mod cache;
pub mod engine;
pub mod events;
pub mod port;
