//! # cxloe-cn: the compute node
//!
//! Gives programs on this machine memory that lies in memory nodes.

pub mod attach;
pub mod attachments;
pub mod cache;
pub mod client;
pub mod config;
pub mod daemon;
pub mod engine;
pub mod events;
pub mod local;
pub mod manager;
pub mod port;
pub mod rate_control;
pub mod signals;
pub mod state_file;
