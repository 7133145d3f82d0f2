//! Translation of the manager's description of a region into peers, routes and a decode-miss policy of an engine.
//!
//! ```text
//!   hpa                          hpa + reach            hpa + window
//!    |  decoder 0  |  decoder 1  |        nothing yet         |
//!    +-- route ----+-- route ----+                            |
//!    +-- policy: answer to addresses without a route -------------+
//! ```
//!
//! The window of addresses of a region is larger than the region, so that the region can grow by further
//! decoders without moving. Only committed decoders are routed. A part of a region that a CXL device of this
//! machine serves becomes local memory instead of a route, and needs no memory node.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use cxloe_fabric::hdm::Decoder;
use cxloe_fabric::model::{HdmDecoder, Leg, LegState, Region};
use cxloe_wire::frame::{Mac, PublicKey};
use cxloe_wire::session::{Entropy, Identity, KeyPair, NodeKey, PreSharedKey, RequesterConfig, Timing};
use cxloe_wire::time::Time;

use crate::attachments::{Attachment, reach_of};
use crate::backing::Backing;
use crate::engine::{Engine, LegTarget, Route, RouteError, RouteTarget};

#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// This node's address: its CN id.
    pub own: Mac,
    /// EtherType of frames sent and accepted.
    pub ethertype: u16,
    /// Length in bytes of the largest frame that the link carries.
    pub max_frame: usize,
    /// Number of streams of each session; requests keep their order within a stream only.
    pub streams: u8,
    /// Random number that distinguishes this run of the process from earlier ones (instance id of sessions).
    pub instance: u64,
    /// Pre-shared key for sealed frames, used with memory nodes whose own key is unknown.
    pub key: Option<PreSharedKey>,
    pub keys: SessionKeys,
    pub timing: Timing,
}

#[derive(Clone, Debug)]
pub struct SessionKeys {
    /// Source of nonces and ephemeral keys.
    pub entropy: Entropy,
    /// Private key of this node; `None` for sessions without keys.
    pub own: Option<Arc<NodeKey>>,
    /// Configured public keys of memory nodes; they take precedence over the manager's.
    pub named: BTreeMap<Mac, PublicKey>,
    /// Public keys of memory nodes as the manager lists them.
    pub announced: BTreeMap<Mac, PublicKey>,
    /// Memory nodes whose key the manager has revoked. No session is opened with them, not even without keys,
    /// until the manager lists another key for them.
    pub revoked: BTreeSet<Mac>,
    /// Wall-clock time at [`Time::ZERO`], in nanoseconds since the Unix epoch.
    pub epoch_ns: u64,
}

impl SessionKeys {
    /// Returns settings without any key, for sessions without authentication.
    pub fn none(entropy: Entropy) -> SessionKeys {
        SessionKeys {
            entropy,
            own: None,
            named: BTreeMap::new(),
            announced: BTreeMap::new(),
            revoked: BTreeSet::new(),
            epoch_ns: 0,
        }
    }

    /// Updates the public keys of memory nodes from the manager's list; `None` marks a revoked key.
    fn update(&mut self, announced: BTreeMap<Mac, Option<PublicKey>>) {
        for (mac, key) in announced {
            match key {
                Some(key) => {
                    self.announced.insert(mac, key);
                    self.revoked.remove(&mac);
                }
                None => {
                    self.announced.remove(&mac);
                    self.revoked.insert(mac);
                }
            }
        }
    }

    /// Whether no session may be opened with the memory node at `peer`: its key is revoked, and no key is
    /// configured for the node.
    pub fn bars(&self, peer: Mac) -> bool {
        self.revoked.contains(&peer) && !self.named.contains_key(&peer)
    }

    /// Returns the keys of a session with the memory node at `peer`; `None` if this node has no key or the
    /// memory node's key is unknown.
    pub fn with(&self, peer: Mac) -> Option<KeyPair> {
        self.pair(*self.named.get(&peer).or_else(|| self.announced.get(&peer))?)
    }

    /// Returns the keys of a session with a memory node whose public key is `peer`; `None` if this node has
    /// no key.
    pub fn pair(&self, peer: PublicKey) -> Option<KeyPair> {
        Some(KeyPair { own: Arc::clone(self.own.as_ref()?), peer, epoch_ns: self.epoch_ns })
    }
}

/// Default number of streams of a session: enough that one lost frame does not delay everything.
pub const STREAMS_DEFAULT: u8 = 4;

