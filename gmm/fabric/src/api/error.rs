//! How a request that fails is answered: one body for every failure, with a message for people and a code for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// What was tried, on what, and why it did not work.
    pub error: String,
    /// The same for programs.
    pub code: ErrorCode,
    /// What to do about it.
    pub hint: String,
}

/// Kinds of failure, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is malformed or a value of it is out of range. 400
    BadRequest,
    /// No such path, node or region. 404
    NotFound,
    /// The path exists, the method does not. 405
    MethodNotAllowed,
    /// The request did not arrive in time. 408
    Timeout,
    /// The name or the address belongs to another. 409
    NameInUse,
    /// The registration was superseded by a later one, or the node never registered here. 409
    NotRegistered,
    /// The region's state does not allow it. 409
    WrongState,
    /// The region's owner is there and may be using it. 409
    RegionInUse,
    /// This manager has not come as far as the node has seen: its store is old or another. 409
    StaleManager,
    /// The body is larger than the server takes. 413
    TooLarge,
    /// A limit of the manager is reached. 429
    LimitReached,
    /// The compute node's quota does not allow it. 403
    OverQuota,
    /// The fabric is static: its regions come from its file. 409
    StaticFabric,
    /// Another manager leads; the answer says where it is. 307
    NotLeader,
    /// A memory node refused a command. 502
    NodeRefused,
    /// The manager has too much to do or is ending. 503
    Unavailable,
    /// The store failed. 500
    StoreFailed,
    /// Not enough free memory on reachable memory nodes. 507
    NoSpace,
    /// The store cannot be written: its disk is full, or fails. Nothing is changed until it can. 507
    StoreFull,
    /// A browser's page of another origin asks, or one that may have been led here. 403
    ForeignOrigin,
    /// The body is not JSON, or does not say so. 415
    NotJson,
    /// Nobody is known to ask: no token, certificate or session comes with the request, or one that is not valid. 401
    Unauthenticated,
    /// Who asks may not do this. 403
    Forbidden,
    /// A code this version does not know.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// The HTTP status that goes with it.
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
            | Self::StaleManager => 409,
            Self::TooLarge => 413,
            Self::NotJson => 415,
            Self::LimitReached => 429,
            Self::StoreFailed | Self::Unknown => 500,
            Self::NodeRefused => 502,
            Self::Unavailable => 503,
            Self::NoSpace | Self::StoreFull => 507,
        }
    }
}
