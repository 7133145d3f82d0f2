//! Both ends of a cable in this process: a memory node's worker in a thread of its own, and line ports to it.
//!
//! ```text
//!   namespace cn                                  namespace mn
//!     line port   on cn0  <-------- veth -------->  mn0  worker (thread), pool of this process
//!     sockets     on cn1  <-------- veth -------->  mn1  sockets (thread)
//!     core 0                                        core 1
//! ```
//!
//! Worker, service, pool, engine and port are those of the daemons; a static map takes the place of the
//! manager. Links are opened inside the namespaces, and may then be used by any thread. Sockets have a cable
//! of their own, without an XDP program on it.

use std::sync::Arc;
use std::time::Duration;

use cxloe_cn_core::attach::{STREAMS_DEFAULT, SessionKeys, SessionSettings};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Route, RouteTarget};
use cxloe_fabric::model::Watermark;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Link, LinkConfig, LinkInfo, open};
use cxloe_mn::control::Mappings;
use cxloe_mn::control::static_map::{self, StaticMap, StaticRange};
use cxloe_mn::pool::{ByteSize, Host, PoolOptions};
use cxloe_mn::worker::{EchoFor, WorkerHandle, WorkerOptions};
use cxloe_mn_core::service::Service;
use cxloe_mn_core::translation::TLB_ENTRIES_DEFAULT;
use cxloe_port::port::Port;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::session::{ResponderConfig, Timing};

use super::PaperError;
use cxloe_lab::{Interrupt, Lab};
use cxloe_measure::MeasuredRegion;
use cxloe_measure::machine;

/// MAC address of the compute node, and with that its CN id.
const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// MAC address of the memory node, at its end of the first cable.
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
/// First HPA of the region. It differs from the region's first CMem address, 0, so that confusing the two is
/// noticed.
const HPA: u64 = 1 << 32;
/// Maximum wait until a session is open.
const CONNECT: Duration = Duration::from_secs(10);

/// Network of the evaluation, with the memory that is served over it.
pub struct Testbed {
    pub lab: Lab,
    /// Cores of the compute node's thread and of the memory node's worker; `None` if this process may use
    /// only one.
    pub cores: Option<(usize, usize)>,
    pub bytes: u64,
    mappings: Mappings,
    interrupt: Interrupt,
}

/// Memory node with a running worker, which ends when this value is dropped.
pub struct RunningMemoryNode(Option<WorkerHandle>);

impl Drop for RunningMemoryNode {
    fn drop(&mut self) {
        if let Some(worker) = self.0.take() {
            worker.stop();
            if let Err(error) = worker.join() {
                tracing::warn!(%error, "the memory node's worker had stopped");
            }
        }
    }
}

impl Testbed {
    /// IP address of the memory node's end of the second cable, for sockets.
    pub(crate) const SERVER: &str = "10.77.1.2";
    /// IP address of the compute node's end of the second cable, for sockets.
    pub const CLIENT: &str = "10.77.1.1";

    /// Makes the network with this MTU, and a region of `bytes` bytes, a multiple of 2 MiB.
    pub fn new(bytes: u64, mtu: u32, interrupt: Interrupt) -> Result<Testbed, PaperError> {
        let cores = machine::allowed_cores();
        let lab = Lab::builder()
            .namespace("cn")
            .namespace("mn")
            .veth("cn", "cn0", "mn", "mn0")
            .veth("cn", "cn1", "mn", "mn1")
            .mtu(mtu)
            .mac("cn0", &CN.to_string())
            .mac("mn0", &MN.to_string())
            .address("cn1", &format!("{}/24", Testbed::CLIENT))
            .address("mn1", &format!("{}/24", Testbed::SERVER))
            .build()?;
        let options = PoolOptions { bytes: Some(bytes), ..PoolOptions::default() };
        let pool = cxloe_mn::pool::open(&options, &Host::default(), None, &|_, _| {})?;
        let (mut mappings, _) = Mappings::open(Arc::new(pool), Watermark::default());
        let all = StaticRange { cn: CN, base: ByteSize(0), size: ByteSize(bytes) };
        static_map::apply(&StaticMap { ranges: vec![all] }, &mut mappings)?;
        let cores = cores.first().copied().zip(cores.get(1).copied());
        Ok(Testbed { lab, cores, bytes, mappings, interrupt })
    }

    /// Returns the default wait style of both ends: spinning if each end has a core of its own.
    pub fn wait(&self) -> WaitStyle {
        if self.cores.is_some() { WaitStyle::Busy } else { WaitStyle::default() }
    }

    /// Returns [`PaperError::Interrupted`] after Ctrl-C, for use in loops.
    pub fn check(&self) -> Result<(), PaperError> {
        Ok(self.interrupt.check()?)
    }

