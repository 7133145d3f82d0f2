//! What a route asks of who uses it. Each route says it where it is declared; what it says is also in the OpenAPI document.

use cxloe_fabric::api::{ErrorCode, Party};

use super::caller::{Caller, May};

/// What a route asks of who uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Nothing: it tells nothing that is worth knowing.
    Anybody,
    /// To be known: anybody with a role, and nodes.
    Look,
    /// To be a memory node.
    MemoryNode,
    /// To be a compute node.
    ComputeNode,
    /// To be a node.
    Node,
    /// To be let in: a token to join with.
    Join,
    /// To have regions: tenants, and compute nodes for themselves.
    Regions,
    /// To be an administrator.
    Administer,
}

/// What somebody may not do, why, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Denied {
    /// The kind of failure.
    pub code: ErrorCode,
    /// What, to whom, and why.
    pub error: String,
    /// What to do about it.
    pub hint: &'static str,
}

impl Denied {
    /// To somebody who is known.
    pub fn forbidden(caller: &Caller, what: &str) -> Self {
        if let May::Nothing(why) = caller.may {
            return Self::unknown(why);
        }
        let error = format!("{} ({}) may not do this: {what}", caller.who, caller.role());
        let hint = "ask somebody who may; an administrator makes tokens with `gmm token create --role …`";
        Self { code: ErrorCode::Forbidden, error, hint }
    }

    /// To somebody who is not known.
    fn unknown(why: Option<&str>) -> Self {
        let error = match why {
            Some(why) => format!("who asks is not known: {why}"),
            None => "who asks is not known: no token and no certificate came with the request".to_owned(),
        };
        let hint = "people: `gmm login URL --token …`, or CXLOE_TOKEN; nodes: `mn-server join` or `cn-agent join`; an \
                    administrator makes tokens with `gmm token create`";
        Self { code: ErrorCode::Unauthenticated, error, hint }
    }
}

impl Right {
    /// What the OpenAPI document calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anybody => "anybody",
            Self::Look => "viewer",
            Self::MemoryNode => "memory-node",
            Self::ComputeNode => "compute-node",
            Self::Node => "node",
            Self::Join => "join",
            Self::Regions => "tenant",
            Self::Administer => "admin",
        }
    }

    /// Whether `caller` has it.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn check(self, caller: &Caller) -> Result<(), Denied> {
        let (has, what) = match (self, &caller.may) {
            (Self::Anybody, _) | (_, May::Everything) => (true, ""),
            (Self::Look, may) => (!matches!(may, May::Nothing(_) | May::Join(_)), "its token is for joining"),
            (Self::MemoryNode, May::Node(joined)) => {
                (matches!(joined.node, Party::MemoryNode(_)), "it is for memory nodes")
            }
            (Self::ComputeNode, May::Node(joined)) => {
                (matches!(joined.node, Party::ComputeNode(_)), "it is for compute nodes")
            }
            (Self::MemoryNode, _) => (false, "it is for memory nodes"),
            (Self::ComputeNode, _) => (false, "it is for compute nodes"),
            (Self::Node, may) => (matches!(may, May::Node(_)), "it is for nodes"),
            (Self::Join, may) => (matches!(may, May::Join(_)), "it takes a token of role mn, cn or fm"),
            (Self::Regions, May::Node(joined)) => {
                (matches!(joined.node, Party::ComputeNode(_)), "it has no regions")
            }
            (Self::Regions, may) => (matches!(may, May::Tenant(_)), "it takes the role tenant or admin"),
            (Self::Administer, _) => (false, "it takes the role admin"),
        };
        if has { Ok(()) } else { Err(Denied::forbidden(caller, what)) }
    }
}
