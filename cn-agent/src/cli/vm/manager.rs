//! Client of the manager for the move of a virtual machine: orders that the machine's region be handed over to another
//! compute node, or that the hand-over be stopped.

use std::time::Duration;

use cxloe_fabric::Client;
use cxloe_fabric::api::MoveRegion;
use cxloe_fabric::client::Credentials;
use cxloe_fabric::model::{CnId, Name, Region};
use cxloe_vmm::migration::sender::RegionManager;
use tokio::runtime::Runtime;

/// Maximum time in milliseconds for which the manager may wait for a hand-over before it answers.
const HAND_OVER_MS: u64 = 5_000;
/// Maximum wait for the manager's answer; longer than [`HAND_OVER_MS`].
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Client with the rights of the user who moves the machine, not with those of this node.
pub struct FabricManager {
    client: Client,
    runtime: Runtime,
}

impl FabricManager {
    /// Creates a client of the manager at `url`.
    ///
    /// # Errors
    /// A malformed URL or token.
    pub fn new(url: &str, token: Option<&str>) -> Result<FabricManager, String> {
        let credentials = match token {
            Some(token) => {
                Credentials::of_token(token.parse().map_err(|_| "the token is malformed".to_owned())?)
            }
            None => Credentials::default(),
        };
        let client = Client::with(url, credentials).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(FabricManager { client, runtime: runtime.map_err(|error| error.to_string())? })
    }

    fn order(&self, region: &str, order: &MoveRegion) -> Result<(String, bool), String> {
        let name = Name::new(region).map_err(|error| error.to_string())?;
        let answer = self.runtime.block_on(async {
            tokio::time::timeout(ANSWER_MAX, self.client.move_region(&name, order)).await
        });
        match answer {
            Ok(Ok(Region { owner, release, .. })) => {
                Ok((owner.to_string(), release.is_some_and(|release| release.to.is_some())))
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("the manager has not answered within {ANSWER_MAX:?}")),
        }
    }
}

impl RegionManager for FabricManager {
    fn hand_over(&mut self, region: &str, to: &str) -> Result<(String, bool), String> {
        let to: CnId = to.parse().map_err(|_| format!("`{to}` is no CN id"))?;
        self.order(region, &MoveRegion { to: Some(to.into()), force: false, wait_ms: HAND_OVER_MS })
    }

    fn stop(&mut self, region: &str) -> Result<(String, bool), String> {
        self.order(region, &MoveRegion { to: None, force: false, wait_ms: 0 })
    }
}