#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(
        "region `{region}`: memory node `{node}` has no MAC address in the manager's list; is it registered?"
    )]
    NoAddress { region: String, node: String },
    #[error(
        "region `{region}`: nothing stands at position {position} of decoder {decoder} in the manager's description; \
         this agent and the manager are of different releases"
    )]
    NoLeg {
        region: String,
        decoder: usize,
        /// Index of the missing part in the decoder's interleave set.
        position: u32,
    },
    /// The engine refuses a route of the region, for instance because it overlaps another one.
    #[error("region `{region}`: {source}")]
    Route { region: String, source: RouteError },
}

impl SessionSettings {
    pub fn requester(&self, peer: Mac) -> RequesterConfig {
        RequesterConfig {
            identity: Identity { own: self.own, peer, ethertype: self.ethertype },
            max_frame: self.max_frame,
            streams: self.streams,
            instance: self.instance,
            key: self.key.clone(),
            keys: self.keys.with(peer),
            timing: self.timing,
            // Each peer gets a seed of its own, so that nonces do not repeat.
            seed: self.keys.entropy.part(self.instance ^ peer.to_u64().rotate_left(16)),
        }
    }

    /// Applies the manager's keys of memory nodes: sessions under other keys are renegotiated, and sessions
    /// with revoked memory nodes end.
    pub fn update_keys(
        &mut self,
        engine: &mut Engine,
        announced: BTreeMap<Mac, Option<PublicKey>>,
        now: Time,
    ) {
        // Known keys are kept, because a memory node that holds no region at present is missing from the
        // manager's answer.
        self.keys.update(announced);
        // Barred memory nodes are set before the keys: otherwise a session without a key could be opened with a memory
        // node whose key is revoked.
        engine.bar(|mac| self.keys.bars(mac), now);
        engine.set_keys(|mac| self.keys.with(mac), now);
    }

    /// Attaches a region at its address: opens sessions with the memory nodes, adds routes for the committed decoders
    /// as far as they lie in the window, and sets the decode-miss policy of the window. The part that a device serves
    /// becomes local memory; if the device is absent, operations on that part fail. Nothing is added on error.
    ///
    /// # Errors
    /// [`AttachError`] if the description lacks a leg (the region's part on one memory node) or its address, or if the
    /// engine refuses a route.
    pub fn attach(&self, engine: &mut Engine, attachment: &Attachment, now: Time) -> Result<(), AttachError> {
        let Attachment { region, hpa, window, .. } = attachment;
        let added = engine.add_miss_policy(*hpa, *window, region.unmapped);
        added.map_err(|source| AttachError::Route { region: region.name.to_string(), source })?;
        let added = self.extend(engine, attachment, 0, now);
        if added.is_err() {
            engine.remove_miss_policy(*hpa);
        } else if region.sealed {
            engine.seal(*hpa, *window);
        }
        added
    }

    /// Extends an attached region that has grown: adds its committed decoders that begin at or behind byte `from` of
    /// the region. Nothing is added on error.
    ///
    /// # Errors
    /// [`AttachError`] if the description lacks a leg (the region's part on one memory node) or its address, or if the
    /// engine refuses a route.
    pub fn extend(
        &self,
        engine: &mut Engine,
        attachment: &Attachment,
        from: u64,
        now: Time,
    ) -> Result<(), AttachError> {
        let Attachment { region, hpa, window, .. } = attachment;
        let mut added = Vec::new();
        for (index, decoder) in region.decoders.iter().enumerate() {
            let size = reach_of(decoder, *window);
            if size == 0 || decoder.offset < from {
                continue;
            }
            let start = hpa + decoder.offset;
            if let Err(error) = self.add(engine, attachment, index, size, now) {
                added.into_iter().for_each(|start| remove(engine, start));
                return Err(error);
            }
            added.push(start);
        }
        Ok(())
    }

    /// Adds routes or local memory for the first `size` bytes of a decoder.
    fn add(
        &self,
        engine: &mut Engine,
        attachment: &Attachment,
        index: usize,
        size: u64,
        now: Time,
    ) -> Result<(), AttachError> {
        let Attachment { region, hpa, backing, .. } = attachment;
        let HdmDecoder { offset, ways, granularity, .. } = region.decoders[index];
        let base = hpa + offset;
        let added = match backing {
            Backing::Device(served) if backing.serves(&region.decoders[index]) => {
                engine.add_local(base, size, served.local_memory(), offset)
            }
            _ => {
                let targets = self.targets(engine, region, index, now)?;
                let added =
                    engine.add_route(Route { decoder: Decoder { base, size, ways, granularity }, targets });
                if added.is_ok()
                    && let Err(error) = self.set_legs(engine, region, index, base, false, now)
                {
                    engine.remove_route(base);
                    return Err(error);
                }
                added
            }
        };
        added.map_err(|source| AttachError::Route { region: region.name.to_string(), source })
    }

