//! From a region as the manager describes it to peers, routes and a decode-miss policy of an engine.
//!
//! ```text
//!   hpa                          hpa + reach            hpa + window
//!    |  decoder 0  |  decoder 1  |        nothing yet         |
//!    +-- route ----+-- route ----+                            |
//!    +-- policy: how addresses without a route are answered ----+
//! ```
//!
//! A region has a window of addresses, larger than it is, so that it can grow by decoders behind those it has without
//! anything moving. Only decoders that are committed are routed. What a CXL device of this machine serves of it is no route
//! but local memory, and calls no memory node.

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
use crate::engine::{Engine, Route, RouteError, Target};

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
    /// Pre-shared key for sealed frames, with memory nodes whose own key is not known.
    pub key: Option<PreSharedKey>,
    /// This node's key, and whose are whose.
    pub keys: StationKeys,
    /// How long to wait for what.
    pub timing: Timing,
}

/// Keys as a compute node knows them.
#[derive(Clone, Debug)]
pub struct StationKeys {
    /// Where nonces and ephemeral keys come from.
    pub entropy: Entropy,
    /// This node's key; `None`: sessions are not between keys.
    pub own: Option<Arc<NodeKey>>,
    /// Public keys of memory nodes that were named to this node; they outweigh the manager's.
    pub named: BTreeMap<Mac, PublicKey>,
    /// Public keys of memory nodes that the manager has told.
    pub told: BTreeMap<Mac, PublicKey>,
    /// Memory nodes whose key the manager has taken back: they are not spoken with, nor without keys, until they have another.
    pub revoked: BTreeSet<Mac>,
    /// What the clock of the wall showed at [`Time::ZERO`], in nanoseconds since the Unix epoch.
    pub epoch_ns: u64,
}

impl StationKeys {
    /// None.
    pub fn none(entropy: Entropy) -> StationKeys {
        StationKeys {
            entropy,
            own: None,
            named: BTreeMap::new(),
            told: BTreeMap::new(),
            revoked: BTreeSet::new(),
            epoch_ns: 0,
        }
    }

    /// Takes over what the manager tells of some memory nodes: their keys; none where it has taken the key back.
    fn hear(&mut self, told: BTreeMap<Mac, Option<PublicKey>>) {
        for (mac, key) in told {
            match key {
                Some(key) => {
                    self.told.insert(mac, key);
                    self.revoked.remove(&mac);
                }
                None => {
                    self.told.remove(&mac);
                    self.revoked.insert(mac);
                }
            }
        }
    }

    /// Whether the memory node at `peer` is not to be spoken with.
    pub fn bars(&self, peer: Mac) -> bool {
        self.revoked.contains(&peer) && !self.named.contains_key(&peer)
    }

    /// The keys of a session with the memory node at `peer`, if both are known.
    pub fn with(&self, peer: Mac) -> Option<KeyPair> {
        let own = Arc::clone(self.own.as_ref()?);
        let peer = *self.named.get(&peer).or_else(|| self.told.get(&peer))?;
        Some(KeyPair { own, peer, epoch_ns: self.epoch_ns })
    }
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
            keys: self.keys.with(peer),
            timing: self.timing,
            // Another for each peer.
            seed: self.keys.entropy.part(self.instance ^ peer.to_u64().rotate_left(16)),
        }
    }

    /// Takes over which public key is which memory node's, and whose was taken back: sessions that were agreed on otherwise
    /// are agreed on anew, and those with who was revoked end.
    pub fn tell_keys(&mut self, engine: &mut Engine, told: BTreeMap<Mac, Option<PublicKey>>, now: Time) {
        // What was known of a key stays: between two regions on a memory node it is not told.
        self.keys.hear(told);
        // First, so that nobody is called without keys.
        engine.bar(|mac| self.keys.bars(mac), now);
        engine.set_keys(|mac| self.keys.with(mac), now);
    }

    /// Attaches a region at its address: calls its memory nodes, adds the routes of its committed decoders as far as they
    /// lie in its window, and a decode-miss policy over all of these. What a device serves is local memory instead; without the device,
    /// operations on it fail. Nothing is added on error.
    ///
    /// # Errors
    /// Any [`AttachError`].
    pub fn attach(&self, engine: &mut Engine, attachment: &Attachment, now: Time) -> Result<(), AttachError> {
        let Attachment { region, hpa, window, .. } = attachment;
        let added = engine.add_miss_policy(*hpa, *window, region.unmapped);
        added.map_err(|source| AttachError::Route { region: region.name.to_string(), source })?;
        let added = self.extend(engine, attachment, 0, now);
        if added.is_err() {
            engine.remove_miss_policy(*hpa);
        }
        added
    }

    /// Adds what an attached region has grown by: the committed decoders from the byte `from` of it on. Nothing is added on
    /// error.
    ///
    /// # Errors
    /// Any [`AttachError`].
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

    /// Adds the first `size` bytes of a decoder.
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
                engine.add_route(Route { decoder: Decoder { base, size, ways, granularity }, targets })
            }
        };
        added.map_err(|source| AttachError::Route { region: region.name.to_string(), source })
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
            let nowhere = || AttachError::NoAddress { region: name(), node: leg.memory_node.to_string() };
            let mac = leg.mac().ok_or_else(nowhere)?;
            let peer = engine.add_peer(self.requester(Mac(mac.0)), now);
            engine.bar(|mac| self.keys.bars(mac), now);
            let lost = leg.state == LegState::Lost;
            let incarnation = if lost { Some(Target::LOST) } else { leg.incarnation };
            Ok(Target { peer, cmem: leg.cmem_base, incarnation })
        };
        (0..ways).map(target).collect()
    }

    /// Takes what was added of `region` at `hpa` and its decode-miss policy away. What is modified is lost unless it was written back.
    pub fn detach(&self, engine: &mut Engine, region: &Region, hpa: u64) {
        for decoder in &region.decoders {
            remove(engine, hpa + decoder.offset);
        }
        engine.remove_miss_policy(hpa);
    }
}

