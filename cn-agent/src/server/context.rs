//! State shared by the server's parts.

use std::sync::Arc;

use cxloe_cn_core::user_shares::UserShares;
use cxloe_daemon::NodeIdentity;
use cxloe_rings::client_slot::ClientSlots;

use crate::region_controller::{RegionController, RegionListing};
use crate::worker::Workers;

/// Access of the server to the other parts of the agent.
#[derive(Clone, Debug)]
pub struct ServerContext {
    /// This node's certificate for the manager, if it has joined.
    pub identity: Option<Arc<NodeIdentity>>,
    /// Shared view of the attached regions.
    pub listing: RegionListing,
    /// Controller of regions, which also keeps the leases of temporary regions.
    pub controller: RegionController,
    /// Senders of orders to the workers.
    pub workers: Workers,
    /// Places of ports.
    pub slots: ClientSlots,
    /// Shares of each user.
    pub shares: UserShares,
    /// Whether programs of all users are given `/dev/userfaultfd`.
    pub allow_kernel_faults: bool,
    /// Lock that is held while the state of a dead agent's space is adopted.
    pub adopting: Arc<tokio::sync::Mutex<()>>,
}
