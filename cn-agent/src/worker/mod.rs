//! The running agent: one worker thread with the link, the engine, the clients' rings and the faults of programs that
//! have regions mapped; control beside it.
//!
//! ```text
//!   clients == rings ===> Worker <== frames ==> link       one thread, waits for all at once
//!   programs = faults ==>  ^  orders (bounded)
//!       +------------------+-------------------+
//!   ManagerLink: regions come and go      Server: new clients, questions
//! ```
//!
//! The clients' rings are served by `cxloe-rings`.
//!
//! * [`thread`]: the thread.
//! * [`order`]: what control tells the worker, and hears of it.
//! * [`placement`]: on which CPU the thread runs.
//! * [`sleeper`]: waiting for the link, the clients and control in one system call.

pub mod order;
pub mod placement;
pub mod sleeper;
pub mod thread;

pub use order::{DrainedTickets, Order, Orders, OrdersGone};
pub use thread::{WorkerHandle, WorkerOptions};