/// Takes away what was added of a decoder at `start`.
fn remove(engine: &mut Engine, start: u64) {
    engine.remove_route(start);
    engine.remove_local(start);
}

#[cfg(test)]
mod tests {
    use cxloe_fabric::model::Unmapped;
    use cxloe_link::Link;
    use cxloe_link::sim::{PortConfig, SimLink, SimNetwork};
    use cxloe_wire::frame::ETHERTYPE_DEFAULT;

    use super::*;
    use crate::attachments::reach;
    use crate::attachments::tests::{grown, spread};
    use crate::cache::CacheConfig;
    use crate::engine::{EngineError, Sink};

    const MIB: u64 = 1 << 20;
    const HPA: u64 = 1 << 40;
    const WINDOW: u64 = 64 * MIB;

    /// Whose operations there are none of.
    struct Ignored;

    impl Sink for Ignored {
        fn read(&mut self, _: u64, _: &[u8]) {}
        fn written(&mut self, _: u64) {}
        fn failed(&mut self, _: u64, _: EngineError) {}
    }

    struct Node {
        station: Station,
        engine: Engine,
        link: SimLink,
    }

    impl Node {
        fn new() -> Node {
            let own = Mac([2, 0, 0, 0, 0, 1]);
            let link = SimNetwork::new(1).attach(own, PortConfig::default()).unwrap();
            let station = Station {
                own,
                ethertype: ETHERTYPE_DEFAULT,
                max_frame: 1514,
                streams: 2,
                instance: 1,
                key: None,
                keys: StationKeys::none(1.into()),
                timing: Timing::default(),
            };
            Node { station, engine: Engine::new(CacheConfig::OFF), link }
        }

        fn attach(&mut self, region: &Region, window: u64) -> Result<(), AttachError> {
            let attachment = Attachment::over_ethernet(region.clone(), HPA, window);
            self.station.attach(&mut self.engine, &attachment, Time::ZERO)
        }

        /// Why a line cannot be read: nothing answers here.
        fn read(&mut self, hpa: u64) -> EngineError {
            self.engine.read(hpa, 0, Time::ZERO, self.link.transmit()).unwrap_err()
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
            node.station.tell_keys(&mut node.engine, BTreeMap::from([(mac, key)]), Time::ZERO);
        };
        let state = |node: &mut Node| {
            node.engine.poll(Time::ZERO, node.link.transmit(), &mut Ignored);
            node.engine.sessions()[0].state.clone()
        };
        node.attach(&region, WINDOW).unwrap();
        assert_eq!(state(&mut node), "connecting");
        tell(&mut node, None);
        assert_eq!(state(&mut node), "closed");
        tell(&mut node, Some(PublicKey([7; 32])));
        assert_eq!(state(&mut node), "connecting");
        // A key that was named outweighs what the manager says.
        node.station.keys.named.insert(mac, PublicKey([8; 32]));
        tell(&mut node, None);
        assert_eq!(state(&mut node), "connecting");

        // Attached only after that.
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
        for (broken, words) in [(homeless, ["mn1", "registered"]), (lame, ["position 1", "decoder 1"])] {
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