    /// Opens sessions with the memory nodes of a decoder, and returns the route targets.
    fn targets(
        &self,
        engine: &mut Engine,
        region: &Region,
        decoder: usize,
        now: Time,
    ) -> Result<Vec<RouteTarget>, AttachError> {
        let ways = region.decoders[decoder].ways.count();
        let name = || region.name.to_string();
        let target = |position| {
            let legs = legs_at(region, decoder, position);
            let none = || AttachError::NoLeg { region: name(), decoder, position };
            let leg = *legs.first().ok_or_else(none)?;
            let nowhere = || AttachError::NoAddress { region: name(), node: leg.memory_node.to_string() };
            let mac = leg.mac().ok_or_else(nowhere)?;
            let peer = engine.add_peer(self.requester(Mac(mac.0)), now);
            // The memory node may be new to the engine and its key revoked: then no session may be opened.
            engine.bar(|mac| self.keys.bars(mac), now);
            let lost = leg.state == LegState::Lost;
            // No pool has the incarnation `LOST`, so operations fail on a lost leg (a part on a memory node that has
            // lost it).
            let incarnation = if lost { Some(RouteTarget::LOST) } else { leg.incarnation };
            Ok(RouteTarget { peer, cmem: leg.cmem_base, incarnation, mirror: None })
        };
        (0..ways).map(target).collect()
    }

    /// Opens sessions with the memory nodes of a region that another worker serves. A memory node accepts
    /// sessions from a compute node's further addresses only while the session with the node's own address,
    /// which the first worker uses, is open.
    pub fn open_sessions(&self, engine: &mut Engine, attachment: &Attachment, now: Time) {
        let Attachment { region, backing, .. } = attachment;
        let decoders = region.decoders.iter().enumerate().filter(|(_, decoder)| !backing.serves(decoder));
        let legs = decoders.flat_map(|(index, _)| region.legs_of(index as u32));
        for mac in legs.filter_map(Leg::mac) {
            engine.add_peer(self.requester(Mac(mac.0)), now);
        }
        engine.bar(|mac| self.keys.bars(mac), now);
    }

    /// Updates which legs (copies of the region's parts on memory nodes) are in sync, without interrupting operations.
    /// If the manager's store was `restored` from a backup, legs that this node has not in sync are doubted.
    ///
    /// # Errors
    /// [`AttachError::NoAddress`] if a memory node has registered no MAC address.
    pub fn follow_legs(
        &self,
        engine: &mut Engine,
        attachment: &Attachment,
        restored: bool,
        now: Time,
    ) -> Result<(), AttachError> {
        let Attachment { region, hpa, window, backing } = attachment;
        for (index, decoder) in region.decoders.iter().enumerate() {
            if reach_of(decoder, *window) > 0 && !backing.serves(decoder) {
                self.set_legs(engine, region, index, hpa + decoder.offset, restored, now)?;
            }
        }
        Ok(())
    }

    /// Passes a decoder's legs (its parts on memory nodes) to the engine; the decoder's route begins at `base`.
    fn set_legs(
        &self,
        engine: &mut Engine,
        region: &Region,
        decoder: usize,
        base: u64,
        restored: bool,
        now: Time,
    ) -> Result<(), AttachError> {
        for position in 0..region.decoders[decoder].ways.count() {
            let mut targets = Vec::new();
            for leg in legs_at(region, decoder, position) {
                let name = || region.name.to_string();
                let nowhere = || AttachError::NoAddress { region: name(), node: leg.memory_node.to_string() };
                let peer = engine.add_peer(self.requester(Mac(leg.mac().ok_or_else(nowhere)?.0)), now);
                targets.push(LegTarget {
                    peer,
                    cmem: leg.cmem_base,
                    incarnation: leg.incarnation,
                    in_sync: leg.is_in_sync(),
                });
            }
            engine.bar(|mac| self.keys.bars(mac), now);
            // Unless one leg (a copy on a memory node) is in sync, there is no content to serve or to copy.
            if targets.iter().any(|leg| leg.in_sync) {
                match restored {
                    true => engine.set_restored_legs(base, position as u8, &targets, region.epoch, now),
                    false => engine.set_legs(base, position as u8, &targets, region.epoch, now),
                }
            }
        }
        Ok(())
    }

