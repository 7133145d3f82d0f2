//! # cxloe-cn: the agent of a compute node
//!
//! One process on each machine owns the link and the engine, and gives programs memory that lies in memory nodes.
//!
//! ```text
//!   programs == rings ===> Worker <== frames ==> link      one thread: engine, paging, drains
//!   programs = faults ==>        ^
//!                                | orders
//!   programs -- requests --> server      region_controller <--- manager: changes of regions
//!                                          |        ^--------- CXL devices of this machine
//!                                          `--> state_file: stored before it is done
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`worker`] | the worker thread, and the orders it takes |
//! | [`server`] | the socket for programs' requests |
//! | [`region_controller`] | the state of this node's regions: persistent, carried out, listed |
//! | [`manager`] | the link to the manager |
//! | [`state_file`] | persistent state |
//! | [`config`] | options and files |
//! | [`metrics`] | counters for Prometheus |
//! | [`top`] | `cn-agent top` |
//!
//! Decisions are in `cxloe-cn-core`; each way in which programs reach remote memory is a crate of its own:
//! `cxloe-paging`, `cxloe-client`, `cxloe-port`, `cxloe-cxl`, `cxloe-nbd`, `cxloe-exec`, `cxloe-vmm`.

// Warns about `println!` and the like, which panic when standard output or error is closed. The project's own macros do
// not.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod config;
pub mod manager;
pub mod metrics;
pub mod region_controller;
pub mod server;
pub mod state_file;
pub mod top;
pub mod worker;
