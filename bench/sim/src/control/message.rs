//! What is said between the manager and those who talk to it: the REST interface's calls, without HTTP.

use std::fmt;

use cxloe_fabric::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, ErrorCode, MemoryNodeRegistered,
    MemoryNodeSync, MemoryNodeSynced, NotFollowed, RegisterComputeNode, RegisterMemoryNode, ReportOrphans,
};
use cxloe_fabric::model::{CnId, Name};
use cxloe_gmm::manager::Command;
use cxloe_gmm::manager::liveness::NodeKey;

/// Who talks to the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A memory node, by number.
    Mn(usize),
    /// A compute node, by number.
    Cn(usize),
    /// The operator.
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

/// A call to the manager.
#[derive(Clone, Debug)]
pub enum Request {
    /// `POST /v1/memory-nodes`.
    RegisterMemoryNode(RegisterMemoryNode),
    /// `POST /v1/memory-nodes/NAME/sync`, a long poll.
    SyncMemoryNode(Name, MemoryNodeSync),
    /// `POST /v1/memory-nodes/NAME/orphans`.
    ReportOrphans(Name, ReportOrphans),
    /// A node tells that it does not follow this manager.
    NotFollowed(NotFollowed),
    /// `POST /v1/compute-nodes`.
    RegisterComputeNode(RegisterComputeNode),
    /// `POST /v1/compute-nodes/CN/sync`, a long poll.
    SyncComputeNode(CnId, ComputeNodeSync),
    /// What an operator asks for: regions, bindings.
    Order(Box<Command>),
}

/// What the manager answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To a memory node's registration.
    MemoryNodeRegistered(Box<MemoryNodeRegistered>),
    /// To a memory node's sync.
    MemoryNodeSynced(Box<MemoryNodeSynced>),
    /// To a compute node's registration.
    ComputeNodeRegistered(Box<ComputeNodeRegistered>),
    /// To a compute node's sync.
    ComputeNodeSynced(Box<ComputeNodeSynced>),
    /// It is done, and committed.
    Done,
    /// It was not done.
    Refused(ErrorCode, String),
}

/// What travels on the control network.
#[derive(Clone, Debug)]
pub enum Message {
    /// To the manager; the caller's number of the call comes back with the answer.
    Call {
        /// Who calls.
        caller: Caller,
        /// The number of the call.
        call: u64,
        /// What is asked.
        request: Request,
    },
    /// From the manager.
    Answer {
        /// Who called.
        caller: Caller,
        /// The number of the call.
        call: u64,
        /// The answer.
        answer: Answer,
    },
    /// The connection of a node broke while its sync waited; with the number of its registration.
    HungUp(NodeKey, u64),
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Call { caller, call, request } => write!(f, "{caller} > gmm  call {call}: {request}"),
            Message::Answer { caller, call, answer } => write!(f, "gmm > {caller}  call {call}: {answer}"),
            Message::HungUp(node, registration) => {
                write!(f, "{node:?} hangs up, registration {registration}")
            }
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::RegisterMemoryNode(node) => {
                write!(f, "register, incarnation {:#x}, seen {:?}", node.incarnation, node.seen)
            }
            Request::SyncMemoryNode(_, sync) => {
                write!(f, "sync of registration {}, done up to {}", sync.registration, sync.acked_seq)?;
                sync.results.iter().try_for_each(|result| match &result.error {
                    None => write!(f, ", {} done", result.seq),
                    Some(error) => write!(f, ", {} FAILED: {error}", result.seq),
                })
            }
            Request::ReportOrphans(_, report) => write!(f, "{} orphans", report.orphans.len()),
            Request::NotFollowed(said) => write!(f, "does not follow, having seen {:?}", said.seen),
            Request::RegisterComputeNode(node) => {
                write!(f, "register, instance {:#x}, seen {:?}", node.instance_id, node.seen)
            }
            Request::SyncComputeNode(_, sync) => {
                write!(f, "sync of registration {}, after event {}", sync.registration, sync.after_event)?;
                sync.released.iter().try_for_each(|released| write!(f, ", let go of {}", released.name))
            }
            Request::Order(command) => write!(f, "{command:?}"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::MemoryNodeRegistered(node) => {
                let served = node.mappings.iter().map(|mapping| mapping.region.as_str());
                let served: Vec<_> = served.collect();
                write!(f, "registration {}, acked {}, serve {served:?}", node.registration, node.acked_seq)
            }
            Answer::MemoryNodeSynced(synced) => {
                write!(f, "synced at revision {}", synced.watermark.revision)?;
                synced.commands.iter().try_for_each(|command| {
                    let mapping = command.action.mapping();
                    let what = match &command.action {
                        cxloe_fabric::model::NodeAction::MapCmem(_) => "map",
                        cxloe_fabric::model::NodeAction::UnmapCmem(_) => "unmap",
                    };
                    let (seq, region, base) = (command.seq, &mapping.region, mapping.cmem_base);
                    write!(f, "; {seq}: {what} {region} at {base:#x} {:?}", mapping.extents.runs())
                })
            }
            Answer::ComputeNodeRegistered(node) => {
                write!(f, "registration {}", node.registration)?;
                node.regions.iter().try_for_each(|region| write!(f, "; {} {}", region.name, region.state))
            }
            Answer::ComputeNodeSynced(synced) => {
                write!(f, "synced, event {}", synced.after_event)?;
                let regions = synced.regions.iter().flatten();
                regions.into_iter().try_for_each(|region| write!(f, "; {} {}", region.name, region.state))
            }
            Answer::Done => f.write_str("done"),
            Answer::Refused(code, why) => write!(f, "REFUSED ({code:?}): {why}"),
        }
    }
}
