//! From a region as the manager describes it to peers, routes and a hole of an engine.
//!
//! ```text
//!   hpa                          hpa + reach            hpa + window
//!    |  decoder 0  |  decoder 1  |        nothing yet         |
//!    +-- route ----+-- route ----+                            |
//!    +-- hole: how addresses without a route are answered ----+
//! ```
//!
//! A region has a window of addresses, larger than it is, so that it can grow by decoders behind those it has without
//! anything moving. Only decoders that are committed are routed.

use cxloe_gmm::hdm::Decoder;
use cxloe_gmm::model::{HdmDecoder, Leg, LegState, Region};
use cxloe_wire::frame::Mac;
use cxloe_wire::session::{Identity, PreSharedKey, RequesterConfig, Timing};
use cxloe_wire::time::Time;

use crate::engine::{Engine, Route, RouteError, Target};

/// Bytes of a page: what routes consist of.
const PAGE: u64 = 4096;

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
    /// The manager's description has a position of a decoder without a leg.
    #[error(
        "region `{region}`: nothing stands at position {position} of decoder {decoder} in the manager's description; \
         this agent and the manager are of different releases"
    )]
    NoLeg {
        /// The region.
        region: String,
        /// The decoder's index.
        decoder: usize,
        /// The position in its interleave set.
        position: u32,
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

    /// Attaches `region` at `hpa`: calls its memory nodes, adds the routes of its committed decoders as far as they lie
    /// in the first `window` bytes, and a hole over all of these. Nothing is added on error.
    ///
    /// # Errors
    /// Any [`AttachError`].
    pub fn attach(
        &self,
        engine: &mut Engine,
        region: &Region,
        hpa: u64,
        window: u64,
        now: Time,
    ) -> Result<(), AttachError> {
        let hole = engine.add_hole(hpa, window, region.unmapped);
        hole.map_err(|source| AttachError::Route { region: region.name.to_string(), source })?;
        let added = self.extend(engine, region, hpa, window, 0, now);
        if added.is_err() {
            engine.remove_hole(hpa);
        }
        added
    }

    /// Adds what an attached region has grown by: the routes of committed decoders from the byte `from` of it on.
    /// Nothing is added on error.
    ///
    /// # Errors
    /// Any [`AttachError`].
    pub fn extend(
        &self,
        engine: &mut Engine,
        region: &Region,
        hpa: u64,
        window: u64,
        from: u64,
        now: Time,
    ) -> Result<(), AttachError> {
        let mut added = Vec::new();
        for (index, decoder) in region.decoders.iter().enumerate() {
            let size = reach_of(decoder, window);
            if size == 0 || decoder.offset < from {
                continue;
            }
            let start = hpa + decoder.offset;
            let result = self.targets(engine, region, index, now).and_then(|targets| {
                let HdmDecoder { ways, granularity, .. } = *decoder;
                let route = Route { decoder: Decoder { base: start, size, ways, granularity }, targets };
                let region = region.name.to_string();
                engine.add_route(route).map_err(|source| AttachError::Route { region, source })
            });
            if let Err(error) = result {
                added.into_iter().for_each(|start| drop(engine.remove_route(start)));
                return Err(error);
            }
            added.push(start);
        }
        Ok(())
    }

    /// What stands behind the positions of a decoder; its memory nodes are called.
    fn targets(
        &self,
        engine: &mut Engine,
        region: &Region,
        decoder: usize,
        now: Time,
    ) -> Result<Vec<Target>, AttachError> {
        let ways = region.decoders[decoder].ways.count();
        let name = || region.name.to_string();
        let target = |position| {
            let mut legs = region.legs.iter();
            let here = |leg: &&Leg| leg.decoder as usize == decoder && leg.position == position;
            let none = || AttachError::NoLeg { region: name(), decoder, position };
            let leg = legs.find(here).ok_or_else(none)?;
            let nowhere =
                || AttachError::NoAddress { region: name(), node: leg.memory_node.to_string() };
            let mac = leg.mac().ok_or_else(nowhere)?;
            let peer = engine.add_peer(self.requester(Mac(mac.0)), now);
            let lost = leg.state == LegState::Lost;
            let incarnation = if lost { Some(Target::LOST) } else { leg.incarnation };
            Ok(Target { peer, cmem: leg.cmem_base, incarnation })
        };
        (0..ways).map(target).collect()
    }

    /// Takes the routes of `region` at `hpa` and its hole away. What is modified is lost unless it was written back.
    pub fn detach(&self, engine: &mut Engine, region: &Region, hpa: u64) {
        for decoder in &region.decoders {
            engine.remove_route(hpa + decoder.offset);
        }
        engine.remove_hole(hpa);
    }
}

/// How many bytes of `region` lie in the first `window` bytes of its addresses, in committed decoders.
pub fn reach(region: &Region, window: u64) -> u64 {
    region.decoders.iter().map(|decoder| reach_of(decoder, window)).sum()
}

/// How many bytes of a decoder do: whole turns and pages of each of its targets.
fn reach_of(decoder: &HdmDecoder, window: u64) -> u64 {
    if !decoder.committed {
        return 0;
    }
    let turn = u64::from(decoder.ways.count()) * PAGE.max(decoder.granularity.bytes().into());
    decoder.size.min(window.saturating_sub(decoder.offset)) / turn * turn
}

