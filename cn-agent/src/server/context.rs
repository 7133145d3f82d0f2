//! Access of the server's parts to the rest of the agent.

use std::sync::Arc;

use cxloe_cn_core::user_shares::UserShares;
use cxloe_daemon::NodeIdentity;
use cxloe_rings::client_slot::ClientSlots;

use crate::region_controller::{RegionController, RegionListing};
use crate::worker::Workers;

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
    /// Limits of open ports, in total and of each user.
    pub slots: ClientSlots,
    /// Maximum use of each resource by one user.
    pub shares: UserShares,
    /// Whether programs of all users are given `/dev/userfaultfd`.
    pub allow_kernel_faults: bool,
    /// Lock for adopting a space (the memory of a mapped region) from an agent that has ended, so that two requests do
    /// not adopt the same space.
    pub adopting: Arc<tokio::sync::Mutex<()>>,
}