    /// Removes the routes, local memory and decode-miss policy of `region` at `hpa`. Dirty lines are lost
    /// unless they were written back before.
    pub fn detach(&self, engine: &mut Engine, region: &Region, hpa: u64) {
        for decoder in &region.decoders {
            remove(engine, hpa + decoder.offset);
        }
        engine.remove_miss_policy(hpa);
        engine.unseal(hpa);
    }
}

/// Returns the legs (copies on memory nodes) of one position of a decoder that have its content or are to be filled, at
/// most two. The leg to read from is the first: legs in sync precede stale ones, and a lower number of the copy
/// precedes a higher one. If no leg is in sync, returns a single leg, a lost one if there is one.
fn legs_at(region: &Region, decoder: usize, position: u32) -> Vec<&Leg> {
    let here = |leg: &&Leg| leg.decoder as usize == decoder && leg.position == position;
    let mut legs: Vec<&Leg> = region.legs.iter().filter(here).collect();
    let in_sync = legs.iter().any(|leg| leg.is_in_sync());
    if in_sync {
        legs.retain(|leg| leg.is_in_sync() || leg.state == LegState::Stale);
        legs.sort_by_key(|leg| (!leg.is_in_sync(), leg.copy));
        legs.truncate(2);
    } else {
        legs.sort_by_key(|leg| leg.state != LegState::Lost);
        legs.truncate(1);
    }
    legs
}

fn remove(engine: &mut Engine, start: u64) {
    engine.remove_route(start);
    engine.remove_local(start);
}

#[cfg(test)]
pub(crate) mod tests {
    use cxloe_fabric::model::Unmapped;
    use cxloe_net::Link;
    use cxloe_net::sim::{PortConfig, SimLink, SimNetwork};
    use cxloe_wire::frame::ETHERTYPE_DEFAULT;

    use super::*;
    use crate::attachments::reach;
    use crate::attachments::tests::{grown, spread};
    use crate::cache::CacheConfig;
    use crate::engine::{EngineError, RequestId, Sink};

    const MIB: u64 = 1 << 20;
    const HPA: u64 = 1 << 40;
    const WINDOW: u64 = 64 * MIB;

    struct DiscardCompletions;

    impl Sink for DiscardCompletions {
        fn read(&mut self, _: RequestId, _: &[u8]) {}
        fn written(&mut self, _: RequestId) {}
        fn failed(&mut self, _: RequestId, _: EngineError) {}
    }

    pub(crate) struct Node {
        pub station: SessionSettings,
        pub engine: Engine,
        pub link: SimLink,
    }

    impl Node {
        pub fn new() -> Node {
            let own = Mac([2, 0, 0, 0, 0, 1]);
            let link = SimNetwork::new(1).attach(own, PortConfig::default()).unwrap();
            let station = SessionSettings {
                own,
                ethertype: ETHERTYPE_DEFAULT,
                max_frame: 1514,
                streams: 2,
                instance: 1,
                key: None,
                keys: SessionKeys::none(1.into()),
                timing: Timing::default(),
            };
            Node { station, engine: Engine::new(CacheConfig::OFF), link }
        }

        fn attach(&mut self, region: &Region, window: u64) -> Result<(), AttachError> {
            let attachment = Attachment::over_ethernet(region.clone(), HPA, window);
            self.station.attach(&mut self.engine, &attachment, Time::ZERO)
        }

        /// Reads a line and returns the error. Every read fails, because no memory node answers in these
        /// tests.
        pub fn read(&mut self, hpa: u64) -> EngineError {
            self.engine.read(hpa, RequestId::Number(0), Time::ZERO, self.link.transmit()).unwrap_err()
        }
    }

    fn mn(position: u8) -> EngineError {
        EngineError::NotConnected(Mac([2, 0, 0, 0, 1, position]))
    }

