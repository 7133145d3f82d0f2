//! HTTP/1.1 connections within limits: what the manager's REST interface and every daemon's metrics are served with.
//!
//! ```text
//!   accept --> Connections: is there room, who has to go? --> a task per connection --> the caller's service
//! ```

mod connections;
mod listener;
mod stalled;
mod tls;

pub use listener::{Arriving, Crowded, Listeners, serve};
pub use tls::{Peer, TlsDoor};
