//! Commands that change tokens and the records of joined nodes. [`crate::rights`] decides on access from these records.

use cxloe_fabric::api::Party;
use cxloe_fabric::model::{Digest, EventKind, Health, Mac, PublicKey, Role};

pub(crate) use super::tokens::role_of;
pub use super::tokens::{JoinedNode, TokenRecord};
use super::{COMPUTE_NODES_MAX, Change, MEMORY_NODES_MAX, Manager, ManagerError, PORTS_MAX};

/// Maximum number of tokens kept at a time; expired ones do not count.
pub(crate) const TOKENS_MAX: usize = 4096;
/// Maximum number of compute nodes that one token may name.
pub(crate) const TOKEN_NODES_MAX: usize = 1024;
const JOINED_MAX: usize = MEMORY_NODES_MAX + COMPUTE_NODES_MAX + FM_CLIENTS_MAX;
const FM_CLIENTS_MAX: usize = 1024;

impl Manager {
    pub(super) fn create_token(&mut self, token: TokenRecord) -> Result<(), ManagerError> {
        let now_ms = self.now_ms;
        let what = || format!("a token of role {}", token.role);
        if token.expires_ms <= now_ms {
            return Err(ManagerError::out_of_range(what(), "it would have ended already"));
        }
        if token.role == Role::Tenant && token.compute_nodes.is_empty() {
            return Err(ManagerError::out_of_range(what(), "say which compute nodes are the tenant's"));
        }
        if !matches!(token.role, Role::Tenant | Role::ComputeNode) && !token.compute_nodes.is_empty() {
            return Err(ManagerError::out_of_range(what(), "it is not about compute nodes"));
        }
        if token.role != Role::Tenant && token.quota.is_some() {
            return Err(ManagerError::out_of_range(what(), "only a tenant's has a quota"));
        }
        if token.compute_nodes.len() > TOKEN_NODES_MAX {
            let limit = TOKEN_NODES_MAX as u64;
            return Err(ManagerError::LimitReached { what: "compute nodes of one token", limit });
        }
        // Expired tokens are removed when the next token is created.
        let ended = self.state.tokens.values().filter(|token| !token.is_valid(now_ms));
        let ended: Vec<String> = ended.map(|token| token.id.clone()).collect();
        if self.state.tokens.len() - ended.len() >= TOKENS_MAX {
            return Err(ManagerError::LimitReached { what: "tokens", limit: TOKENS_MAX as u64 });
        }
        if self.state.tokens.contains_key(&token.id) {
            return Err(ManagerError::out_of_range(what(), "there is one of its id; ask again"));
        }
        ended.into_iter().for_each(|id| self.put(Change::TokenGone(id)));
        self.event(EventKind::TokenCreated { token: token.id.clone(), role: token.role });
        self.put(Change::Token(token));
        Ok(())
    }

    pub(super) fn revoke_token(&mut self, id: &str) -> Result<(), ManagerError> {
        if !self.state.tokens.contains_key(id) {
            return Err(ManagerError::NoToken(id.to_owned()));
        }
        self.put(Change::TokenGone(id.to_owned()));
        self.event(EventKind::TokenRevoked { token: id.to_owned() });
        Ok(())
    }

