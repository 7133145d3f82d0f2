//! Regions for one program each, created through the manager for users who have no right there: the agent asks for its own
//! node, and the region belongs to the user whose program it is.

use cxloe_fabric::api::{CreateRegion, DestroyRegion, ErrorCode, GrowRegion};
use cxloe_fabric::client::{Client, ClientError};
use cxloe_fabric::model::{ByteSize, CnId, Name};

use super::caller::Caller;
use super::context::ServerContext;
use cxloe_client::message::{Answer, Refused};
use cxloe_cn_core::mapped::TEMPORARY;

/// What memory nodes give away by default; sizes are multiples of it.
const EXTENT: u64 = 2 << 20;
/// How long the manager may take for a region or its growth, and for its end, in milliseconds.
const WAIT_MS: u64 = 10_000;

fn manager(context: &ServerContext) -> Result<(Client, CnId), Refused> {
    let node = context.listing.node();
    let cn = node.cn.parse().map_err(|error| Refused::System(format!("no CN id: {error}")))?;
    let credentials = context.identity.as_ref().map(|identity| identity.credentials()).unwrap_or_default();
    Ok((Client::with(&node.manager, credentials).map_err(of_manager)?, cn))
}

fn of_manager(error: ClientError) -> Refused {
    Refused::Manager { code: error.code(), text: error.to_string() }
}

/// Creates a region of at least `bytes` bytes for the process that asks.
///
/// # Errors
/// Why not; nothing is left behind then, or the agent destroys it with the process.
pub async fn create(context: &ServerContext, caller: Caller, bytes: u64) -> Result<Answer, Refused> {
    let unknown = || Refused::Unseen(cxloe_paging::joining::unseen(0));
    let pid = caller.pid.filter(|pid| *pid != 0).ok_or_else(unknown)?;
    let (manager, cn) = manager(context)?;
    let nodes = manager.memory_nodes().await.map_err(of_manager)?;
    let unit = nodes.iter().map(|node| node.node.extent_bytes).fold(EXTENT, u64::max);
    let name = Name::new(format!("{TEMPORARY}{pid}-{:08x}", rand::random::<u32>()));
    let name = name.map_err(|error| Refused::System(error.to_string()))?;
    let bytes = bytes.checked_next_multiple_of(EXTENT).unwrap_or(bytes);
    context.controller.lease(name.clone(), pid, caller.uid)?;
    let create = CreateRegion { uid: Some(caller.uid), ..CreateRegion::new(name.clone(), bytes, cn) };
    match manager.create_region(&create).await {
        Ok(region) => {
            if let Err(error) = context.controller.lease_created(&name, region.created_ms) {
                tracing::warn!(region = %name, %error, "when a program's region was created is not kept");
            }
            Ok(Answer::Created { region: name, unit })
        }
        Err(error) => {
            // Of what the manager has not said no to, it may have made something.
            if error.code().is_some() && !error.is_passing() {
                let _ = context.controller.lease_over(&name);
            }
            Err(of_manager(error))
        }
    }
}

/// Has a region grow that was created for a program of the user who asks.
///
/// # Errors
/// Why not.
pub async fn grow(
    context: &ServerContext,
    caller: Caller,
    region: Name,
    bytes: u64,
) -> Result<Answer, Refused> {
    check(context, caller, &region)?;
    let (manager, _) = manager(context)?;
    let grow = GrowRegion { size: ByteSize(bytes), on: Vec::new(), wait_ms: WAIT_MS };
    manager.grow_region(&region, &grow).await.map_err(of_manager)?;
    Ok(Answer::Done)
}

/// Has a region destroyed that was created for a program of the user who asks.
///
/// # Errors
/// Why not; the agent does it later, when the program has ended.
pub async fn destroy(context: &ServerContext, caller: Caller, region: Name) -> Result<Answer, Refused> {
    check(context, caller, &region)?;
    let (manager, _) = manager(context)?;
    let created_ms = context.controller.created_ms(&region);
    let now = DestroyRegion { force: true, wait_ms: WAIT_MS, created_ms };
    match manager.destroy_region(&region, now).await {
        Ok(_) => {}
        Err(error) if error.code() == Some(ErrorCode::NotFound) => {}
        Err(error) => return Err(of_manager(error)),
    }
    context.controller.lease_over(&region).map_err(|error| Refused::System(error.to_string()))?;
    Ok(Answer::Done)
}

/// Whether a region was created for a program of the user who asks: no other is changed by the agent, whoever asks.
fn check(context: &ServerContext, caller: Caller, region: &Name) -> Result<(), Refused> {
    match context.controller.lessee(region) {
        Some(uid) if caller.may_use(Some(uid)) => Ok(()),
        _ => Err(Refused::NotTemporary(region.to_string())),
    }
}
