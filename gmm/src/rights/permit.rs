//! What a command asks of who gives it, beyond the route it comes by: a node speaks for itself only, as what it has
//! joined; a tenant, and a compute node, has regions of its own only.

use cxloe_fabric::api::{Owner, Party};
use cxloe_fabric::model::{CnId, Name};

use super::caller::{Caller, May, Tenant};
use super::right::Denied;
use crate::manager::access::JoinedNode;
use crate::manager::{Command, Manager};

/// Whose affair a command is.
enum Affair<'a> {
    /// A node's own.
    Node(Party),
    /// That of the owner of a region to be made, with its size.
    NewRegion(&'a Owner, u64),
    /// That of a region's owner; what it would have more.
    Region(&'a Name, u64),
    /// A node's that is not one yet.
    Join,
    /// An administrator's.
    Administer,
}

fn affair(command: &Command) -> Affair<'_> {
    match command {
        Command::RegisterMemoryNode(node) => Affair::Node(Party::MemoryNode(node.name.clone())),
        Command::SyncMemoryNode(name, _) | Command::ReportOrphans(name, _) => {
            Affair::Node(Party::MemoryNode(name.clone()))
        }
        Command::RegisterComputeNode(node) => Affair::Node(Party::ComputeNode(node.cn_id)),
        Command::SyncComputeNode(cn, _) => Affair::Node(Party::ComputeNode(*cn)),
        Command::NotFollowed(said) => Affair::Node(said.node.clone()),
        Command::CreateRegion(create) => Affair::NewRegion(&create.owner, create.size.0),
        Command::GrowRegion(name, grow) => Affair::Region(name, grow.size.0),
        Command::DestroyRegion { name, .. }
        | Command::ResetRegion(name)
        | Command::DisableRegion(name)
        | Command::EnableRegion(name)
        | Command::ReleaseRegion(name) => Affair::Region(name, 0),
        Command::Join { .. } => Affair::Join,
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
        | Command::ForgetMemoryNode { .. }
        | Command::ForgetComputeNode(_)
        | Command::CreateToken(_)
        | Command::RevokeToken(_)
        | Command::Revoke(_)
        | Command::SetKey(..)
        | Command::NoteRefused(..)
        | Command::Tick => Affair::Administer,
    }
}

/// Whether `caller` may give `command` to `manager` as it stands.
///
/// # Errors
/// [`Denied`].
pub fn permit(manager: &Manager, caller: &Caller, command: &Command) -> Result<(), Denied> {
    let denied = |what: &str| Err(Denied::forbidden(caller, what));
    if let Command::RegisterComputeNode(node) = command
        && node.new_key
        && caller.unguarded
    {
        return denied("a key that was made for one run is taken by the Unix socket and over TLS");
    }
    match (&caller.may, affair(command)) {
        (May::Everything, _) | (May::Join(_), Affair::Join) => Ok(()),
        (May::Node(joined), Affair::Node(node)) if joined.node != node => {
            denied(&format!("it is not {node}"))
        }
        (May::Node(joined), Affair::Node(_)) => as_joined(joined, command).or_else(|what| denied(&what)),
        (May::Node(JoinedNode { node: Party::ComputeNode(cn), .. }), affair) => {
            let own = Tenant { compute_nodes: vec![*cn], quota: None };
            of_tenant(manager, &own, &affair).or_else(|what| denied(&what))
        }
        (May::Tenant(tenant), affair) => of_tenant(manager, tenant, &affair).or_else(|what| denied(&what)),
        _ => denied("its role does not allow it"),
    }
}

/// A node is what it has joined as: its addresses are those an administrator let in.
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

fn of_tenant(manager: &Manager, tenant: &Tenant, affair: &Affair<'_>) -> Result<(), String> {
    let owns = |cn: CnId| match tenant.compute_nodes.contains(&cn) {
        true => Ok(()),
        false => Err(format!("compute node {cn} is not its own")),
    };
    let more = match affair {
        Affair::NewRegion(owner, size) => {
            let cn = match owner {
                Owner::CnId(cn) => Some(*cn),
                Owner::Name(_) => manager.known_compute_node(owner).ok().map(|node| node.cn_id),
            };
            // Of a name that is nobody's, the manager says so.
            cn.map_or(Ok(()), owns)?;
            *size
        }
        Affair::Region(name, size) => match manager.region(name) {
            Ok(region) => {
                owns(region.owner)?;
                size.saturating_sub(region.bytes())
            }
            Err(_) => 0,
        },
        _ => return Err("its role does not allow it".to_owned()),
    };
    let Some(quota) = tenant.quota.filter(|_| more > 0) else { return Ok(()) };
    let regions = manager.state().regions.values();
    let own = regions.filter(|region| tenant.compute_nodes.contains(&region.owner));
    let has: u64 = own.map(|region| region.bytes()).fold(0, u64::saturating_add);
    if has.saturating_add(more) <= quota {
        return Ok(());
    }
    Err(format!("it has {has} bytes in regions, wants {more} more, and its quota is {quota}"))
}
