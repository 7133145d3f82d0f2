//! Tokens, joining, and who somebody is to the manager.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Party;
use crate::model::{ByteSize, CnId, Mac, PublicKey, Role, Watermark};

/// Asks for a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// What its bearer may do.
    pub role: Role,
    /// Seconds until it ends; none: an hour for `mn` and `cn`, 90 days for people.
    #[serde(default)]
    pub ttl_s: Option<u64>,
    /// The compute nodes of a tenant; of a `cn`, those that may join with it, any if there are none.
    #[serde(default)]
    pub compute_nodes: Vec<CnId>,
    /// Bytes that a tenant may have in regions; none: no limit of its own.
    #[serde(default)]
    pub quota: Option<ByteSize>,
}

/// Answer to [`CreateToken`]. The token is shown here and never again.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenCreated {
    /// What its bearer gives.
    pub token: String,
    /// What names it.
    pub id: String,
    /// What its bearer may do.
    pub role: Role,
    /// When it ends: milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

/// A token as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenStatus {
    /// What names it.
    pub id: String,
    /// What its bearer may do.
    pub role: Role,
    /// When it was made: milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When it ends.
    pub expires_ms: u64,
    /// Who made it.
    pub made_by: String,
    /// The compute nodes it is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compute_nodes: Vec<CnId>,
    /// Bytes that a tenant may have in regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// A node or an FM client has joined with it: it is used up.
    #[serde(default)]
    pub used: bool,
}

/// A node, or a client of the FM API, asks to be let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// Which.
    pub node: Party,
    /// The public half of its TLS key: a point of P-256, 65 bytes as base64.
    pub tls_key: String,
    /// The public half of the key of its sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Addresses of its ports, the one that identifies it first; none of an FM client.
    #[serde(default)]
    pub macs: Vec<Mac>,
}

/// A node that has joined asks for a new certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// The public half of its TLS key, as when it joined.
    pub tls_key: String,
}

/// Answer to [`Join`] and [`Renew`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Joined {
    /// The node's certificate (PEM).
    pub certificate: String,
    /// The certificate of the manager's authority (PEM).
    pub authority: String,
    /// From when it should be renewed: milliseconds since the Unix epoch.
    pub renew_ms: u64,
    /// When it ends.
    pub expires_ms: u64,
    /// Where the manager is reached over TLS.
    pub manager: String,
    /// How far it has come: what a node that has joined expects of its manager's store from then on.
    #[serde(default)]
    pub watermark: Watermark,
}

/// What somebody is to the manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoAmI {
    /// Who, as the event log says it.
    pub who: String,
    /// What they may do.
    pub role: String,
    /// The compute nodes of a tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compute_nodes: Vec<CnId>,
    /// When the token ends that says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}
