//! A memory node with a key on one end of a cable, and whoever measures it on the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cxloe_cn_core::attach::{STREAMS_DEFAULT, Station, StationKeys};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Route, Target};
use cxloe_lab::{Lab, Process, program};
use cxloe_link::keys::{SYSTEM, epoch_ns, node_key};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, LinkConfig, open};
use cxloe_port::port::Port;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac, PublicKey};
use cxloe_wire::session::{NodeKey, Timing};

use super::KeysError;

/// Addresses of both ends.
pub const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// The memory node's.
pub const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Nobody's.
pub const NOBODY: Mac = Mac([2, 0, 0, 0, 0, 3]);
/// Bytes of the region.
const BYTES: u64 = 4 << 20;
/// How long the memory node may take to come up.
const READY: Duration = Duration::from_secs(20);

/// The cable, and who is at its ends.
pub struct Site {
    lab: Lab,
    _memory_node: Process,
    own: Arc<NodeKey>,
    /// The memory node's public key.
    pub mn_key: PublicKey,
    wait: WaitStyle,
    backend: Backend,
}

impl Site {
    /// Makes it; files go into `state`.
    ///
    /// # Errors
    /// What cannot be made.
    pub fn new(state: &Path, backend: Backend, wait: WaitStyle) -> Result<Site, KeysError> {
        let lab = Lab::builder()
            .namespace("cn")
            .namespace("mn")
            .veth("cn", "cn0", "mn", "mn0")
            .mac("cn0", &CN.to_string())
            .mac("mn0", &MN.to_string())
            .build()?;
        let own = Arc::new(NodeKey::generate(SYSTEM));
        let file = state.join("mn.key");
        let mn_key = node_key(&file)?.public();
        let map = state.join("map.toml");
        std::fs::write(&map, format!("[[map]]\ncn = \"{CN}\"\nsize = {BYTES}\n"))?;
        let mut command = Command::new(program("mn-server")?);
        command.args(["-i", "mn0", "--name", "mn1", "--pool-size", "64M", "--wait", &wait.to_string()]);
        command.args(["--link", &backend.to_string(), "--peer-key", &format!("{CN}={}", own.public())]);
        command.arg("--node-key").arg(&file).arg("--static-map").arg(&map).arg("--data-dir").arg(state);
        command.arg("--socket").arg(state.join("mn.sock"));
        let log = state.join("mn-server.log");
        Process::log_to(&mut command, &log)?;
        let memory_node = lab.spawn("mn", command)?;
        let started = Instant::now();
        loop {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            if said.contains("serving name") {
                break;
            }
            if started.elapsed() > READY {
                return Err(KeysError::NotServing(said));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Site { lab, _memory_node: memory_node, own, mn_key, wait, backend })
    }

    /// The configuration of links at this end.
    pub fn link(&self) -> LinkConfig {
        LinkConfig { backend: self.backend, busy_poll: false, ..LinkConfig::new("cn0") }
    }

    /// Does `body` where this end's interface is.
    ///
    /// # Errors
    /// No such place.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, KeysError> {
        Ok(self.lab.enter("cn", body)?)
    }

    /// A port of the compute node, not yet connected, whose sessions get new keys so often.
    ///
    /// # Errors
    /// No link.
    pub fn port(&self, rekey_every: Duration) -> Result<Port, KeysError> {
        let link = self.enter(|| open(&self.link()))??;
        let mut port = Port::new(link, Engine::new(CacheConfig::OFF), self.wait);
        port.shake_hands()?;
        let keys = StationKeys {
            own: Some(Arc::clone(&self.own)),
            named: BTreeMap::from([(MN, self.mn_key)]),
            epoch_ns: epoch_ns(port.clock()),
            ..StationKeys::none(SYSTEM)
        };
        let station = Station {
            own: CN,
            ethertype: ETHERTYPE_DEFAULT,
            max_frame: port.link().info().max_frame,
            streams: STREAMS_DEFAULT,
            instance: rand::random(),
            key: None,
            keys,
            timing: Timing { rekey_every, ..Timing::default() },
        };
        let now = port.clock().now();
        let peer = port.engine().add_peer(station.requester(MN), now);
        port.engine().add_route(Route::direct(0, BYTES, Target { peer, cmem: 0, incarnation: None }))?;
        Ok(port)
    }
}
