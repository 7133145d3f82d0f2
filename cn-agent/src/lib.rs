//! # cxloe-cn: the agent of a compute node
//!
//! One process on each machine owns the link and the engine, and gives programs memory that lies in memory nodes.
//!
//! ```text
//!   programs == rings ===> Worker <== frames ==> link      one thread: engine, paging, drains
//!   programs = faults ==>        ^
//!                                | orders
//!   programs -- requests --> server      region_controller <--- manager: regions come and go
//!                                          |        ^--------- CXL devices of this machine
//!                                          `--> state_file: remembered before it is done
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`worker`] | the worker thread, and how it is told what to do |
//! | [`server`] | the socket that programs ask |
//! | [`region_controller`] | what is known of this node's regions: remembered, carried out, shown |
//! | [`manager`] | the link to the manager |
//! | [`state_file`] | what outlives the process |
//! | [`config`] | options and files |
//! | [`metrics`] | counters for Prometheus |
//! | [`top`] | `cn-agent top` |
//!
//! What decides is in `cxloe-cn-core`; the ways in which programs reach remote memory are crates of their own:
//! `cxloe-paging`, `cxloe-client`, `cxloe-port`, `cxloe-cxl`, `cxloe-nbd`, `cxloe-exec`, `cxloe-vmm`.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod config;
pub mod manager;
pub mod metrics;
pub mod region_controller;
pub mod server;
pub mod state_file;
pub mod top;
pub mod worker;
