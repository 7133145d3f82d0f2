//! Commands to the manager, from nodes, users and the clock.

use cxloe_fabric::api::{
    AdoptFabric, Bind, CloneRegion, ComputeNodeSync, CreateRegion, GrowRegion, LabelRegion, LegsFilled,
    LegsStale, MemoryNodeSync, MoveRegion, NotFollowed, Owner, Party, ProtectRegion, RegisterComputeNode,
    RegisterMemoryNode, RelocateRegion, ReportOrphans, SealRegion, ShareRegion, Unbind,
};
use cxloe_fabric::model::{ByteSize, ClearedLog, CnId, Digest, Name, PublicKey, Qos};

use super::liveness::NodeKey;
use super::tokens::{JoinedNode, TokenRecord};

#[derive(Debug, Clone)]
pub enum Command {
    /// Registration of a memory node, with its pool and addresses.
    RegisterMemoryNode(RegisterMemoryNode),
    /// Regular message of a memory node, with the results of commands that it has carried out.
    SyncMemoryNode(Name, MemoryNodeSync),
    /// Report by a memory node of memory that belongs to no region.
    ReportOrphans(Name, ReportOrphans),
    /// Order to zero the memory of a memory node that belongs to no region.
    ReleaseOrphans(Name),
    /// Report by a node that it refuses this manager, whose store lacks changes that the node has seen.
    NotFollowed(NotFollowed),
    /// Order to give up changes that nodes have seen and this store lacks, so that these nodes accept this manager
    /// again.
    Adopt(AdoptFabric),
    /// Registration of a compute node, with its name and address.
    RegisterComputeNode(RegisterComputeNode),
    /// Regular message of a compute node, with the regions that its agent has released.
    SyncComputeNode(CnId, ComputeNodeSync),
    /// Order to replace the session key of a node; `None`: the next registration sets the key.
    SetKey(Party, Option<PublicKey>),
    /// End of a node's connection during a long poll; the number is that of the node's registration.
    HungUp(NodeKey, u64),
    /// Order to create a region, on memory nodes that the manager chooses unless the command names them.
    CreateRegion(CreateRegion),
    /// Order to enlarge a region at its end; the present part keeps its addresses.
    GrowRegion(Name, GrowRegion),
    /// Order to unmap and zero a region, then to remove its record.
    DestroyRegion {
        name: Name,
        /// True to destroy the region even if its owner may be using it.
        force: bool,
        /// Destroy the region only if it was created at this time, in milliseconds since the Unix epoch: a
        /// later region may have the same name.
        created_ms: Option<u64>,
    },
    /// Order to map a lost region again, with zeros as content.
    ResetRegion(Name),
    /// Order to change the number of copies of a region.
    ProtectRegion(Name, ProtectRegion),
    /// Order to change the labels of a region.
    LabelRegion(Name, LabelRegion),
    /// Request of an owner's agent to declare stale the legs of a region on one memory node (its parts there).
    LegsStale(Name, LegsStale),
    /// Report of an owner's agent that it has filled a stale leg (a part of a region on one memory node).
    LegsFilled(Name, LegsFilled),
    /// Order to move a region to another compute node, or to stop the move.
    MoveRegion(Name, MoveRegion),
    /// Order to make the content of a region unchangeable, after its owner has written back.
    SealRegion(Name, SealRegion),
    /// Order to let a further compute node read a sealed region, or to stop that.
    ShareRegion(Name, ShareRegion),
    /// Order to make a region that begins with the content of the named one.
    CloneRegion(Name, CloneRegion),
    /// Order to move the parts of a region from one memory node to another, or to stop the move.
    RelocateRegion(Name, RelocateRegion),
    /// Order to move all parts of regions from a memory node (`true`), or to stop the moves.
    DrainMemoryNode(Name, bool),
    /// Order to have the owner release a region, whose content is kept.
    DisableRegion(Name),
    /// Order to give a disabled region back to its owner.
    EnableRegion(Name),
    /// Order to have the owner release a region, which is destroyed afterwards.
    ReleaseRegion(Name),
    /// Limit of the total size of a compute node's regions, in bytes; `None`: no limit.
    SetQuota(Owner, Option<u64>),
    /// Order to hold a compute node in reset (`true`), or to release it.
    Hold(Owner, bool),
    /// Order to reserve capacity for logical devices of a memory node, the first of which has this LD-ID.
    SetLdAllocations(Name, u16, Vec<ByteSize>),
    /// Order to bind a logical device; with a switch number, as the background operation of that switch.
    Bind(Bind, Option<u32>),
    /// Order to unbind a logical device; with a switch number, as the background operation of that switch.
    Unbind(Unbind, Option<u32>),
    /// Order to abort the background operation of a switch; no effect if none is under way.
    AbortOperation(u32),
    /// Order to replace the quality-of-service controls of a memory node.
    SetQos(Qos),
    /// Order to generate an AER event at a vPPB of a compute node.
    GenerateAer {
        compute_node: Owner,
        /// Number of the compute node's vPPB: 0 to 126.
        vppb: u8,
        /// The error, as in the AER registers.
        aer: u32,
    },
    /// Order to clear an event log of the FM API up to an event.
    ClearLog(ClearedLog),
    /// Order to remove the record of a memory node that will not return.
    ForgetMemoryNode {
        name: Name,
        /// True to forget the memory node even if regions lie on it, which are then destroyed.
        force: bool,
    },
    CreateToken(TokenRecord),
    /// Order to revoke the token with this id.
    RevokeToken(String),
    /// Admission of a node to the fabric.
    Join {
        /// The record of the node, as it is stored.
        node: JoinedNode,
        /// Id of the token that the node presented; `None` if a permitted caller orders the admission.
        token: Option<String>,
        /// Digest of the TLS key that the node's connection proved to possess.
        proved: Option<Digest>,
        /// True to admit the node even if one with another key is running under its name or CN id.
        take_over: bool,
    },
    /// Order to revoke the right of a node to connect.
    Revoke(Party),
    /// Order to remove the record of a compute node that will not return and has no regions.
    ForgetComputeNode(Owner),
    /// Record of refused requests: method and path of the latest one, and the number of requests that were refused.
    NoteRefused(String, u64),
    /// Time has passed: time-outs and repairs may be due.
    Tick,
}

impl Command {
    /// Returns true if a static fabric refuses the command. In such a fabric, only the fabric file creates
    /// regions and bindings.
    pub(super) fn is_for_dynamic_fabrics(&self) -> bool {
        matches!(
            self,
            Self::CreateRegion(_)
                | Self::GrowRegion(..)
                | Self::ProtectRegion(..)
                | Self::MoveRegion(..)
                | Self::SealRegion(..)
                | Self::ShareRegion(..)
                | Self::CloneRegion(..)
                | Self::RelocateRegion(..)
                | Self::DrainMemoryNode(..)
                | Self::DestroyRegion { .. }
                | Self::DisableRegion(_)
                | Self::EnableRegion(_)
                | Self::ReleaseRegion(_)
                | Self::SetLdAllocations(..)
                | Self::Bind(..)
                | Self::Unbind(..)
        )
    }
}
