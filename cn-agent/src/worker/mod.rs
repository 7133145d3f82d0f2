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
//! * [`thread`]: the thread.
//! * [`bulk`]: their operations on more than a line, or less.
//! * [`clients`]: the clients' rings as a source of operations and a sink of completions.
//! * [`order`]: what control tells the worker, and hears of it.
//! * [`placement`]: on which CPU the thread runs.
//! * [`sleeper`]: waiting for the link, the clients and control in one system call.

pub mod bulk;
pub mod clients;
pub mod jobs;
pub mod order;
mod owners;
pub mod placement;
pub mod sleeper;
pub mod thread;

pub use order::{DrainedTickets, Order, Orders, OrdersGone};
pub use thread::{WorkerHandle, WorkerOptions};
