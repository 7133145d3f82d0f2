//! Temporary regions, which the agent creates through the manager on behalf of users without rights there. The agent
//! requests them for its own node; each region belongs to the user of the program that needs it.

use cxloe_fabric::api::{CreateRegion, DestroyRegion, ErrorCode, GrowRegion, MemoryNodeStatus};
use cxloe_fabric::client::ClientError;
use cxloe_fabric::model::{ByteSize, Name};

use super::caller::Caller;
use super::context::ServerContext;
use super::manager;
use cxloe_client::message::{AgentAnswer, RefusalReason};
use cxloe_cn_core::mapped::TEMPORARY;
use cxloe_cn_core::user_shares::SHARE_DEFAULT;

/// Default extent of memory nodes in bytes; sizes of regions are multiples of it.
const EXTENT: u64 = 2 << 20;
/// Time that the manager may take to create, grow or destroy a region, in milliseconds.
const WAIT_MS: u64 = 10_000;

/// Maximum size in total of one user's temporary regions: as configured, or else a fixed part of all pools.
fn memory_share(context: &ServerContext, nodes: &[MemoryNodeStatus]) -> u64 {
    let all = nodes.iter().fold(0_u64, |sum, node| sum.saturating_add(node.node.pool_bytes));
    // Without memory nodes the check here passes, so that the manager refuses, with the right reason.
    let part = if all == 0 { u64::MAX } else { all / SHARE_DEFAULT as u64 };
    context.shares.memory.unwrap_or(part)
}

/// Whether the manager's refusal is final. After any other error, the manager may have carried the request out, or may
/// still do so.
fn is_refused(error: &ClientError) -> bool {
    error.code().is_some() && !error.is_passing()
}

/// Creates a region of at least `bytes` bytes for the requesting process.
///
/// # Errors
/// The reason why no region was created; the agent destroys what the manager may have created, at the latest when the
/// process ends.
pub async fn create(
    context: &ServerContext,
    caller: Caller,
    bytes: u64,
) -> Result<AgentAnswer, RefusalReason> {
    let unknown = || RefusalReason::Unseen(cxloe_paging::joining::unseen(0));
    let pid = caller.pid.filter(|pid| *pid != 0).ok_or_else(unknown)?;
    let (client, cn) = manager::client(context)?;
    let nodes = client.memory_nodes().await.map_err(manager::refusal)?;
    let unit = nodes.iter().map(|node| node.node.extent_bytes).fold(EXTENT, u64::max);
    let name = Name::new(format!("{TEMPORARY}{pid}-{:08x}", rand::random::<u32>()));
    let name = name.map_err(|error| RefusalReason::System(error.to_string()))?;
    let bytes = bytes.checked_next_multiple_of(EXTENT).unwrap_or(bytes);
    let share = memory_share(context, &nodes);
    // Stored before the request, so that the region is destroyed later even if no answer arrives.
    context.controller.lease(name.clone(), pid, caller.uid, bytes, share)?;
    let create = CreateRegion { uid: Some(caller.uid), ..CreateRegion::new(name.clone(), bytes, cn) };
    match client.create_region(&create).await {
        Ok(region) => {
            if let Err(error) = context.controller.lease_created(&name, region.created_ms) {
                tracing::warn!(region = %name, %error, "the creation time of a program's region cannot be stored");
            }
            Ok(AgentAnswer::Created { region: name, unit })
        }
        Err(error) => {
            // After any other error the lease stays, so that a region that was created after all is
            // destroyed.
            if is_refused(&error) {
                let _ = context.controller.lease_over(&name);
            }
            Err(manager::refusal(error))
        }
    }
}

/// Grows a region that was created for a program of the requesting user.
///
/// # Errors
/// The reason why the region was not grown.
pub async fn grow(
    context: &ServerContext,
    caller: Caller,
    region: Name,
    bytes: u64,
) -> Result<AgentAnswer, RefusalReason> {
    check(context, caller, &region)?;
    let (client, _) = manager::client(context)?;
    let share = memory_share(context, &client.memory_nodes().await.map_err(manager::refusal)?);
    let before = context.controller.lease_grows(&region, bytes, share)?;
    let grow = GrowRegion { size: ByteSize(bytes), on: Vec::new(), wait_ms: WAIT_MS };
    match client.grow_region(&region, &grow).await {
        Ok(_) => Ok(AgentAnswer::Done),
        Err(error) => {
            // After any other error the larger size stays recorded, since the region may have grown.
            if is_refused(&error) {
                context.controller.set_lease_size(&region, before)?;
            }
            Err(manager::refusal(error))
        }
    }
}

/// Destroys a region that was created for a program of the requesting user.
///
/// # Errors
/// The reason why the region was not destroyed; the agent destroys it later, after the program's end.
pub async fn destroy(
    context: &ServerContext,
    caller: Caller,
    region: Name,
) -> Result<AgentAnswer, RefusalReason> {
    check(context, caller, &region)?;
    let (client, _) = manager::client(context)?;
    let created_ms = context.controller.created_ms(&region);
    let now = DestroyRegion { force: true, wait_ms: WAIT_MS, created_ms };
    match client.destroy_region(&region, now).await {
        Ok(_) => {}
        Err(error) if error.code() == Some(ErrorCode::NotFound) => {}
        Err(error) => return Err(manager::refusal(error)),
    }
    context.controller.lease_over(&region).map_err(|error| RefusalReason::System(error.to_string()))?;
    Ok(AgentAnswer::Done)
}

/// Checks that a region was created for a program of the requesting user; the agent changes no other region on request.
fn check(context: &ServerContext, caller: Caller, region: &Name) -> Result<(), RefusalReason> {
    match context.controller.lessee(region) {
        Some(uid) if caller.may_use(Some(uid)) => Ok(()),
        _ => Err(RefusalReason::NotTemporary(region.to_string())),
    }
}
