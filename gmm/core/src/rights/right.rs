//! Right that a route requires of its caller. Each route declares one, and the OpenAPI document shows it.

use cxloe_fabric::api::{ErrorCode, Party};

use super::caller::{Caller, CallerRights};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// No credentials are required: the route reveals nothing worth protecting.
    Anybody,
    /// A token of any role except those for joining, or the certificate of any joined node.
    Look,
    /// A joined memory node.
    MemoryNode,
    /// A joined compute node.
    ComputeNode,
    /// Any joined node, FM clients included.
    Node,
    /// A join token.
    Join,
    /// A tenant for the regions of its compute nodes, or a compute node for its own regions.
    Regions,
    Administer,
}

/// Refusal of a request because of the caller's rights.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Denied {
    /// Error code of the answer, which determines the HTTP status.
    pub code: ErrorCode,
    /// Message for people: the action, the caller and the reason.
    pub error: String,
    /// Advice for people on how to get the right.
    pub hint: &'static str,
}

impl Denied {
    /// Returns the refusal of an action to a caller that lacks the right; if the caller has no valid credentials, the
    /// refusal asks for them.
    pub fn forbidden(caller: &Caller, what: &str) -> Self {
        if let CallerRights::Nothing(why) = caller.may {
            return Self::unknown(why);
        }
        let error = format!("{} ({}) may not do this: {what}", caller.who, caller.role());
        let hint =
            "use a token with that right; an administrator makes tokens with `gmm token create --role …`";
        Self { code: ErrorCode::Forbidden, error, hint }
    }

    /// Returns the refusal for a caller without valid credentials.
    fn unknown(why: Option<&str>) -> Self {
        let error = match why {
            Some(why) => format!("the caller is not authenticated: {why}"),
            None => "the caller is not authenticated: no token and no certificate came with the request"
                .to_owned(),
        };
        let hint = "people: `gmm login URL --token …`, or CXLOE_TOKEN; nodes: `mn-server join` or `cn-agent join`; an \
                    administrator makes tokens with `gmm token create`";
        Self { code: ErrorCode::Unauthenticated, error, hint }
    }
}

impl Right {
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

    /// Checks that `caller` meets this requirement. An administrator meets every requirement.
    ///
    /// # Errors
    /// [`Denied`] with the role or kind of node that is required.
    pub fn check(self, caller: &Caller) -> Result<(), Denied> {
        let (has, what) = match (self, &caller.may) {
            (Self::Anybody, _) | (_, CallerRights::Everything) => (true, ""),
            (Self::Look, may) => {
                (!matches!(may, CallerRights::Nothing(_) | CallerRights::Join(_)), "its token is for joining")
            }
            (Self::MemoryNode, CallerRights::Node(joined)) => {
                (matches!(joined.node, Party::MemoryNode(_)), "it is for memory nodes")
            }
            (Self::ComputeNode, CallerRights::Node(joined)) => {
                (matches!(joined.node, Party::ComputeNode(_)), "it is for compute nodes")
            }
            (Self::MemoryNode, _) => (false, "it is for memory nodes"),
            (Self::ComputeNode, _) => (false, "it is for compute nodes"),
            (Self::Node, may) => (matches!(may, CallerRights::Node(_)), "it is for nodes"),
            (Self::Join, may) => {
                (matches!(may, CallerRights::Join(_)), "it takes a token of role mn, cn or fm")
            }
            (Self::Regions, CallerRights::Node(joined)) => {
                (matches!(joined.node, Party::ComputeNode(_)), "it has no regions")
            }
            (Self::Regions, may) => {
                (matches!(may, CallerRights::Tenant(_)), "it takes the role tenant or admin")
            }
            (Self::Administer, _) => (false, "it takes the role admin"),
        };
        if has { Ok(()) } else { Err(Denied::forbidden(caller, what)) }
    }
}
