//! State shared by the thread that accepts clients and the threads that serve them.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::client_slot::ClientSlots;
use super::port::RegionLocation;

#[derive(Clone, Debug)]
pub struct Options {
    /// Agent's socket, name of the region, and the limits of waiting for them.
    pub place: RegionLocation,
    pub read_only: bool,
    /// Maximum number of clients connected at a time.
    pub connections_max: usize,
    /// Time after which a client without requests is disconnected.
    pub idle: Option<Duration>,
}

#[derive(Debug)]
pub struct ServerState {
    pub options: Options,
    pub slots: ClientSlots,
}

impl ServerState {
    /// Flag that is set when the server is to shut down.
    pub fn ending(&self) -> &AtomicBool {
        &self.options.place.ending
    }
}
