//! Bodies of requests for tokens, joining, and a caller's own identity.

use serde::{Deserialize, Serialize};

use super::Party;
use crate::model::{ByteSize, CnId, Mac, PublicKey, Role, Watermark};

/// Pattern of an uncompressed point of P-256 in base64: 65 bytes, of which the first is 4.
#[cfg(feature = "schema")]
const TLS_KEY_PATTERN: &str = "^B[A-P][A-Za-z0-9+/]{85}=$";

/// Body of `POST /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// Rights of the token's bearer.
    pub role: Role,
    /// Validity in seconds; none: an hour for roles `mn`, `cn` and `fm`, 90 days for the other roles.
    #[serde(default)]
    pub ttl_s: Option<u64>,
    /// For role tenant: the tenant's compute nodes. For role `cn`: the compute nodes that may join with the token, any
    /// if empty.
    #[serde(default)]
    pub compute_nodes: Vec<CnId>,
    /// Maximum total size of a tenant's regions; none: only the quotas of the compute nodes apply.
    #[serde(default)]
    pub quota: Option<ByteSize>,
}

/// Answer to [`CreateToken`]: the only message that contains the token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenCreated {
    /// The token with its secret, for the bearer.
    pub token: String,
    /// Identifier of the token, which is not secret.
    pub id: String,
    /// Rights of the token's bearer.
    pub role: Role,
    /// Time at which the token becomes invalid, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

/// A token in a listing, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenStatus {
    /// Identifier of the token, which is not secret.
    pub id: String,
    /// Rights of the token's bearer.
    pub role: Role,
    /// Creation time, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Time at which the token becomes invalid, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// The caller that created the token, as named in the event log.
    pub made_by: String,
    /// CN ids of the tenant's compute nodes, or of those that may join with the token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compute_nodes: Vec<CnId>,
    /// Maximum total size of a tenant's regions, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// True if a node or an FM client has joined with the token, which cannot be used again.
    #[serde(default)]
    pub used: bool,
}

/// Request of a node, or of a client of the FM API, to be admitted to the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The memory node, compute node or FM client that is to join.
    pub node: Party,
    /// Public half of the node's TLS key: a point of P-256, 65 bytes as base64.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = TLS_KEY_PATTERN)))]
    pub tls_key: String,
    /// Public half of the node's session key; none if its sessions have no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Ethernet addresses of the node's ports, the identifying one first; empty for an FM client.
    #[serde(default)]
    pub macs: Vec<Mac>,
    /// True to take the place of a running node of this name or CN id that has another TLS key.
    #[serde(default)]
    pub take_over: bool,
}

/// Request of a joined node for a new certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// Public half of the node's TLS key, the same as when it joined.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = TLS_KEY_PATTERN)))]
    pub tls_key: String,
}

/// Answer to [`Join`] and [`Renew`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Joined {
    /// The node's certificate (PEM).
    pub certificate: String,
    /// The certificate of the manager's authority (PEM).
    pub authority: String,
    /// Time from which the node should renew the certificate, in milliseconds since the Unix epoch.
    pub renew_ms: u64,
    /// Time at which the certificate expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// URL of the manager over TLS.
    pub manager: String,
    /// The manager's watermark (term and revision of its store): the node accepts only managers whose store contains
    /// it.
    #[serde(default)]
    pub watermark: Watermark,
}

/// Identity and rights of the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WhoAmI {
    /// The caller's name in the event log.
    pub who: String,
    /// Name of the caller's role, or of its kind of node.
    pub role: String,
    /// CN ids of a tenant's compute nodes; empty for other callers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compute_nodes: Vec<CnId>,
    /// Time at which the caller's token expires, in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}
