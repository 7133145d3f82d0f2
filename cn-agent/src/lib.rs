//! # cxloe-cn: the compute node
//!
//! Gives programs on this machine memory that lies in memory nodes.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod attach;
pub mod attachments;
pub mod backing;
pub mod cache;
pub mod client;
pub mod config;
pub mod connect;
pub mod cxl;
pub mod daemon;
pub mod drain;
pub mod engine;
pub mod events;
pub mod exec;
pub mod fault_times;
pub mod inline;
pub mod leases;
pub mod local;
pub mod manager;
pub mod mapped;
pub mod mapping;
pub mod metrics;
pub mod nbd;
pub mod pager;
pub mod paging;
pub mod port;
pub mod rate_control;
pub mod region_controller;
pub mod server;
pub mod sigbus;
pub mod signals;
pub mod state_file;
pub mod top;
pub mod transfers;
pub mod uffd;
pub mod vm;
