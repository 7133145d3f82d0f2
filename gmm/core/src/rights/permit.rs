//! Check of a command against the caller's own nodes, regions and quota, after the check of the route's
//! [`Right`](super::right::Right). A node may send commands about itself only, with the addresses that it
//! joined with. A tenant or a compute node may change its own regions only.

use cxloe_fabric::api::{Owner, Party};
use cxloe_fabric::model::{CnId, Name};

use super::caller::{Caller, CallerRights, Tenant};
use super::right::Denied;
use crate::manager::access::JoinedNode;
use crate::manager::{Command, Manager};

/// Party that may send a command. An administrator may send every command.
enum ConcernedParty<'a> {
    /// The node that the command is about.
    Node(Party),
    /// The compute node that will own the new region; the number of bytes is that of all copies together.
    NewRegion(&'a Owner, u64),
    /// The agent of the compute node that owns this region; a tenant may not send the command.
    Agent(&'a Name),
    /// The owner of this region; the size in bytes that the region is to have, or 0 if the size does not
    /// change.
    Region(&'a Name, u64),
    /// The owner of this region, which is to be cloned, and the owner of the clone; `None`: both have the
    /// same owner.
    Clone(&'a Name, Option<&'a Owner>),
    /// The owner of this region, and the compute node that is to own or read it, if the command names one.
    Other(&'a Name, Option<&'a Owner>),
    /// The owner of this region; the number of copies that the region is to have.
    Protect(&'a Name, u8),
    /// The bearer of a join token, which was checked before.
    Join,
    /// An administrator only.
    Administer,
}

fn affair(command: &Command) -> ConcernedParty<'_> {
    match command {
        Command::RegisterMemoryNode(node) => ConcernedParty::Node(Party::MemoryNode(node.name.clone())),
        Command::SyncMemoryNode(name, _) | Command::ReportOrphans(name, _) => {
            ConcernedParty::Node(Party::MemoryNode(name.clone()))
        }
        Command::RegisterComputeNode(node) => ConcernedParty::Node(Party::ComputeNode(node.cn_id)),
        Command::SyncComputeNode(cn, _) => ConcernedParty::Node(Party::ComputeNode(*cn)),
        Command::NotFollowed(said) => ConcernedParty::Node(said.node.clone()),
        Command::CreateRegion(create) => {
            let copies = u64::from(create.protect.copies());
            ConcernedParty::NewRegion(&create.owner, create.size.0.saturating_mul(copies))
        }
        Command::GrowRegion(name, grow) => ConcernedParty::Region(name, grow.size.0),
        Command::LegsStale(name, _) | Command::LegsFilled(name, _) => ConcernedParty::Agent(name),
        Command::CloneRegion(name, order) => ConcernedParty::Clone(name, order.owner.as_ref()),
        Command::MoveRegion(name, order) => ConcernedParty::Other(name, order.to.as_ref()),
        Command::ShareRegion(name, order) => ConcernedParty::Other(name, Some(&order.with)),
        Command::ProtectRegion(name, protect) => ConcernedParty::Protect(name, protect.protect.copies()),
        Command::DestroyRegion { name, .. }
        | Command::ResetRegion(name)
        | Command::DisableRegion(name)
        | Command::EnableRegion(name)
        | Command::SealRegion(name, _)
        | Command::LabelRegion(name, _)
        | Command::ReleaseRegion(name) => ConcernedParty::Region(name, 0),
        Command::Join { .. } => ConcernedParty::Join,
        Command::ReleaseOrphans(_)
        | Command::Adopt(_)
        | Command::HungUp(..)
        | Command::SetQuota(..)
        | Command::Hold(..)
        | Command::SetLdAllocations(..)
        | Command::Bind(..)
        | Command::Unbind(..)
        | Command::AbortOperation(_)
        | Command::SetQos(_)
        | Command::GenerateAer { .. }
        | Command::ClearLog(_)
        | Command::RelocateRegion(..)
        | Command::DrainMemoryNode(..)
        | Command::ForgetMemoryNode { .. }
        | Command::ForgetComputeNode(_)
        | Command::CreateToken(_)
        | Command::RevokeToken(_)
        | Command::Revoke(_)
        | Command::SetKey(..)
        | Command::NoteRefused(..)
        | Command::Tick => ConcernedParty::Administer,
    }
}

/// Checks that `caller` may give `command` to `manager` in its present state.
///
/// # Errors
/// [`Denied`] if the command is about another node or region, goes beyond the tenant's quota, or needs an
/// administrator.
pub fn permit(manager: &Manager, caller: &Caller, command: &Command) -> Result<(), Denied> {
    let denied = |what: &str| Err(Denied::forbidden(caller, what));
    // Without access control, anyone who reaches the port could replace the key of a compute node.
    if let Command::RegisterComputeNode(node) = command
        && node.new_key
        && caller.unguarded
    {
        return denied("a key that was made for one run is taken by the Unix socket and over TLS");
    }
    match (&caller.may, affair(command)) {
        (CallerRights::Everything, _) | (CallerRights::Join(_), ConcernedParty::Join) => Ok(()),
        (CallerRights::Node(joined), ConcernedParty::Node(node)) if joined.node != node => {
            denied(&format!("it is not {node}"))
        }
        (CallerRights::Node(joined), ConcernedParty::Node(_)) => {
            as_joined(joined, command).or_else(|what| denied(&what))
        }
        (CallerRights::Node(JoinedNode { node: Party::ComputeNode(cn), .. }), affair) => {
            let own = Tenant { compute_nodes: vec![*cn], quota: None };
            // Only the owner's agent may report which copies of a region are in sync: the compute node may send these
            // commands, a tenant may not.
            let affair = match affair {
                ConcernedParty::Agent(name) => ConcernedParty::Region(name, 0),
                other => other,
            };
            of_tenant(manager, &own, &affair).or_else(|what| denied(&what))
        }
        (CallerRights::Tenant(tenant), affair) => {
            of_tenant(manager, tenant, &affair).or_else(|what| denied(&what))
        }
        _ => denied("its role does not allow it"),
    }
}

/// Checks that a node registers with the addresses and the key that it joined with.
fn as_joined(joined: &JoinedNode, command: &Command) -> Result<(), String> {
    if let Command::RegisterComputeNode(node) = command
        && node.new_key
    {
        return Err("it is known by the key that it has joined with".to_owned());
    }
    let (macs, key) = match command {
        Command::RegisterMemoryNode(node) => (&node.macs[..], node.key),
        Command::RegisterComputeNode(node) => (&[][..], node.key),
        Command::NotFollowed(_) if matches!(joined.node, Party::FmClient(_)) => {
            return Err("an FM client holds no memory".to_owned());
        }
        _ => return Ok(()),
    };
    if let Some(mac) = macs.iter().find(|mac| !joined.macs.contains(mac)) {
        return Err(format!("it has joined without the address {mac}; have it join again"));
    }
    match (joined.key, key) {
        (Some(joined), Some(key)) if joined != key => {
            Err(format!("it has joined with the key {joined}, and comes with {key}; have it join again"))
        }
        _ => Ok(()),
    }
}

fn of_tenant(manager: &Manager, tenant: &Tenant, affair: &ConcernedParty<'_>) -> Result<(), String> {
    let owns = |cn: CnId| match tenant.compute_nodes.contains(&cn) {
        true => Ok(()),
        false => Err(format!("compute node {cn} is not its own")),
    };
    let owns_named = |owner: &Owner| {
        let cn = match owner {
            Owner::CnId(cn) => Some(*cn),
            Owner::Name(_) => manager.known_compute_node(owner).ok().map(|node| node.cn_id),
        };
        // A name that no compute node has passes this check, because the manager refuses it with a better message than
        // a denial.
        cn.map_or(Ok(()), owns)
    };
    let more = match affair {
        ConcernedParty::NewRegion(owner, size) => {
            owns_named(owner)?;
            *size
        }
        ConcernedParty::Clone(name, owner) => match manager.region(name) {
            Ok(region) => {
                owns(region.owner)?;
                owner.map_or(Ok(()), owns_named)?;
                region.bytes()
            }
            Err(_) => 0,
        },
        ConcernedParty::Other(name, other) => {
            if let Ok(region) = manager.region(name) {
                owns(region.owner)?;
            }
            other.map_or(Ok(()), owns_named)?;
            0
        }
        ConcernedParty::Region(name, size) => match manager.region(name) {
            Ok(region) => {
                owns(region.owner)?;
                size.saturating_sub(region.bytes()).saturating_mul(u64::from(region.protect.copies()))
            }
            Err(_) => 0,
        },
        ConcernedParty::Protect(name, copies) => match manager.region(name) {
            Ok(region) => {
                owns(region.owner)?;
                region.bytes().saturating_mul(u64::from(copies.saturating_sub(region.protect.copies())))
            }
            Err(_) => 0,
        },
        _ => return Err("its role does not allow it".to_owned()),
    };
    // A command that takes no additional memory, such as a release, is allowed even if the quota is exceeded.
    let Some(quota) = tenant.quota.filter(|_| more > 0) else { return Ok(()) };
    let regions = manager.state().regions.values();
    let own = regions.filter(|region| tenant.compute_nodes.contains(&region.owner));
    let has: u64 = own
        .map(|region| region.bytes().saturating_mul(u64::from(region.protect.copies())))
        .fold(0, u64::saturating_add);
    if has.saturating_add(more) <= quota {
        return Ok(());
    }
    Err(format!("it has {has} bytes in regions, wants {more} more, and its quota is {quota}"))
}
