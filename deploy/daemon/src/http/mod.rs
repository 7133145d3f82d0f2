//! HTTP/1.1 connections within limits, for the manager's REST interface and the metrics of every daemon.
//!
//! ```text
//!   accept --> Connections: room, or eviction --> a task per connection --> the caller's service
//! ```

mod connections;
mod host_header;
mod lingering;
mod listener;
mod stalled;
mod tls;

pub use listener::{Listeners, TooManyRequests, TrackedBody, serve};
pub use tls::{Peer, TlsAuthenticator};
