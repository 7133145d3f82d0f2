//! What the thread that accepts clients and the threads that serve them share.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::client_slot::ClientSlots;
use super::port::Place;
use super::seldom::Seldom;

/// What is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agent's socket, the region, and how long to wait for them.
    pub place: Place,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Clients at a time.
    pub connections_max: usize,
    /// How long a client may ask for nothing.
    pub idle: Option<Duration>,
}

/// What clients can have the log filled with.
#[derive(Debug, Default)]
pub struct Said {
    /// Requests that failed.
    pub failed: Seldom,
    /// Clients to whom nothing could be offered.
    pub nothing: Seldom,
    /// Clients that were not let in.
    pub turned_away: Seldom,
    /// Clients of other users.
    pub strangers: Seldom,
    /// Clients that were hung up on.
    pub hung_up: Seldom,
}

/// What accepting and serving threads share.
#[derive(Debug)]
pub struct Shared {
    /// What is served.
    pub options: Options,
    /// What was said of late.
    pub said: Said,
    /// Who is served at this moment.
    pub slots: ClientSlots,
}

impl Shared {
    /// Set when the server is to end.
    pub fn ending(&self) -> &AtomicBool {
        &self.options.place.ending
    }
}
