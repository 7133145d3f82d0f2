//! Messages between the manager and its callers: calls of the REST interface, without HTTP.

use std::fmt;

use cxloe_fabric::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, ErrorCode, MemoryNodeRegistered,
    MemoryNodeSync, MemoryNodeSynced, NotFollowed, RegisterComputeNode, RegisterMemoryNode, ReportOrphans,
};
use cxloe_fabric::model::{CnId, Name};
use cxloe_gmm_core::manager::Command;
use cxloe_gmm_core::manager::liveness::NodeKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The memory node with this number in the run.
    Mn(usize),
    /// The compute node with this number in the run.
    Cn(usize),
    /// The operator, who creates and destroys regions.
    Operator,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Mn(index) => f.pad(&format!("mn{index}")),
            Caller::Cn(index) => f.pad(&format!("cn{index}")),
            Caller::Operator => f.pad("operator"),
        }
    }
}

/// A call to the manager, which is a request of the REST interface.
#[derive(Clone, Debug)]
pub enum ManagerCall {
    /// `POST /v1/memory-nodes`.
    RegisterMemoryNode(RegisterMemoryNode),
    /// `POST /v1/memory-nodes/NAME/sync`, a long poll.
    SyncMemoryNode(Name, MemoryNodeSync),
    /// `POST /v1/memory-nodes/NAME/orphans`.
    ReportOrphans(Name, ReportOrphans),
    /// Report of a node that refuses to follow this manager, for example because the manager's store is too old.
    NotFollowed(NotFollowed),
    /// `POST /v1/compute-nodes`.
    RegisterComputeNode(RegisterComputeNode),
    /// `POST /v1/compute-nodes/CN/sync`, a long poll.
    SyncComputeNode(CnId, ComputeNodeSync),
    /// A command of the operator, on regions or bindings.
    Order(Box<Command>),
}

#[derive(Clone, Debug)]
pub enum ManagerReply {
    MemoryNodeRegistered(Box<MemoryNodeRegistered>),
    MemoryNodeSynced(Box<MemoryNodeSynced>),
    ComputeNodeRegistered(Box<ComputeNodeRegistered>),
    ComputeNodeSynced(Box<ComputeNodeSynced>),
    /// The operator's command was executed and committed.
    Done,
    /// The request was refused, with a code and the reason.
    Refused(ErrorCode, String),
}

#[derive(Clone, Debug)]
pub enum ControlMessage {
    Call {
        caller: Caller,
        /// Number that the caller has given to the call; the answer repeats it.
        call: u64,
        request: ManagerCall,
    },
    Answer {
        caller: Caller,
        call: u64,
        answer: ManagerReply,
    },
    /// A node has closed its connection while its sync call waited. The number is that of the node's registration.
    HungUp(NodeKey, u64),
}

impl fmt::Display for ControlMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlMessage::Call { caller, call, request } => {
                write!(f, "{caller} > gmm  call {call}: {request}")
            }
            ControlMessage::Answer { caller, call, answer } => {
                write!(f, "gmm > {caller}  call {call}: {answer}")
            }
            ControlMessage::HungUp(node, registration) => {
                write!(f, "{node:?} hangs up, registration {registration}")
            }
        }
    }
}

impl fmt::Display for ManagerCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ManagerCall::RegisterMemoryNode(node) => {
                write!(f, "register, incarnation {:#x}, seen {:?}", node.incarnation, node.seen)
            }
            ManagerCall::SyncMemoryNode(_, sync) => {
                write!(f, "sync of registration {}, done up to {}", sync.registration, sync.acked_seq)?;
                sync.results.iter().try_for_each(|result| match &result.error {
                    None => write!(f, ", {} done", result.seq),
                    Some(error) => write!(f, ", {} FAILED: {error}", result.seq),
                })
            }
            ManagerCall::ReportOrphans(_, report) => write!(f, "{} orphans", report.orphans.len()),
            ManagerCall::NotFollowed(said) => write!(f, "does not follow, having seen {:?}", said.seen),
            ManagerCall::RegisterComputeNode(node) => {
                write!(f, "register, instance {:#x}, seen {:?}", node.instance_id, node.seen)
            }
            ManagerCall::SyncComputeNode(_, sync) => {
                write!(f, "sync of registration {}, after event {}", sync.registration, sync.after_event)?;
                sync.released.iter().try_for_each(|released| write!(f, ", let go of {}", released.name))
            }
            ManagerCall::Order(command) => write!(f, "{command:?}"),
        }
    }
}

impl fmt::Display for ManagerReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ManagerReply::MemoryNodeRegistered(node) => {
                let served = node.mappings.iter().map(|mapping| mapping.region.as_str());
                let served: Vec<_> = served.collect();
                write!(f, "registration {}, acked {}, serve {served:?}", node.registration, node.acked_seq)
            }
            ManagerReply::MemoryNodeSynced(synced) => {
                write!(f, "synced at revision {}", synced.watermark.revision)?;
                synced.commands.iter().try_for_each(|command| {
                    let mapping = command.action.mapping();
                    let what = match &command.action {
                        cxloe_fabric::model::NodeAction::MapCmem(_) => "map",
                        cxloe_fabric::model::NodeAction::UnmapCmem(_) => "unmap",
                        cxloe_fabric::model::NodeAction::HandOver(_) => "hand over",
                        cxloe_fabric::model::NodeAction::Share(_) => "share",
                        cxloe_fabric::model::NodeAction::Unshare(_) => "unshare",
                        cxloe_fabric::model::NodeAction::Clone(_) => "clone",
                    };
                    let (seq, region, base) = (command.seq, &mapping.region, mapping.cmem_base);
                    write!(f, "; {seq}: {what} {region} at {base:#x} {:?}", mapping.extents.runs())
                })
            }
            ManagerReply::ComputeNodeRegistered(node) => {
                write!(f, "registration {}", node.registration)?;
                node.regions.iter().try_for_each(|region| write!(f, "; {} {}", region.name, region.state))
            }
            ManagerReply::ComputeNodeSynced(synced) => {
                write!(f, "synced, event {}", synced.after_event)?;
                let regions = synced.regions.iter().flatten();
                regions.into_iter().try_for_each(|region| write!(f, "; {} {}", region.name, region.state))
            }
            ManagerReply::Done => f.write_str("done"),
            ManagerReply::Refused(code, why) => write!(f, "REFUSED ({code:?}): {why}"),
        }
    }
}
