//! A caller: the sender of a request to the manager, with its name for the event log and its rights.

use cxloe_fabric::api::{Party, WhoAmI};
use cxloe_fabric::model::{CnId, Digest};

use crate::manager::access::{JoinedNode, TokenRecord};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerRights {
    /// No valid credentials; the text, if any, says why the credentials in the request were refused.
    Nothing(Option<&'static str>),
    /// Viewer: may read all state and change nothing.
    Look,
    /// Viewer that may also change the regions of its compute nodes.
    Tenant(Tenant),
    Everything,
    /// Joined node, which may send commands about itself only, or FM client, which may use the FM API only.
    Node(JoinedNode),
    /// Bearer of a join token, which may only have one node join.
    Join(TokenRecord),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub compute_nodes: Vec<CnId>,
    /// Maximum total size of the regions of these compute nodes, in bytes; none: no limit.
    pub quota: Option<u64>,
}

/// The sender of a request to the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Name of the caller in the event log, such as `uid 0` or `memory node mn0`.
    pub who: String,
    pub may: CallerRights,
    /// Digest of the TLS key that the client proved to possess; `None` without a client certificate.
    pub proved: Option<Digest>,
    /// Time at which the credentials expire, in milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// True for a caller whose rights are not checked: its connection has no TLS, and the manager runs without access
    /// control.
    pub unguarded: bool,
}

impl Caller {
    /// Returns a caller without rights; `why` says what is invalid about its credentials.
    pub fn unauthenticated(why: Option<&'static str>) -> Self {
        Self {
            who: "nobody".to_owned(),
            may: CallerRights::Nothing(why),
            proved: None,
            expires_ms: None,
            unguarded: false,
        }
    }

    /// Returns a caller with all rights; `who` is its name in the event log.
    pub fn admin(who: impl Into<String>) -> Self {
        Self {
            who: who.into(),
            may: CallerRights::Everything,
            proved: None,
            expires_ms: None,
            unguarded: false,
        }
    }

    /// Returns the joined node that sent the request, or `None` if the caller is not a node.
    pub fn node(&self) -> Option<&Party> {
        match &self.may {
            CallerRights::Node(joined) => Some(&joined.node),
            _ => None,
        }
    }

    /// Returns the caller's role, or its kind of node, as messages to people show it.
    pub fn role(&self) -> &'static str {
        match &self.may {
            CallerRights::Nothing(_) => "nobody",
            CallerRights::Look => "viewer",
            CallerRights::Tenant(_) => "tenant",
            CallerRights::Everything => "admin",
            CallerRights::Node(joined) => match joined.node {
                Party::MemoryNode(_) => "memory node",
                Party::ComputeNode(_) => "compute node",
                Party::FmClient(_) => "FM client",
            },
            CallerRights::Join(_) => "to join",
        }
    }

    /// Returns the answer to `GET /v1/whoami` for this caller.
    pub fn describe(&self) -> WhoAmI {
        let compute_nodes = match &self.may {
            CallerRights::Tenant(tenant) => tenant.compute_nodes.clone(),
            _ => Vec::new(),
        };
        let (who, role) = (self.who.clone(), self.role().to_owned());
        WhoAmI { who, role, compute_nodes, expires_ms: self.expires_ms }
    }
}
