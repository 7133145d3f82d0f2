//! From a region as the manager describes it to peers and routes of an engine.

use cxloe_gmm::model::{LegState, Region};
use cxloe_wire::frame::Mac;
use cxloe_wire::session::{Identity, PreSharedKey, RequesterConfig, Timing};
use cxloe_wire::time::Time;

use crate::engine::{Engine, Route, RouteError};

/// What all sessions of this compute node have in common.
#[derive(Clone, Debug)]
pub struct Station {
    /// This node's address: its CN id.
    pub own: Mac,
    /// EtherType of the frames.
    pub ethertype: u16,
    /// The largest frame the link carries.
    pub max_frame: usize,
    /// Streams of each session.
    pub streams: u8,
    /// This process's instance id, random.
    pub instance: u64,
    /// Key for sealed frames.
    pub key: Option<PreSharedKey>,
    /// How long to wait for what.
    pub timing: Timing,
}

/// Streams of a session unless told otherwise: enough that one lost frame does not hold up everything.
pub const STREAMS_DEFAULT: u8 = 4;

/// Why a region cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Its memory node has told the manager no address.
    #[error(
        "region `{region}`: memory node `{node}` has no MAC address in the manager's list; is it registered?"
    )]
    NoAddress {
        /// The region.
        region: String,
        /// The memory node.
        node: String,
    },
    /// A route does not fit.
    #[error("region `{region}`: {source}")]
    Route {
        /// The region.
        region: String,
        /// Why.
        source: RouteError,
    },
}

impl Station {
    /// The configuration of the session with the memory node at `peer`.
    pub fn requester(&self, peer: Mac) -> RequesterConfig {
        RequesterConfig {
            identity: Identity { own: self.own, peer, ethertype: self.ethertype },
            max_frame: self.max_frame,
            streams: self.streams,
            instance: self.instance,
            key: self.key.clone(),
            timing: self.timing,
            // Another for each peer; nonces need to differ, not to be secret.
            seed: self.instance ^ peer.to_u64().rotate_left(16),
        }
    }

    /// Attaches `region` at `hpa`: calls its memory nodes and adds its routes. Nothing is added on error.
    pub fn attach(
        &self,
        engine: &mut Engine,
        region: &Region,
        hpa: u64,
        now: Time,
    ) -> Result<(), AttachError> {
        let name = || region.name.to_string();
        let mut added = Vec::new();
        for leg in &region.legs {
            let Some(mac) = leg.macs.first() else {
                detach(engine, &added);
                return Err(AttachError::NoAddress { region: name(), node: leg.memory_node.to_string() });
            };
            let peer = engine.add_peer(self.requester(Mac(mac.0)), now);
            let route = Route {
                hpa: hpa + leg.offset,
                bytes: leg.bytes,
                peer,
                cmem: leg.cmem_base,
                incarnation: if leg.state == LegState::Lost { Some(Route::LOST) } else { leg.incarnation },
            };
            if let Err(source) = engine.add_route(route) {
                detach(engine, &added);
                return Err(AttachError::Route { region: name(), source });
            }
            added.push(route.hpa);
        }
        Ok(())
    }

    /// Takes the routes of `region` at `hpa` away. Flush first.
    pub fn detach(&self, engine: &mut Engine, region: &Region, hpa: u64) {
        let starts: Vec<u64> = region.legs.iter().map(|leg| hpa + leg.offset).collect();
        detach(engine, &starts);
    }
}

fn detach(engine: &mut Engine, starts: &[u64]) {
    for hpa in starts {
        engine.remove_route(*hpa);
    }
}
