//! Who somebody is to the manager.

use cxloe_fabric::api::{Party, WhoAmI};
use cxloe_fabric::model::{CnId, Digest};

use crate::manager::access::{JoinedNode, TokenRecord};

/// What somebody may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum May {
    /// Nothing; with a reason where they gave something that is not valid.
    Nothing(Option<&'static str>),
    /// Look at everything.
    Look,
    /// Look at everything, and change the regions of some compute nodes.
    Tenant(Tenant),
    /// Everything.
    Everything,
    /// What this node has to; what an FM client may by the FM API.
    Node(JoinedNode),
    /// Have a node join.
    Join(TokenRecord),
}

/// Whose regions a tenant may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// The compute nodes.
    pub compute_nodes: Vec<CnId>,
    /// Bytes that all their regions may have together.
    pub quota: Option<u64>,
}

/// Somebody who asks something of the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who, as the event log says it.
    pub who: String,
    /// What they may do.
    pub may: May,
    /// The TLS key that they have shown to have.
    pub proved: Option<Digest>,
    /// When what says so ends: milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// Nothing tells who it is, and nobody asks: a connection without TLS to a manager that asks for no rights.
    pub unguarded: bool,
}

impl Caller {
    /// Somebody of whom nothing is known.
    pub fn nobody(why: Option<&'static str>) -> Self {
        Self {
            who: "nobody".to_owned(),
            may: May::Nothing(why),
            proved: None,
            expires_ms: None,
            unguarded: false,
        }
    }

    /// Somebody who may do everything.
    pub fn admin(who: impl Into<String>) -> Self {
        Self { who: who.into(), may: May::Everything, proved: None, expires_ms: None, unguarded: false }
    }

    /// The node that asks, if one does.
    pub fn node(&self) -> Option<&Party> {
        match &self.may {
            May::Node(joined) => Some(&joined.node),
            _ => None,
        }
    }

    /// What it is called that they may do.
    pub fn role(&self) -> &'static str {
        match &self.may {
            May::Nothing(_) => "nobody",
            May::Look => "viewer",
            May::Tenant(_) => "tenant",
            May::Everything => "admin",
            May::Node(joined) => match joined.node {
                Party::MemoryNode(_) => "memory node",
                Party::ComputeNode(_) => "compute node",
                Party::FmClient(_) => "FM client",
            },
            May::Join(_) => "to join",
        }
    }

    /// What they are told of themselves.
    pub fn describe(&self) -> WhoAmI {
        let compute_nodes = match &self.may {
            May::Tenant(tenant) => tenant.compute_nodes.clone(),
            _ => Vec::new(),
        };
        let (who, role) = (self.who.clone(), self.role().to_owned());
        WhoAmI { who, role, compute_nodes, expires_ms: self.expires_ms }
    }
}
