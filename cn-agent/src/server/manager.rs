//! Requests of the server to the manager on behalf of programs.

use cxloe_fabric::client::{Client, ClientError};
use cxloe_fabric::model::{CnId, Name, Region};

use super::context::ServerContext;
use cxloe_client::message::RefusalReason;

/// A client of the manager with this node's credentials, and the node's CN id.
///
/// # Errors
/// The manager's URL or the CN id is invalid.
pub fn client(context: &ServerContext) -> Result<(Client, CnId), RefusalReason> {
    let node = context.listing.node();
    let cn = node.cn.parse().map_err(|error| RefusalReason::System(format!("no CN id: {error}")))?;
    let credentials = context.identity.as_ref().map(|identity| identity.credentials()).unwrap_or_default();
    Ok((Client::with(&node.manager, credentials).map_err(refusal)?, cn))
}

pub fn refusal(error: ClientError) -> RefusalReason {
    RefusalReason::Manager { code: error.code(), text: error.to_string() }
}

/// The manager's record of a region, whichever compute node owns it.
///
/// # Errors
/// There is no such region, or the manager is not reached.
pub async fn region(context: &ServerContext, name: &Name) -> Result<Region, RefusalReason> {
    client(context)?.0.region(name).await.map_err(refusal)
}
