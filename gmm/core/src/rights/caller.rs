//! Identity and rights of a caller.

use cxloe_fabric::api::{Party, WhoAmI};
use cxloe_fabric::model::{CnId, Digest};

use crate::manager::access::{JoinedNode, TokenRecord};

/// Rights that the caller's credentials give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerRights {
    /// No rights; with a reason if the credentials were invalid.
    Nothing(Option<&'static str>),
    /// Right to look at everything.
    Look,
    /// Right to look at everything, and to change the regions of the tenant's compute nodes.
    Tenant(Tenant),
    /// All rights, as an administrator.
    Everything,
    /// Rights of this joined node; for an FM client, those of the FM API.
    Node(JoinedNode),
    /// Right to have a node join with this token.
    Join(TokenRecord),
}

/// Compute nodes whose regions a tenant may change, and its quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Compute nodes whose regions the tenant may change.
    pub compute_nodes: Vec<CnId>,
    /// Maximum total size of the regions of these compute nodes, in bytes; none: no limit.
    pub quota: Option<u64>,
}

/// The sender of a request to the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Name of the caller in the event log.
    pub who: String,
    /// Rights that the caller's credentials give.
    pub may: CallerRights,
    /// Digest of the TLS key that the connection proved to possess.
    pub proved: Option<Digest>,
    /// Time at which the credentials expire, in milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// True for a caller whose rights are not checked: its connection has no TLS, and the manager runs without access
    /// control.
    pub unguarded: bool,
}

impl Caller {
    /// A caller without rights; `why` says what is invalid about its credentials.
    pub fn unauthenticated(why: Option<&'static str>) -> Self {
        Self {
            who: "nobody".to_owned(),
            may: CallerRights::Nothing(why),
            proved: None,
            expires_ms: None,
            unguarded: false,
        }
    }

    /// A caller with all rights; `who` is its name in the event log.
    pub fn admin(who: impl Into<String>) -> Self {
        Self {
            who: who.into(),
            may: CallerRights::Everything,
            proved: None,
            expires_ms: None,
            unguarded: false,
        }
    }

    /// The node that sends the request; `None` for other callers.
    pub fn node(&self) -> Option<&Party> {
        match &self.may {
            CallerRights::Node(joined) => Some(&joined.node),
            _ => None,
        }
    }

    /// Name of the caller's role or kind of node, for people.
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

    /// Answer to `GET /v1/whoami` from this caller.
    pub fn describe(&self) -> WhoAmI {
        let compute_nodes = match &self.may {
            CallerRights::Tenant(tenant) => tenant.compute_nodes.clone(),
            _ => Vec::new(),
        };
        let (who, role) = (self.who.clone(), self.role().to_owned());
        WhoAmI { who, role, compute_nodes, expires_ms: self.expires_ms }
    }
}