    /// Records that a node joins, either with the token of this id or by order of a permitted caller.
    /// `proved` is the digest of the TLS key that the node's connection proved to possess.
    pub(super) fn join(
        &mut self,
        joining: JoinedNode,
        token: Option<&str>,
        proved: Option<Digest>,
        take_over: bool,
    ) -> Result<(), ManagerError> {
        let JoinedNode { node, macs, tls, .. } = &joining;
        let refused =
            |reason: &str| Err(ManagerError::JoinRefused { node: node.clone(), reason: reason.to_owned() });
        let unicast = |mac: &Mac| mac.0[0] & 1 == 0 && mac.0 != [0; 6];
        let is_node = !matches!(node, Party::FmClient(_));
        if !is_node && (!macs.is_empty() || joining.key.is_some()) {
            return refused("an FM client has no ports, and no sessions that a key would be for");
        }
        if is_node && (macs.is_empty() || macs.len() > PORTS_MAX || !macs.iter().all(unicast)) {
            return refused("the addresses of its ports are none that it could have");
        }
        if let Party::ComputeNode(cn) = node
            && macs.first().map(|mac| mac.0) != Some(cn.mac().0)
        {
            return refused("its CN id is not the address of its first port");
        }
        let other = self.state.joined.values().find(|other| {
            other.node != *node
                && (other.tls == *tls
                    || (other.key.is_some() && other.key == joining.key)
                    || other.macs.iter().any(|mac| macs.contains(mac)))
        });
        if let Some(other) = other
            && (other.tls != *tls || proved != Some(*tls))
        {
            let other = &other.node;
            return refused(&format!(
                "a key or an address of it belongs to {other}; `gmm revoke` that one first"
            ));
        }
        // The same machine had joined under another name or with another interface: its former entry is
        // removed.
        let former = other.map(|other| other.node.clone());
        let before = self.state.joined.get(node);
        // The node has a new key, and the connection did not prove the former key: the request may come from
        // another machine.
        let takes_over = before.is_some_and(|before| before.tls != *tls && proved != Some(before.tls));
        // A node that has registered by an administrator's order, and not joined, has the key of its registration.
        let has_other_key = before.is_none()
            && self.registered_key(node).is_some_and(|registered| Some(registered) != joining.key);
        if (takes_over || has_other_key) && !take_over && self.is_running(node) {
            return refused(
                "a node with another key is running as it, and would lose its place within seconds; end that node first, or take \
                 its place with --take-over",
            );
        }
        let mut used = None;
        if let Some(id) = token {
            let Some(mut record) = self.state.tokens.get(id).filter(|t| t.is_valid(self.now_ms)).cloned()
            else {
                return refused("its token is no longer valid");
            };
            if record.role != role_of(node) {
                return refused(&format!("its token is of role {}", record.role));
            }
            if record.used.is_some_and(|used| used != *tls) {
                return refused("its token is used up");
            }
            let names_it = match node {
                Party::ComputeNode(cn) => record.compute_nodes.contains(cn),
                Party::MemoryNode(_) | Party::FmClient(_) => false,
            };
            if !names_it && !record.compute_nodes.is_empty() {
                return refused("its token is for others");
            }
            // A token that any node can join with must not suffice to replace one that has joined.
            if takes_over && !names_it {
                return refused(
                    "another machine has joined as it, with another key; `gmm revoke` that one first",
                );
            }
            record.used = Some(*tls);
            used = Some(record);
        }
        if before.is_none() && self.state.joined.len() >= JOINED_MAX {
            return Err(ManagerError::LimitReached {
                what: "nodes that have joined",
                limit: JOINED_MAX as u64,
            });
        }
        if let Some(record) = used {
            self.put(Change::Token(record));
        }
        if let Some(former) = former {
            self.put(Change::JoinedGone(former));
        }
        let event = match node {
            Party::MemoryNode(name) => EventKind::MemoryNodeJoined { memory_node: name.clone() },
            Party::ComputeNode(cn) => EventKind::ComputeNodeJoined { compute_node: *cn },
            Party::FmClient(name) => EventKind::FmClientJoined { fm_client: name.clone() },
        };
        self.key_is(&joining.node, joining.key)?;
        self.put(Change::Joined(joining));
        self.event(event);
        Ok(())
    }

    /// Returns true if a node is registered and in contact with the manager.
    fn is_running(&self, node: &Party) -> bool {
        let health = match node {
            Party::MemoryNode(name) => self.state.memory_nodes.get(name).map(|node| node.health),
            Party::ComputeNode(cn) => self.state.compute_nodes.get(cn).map(|node| node.health),
            Party::FmClient(_) => None,
        };
        health == Some(Health::Reachable)
    }

    /// Session key of a registered node; `None` also after it was revoked.
    fn registered_key(&self, node: &Party) -> Option<PublicKey> {
        match node {
            Party::MemoryNode(name) => self.state.memory_nodes.get(name)?.key,
            Party::ComputeNode(cn) => self.state.compute_nodes.get(cn)?.key,
            Party::FmClient(_) => None,
        }
    }

    /// Sets the session key of a node and sends it to the peers of the node's mappings. No effect on a node
    /// that has not registered.
    fn key_is(&mut self, node: &Party, key: Option<PublicKey>) -> Result<(), ManagerError> {
        let is_known = match node {
            Party::MemoryNode(name) => self.state.memory_nodes.contains_key(name),
            Party::ComputeNode(cn) => self.state.compute_nodes.contains_key(cn),
            Party::FmClient(_) => false,
        };
        if is_known { self.set_key(node, key) } else { Ok(()) }
    }

    pub(super) fn revoke(&mut self, node: &Party) -> Result<(), ManagerError> {
        if !self.state.joined.contains_key(node) {
            return Err(ManagerError::NotJoined(node.clone()));
        }
        self.key_is(node, None)?;
        self.put(Change::JoinedGone(node.clone()));
        self.event(match node {
            Party::MemoryNode(name) => EventKind::MemoryNodeRevoked { memory_node: name.clone() },
            Party::ComputeNode(cn) => EventKind::ComputeNodeRevoked { compute_node: *cn },
            Party::FmClient(name) => EventKind::FmClientRevoked { fm_client: name.clone() },
        });
        Ok(())
    }
}
