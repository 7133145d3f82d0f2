//! What the manager keeps of tokens, and of nodes that have joined.

use cxloe_fabric::api::{Party, TokenStatus};
use cxloe_fabric::model::{CnId, Digest, Mac, PublicKey, Role};
use serde::{Deserialize, Serialize};

/// What the manager keeps of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// What names it.
    pub id: String,
    /// What its bearer may do.
    pub role: Role,
    /// The hash of its secret.
    pub digest: Digest,
    /// When it was made: milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When it ends.
    pub expires_ms: u64,
    /// The compute nodes of a tenant; those that may join, any if there are none.
    #[serde(default)]
    pub compute_nodes: Vec<CnId>,
    /// Bytes that a tenant may have in regions; none: no limit of its own.
    #[serde(default)]
    pub quota: Option<u64>,
    /// Who made it.
    pub made_by: String,
    /// The TLS key of the node that joined with it: it is used up for all others.
    #[serde(default)]
    pub used: Option<Digest>,
}

impl TokenRecord {
    /// Whether it is valid at this time.
    pub fn is_valid(&self, now_ms: u64) -> bool {
        now_ms < self.expires_ms
    }

    /// As it is listed.
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

/// A node that has joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedNode {
    /// Which.
    pub node: Party,
    /// Its TLS key, by the hash of what its certificate says of it (SubjectPublicKeyInfo).
    pub tls: Digest,
    /// The key of its sessions, if it said one.
    #[serde(default)]
    pub key: Option<PublicKey>,
    /// The addresses of its ports.
    pub macs: Vec<Mac>,
    /// When: milliseconds since the Unix epoch.
    pub joined_ms: u64,
    /// Who let it in.
    pub by: String,
}

/// The role of the token that a node or an FM client joins with.
pub fn role_of(node: &Party) -> Role {
    match node {
        Party::MemoryNode(_) => Role::MemoryNode,
        Party::ComputeNode(_) => Role::ComputeNode,
        Party::FmClient(_) => Role::FmClient,
    }
}
