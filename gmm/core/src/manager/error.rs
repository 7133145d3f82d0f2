//! Reasons for which the manager refuses a command. Each variant names the request and its object;
//! [`ManagerError::hint`] names a remedy, and [`ManagerError::code`] identifies the kind for programs.

use cxloe_fabric::api::{ErrorCode, Party};
use cxloe_fabric::model::{CnId, DeviceKind, Mac, Name, PublicKey, RegionState, Watermark, human_bytes};

/// A command that cannot be carried out. The state is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManagerError {
    /// A value is out of its range.
    #[error("{what}: {reason}")]
    OutOfRange {
        /// The value and its place in the request, as text for the message.
        what: String,
        /// The reason, as text that follows the object in the message.
        reason: String,
    },
    /// There is no such region.
    #[error("there is no region {0}")]
    NoRegion(Name),
    /// The region of this name is not the one that was meant.
    #[error(
        "there is no region {name} that was created at {asked_ms} ms: the one there is was created at {created_ms} ms"
    )]
    OtherRegion {
        /// Name of the existing region and of the requested one.
        name: Name,
        /// Creation time of the existing region, in milliseconds since the Unix epoch.
        created_ms: u64,
        /// Creation time that the request gave, in milliseconds since the Unix epoch.
        asked_ms: u64,
    },
    /// The owner of a region to be created is unknown.
    #[error("there is no compute node named {0}")]
    NoOwner(Name),
    /// A region of this name exists already.
    #[error("there is a region {0} already, {1}")]
    RegionExists(Name, RegionState),
    /// Another daemon registered under this name or CN id and still runs.
    #[error("{who} is registered by another running daemon")]
    InUse {
        /// The memory node or compute node, as text for the message.
        who: String,
    },
    /// Another daemon has registered under this name since this one did.
    #[error("another process has taken the place of this one as {who}")]
    Succeeded {
        /// The memory node, as text for the message.
        who: String,
    },
    /// A name or an address belongs to another node.
    #[error("{what} of {who} belongs to {holder}")]
    Taken {
        /// The name or address, as text for the message.
        what: String,
        /// The node that registers or joins with this name or address, as text for the message.
        who: String,
        /// The node that has this name or address already, as text for the message.
        holder: String,
    },
    /// A sync under a registration that is not valid, or no longer.
    #[error("registration {registration} of {who} is not the current one")]
    NotRegistered {
        /// The memory node or compute node, as text for the message.
        who: String,
        /// The registration number in the node's request.
        registration: u64,
    },
    /// The node has seen changes that this store does not have.
    #[error("{node} has seen term {}, revision {}, and that is not in this manager's store, which is at term {}, revision {}: the store is an older copy, or another fabric's", seen.term, seen.revision, own.term, own.revision)]
    Stale {
        /// The memory node, compute node or FM client.
        node: Party,
        /// The latest watermark that the node has seen.
        seen: Watermark,
        /// The watermark of this manager.
        own: Watermark,
    },
    /// The node's key is not the one of its first registration.
    #[error("{node} registers with the key {new}, but its registered key is {known}")]
    KeyChanged {
        /// The memory node, compute node or FM client.
        node: Party,
        /// The key of the node's first registration.
        known: PublicKey,
        /// The key of the refused registration.
        new: PublicKey,
    },
    /// The node gives results for commands that were never issued, or omits some.
    #[error("memory node {node} acknowledges commands up to {acked_seq}: {reason}")]
    BadAcknowledgement {
        /// Name of the memory node that sent the results.
        node: Name,
        /// Number of the latest command that the node acknowledged.
        acked_seq: u64,
        /// The contradiction, as text that follows the object in the message.
        reason: String,
    },
    /// The geometry of a pool changed under the regions on it.
    #[error("memory node {node} registers {change} while regions lie on it")]
    GeometryChanged {
        /// Name of the memory node that registers again.
        node: Name,
        /// The change, as text that follows the object in the message.
        change: String,
    },
    /// Too little free memory for a region.
    #[error("region {name} needs {}, and reachable memory nodes have {} free ({} more is being zeroed or on unreachable nodes)", human_bytes(*size), human_bytes(*free), human_bytes(*held_back))]
    NoSpace {
        /// Name of the region to be placed.
        name: Name,
        /// Bytes that the region still needs.
        size: u64,
        /// Bytes free on reachable nodes.
        free: u64,
        /// Bytes that are free but on unreachable nodes, or being zeroed.
        held_back: u64,
    },
    /// A memory node of a region has too little free memory for a clone of its part.
    #[error(
        "region {region} needs {} on memory node {node}, where the region that it is cloned from lies, and {} are free there",
        human_bytes(*size), human_bytes(*free)
    )]
    NoRoomForClone {
        /// Name of the new region.
        region: Name,
        /// Memory node of the source.
        node: Name,
        /// Bytes that the new region needs there.
        size: u64,
        /// Bytes free there; 0 if the memory node is unreachable, or is drained.
        free: u64,
    },
    /// Too few memory nodes to interleave over.
    #[error(
        "region {name} is to be interleaved over {ways} memory nodes, and {nodes} have free memory for it"
    )]
    TooFewNodes {
        /// Name of the region to be placed.
        name: Name,
        /// Interleave ways that the request asks for.
        ways: u32,
        /// Number of memory nodes with free memory for the region.
        nodes: usize,
    },
    /// Fewer memory nodes have room than a mirrored region needs.
    #[error("region {name} in {ways} ways is to be mirrored, and {nodes} memory node(s) have room for it")]
    TooFewForMirror {
        /// Name of the region to be placed.
        name: Name,
        /// Interleave ways that the request asks for.
        ways: u32,
        /// Number of memory nodes with free memory for the region.
        nodes: usize,
    },
    /// All memory nodes with room are on one rack.
    #[error("region {name} is to be mirrored, and all memory nodes with room for it are on one rack")]
    OneRack {
        /// Name of the region to be placed.
        name: Name,
    },
    /// No other memory node can have a copy of a part of a region.
    #[error("no memory node {} has {bytes} bytes for another copy of the part of region {name} on {memory_node}",
        if *one_rack { "of another rack" } else { "but that" })]
    NoOtherNode {
        /// Name of the region.
        name: Name,
        /// Bytes of the part.
        bytes: u64,
        /// Name of the memory node that has the part.
        memory_node: Name,
        /// True if nodes of the same rack have room.
        one_rack: bool,
    },
    /// The memory node that a part of a region is to move to has no room for it.
    #[error(
        "memory node {memory_node} cannot take the {bytes} bytes of region {name}: {free} are free there, in extents of \
         {extent}"
    )]
    NoRoomThere {
        /// Name of the region.
        name: Name,
        /// Bytes to be moved.
        bytes: u64,
        /// Name of the memory node.
        memory_node: Name,
        /// Bytes free there for the region's owner.
        free: u64,
        /// Size of the node's extents in bytes.
        extent: u64,
    },
    /// The legs that are to become stale are the only ones with the content.
    #[error("the legs of region {name} on memory node {memory_node} are the only ones in sync")]
    OnlyCopy {
        /// Name of the region.
        name: Name,
        /// Name of the memory node that the legs are on.
        memory_node: Name,
    },
    /// The legs of a region have changed since the epoch in the request.
    #[error("the legs of region {name} have changed: it is in epoch {epoch}, not {asked}")]
    StaleEpoch {
        /// Name of the region.
        name: Name,
        /// Present epoch of the region.
        epoch: u64,
        /// Epoch in the request.
        asked: u64,
    },
    /// The size is not a multiple of the unit of allocation.
    #[error("region {name} of {size} bytes: the size is not a multiple of {}: {ways} way(s) of the memory nodes' extents", human_bytes(*unit))]
    Unaligned {
        /// Name of the region to be created or grown.
        name: Name,
        /// Size that the request asks for, in bytes.
        size: u64,
        /// Interleave ways that the request asks for.
        ways: u32,
        /// The smallest extent size among reachable nodes, times the ways, in bytes.
        unit: u64,
    },
    /// The region would exceed its owner's quota.
    #[error("compute node {owner} may have {}: it has {}, and {} more were asked for", human_bytes(*quota), human_bytes(*used), human_bytes(*asked))]
    OverQuota {
        /// CN id of the region's owner.
        owner: CnId,
        /// The owner's quota in bytes.
        quota: u64,
        /// Bytes of the owner's present regions.
        used: u64,
        /// Bytes that the request adds.
        asked: u64,
    },
    /// Regions and bindings come from the fabric file.
    #[error("this fabric is static: its regions and bindings come from its file alone")]
    StaticFabric,
    /// There is no such memory node.
    #[error("there is no memory node {0}")]
    NoMemoryNode(Name),
    /// There is no such compute node.
    #[error("there is no compute node {0}")]
    NoComputeNode(String),
    /// The LD has no capacity, or is not bound.
    #[error("LD {ld} of memory node {node} {lacks}")]
    NoLogicalDevice {
        /// Name of the memory node in the request.
        node: Name,
        /// LD-ID: 0 to 15.
        ld: u16,
        /// Text for the message: the capacity or the binding that the LD does not have.
        lacks: &'static str,
    },
    /// The vPPB, the LD, or the compute node's place on the memory node is taken.
    #[error("{what} is bound already, to {holder}")]
    Bound {
        /// The vPPB, LD or memory node that was to be bound, as text for the message.
        what: String,
        /// The present binding, as text for the message.
        holder: String,
    },
    /// The memory node is of the other kind.
    #[error("memory node {node} is given away {}", match kind { DeviceKind::Sld => "whole (SLD): it has no slices", DeviceKind::Mld => "in slices (MLD): name one of them" })]
    WrongKind {
        /// Name of the memory node in the request.
        node: Name,
        /// The kind of the memory node.
        kind: DeviceKind,
    },
    /// The capacity of a bound LD cannot become less than its regions use.
    #[error("LD {ld} of memory node {node} cannot shrink to {}: its compute node has {} of it", human_bytes(*asked), human_bytes(*used))]
    LdInUse {
        /// Name of the memory node in the request.
        node: Name,
        /// LD-ID: 0 to 15.
        ld: u16,
        /// Bytes of the regions on the LD.
        used: u64,
        /// Capacity requested for the LD, in bytes.
        asked: u64,
    },
    /// The memory node is running, or regions lie on it.
    #[error("memory node {node} cannot be forgotten: {reason}")]
    StillNeeded {
        /// Name of the memory node to be forgotten.
        node: Name,
        /// The reason, as text that follows the object in the message.
        reason: String,
    },
    /// The store is empty, and nodes that have followed another manager are running.
    #[error(
        "this store, at term {}, contains no region, and {node} has followed a manager at term {}: it looks like the wrong data \
         directory",
        own.term, seen.term
    )]
    OtherFabric {
        /// A running node that has followed another manager.
        node: Party,
        /// The latest watermark that the node has seen.
        seen: Watermark,
        /// The watermark of this manager.
        own: Watermark,
    },
    /// The compute node is running, or still has regions or bindings.
    #[error("compute node {compute_node} cannot be forgotten: {reason}")]
    ComputeNodeNeeded {
        /// CN id of the compute node to be forgotten.
        compute_node: CnId,
        /// The reason, as text that follows the object in the message.
        reason: String,
    },
    /// Another background operation is under way.
    #[error("switch {switch} is busy with another background operation")]
    OperationRuns {
        /// Number of the switch, from 0.
        switch: u32,
    },
    /// The owner's agent is running and may be using the region.
    #[error("region {name} may be in use: the agent of its owner {owner} is there")]
    RegionInUse {
        /// Name of the region in use.
        name: Name,
        /// CN id of the region's owner.
        owner: CnId,
    },
    /// The region's state does not allow it.
    #[error("region {name} is {state}: {reason}")]
    WrongState {
        /// Name of the region.
        name: Name,
        /// State in which the region is at present.
        state: RegionState,
        /// The state that the request needs, as text that follows the object in the message.
        reason: String,
    },
    /// The store cannot be written.
    #[error("nothing can be changed at present: {0}")]
    ReadOnly(String),
    /// No node was refused with such a history.
    #[error("no node is refused that has seen that")]
    NobodyRefused,
    /// There is no such token.
    #[error("there is no token {0}")]
    NoToken(String),
    /// A node has not joined.
    #[error("{0} has not joined")]
    NotJoined(Party),
    /// A node may not join.
    #[error("{node} may not join: {reason}")]
    JoinRefused {
        /// The memory node, compute node or FM client.
        node: Party,
        /// The reason, as text that follows the object in the message.
        reason: String,
    },
    /// A limit is reached.
    #[error("the limit of {limit} {what} is reached")]
    LimitReached {
        /// The limited quantity, as text for the message.
        what: &'static str,
        /// The maximum of this quantity.
        limit: u64,
    },
}

