//! Why the manager refuses a command. Each variant says what was asked and about what; [`ManagerError::hint`] says what to
//! do, and [`ManagerError::code`] is the same for programs.

use cxloe_fabric::api::{ErrorCode, Party};
use cxloe_fabric::model::{CnId, DeviceKind, Mac, Name, PublicKey, RegionState, Watermark, human_bytes};

/// A command that cannot be carried out. The state is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManagerError {
    /// A value is out of its range.
    #[error("{what}: {reason}")]
    OutOfRange {
        /// Which value of what.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such region.
    #[error("there is no region {0}")]
    NoRegion(Name),
    /// There is another one of its name.
    #[error(
        "there is no region {name} that was created at {asked_ms} ms: the one there is was created at {created_ms} ms"
    )]
    OtherRegion {
        /// The name of both.
        name: Name,
        /// When the one there is was created: milliseconds since the Unix epoch.
        created_ms: u64,
        /// When the one that was meant was.
        asked_ms: u64,
    },
    /// The owner of a region to be created is unknown.
    #[error("there is no compute node named {0}")]
    NoOwner(Name),
    /// There is a region of this name.
    #[error("there is a region {0} already, {1}")]
    RegionExists(Name, RegionState),
    /// Another daemon registered under this name or CN id and is still there.
    #[error("{who} is registered by another running daemon")]
    InUse {
        /// The memory node or compute node.
        who: String,
    },
    /// Another daemon has registered under this name since this one did.
    #[error("another process has taken the place of this one as {who}")]
    Succeeded {
        /// The memory node.
        who: String,
    },
    /// A name or an address belongs to another node.
    #[error("{what} of {who} belongs to {holder}")]
    Taken {
        /// The name or address.
        what: String,
        /// Who asked for it.
        who: String,
        /// Whose it is.
        holder: String,
    },
    /// A sync under a registration that is not, or no longer, valid.
    #[error("registration {registration} of {who} is not the current one")]
    NotRegistered {
        /// The memory node or compute node.
        who: String,
        /// The registration it gave.
        registration: u64,
    },
    /// The node has seen what this store does not have.
    #[error("{node} has seen term {}, revision {}, and that is not in this manager's store, which is at term {}, revision {}: the store is an older copy, or another fabric's", seen.term, seen.revision, own.term, own.revision)]
    Stale {
        /// The node.
        node: Party,
        /// What it has seen.
        seen: Watermark,
        /// Where this manager is.
        own: Watermark,
    },
    /// The node has another key than the one it registered first.
    #[error("{node} registers with the key {new}, and is known by the key {known}")]
    KeyChanged {
        /// The node.
        node: Party,
        /// The key it is known by.
        known: PublicKey,
        /// The key it gives.
        new: PublicKey,
    },
    /// The node gives results for commands that were never issued, or leaves some out.
    #[error("memory node {node} acknowledges commands up to {acked_seq}: {reason}")]
    BadAcknowledgement {
        /// The node.
        node: Name,
        /// What it acknowledged.
        acked_seq: u64,
        /// What does not fit.
        reason: String,
    },
    /// The geometry of a pool changed under the regions on it.
    #[error("memory node {node} registers {change} while regions lie on it")]
    GeometryChanged {
        /// The node.
        node: Name,
        /// What changed.
        change: String,
    },
    /// No place for a region.
    #[error("region {name} needs {}, and reachable memory nodes have {} free ({} more is being zeroed or on unreachable nodes)", human_bytes(*size), human_bytes(*free), human_bytes(*held_back))]
    NoSpace {
        /// The region.
        name: Name,
        /// Bytes asked for.
        size: u64,
        /// Bytes free on reachable nodes.
        free: u64,
        /// Bytes that are free but on unreachable nodes, or draining.
        held_back: u64,
    },
    /// Too few memory nodes to interleave over.
    #[error(
        "region {name} is to be interleaved over {ways} memory nodes, and {nodes} have free memory for it"
    )]
    TooFewNodes {
        /// The region.
        name: Name,
        /// Ways asked for.
        ways: u32,
        /// Memory nodes with room.
        nodes: usize,
    },
    /// The size is no multiple of what memory nodes give away.
    #[error("region {name} of {size} bytes: the size is not a multiple of {}: {ways} way(s) of the memory nodes' extents", human_bytes(*unit))]
    Unaligned {
        /// The region.
        name: Name,
        /// Bytes asked for.
        size: u64,
        /// Ways asked for.
        ways: u32,
        /// The smallest extent size among reachable nodes, times the ways, in bytes.
        unit: u64,
    },
    /// The owner would have more than it may.
    #[error("compute node {owner} may have {}: it has {}, and {} more were asked for", human_bytes(*quota), human_bytes(*used), human_bytes(*asked))]
    OverQuota {
        /// The compute node.
        owner: CnId,
        /// Its quota in bytes.
        quota: u64,
        /// Bytes of its regions.
        used: u64,
        /// Bytes asked for.
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
        /// The memory node.
        node: Name,
        /// The LD.
        ld: u16,
        /// What it lacks.
        lacks: &'static str,
    },
    /// The vPPB, the LD, or the compute node's place on the memory node is taken.
    #[error("{what} is bound already, to {holder}")]
    Bound {
        /// What was to be bound.
        what: String,
        /// To what it is bound.
        holder: String,
    },
    /// The memory node is of the other kind.
    #[error("memory node {node} is given away {}", match kind { DeviceKind::Sld => "whole (SLD): it has no slices", DeviceKind::Mld => "in slices (MLD): name one of them" })]
    WrongKind {
        /// The memory node.
        node: Name,
        /// What it is.
        kind: DeviceKind,
    },
    /// What is set aside for a bound LD cannot become less than its regions have.
    #[error("LD {ld} of memory node {node} cannot shrink to {}: its compute node has {} of it", human_bytes(*asked), human_bytes(*used))]
    LdInUse {
        /// The memory node.
        node: Name,
        /// The LD.
        ld: u16,
        /// Bytes of its regions.
        used: u64,
        /// Bytes asked for.
        asked: u64,
    },
    /// The memory node is there, or regions lie on it.
    #[error("memory node {node} cannot be forgotten: {reason}")]
    StillNeeded {
        /// The memory node.
        node: Name,
        /// Why.
        reason: String,
    },
    /// The store is empty, and nodes are here that have followed another manager.
    #[error(
        "this store, at term {}, knows of no region, and {node} has followed a manager at term {}: it looks like the wrong data \
         directory",
        own.term, seen.term
    )]
    OtherFabric {
        /// A node that does not follow.
        node: Party,
        /// What it has seen.
        seen: Watermark,
        /// Where this manager is.
        own: Watermark,
    },
    /// The compute node is there, or has something.
    #[error("compute node {compute_node} cannot be forgotten: {reason}")]
    ComputeNodeNeeded {
        /// The compute node.
        compute_node: CnId,
        /// Why.
        reason: String,
    },
    /// Another background operation runs.
    #[error("switch {switch} is busy with another background operation")]
    OperationRuns {
        /// The switch.
        switch: u32,
    },
    /// The owner's agent is there and may be using the region.
    #[error("region {name} may be in use: the agent of its owner {owner} is there")]
    RegionInUse {
        /// The region.
        name: Name,
        /// Its owner.
        owner: CnId,
    },
    /// The region's state does not allow it.
    #[error("region {name} is {state}: {reason}")]
    WrongState {
        /// The region.
        name: Name,
        /// Its state.
        state: RegionState,
        /// What would be needed.
        reason: String,
    },
    /// The store cannot be written.
    #[error("nothing can be changed at present: {0}")]
    ReadOnly(String),
    /// No node has been refused with such a history.
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
        /// Which.
        node: Party,
        /// Why.
        reason: String,
    },
    /// A limit is reached.
    #[error("the limit of {limit} {what} is reached")]
    LimitReached {
        /// What is limited.
        what: &'static str,
        /// How many are allowed.
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

    /// The same for programs.
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
            Self::NoSpace { .. } | Self::TooFewNodes { .. } => ErrorCode::NoSpace,
            Self::OverQuota { .. } => ErrorCode::OverQuota,
            Self::StaticFabric => ErrorCode::StaticFabric,
            Self::OperationRuns { .. } => ErrorCode::Unavailable,
            Self::RegionInUse { .. } => ErrorCode::RegionInUse,
            Self::LimitReached { .. } => ErrorCode::LimitReached,
            Self::ReadOnly(_) => ErrorCode::StoreFull,
            Self::JoinRefused { .. } => ErrorCode::Forbidden,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::OutOfRange { .. } => "correct the value and ask again".into(),
            Self::NoRegion(_) | Self::OtherRegion { .. } => "`gmm list -R` shows the regions there are".into(),
            Self::NoOwner(name) => {
                format!(
                    "start the agent of {name}, or give its CN id (its MAC address); `gmm list -C` shows who is known"
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
                "somebody else speaks in its name, or its key file was lost: put the file back, or have the node join anew"
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
                "`gmm disable-region {name}` has the agent write back and let go first; `gmm destroy-region --force {name}` \
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