    /// Returns the duration of a cache-line round trip between the two cores in nanoseconds. No worker may
    /// run during the call.
    pub fn bounce(&self) -> Option<f64> {
        self.cores.and_then(|(a, b)| machine::bounce_ns(a, b).ok())
    }

    /// Opens a link on `interface`, an end of the first cable.
    fn link(&self, interface: &str, backend: Backend, wait: WaitStyle) -> Result<Box<dyn Link>, PaperError> {
        let config = LinkConfig { backend, busy_poll: wait == WaitStyle::Busy, ..LinkConfig::new(interface) };
        Ok(self.lab.home_of(interface)?.enter(|| open(&config))??)
    }

    /// Opens a link of the kind `backend`, closes it again, and returns its description, in which `auto` is replaced by
    /// the kind that was selected.
    pub(crate) fn link_info(&self, backend: Backend) -> Result<LinkInfo, PaperError> {
        Ok(self.link("cn0", backend, self.wait())?.info().clone())
    }

    /// Returns the parts from which a worker of the memory node is made: its link, and the configuration of
    /// its sessions.
    pub fn memory_node(
        &self,
        backend: Backend,
        wait: WaitStyle,
    ) -> Result<(Box<dyn Link>, ResponderConfig), PaperError> {
        let link = self.link("mn0", backend, wait)?;
        let incarnation = self.mappings.table().pool().incarnation();
        let info = link.info();
        let config = ResponderConfig::new(info.mac, info.max_frame, incarnation, rand::random::<u64>());
        Ok((link, config))
    }

    pub fn table(&self) -> &Arc<cxloe_mn_core::translation::PageTable> {
        self.mappings.table()
    }

    /// Starts a memory node, which also answers frames without a session.
    pub fn serve(&self, backend: Backend, wait: WaitStyle) -> Result<RunningMemoryNode, PaperError> {
        let (link, config) = self.memory_node(backend, wait)?;
        let service = Service::new(config, Arc::clone(self.table()), TLB_ENTRIES_DEFAULT);
        let echo = EchoFor { sessions: true, named: Vec::new() };
        let cpu = self.cores.map(|(_, theirs)| theirs);
        let options = WorkerOptions { index: 0, cpu, wait, echo, keyed: false, fills: None };
        let worker = WorkerHandle::start(link, service, None, options, || {})
            .map_err(PaperError::io("starting the memory node's thread"))?;
        Ok(RunningMemoryNode(Some(worker)))
    }

    /// Returns a line port with an open session to the running memory node, and without a line cache.
    pub fn port(&self, backend: Backend, wait: WaitStyle) -> Result<(Port, LinkInfo), PaperError> {
        let link = self.link("cn0", backend, wait)?;
        let info = link.info().clone();
        let station = SessionSettings {
            own: info.mac,
            ethertype: ETHERTYPE_DEFAULT,
            max_frame: info.max_frame,
            streams: STREAMS_DEFAULT,
            instance: rand::random(),
            key: None,
            keys: SessionKeys::none(cxloe_link::keys::SYSTEM),
            timing: Timing::default(),
        };
        let mut port = Port::new(link, Engine::new(CacheConfig::OFF), wait);
        let now = port.clock().now();
        let peer = port.engine().add_peer(station.requester(MN), now);
        let target = RouteTarget { peer, cmem: 0, incarnation: None, mirror: None };
        port.engine().add_route(Route::direct(HPA, self.bytes, target))?;
        port.connect(CONNECT)?;
        Ok((port, info))
    }

    /// Returns a line port and the region in the form that measurements take.
    pub fn target(
        &self,
        backend: Backend,
        wait: WaitStyle,
    ) -> Result<(MeasuredRegion, LinkInfo), PaperError> {
        let (port, info) = self.port(backend, wait)?;
        let target = MeasuredRegion {
            port,
            hpa: HPA,
            bytes: self.bytes,
            peer: MN,
            ethertype: ETHERTYPE_DEFAULT,
            echo: true,
            // The worker spins on its core, so the latency between the cores cannot be measured meanwhile.
            cores: None,
            memory_node: None,
            interrupt: Some(self.interrupt.clone()),
        };
        Ok((target, info))
    }

    /// Pins the calling thread to the compute node's core, if both ends have a core.
    pub fn pin(&self) -> Result<(), PaperError> {
        self.cores.map_or(Ok(()), |(ours, _)| Ok(machine::pin(ours)?))
    }

    /// Returns the first HPA of the region; its CMem address is 0.
    pub fn hpa(&self) -> u64 {
        HPA
    }
}
