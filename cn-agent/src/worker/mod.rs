//! The running agent: one worker thread with the link, the engine, the clients' rings and the faults of programs that
//! map regions; control runs on other threads.
//!
//! ```text
//!   clients == rings ===> Worker <== frames ==> link       one thread, waits for all at once
//!   programs = faults ==>  ^  orders (bounded)
//!       +------------------+-------------------+
//!   ManagerLink: changes of regions       Server: new clients, requests
//! ```
//!
//! The clients' rings are served by `cxloe-rings`.
//!
//! * [`thread`]: the thread.
//! * [`order`]: orders from control to the worker, and their results.
//! * [`placement`]: the CPU of the thread.
//! * [`sleeper`]: waiting for the link, the clients and control in one system call.

pub mod order;
pub mod placement;
pub mod sleeper;
pub mod thread;

pub use order::{DrainedTickets, LegReport, LegReports, Orders, OrdersGone, WorkerOrder};
pub use thread::{WorkerHandle, WorkerOptions};
