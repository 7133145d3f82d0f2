//! Measurements of CXL over Ethernet, and what they stand on.
//!
//! A measurement runs in a [`cxloe_lab::Lab`]: network namespaces joined by virtual cables, gone when the process ends. It says
//! on which [`machine`] it ran, and hands its samples to a [`report`], which turns them into JSON, a table and a page.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod cli;
pub mod compare;
pub mod connect;
pub mod fabric;
pub mod figures;
pub mod keys;
pub mod machine;
pub mod measure;
pub mod paper;
pub mod pattern;
pub mod programs;
pub mod report;
pub mod retransmission;
pub mod standard;
