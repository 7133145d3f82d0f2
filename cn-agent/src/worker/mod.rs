//! The workers of an agent. Each worker is a thread with a link, an engine, the rings of clients and the
//! faults of programs that map regions; control runs on other threads. Workers share nothing: each serves the
//! regions in its bands of addresses.
//!
//! ```text
//!   clients == rings ===> Worker <== frames ==> link       a thread each, waits for all at once
//!   programs = faults ==>  ^  orders (bounded)
//!       +------------------+-------------------+
//!   ManagerLink: changes of regions       Server: new clients, requests
//! ```
//!
//! The clients' rings are served by `cxloe-rings`.
//!
//! * [`thread`]: the thread.
//! * [`order`]: orders from control to a worker, and their results.
//! * [`workers`]: orders to all workers, divided as `cxloe_cn_core::workers` decides.
//! * [`placement`]: the CPU of the thread.
//! * [`sleeper`]: waiting for the link, the clients and control in one system call.

pub mod order;
pub mod placement;
pub mod sleeper;
pub mod thread;
pub mod workers;

pub use order::{DrainedTickets, LegReport, LegReports, Orders, OrdersGone, WorkerOrder, WorkerResults};
pub use thread::{WorkerHandle, WorkerOptions};
pub use workers::Workers;