impl ManagerError {
    pub(super) fn out_of_range(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::OutOfRange { what: what.into(), reason: reason.into() }
    }

    pub(super) fn mac_taken(mac: Mac, who: &Name, holder: &Name) -> Self {
        let (who, holder) = (format!("memory node {who}"), format!("memory node {holder}"));
        Self::Taken { what: format!("address {mac}"), who, holder }
    }

    /// Kind of the failure, which programs evaluate; the message is for people.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::OutOfRange { .. } | Self::Unaligned { .. } | Self::BadAcknowledgement { .. } => {
                ErrorCode::BadRequest
            }
            Self::NoRegion(_)
            | Self::OtherRegion { .. }
            | Self::NoOwner(_)
            | Self::NoMemoryNode(_)
            | Self::NoComputeNode(_)
            | Self::NobodyRefused
            | Self::NoToken(_)
            | Self::NotJoined(_)
            | Self::NoLogicalDevice { .. } => ErrorCode::NotFound,
            Self::RegionExists(..) | Self::InUse { .. } | Self::Succeeded { .. } | Self::Taken { .. } => {
                ErrorCode::NameInUse
            }
            Self::NotRegistered { .. } => ErrorCode::NotRegistered,
            Self::Stale { .. } => ErrorCode::StaleManager,
            Self::KeyChanged { .. } => ErrorCode::NameInUse,
            Self::GeometryChanged { .. }
            | Self::WrongState { .. }
            | Self::Bound { .. }
            | Self::WrongKind { .. }
            | Self::LdInUse { .. }
            | Self::StillNeeded { .. }
            | Self::ComputeNodeNeeded { .. }
            | Self::OtherFabric { .. } => ErrorCode::WrongState,
            Self::NoSpace { .. }
            | Self::TooFewNodes { .. }
            | Self::TooFewForMirror { .. }
            | Self::OneRack { .. }
            | Self::NoOtherNode { .. }
            | Self::NoRoomThere { .. }
            | Self::NoRoomForClone { .. } => ErrorCode::NoSpace,
            Self::OnlyCopy { .. } => ErrorCode::OnlyCopy,
            Self::StaleEpoch { .. } => ErrorCode::StaleEpoch,
            Self::OverQuota { .. } => ErrorCode::OverQuota,
            Self::StaticFabric => ErrorCode::StaticFabric,
            Self::OperationRuns { .. } => ErrorCode::Unavailable,
            Self::RegionInUse { .. } => ErrorCode::RegionInUse,
            Self::LimitReached { .. } => ErrorCode::LimitReached,
            Self::ReadOnly(_) => ErrorCode::StoreFull,
            Self::JoinRefused { .. } => ErrorCode::Forbidden,
        }
    }

    /// Text for people that names a remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::OutOfRange { .. } => "correct the value and ask again".into(),
            Self::NoRegion(_) | Self::OtherRegion { .. } => "`gmm list -R` shows the regions there are".into(),
            Self::NoOwner(name) => {
                format!(
                    "start the agent of {name}, or give its CN id (its MAC address); `gmm list -C` shows the registered ones"
                )
            }
            Self::RegionExists(_, RegionState::Draining) => {
                "wait until its memory is zeroed, or take another name".into()
            }
            Self::RegionExists(..) => "take another name, or destroy it first".into(),
            Self::InUse { .. } => {
                "stop the other daemon or give this one an identity of its own; one that was killed is \
                                   forgotten within the node time-out"
                    .into()
            }
            Self::Succeeded { .. } => "end one of the two; the other is taken two seconds later".into(),
            Self::Taken { .. } => "give each node a name and addresses of its own".into(),
            Self::NotRegistered { .. } => "register again".into(),
            Self::Stale { .. } => {
                "the node keeps what it holds; start the manager over the store that it was served from last; `gmm \
                 adopt-fabric` shows what would be lost with this one, and takes it all the same if it is forced"
                    .into()
            }
            Self::KeyChanged { .. } => {
                "another node uses its name, or its key file was lost: put the file back, or have the node join anew"
                    .into()
            }
            Self::BadAcknowledgement { .. } => {
                "register again and go on from the sequence number in the answer".into()
            }
            Self::GeometryChanged { .. } => {
                "start it with the pool and extent size it had, or destroy its regions first".into()
            }
            Self::NoSpace { .. } => "ask for less, destroy regions, or start another mn-server".into(),
            Self::Unaligned { size, unit, .. } => {
                format!("ask for {} bytes", size.div_ceil(*unit).max(1).saturating_mul(*unit))
            }
            Self::TooFewNodes { .. } => "ask for fewer ways, or start another mn-server".into(),
            Self::TooFewForMirror { .. } | Self::NoOtherNode { .. } => {
                "ask for fewer ways, destroy regions, or start another mn-server".into()
            }
            Self::NoRoomThere { .. } => "name another memory node, or destroy regions there".into(),
            Self::NoRoomForClone { .. } => "destroy regions there, or move some with `gmm relocate`".into(),
            Self::OneRack { .. } => {
                "start an mn-server with another --rack, or without one".into()
            }
            Self::OnlyCopy { .. } => "wait until its memory node is back, or its other copy is filled".into(),
            Self::StaleEpoch { .. } => "look at the region again".into(),
            Self::OverQuota { .. } => {
                "ask for less, destroy regions, or raise it with `gmm set-quota`".into()
            }
            Self::StaticFabric => "change the file and start the manager again".into(),
            Self::NoMemoryNode(_) => "`gmm list -M` shows the memory nodes there are".into(),
            Self::NoComputeNode(_) => "`gmm list -C` shows the compute nodes there are".into(),
            Self::NoLogicalDevice { .. } => {
                "set its capacity with `gmm set-ld`; `gmm list -L` shows all".into()
            }
            Self::Bound { .. } => "unbind it first, or take another; `gmm list -L` shows all".into(),
            Self::WrongKind { kind: DeviceKind::Sld, .. } => "bind it without naming a slice".into(),
            Self::WrongKind { .. } => "`gmm list -L` shows its slices".into(),
            Self::LdInUse { .. } => "destroy regions of its compute node there first, or unbind it".into(),
            Self::StillNeeded { .. } => {
                "wait until it is unreachable and destroy its regions, or force it".into()
            }
            Self::OtherFabric { .. } => {
                "start the manager over the store of these nodes' fabric, or restore its backup (`gmm restore`); where it is gone, \
                 `gmm adopt-fabric` shows what would be lost; `gmm serve --new-fabric` begins another fabric beside it"
                    .into()
            }
            Self::ComputeNodeNeeded { .. } => {
                "`gmm list -C` and `gmm list -R` show whether it is there, and what it has".into()
            }
            Self::OperationRuns { .. } => {
                "wait until it is done, or abort it with `gmm fm background --abort`".into()
            }
            Self::RegionInUse { name, .. } => format!(
                "`gmm disable-region {name}` has the agent write back and release it first; `gmm destroy-region --force {name}` \
                 destroys it at once: what the agent has not written back is lost, and programs that use it get errors"
            ),
            Self::WrongState { .. } => "`gmm list -R` shows the state of each region".into(),
            Self::ReadOnly(_) => "make room where the store is, or see why its disk fails; the manager goes on by itself".into(),
            Self::NobodyRefused => "`gmm adopt-fabric` shows which nodes are refused, and what they would lose".into(),
            Self::NoToken(_) => "`gmm token list` shows the tokens there are".into(),
            Self::NotJoined(_) => "`gmm list -E` shows which nodes have joined".into(),
            Self::JoinRefused { .. } => "`gmm token create` makes a new token, which one node joins with".into(),
            Self::LimitReached { .. } => "remove what is no longer needed".into(),
        }
    }
}
