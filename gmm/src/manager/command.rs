//! What the manager can be asked to do.

use cxloe_fabric::api::{
    AdoptFabric, Bind, ComputeNodeSync, CreateRegion, GrowRegion, MemoryNodeSync, NotFollowed, Owner, Party,
    RegisterComputeNode, RegisterMemoryNode, ReportOrphans, Unbind,
};
use cxloe_fabric::model::{ByteSize, ClearedLog, CnId, Digest, Name, PublicKey, Qos};

use super::liveness::NodeKey;
use super::tokens::{JoinedNode, TokenRecord};

/// What the manager can be asked to do.
#[derive(Debug, Clone)]
pub enum Command {
    /// A memory node is there.
    RegisterMemoryNode(RegisterMemoryNode),
    /// A memory node lives and gives results.
    SyncMemoryNode(Name, MemoryNodeSync),
    /// A memory node holds memory that no region has.
    ReportOrphans(Name, ReportOrphans),
    /// Have a memory node zero the memory that no region has.
    ReleaseOrphans(Name),
    /// A node does not follow this manager.
    NotFollowed(NotFollowed),
    /// Give up what nodes have seen and this store does not have.
    Adopt(AdoptFabric),
    /// A compute node is there.
    RegisterComputeNode(RegisterComputeNode),
    /// A compute node lives and tells what it has let go of.
    SyncComputeNode(CnId, ComputeNodeSync),
    /// A node has this key from now on, whatever it had before; `None`: whatever it registers with next.
    SetKey(Party, Option<PublicKey>),
    /// The connection of a node broke while it waited; the number is its registration.
    HungUp(NodeKey, u64),
    /// Make a region.
    CreateRegion(CreateRegion),
    /// Make a region larger.
    GrowRegion(Name, GrowRegion),
    /// Take a region down.
    DestroyRegion {
        /// Which.
        name: Name,
        /// Although its owner may be using it.
        force: bool,
        /// Only if it was created then, in milliseconds since the Unix epoch: it may be another one of that name.
        created_ms: Option<u64>,
    },
    /// Map a lost region again, empty.
    ResetRegion(Name),
    /// Have the owner of a region let go of it; its content is kept.
    DisableRegion(Name),
    /// Let the owner of a disabled region have it again.
    EnableRegion(Name),
    /// Have the owner of a region let go of it, and take it down then.
    ReleaseRegion(Name),
    /// Limit what regions a compute node may have, in bytes.
    SetQuota(Owner, Option<u64>),
    /// Hold a compute node in reset, or release it.
    Hold(Owner, bool),
    /// Set capacity aside for logical devices of a memory node, from an LD-ID on.
    SetLdAllocations(Name, u16, Vec<ByteSize>),
    /// Bind a logical device; as a background operation of a switch, if one is given.
    Bind(Bind, Option<u32>),
    /// Unbind a logical device; as a background operation of a switch, if one is given.
    Unbind(Unbind, Option<u32>),
    /// Abort the background operation of a switch, if one is under way.
    AbortOperation(u32),
    /// Set the quality-of-service controls of a memory node.
    SetQos(Qos),
    /// Have an AER event generated at a vPPB of a compute node.
    GenerateAer {
        /// The compute node.
        compute_node: Owner,
        /// Its vPPB.
        vppb: u8,
        /// The error, as in the AER registers.
        aer: u32,
    },
    /// Clear an event log of the FM API.
    ClearLog(ClearedLog),
    /// Forget a memory node that is gone for good.
    ForgetMemoryNode {
        /// Which.
        name: Name,
        /// Although regions lie on it.
        force: bool,
    },
    /// A token is made.
    CreateToken(TokenRecord),
    /// A token is not to be taken any more, by its id.
    RevokeToken(String),
    /// A node joins.
    Join {
        /// The node, as it is to be known.
        node: JoinedNode,
        /// The id of its token, if it has one.
        token: Option<String>,
        /// The TLS key that it has shown to have.
        proved: Option<Digest>,
    },
    /// A node may not speak here any more.
    Revoke(Party),
    /// Forget a compute node that is gone for good and has nothing.
    ForgetComputeNode(Owner),
    /// Somebody was refused what they asked for: method and path, and how many attempts are told of.
    NoteRefused(String, u64),
    /// Time has passed.
    Tick,
}

impl Command {
    /// Whether a static fabric refuses it: there, what regions and bindings there are is said by its file.
    pub(super) fn is_for_dynamic_fabrics(&self) -> bool {
        matches!(
            self,
            Self::CreateRegion(_)
                | Self::GrowRegion(..)
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
