//! What the server's parts have in common.

use std::sync::Arc;

use cxloe_daemon::NodeIdentity;

use crate::region_controller::{Listing, RegionController};
use crate::worker::Orders;

/// What the server hands on.
#[derive(Clone, Debug)]
pub struct ServerContext {
    /// What this node shows the manager, if it has joined.
    pub identity: Option<Arc<NodeIdentity>>,
    /// What is attached.
    pub listing: Listing,
    /// Where temporary regions are kept in mind.
    pub controller: RegionController,
    /// The worker.
    pub orders: Orders,
    /// Ports at a time.
    pub clients_max: usize,
    /// Whether programs of all users are given `/dev/userfaultfd`.
    pub allow_kernel_faults: bool,
    /// Held by whoever takes over what an agent that has died left behind.
    pub adopting: Arc<tokio::sync::Mutex<()>>,
}
