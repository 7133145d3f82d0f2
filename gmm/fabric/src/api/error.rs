//! Answer to a failed request: one body for every failure, with a message for people and a code for programs.

use serde::{Deserialize, Serialize};

/// Body of every answer with an HTTP status of 400 or more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// Text for people: the action, its object, and the reason of the failure.
    pub error: String,
    /// Kind of the failure, for programs.
    pub code: ErrorCode,
    /// Text for people: what to do; may be empty.
    pub hint: String,
}

/// Kinds of failure, for programs; each has one HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is malformed, or a value in it is out of range. 400
    BadRequest,
    /// The path, node or region does not exist. 404
    NotFound,
    /// The path exists, but not with this method. 405
    MethodNotAllowed,
    /// The request did not arrive in time. 408
    Timeout,
    /// The name or the address belongs to another node or region. 409
    NameInUse,
    /// The registration was superseded by a later one, or the node never registered here. 409
    NotRegistered,
    /// The region's state does not permit the request. 409
    WrongState,
    /// The region's owner is running and may be using the region. 409
    RegionInUse,
    /// This manager's store lacks changes that the node has seen: it is an older copy, or the store of another fabric.
    /// 409
    StaleManager,
    /// The legs (a region's parts on one memory node) are the only ones with the content: their other copy is not in
    /// sync. 409
    OnlyCopy,
    /// The legs of the region (its parts on memory nodes) have changed since the epoch in the request. 409
    StaleEpoch,
    /// The body exceeds the server's limit. 413
    TooLarge,
    /// The request would exceed a limit of the manager, such as a number of nodes or regions. 429
    LimitReached,
    /// The request exceeds the compute node's quota. 403
    OverQuota,
    /// The fabric is static: its regions come from the fabric file. 409
    StaticFabric,
    /// Another manager leads; the answer contains its URL. 307
    NotLeader,
    /// A memory node refused a command. 502
    NodeRefused,
    /// The manager is overloaded or shutting down. 503
    Unavailable,
    /// The manager lost the lead or its store, or ended, before the request was complete: the request may or may not
    /// have been carried out. 503
    MayBeDone,
    /// The store or a backup cannot be written, for a reason other than a full disk. 500
    StoreFailed,
    /// Not enough free memory on reachable memory nodes. 507
    NoSpace,
    /// The store cannot be written, because its disk is full or fails. Changes are refused until the store can be
    /// written. 507
    StoreFull,
    /// The request comes from a web page of another origin, or reaches this address under a name that is not
    /// the manager's. 403
    ForeignOrigin,
    /// The body is not JSON, or has another content type. 415
    NotJson,
    /// The caller is unknown: the request has no valid token, certificate or session. 401
    Unauthenticated,
    /// The caller lacks the right to the request. 403
    Forbidden,
    /// A code that this version does not define, from a newer manager.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// Returns the HTTP status of an answer with this code.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::NotLeader => 307,
            Self::BadRequest => 400,
            Self::Unauthenticated => 401,
            Self::OverQuota | Self::ForeignOrigin | Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Timeout => 408,
            Self::NameInUse
            | Self::NotRegistered
            | Self::WrongState
            | Self::StaticFabric
            | Self::RegionInUse
            | Self::StaleManager
            | Self::OnlyCopy
            | Self::StaleEpoch => 409,
            Self::TooLarge => 413,
            Self::NotJson => 415,
            Self::LimitReached => 429,
            Self::StoreFailed | Self::Unknown => 500,
            Self::NodeRefused => 502,
            Self::Unavailable | Self::MayBeDone => 503,
            Self::NoSpace | Self::StoreFull => 507,
        }
    }
}
