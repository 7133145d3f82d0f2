//! Reasons for which the manager refuses a command. Each message names the request and its object;
//! [`ManagerError::hint`] adds a remedy, and [`ManagerError::code`] identifies the kind for programs.

use cxloe_fabric::api::{ErrorCode, Party};
use cxloe_fabric::model::{CnId, DeviceKind, Mac, Name, PublicKey, RegionState, Watermark, human_bytes};

/// Refusal of a command; the state is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManagerError {
    #[error("{what}: {reason}")]
    OutOfRange {
        /// Text: the value and its place in the request.
        what: String,
        /// Reason of the refusal, which the error message ends with.
        reason: String,
    },
    #[error("there is no region {0}")]
    NoRegion(Name),
    /// The name belongs to another region by now: the creation times differ.
    #[error(
        "there is no region {name} that was created at {asked_ms} ms: the one there is was created at {created_ms} ms"
    )]
    OtherRegion {
        name: Name,
        /// Creation time of the region that has the name, in milliseconds since the Unix epoch.
        created_ms: u64,
        /// Creation time that the request gave, in milliseconds since the Unix epoch.
        asked_ms: u64,
    },
    #[error("there is no compute node named {0}")]
    NoOwner(Name),
    #[error("there is a region {0} already, {1}")]
    RegionExists(Name, RegionState),
    #[error("{who} is registered by another running daemon")]
    InUse {
        /// Text, such as `memory node mn0`.
        who: String,
    },
    #[error("another process has taken the place of this one as {who}")]
    Succeeded {
        /// Text, such as `memory node mn0`.
        who: String,
    },
    #[error("{what} of {who} belongs to {holder}")]
    Taken {
        /// Text, such as `name mn0`.
        what: String,
        /// Node that registers or joins with the name or address, as text.
        who: String,
        /// Node that has the name or address already, as text.
        holder: String,
    },
    #[error("registration {registration} of {who} is not the current one")]
    NotRegistered {
        /// Text, such as `memory node mn0`.
        who: String,
        registration: u64,
    },
    #[error("{node} has seen term {}, revision {}, and that is not in this manager's store, which is at term {}, revision {}: the store is an older copy, or another fabric's", seen.term, seen.revision, own.term, own.revision)]
    Stale {
        node: Party,
        /// The latest watermark that the node has seen.
        seen: Watermark,
        own: Watermark,
    },
    #[error("{node} registers with the key {new}, but its registered key is {known}")]
    KeyChanged {
        node: Party,
        /// Key of the node's first registration.
        known: PublicKey,
        /// Key in the refused registration.
        new: PublicKey,
    },
    /// A sync acknowledges commands that were never issued, or lacks the result of one that it acknowledges.
    #[error("memory node {node} acknowledges commands up to {acked_seq}: {reason}")]
    BadAcknowledgement {
        node: Name,
        acked_seq: u64,
        /// Reason of the refusal, which the error message ends with.
        reason: String,
    },
    #[error("memory node {node} registers {change} while regions lie on it")]
    GeometryChanged {
        node: Name,
        /// Text, such as `extents of 4096 bytes instead of 2097152`.
        change: String,
    },
    #[error("region {name} needs {}, and reachable memory nodes have {} free ({} more is being zeroed or on unreachable nodes)", human_bytes(*size), human_bytes(*free), human_bytes(*held_back))]
    NoSpace {
        name: Name,
        /// Bytes to be placed.
        size: u64,
        /// Bytes on reachable memory nodes that the owner could use.
        free: u64,
        /// Bytes that are free but on unreachable nodes, or being zeroed.
        held_back: u64,
    },
    /// A clone lies on the memory nodes of its source, and one of them has too little free memory.
    #[error(
        "region {region} needs {} on memory node {node}, where the region that it is cloned from lies, and {} are free there",
        human_bytes(*size), human_bytes(*free)
    )]
    NoRoomForClone {
        region: Name,
        /// Memory node that has the part to be cloned.
        node: Name,
        /// Bytes that the new region needs on this memory node.
        size: u64,
        /// Free bytes; 0 if the memory node is unreachable or drained.
        free: u64,
    },
    #[error(
        "region {name} is to be interleaved over {ways} memory nodes, and {nodes} have free memory for it"
    )]
    TooFewNodes {
        name: Name,
        ways: u32,
        /// Number of memory nodes with free memory for the region.
        nodes: usize,
    },
    /// Each position of a mirrored region needs two memory nodes, and too few have room.
    #[error("region {name} in {ways} ways is to be mirrored, and {nodes} memory node(s) have room for it")]
    TooFewForMirror {
        name: Name,
        ways: u32,
        /// Number of memory nodes with free memory for the region.
        nodes: usize,
    },
    /// The copies of a region are placed on different racks, and all memory nodes with room are on one.
    #[error("region {name} is to be mirrored, and all memory nodes with room for it are on one rack")]
    OneRack { name: Name },
    #[error("no memory node {} has {bytes} bytes for another copy of the part of region {name} on {memory_node}",
        if *one_rack { "of another rack" } else { "but that" })]
    NoOtherNode {
        name: Name,
        /// Size of the part that is to be copied.
        bytes: u64,
        /// Memory node of the present copy.
        memory_node: Name,
        /// True if memory nodes of the same rack have room.
        one_rack: bool,
    },
    #[error(
        "memory node {memory_node} cannot take the {bytes} bytes of region {name}: {free} are free there, in extents of \
         {extent}"
    )]
    NoRoomThere {
        name: Name,
        bytes: u64,
        /// Memory node that the part was to move to.
        memory_node: Name,
        /// Bytes free on that memory node for the region's owner.
        free: u64,
        /// Extent size of the memory node in bytes, which has to divide the size of the part.
        extent: u64,
    },
    /// These legs (the region's parts on one memory node) are the only copies in sync, so they cannot become stale.
    #[error("the legs of region {name} on memory node {memory_node} are the only ones in sync")]
    OnlyCopy { name: Name, memory_node: Name },
    /// The region's legs (its parts on memory nodes) have changed since the epoch in the request.
    #[error("the legs of region {name} have changed: it is in epoch {epoch}, not {asked}")]
    StaleEpoch { name: Name, epoch: u64, asked: u64 },
    #[error("region {name} of {size} bytes: the size is not a multiple of {}: {ways} way(s) of the memory nodes' extents", human_bytes(*unit))]
    Unaligned {
        name: Name,
        /// Requested size in bytes.
        size: u64,
        ways: u32,
        /// The smallest extent size among reachable nodes, times the ways, in bytes.
        unit: u64,
    },
    #[error("compute node {owner} may have {}: it has {}, and {} more were asked for", human_bytes(*quota), human_bytes(*used), human_bytes(*asked))]
    OverQuota {
        owner: CnId,
        /// Maximum for all regions of the owner, in bytes.
        quota: u64,
        /// Bytes of the owner's present regions, all copies counted.
        used: u64,
        /// Bytes that the request adds, all copies counted.
        asked: u64,
    },
    #[error("this fabric is static: its regions and bindings come from its file alone")]
    StaticFabric,
    #[error("there is no memory node {0}")]
    NoMemoryNode(Name),
    #[error("there is no compute node {0}")]
    NoComputeNode(String),
    #[error("LD {ld} of memory node {node} {lacks}")]
    NoLogicalDevice {
        node: Name,
        /// LD-ID: 0 to 15.
        ld: u16,
        /// Text: `has no capacity`, `has less capacity than an extent`, or `is not bound`.
        lacks: &'static str,
    },
    /// A vPPB, an LD, or a memory node that is allocated as a whole can have only one binding at a time.
    #[error("{what} is bound already, to {holder}")]
    Bound {
        /// Text, such as `LD 3 of mn0`.
        what: String,
        /// Text, such as `CN 02:00:00:00:00:01, at vPPB 7`.
        holder: String,
    },
    /// The request names an LD of a memory node that is allocated as a whole (SLD), or names no LD of one
    /// that is allocated in slices (MLD).
    #[error("memory node {node} is given away {}", match kind { DeviceKind::Sld => "whole (SLD): it has no slices", DeviceKind::Mld => "in slices (MLD): name one of them" })]
    WrongKind { node: Name, kind: DeviceKind },
    #[error("LD {ld} of memory node {node} cannot shrink to {}: its compute node has {} of it", human_bytes(*asked), human_bytes(*used))]
    LdInUse {
        node: Name,
        /// LD-ID: 0 to 15.
        ld: u16,
        /// Bytes of the regions on the LD.
        used: u64,
        /// Capacity requested for the LD, in bytes.
        asked: u64,
    },
    #[error("memory node {node} cannot be forgotten: {reason}")]
    StillNeeded {
        node: Name,
        /// Reason of the refusal, which the error message ends with.
        reason: String,
    },
    /// The store has no regions, although a running node has accepted another manager: this manager was probably
    /// started with the wrong data directory.
    #[error(
        "this store, at term {}, contains no region, and {node} has followed a manager at term {}: it looks like the wrong data \
         directory",
        own.term, seen.term
    )]
    OtherFabric {
        /// A running node that has accepted another manager.
        node: Party,
        seen: Watermark,
        own: Watermark,
    },
    #[error("compute node {compute_node} cannot be forgotten: {reason}")]
    ComputeNodeNeeded {
        compute_node: CnId,
        /// Reason of the refusal, which the error message ends with.
        reason: String,
    },
    #[error("switch {switch} is busy with another background operation")]
    OperationRuns {
        /// Number of the switch, from 0.
        switch: u32,
    },
    #[error("region {name} may be in use: the agent of its owner {owner} is there")]
    RegionInUse { name: Name, owner: CnId },
    #[error("region {name} is {state}: {reason}")]
    WrongState {
        name: Name,
        state: RegionState,
        /// Reason of the refusal, which the error message ends with: for example, the state that the request
        /// needs.
        reason: String,
    },
    #[error("nothing can be changed at present: {0}")]
    ReadOnly(String),
    /// The request names no history to give up, or one that no refused node has seen.
    #[error("no node is refused that has seen that")]
    NobodyRefused,
    #[error("there is no token {0}")]
    NoToken(String),
    #[error("{0} has not joined")]
    NotJoined(Party),
    #[error("{node} may not join: {reason}")]
    JoinRefused {
        node: Party,
        /// Reason of the refusal, which the error message ends with.
        reason: String,
    },
    /// The record of the region would be larger than the store takes.
    #[error(
        "region {name} would lie in up to {pieces} pieces of free memory, and the store takes no record of it of up to {bytes} \
         bytes: {limit} are possible"
    )]
    TooFragmented {
        name: Name,
        /// Upper bound of the number of runs of extents.
        pieces: u64,
        /// Upper bound of the size of the record.
        bytes: u64,
        limit: u64,
    },
    #[error("the limit of {limit} {what} is reached")]
    LimitReached {
        /// Text, such as `regions`.
        what: &'static str,
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

    /// Returns the error code, by which programs distinguish failures; the message is for people.
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
            Self::LimitReached { .. } | Self::TooFragmented { .. } => ErrorCode::LimitReached,
            Self::ReadOnly(_) => ErrorCode::StoreFull,
            Self::JoinRefused { .. } => ErrorCode::Forbidden,
        }
    }

    /// Returns advice on how to remedy the failure.
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
            Self::Bound { .. } => {
                "unbind it first (`gmm unbind`), or take another; `gmm list -B` shows each with its port and vPPB".into()
            }
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
            Self::TooFragmented { .. } => {
                "make several smaller regions, or name memory nodes with free memory in fewer pieces (`--on`)".into()
            }
        }
    }
}