    #[test]
    fn who_was_revoked_is_not_called_until_it_has_another_key() {
        let mut node = Node::new();
        let region = spread("r", 6 * MIB, 1);
        let mac = Mac([2, 0, 0, 0, 1, 0]);
        let tell = |node: &mut Node, key: Option<PublicKey>| {
            node.station.update_keys(&mut node.engine, BTreeMap::from([(mac, key)]), Time::ZERO);
        };
        let state = |node: &mut Node| {
            node.engine.poll(Time::ZERO, node.link.transmit(), &mut DiscardCompletions);
            node.engine.sessions()[0].state.clone()
        };
        node.attach(&region, WINDOW).unwrap();
        assert_eq!(state(&mut node), "connecting");
        tell(&mut node, None);
        assert_eq!(state(&mut node), "closed");
        tell(&mut node, Some(PublicKey([7; 32])));
        assert_eq!(state(&mut node), "connecting");
        // A configured key takes precedence over the revocation by the manager.
        node.station.keys.named.insert(mac, PublicKey([8; 32]));
        tell(&mut node, None);
        assert_eq!(state(&mut node), "connecting");

        // The key is revoked before the region is attached.
        let mut node = Node::new();
        tell(&mut node, None);
        node.attach(&region, WINDOW).unwrap();
        assert_eq!(state(&mut node), "closed");
    }

    #[test]
    fn a_region_is_reached_as_far_as_it_goes_and_grows_in_its_window() {
        let mut node = Node::new();
        let region = cxloe_fabric::model::Region { unmapped: Unmapped::Poison, ..spread("r", 6 * MIB, 3) };
        node.attach(&region, WINDOW).unwrap();
        assert_eq!([0, 1024, 2048, 3072].map(|at| node.read(HPA + at)), [mn(0), mn(1), mn(2), mn(0)]);
        let end = HPA + 6 * MIB;
        assert_eq!(node.read(end - 64), mn(2), "the last chunk is its last leg's");
        assert_eq!(node.read(end), EngineError::Poisoned(end), "by the region's policy");
        assert_eq!(node.read(HPA + WINDOW), EngineError::Unmapped(HPA + WINDOW), "nobody's");

        let larger = grown(&region, 6 * MIB, true);
        let grown = Attachment::over_ethernet(larger.clone(), HPA, WINDOW);
        node.station.extend(&mut node.engine, &grown, 6 * MIB, Time::ZERO).unwrap();
        assert_eq!((node.read(end), node.read(end - 64)), (mn(0), mn(2)));
        assert_eq!(node.read(end + 6 * MIB), EngineError::Poisoned(end + 6 * MIB));

        node.station.detach(&mut node.engine, &larger, HPA);
        assert_eq!([HPA, end].map(|at| node.read(at)), [HPA, end].map(EngineError::Unmapped));
        node.attach(&larger, WINDOW).unwrap();
    }

    #[test]
    fn what_does_not_fit_or_is_not_committed_is_left_out() {
        let mut node = Node::new();
        let region = grown(&spread("r", 6 * MIB, 3), 6 * MIB, false);
        assert_eq!(reach(&region, WINDOW), 6 * MIB);
        let window = 4 * MIB;
        let fits = window / (3 * 4096) * (3 * 4096);
        assert_eq!(reach(&region, window), fits);
        node.attach(&region, window).unwrap();
        assert!(matches!(node.read(HPA + fits - 64), EngineError::NotConnected(_)));
        assert_eq!(node.read(HPA + fits), EngineError::Unmapped(HPA + fits));
        assert_eq!(node.read(HPA + 6 * MIB), EngineError::Unmapped(HPA + 6 * MIB));
    }

    #[test]
    fn errors_name_what_is_missing_and_leave_nothing_behind() {
        let mut node = Node::new();
        let region = grown(&spread("r", 4 * MIB, 2), 4 * MIB, true);
        let mut homeless = region.clone();
        homeless.legs[3].macs.clear();
        let mut lame = region.clone();
        lame.legs.pop();
        let mut copied = region.clone();
        let copy = Leg { copy: 1, state: LegState::Stale, macs: Vec::new(), ..region.legs[1].clone() };
        copied.legs.push(copy);
        for (broken, words) in [
            (homeless, ["mn1", "registered"]),
            (lame, ["position 1", "decoder 1"]),
            (copied, ["mn1", "registered"]),
        ] {
            let error = node.attach(&broken, WINDOW);
            let error = error.unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert_eq!(node.read(HPA), EngineError::Unmapped(HPA));
        }
        node.attach(&region, WINDOW).unwrap();
        let twice = node.attach(&region, WINDOW);
        assert!(matches!(twice, Err(AttachError::Route { .. })), "{twice:?}");
        assert_eq!(node.read(HPA), mn(0), "what is there stays");
    }
}
