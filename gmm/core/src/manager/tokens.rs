//! Records of tokens and of joined nodes, in the form that is stored.

use cxloe_fabric::api::{Party, TokenStatus};
use cxloe_fabric::model::{CnId, Digest, Mac, PublicKey, Role};
use serde::{Deserialize, Serialize};

/// Record of a token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Identifier of the token, which is not secret.
    pub id: String,
    pub role: Role,
    pub digest: Digest,
    /// Creation time, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Time at which the token becomes invalid, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// For role tenant: the tenant's compute nodes. For role `cn`: the compute nodes that may join with the token, any
    /// if empty.
    #[serde(default)]
    pub compute_nodes: Vec<CnId>,
    /// Maximum total size of a tenant's regions, in bytes; none: only the quotas of the compute nodes apply.
    #[serde(default)]
    pub quota: Option<u64>,
    /// The caller that created the token, as named in the event log.
    pub made_by: String,
    /// TLS key of the node that joined with the token. No other node can then use the token.
    #[serde(default)]
    pub used: Option<Digest>,
}

impl TokenRecord {
    pub fn is_valid(&self, now_ms: u64) -> bool {
        now_ms < self.expires_ms
    }

    pub fn status(&self) -> TokenStatus {
        TokenStatus {
            id: self.id.clone(),
            role: self.role,
            created_ms: self.created_ms,
            expires_ms: self.expires_ms,
            made_by: self.made_by.clone(),
            compute_nodes: self.compute_nodes.clone(),
            quota: self.quota,
            used: self.used.is_some(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedNode {
    /// The memory node, compute node or FM client that joined.
    pub node: Party,
    /// The node's TLS key: the hash of the SubjectPublicKeyInfo of its certificate.
    pub tls: Digest,
    /// Session key of the node; `None` if it sent none.
    #[serde(default)]
    pub key: Option<PublicKey>,
    /// Ethernet addresses of the node's ports, which it must register with.
    pub macs: Vec<Mac>,
    /// Time of joining, in milliseconds since the Unix epoch.
    pub joined_ms: u64,
    /// The caller that admitted the node, as named in the event log.
    pub by: String,
}

/// Returns the role of the token that a node or an FM client joins with.
pub(crate) fn role_of(node: &Party) -> Role {
    match node {
        Party::MemoryNode(_) => Role::MemoryNode,
        Party::ComputeNode(_) => Role::ComputeNode,
        Party::FmClient(_) => Role::FmClient,
    }
}
