//! Both ends of a cable in this process: a memory node's worker in a thread of its own, and line ports to it.
//!
//! ```text
//!   namespace cn                                  namespace mn
//!     line port   on cn0  <-------- veth -------->  mn0  worker (thread), pool of this process
//!     sockets     on cn1  <-------- veth -------->  mn1  sockets (thread)
//!     core 0                                        core 1
//! ```
//!
//! The worker, the service, the pool, the engine and the port are those of the daemons; what is missing is the manager,
//! whose part a static map takes. Links are opened inside the namespaces and then belong to whichever thread uses them.
//! Sockets have a cable of their own, so that no XDP program lies in their way.

use std::sync::Arc;
use std::time::Duration;

use cxloe_cn_core::attach::{STREAMS_DEFAULT, Station, StationKeys};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Route, Target as RouteTarget};
use cxloe_fabric::model::Watermark;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Link, LinkConfig, LinkInfo, open};
use cxloe_mn::control::{Mappings, StaticMap, StaticRange};
use cxloe_mn::pool::{ByteSize, Host, PoolOptions};
use cxloe_mn::worker::{EchoFor, WorkerHandle, WorkerOptions};
use cxloe_mn_core::service::Service;
use cxloe_mn_core::translation::TLB_ENTRIES_DEFAULT;
use cxloe_port::port::Port;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::session::{ResponderConfig, Timing};

use super::PaperError;
use crate::machine;
use crate::measure::Target;
use cxloe_lab::{Interrupt, Lab};

/// The compute node's address, and so its CN id.
const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// The memory node's.
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
/// HPA of the region; not 0, so that a lost base shows.
const HPA: u64 = 1 << 32;
/// How long a session may take to open.
const CONNECT: Duration = Duration::from_secs(10);

/// The network, and the memory that is served over it.
pub struct Ends {
    /// The namespaces.
    pub lab: Lab,
    /// The cores of compute node and memory node, if there are two.
    pub cores: Option<(usize, usize)>,
    /// Bytes of the region.
    pub bytes: u64,
    mappings: Mappings,
    interrupt: Interrupt,
}

/// A memory node at work. Dropping it ends its worker.
pub struct Served(Option<WorkerHandle>);

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(worker) = self.0.take() {
            worker.stop();
            if let Err(error) = worker.join() {
                tracing::warn!(%error, "the memory node's worker had stopped");
            }
        }
    }
}

impl Ends {
    /// IP address of the memory node's end of the second cable.
    pub const SERVER: &str = "10.77.1.2";
    /// And of the compute node's.
    pub const CLIENT: &str = "10.77.1.1";

    /// Makes the network, with this MTU, and a region of `bytes`, a multiple of 2 MiB.
    pub fn new(bytes: u64, mtu: u32, interrupt: Interrupt) -> Result<Ends, PaperError> {
        let cores = machine::allowed_cores();
        let lab = Lab::builder()
            .namespace("cn")
            .namespace("mn")
            .veth("cn", "cn0", "mn", "mn0")
            .veth("cn", "cn1", "mn", "mn1")
            .mtu(mtu)
            .mac("cn0", &CN.to_string())
            .mac("mn0", &MN.to_string())
            .address("cn1", &format!("{}/24", Ends::CLIENT))
            .address("mn1", &format!("{}/24", Ends::SERVER))
            .build()?;
        let options = PoolOptions { bytes: Some(bytes), ..PoolOptions::default() };
        let pool = cxloe_mn::pool::open(&options, &Host::default(), &|_, _| {})?;
        let (mut mappings, _) = Mappings::open(Arc::new(pool), Watermark::default());
        let all = StaticRange { cn: CN, base: ByteSize(0), size: ByteSize(bytes) };
        StaticMap { ranges: vec![all] }.apply(&mut mappings)?;
        let cores = cores.first().copied().zip(cores.get(1).copied());
        Ok(Ends { lab, cores, bytes, mappings, interrupt })
    }

    /// What both ends do while they wait, when nothing else is asked for: spin, if each has a core.
    pub fn wait(&self) -> WaitStyle {
        if self.cores.is_some() { WaitStyle::Busy } else { WaitStyle::default() }
    }

    /// Ends what is under way if the user asked for it.
    pub fn check(&self) -> Result<(), PaperError> {
        Ok(self.interrupt.check()?)
    }

    /// How far apart the cores are just now; to be asked while no worker runs.
    pub fn bounce(&self) -> Option<f64> {
        self.cores.and_then(|(a, b)| machine::bounce_ns(a, b).ok())
    }

    /// Opens a link on `interface` of the first cable.
    fn link(&self, interface: &str, backend: Backend, wait: WaitStyle) -> Result<Box<dyn Link>, PaperError> {
        let config = LinkConfig { backend, busy_poll: wait == WaitStyle::Busy, ..LinkConfig::new(interface) };
        Ok(self.lab.home_of(interface)?.enter(|| open(&config))??)
    }

    /// What kind of link `backend` turns out to be here.
    pub fn link_info(&self, backend: Backend) -> Result<LinkInfo, PaperError> {
        Ok(self.link("cn0", backend, self.wait())?.info().clone())
    }

    /// What a worker needs: its link, and what its service is made with.
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

    /// The page table of the region.
    pub fn table(&self) -> &Arc<cxloe_mn_core::translation::PageTable> {
        self.mappings.table()
    }

    /// Starts a memory node, which answers bare echoes as well.
    pub fn serve(&self, backend: Backend, wait: WaitStyle) -> Result<Served, PaperError> {
        let (link, config) = self.memory_node(backend, wait)?;
        let service = Service::new(config, Arc::clone(self.table()), TLB_ENTRIES_DEFAULT);
        let echo = EchoFor { sessions: true, named: Vec::new() };
        let options =
            WorkerOptions { index: 0, cpu: self.cores.map(|(_, theirs)| theirs), wait, echo, keyed: false };
        let worker = WorkerHandle::start(link, service, None, options, || {})
            .map_err(PaperError::io("starting the memory node's thread"))?;
        Ok(Served(Some(worker)))
    }

    /// A line port to the memory node that runs, without a line cache, its session open.
    pub fn port(&self, backend: Backend, wait: WaitStyle) -> Result<(Port, LinkInfo), PaperError> {
        let link = self.link("cn0", backend, wait)?;
        let info = link.info().clone();
        let station = Station {
            own: info.mac,
            ethertype: ETHERTYPE_DEFAULT,
            max_frame: info.max_frame,
            streams: STREAMS_DEFAULT,
            instance: rand::random(),
            key: None,
            keys: StationKeys::none(cxloe_link::keys::SYSTEM),
            timing: Timing::default(),
        };
        let mut port = Port::new(link, Engine::new(CacheConfig::OFF), wait);
        let now = port.clock().now();
        let peer = port.engine().add_peer(station.requester(MN), now);
        let target = RouteTarget { peer, cmem: 0, incarnation: None };
        port.engine().add_route(Route::direct(HPA, self.bytes, target))?;
        port.connect(CONNECT)?;
        Ok((port, info))
    }

    /// The same, to be measured.
    pub fn target(&self, backend: Backend, wait: WaitStyle) -> Result<(Target, LinkInfo), PaperError> {
        let (port, info) = self.port(backend, wait)?;
        let target = Target {
            port,
            hpa: HPA,
            bytes: self.bytes,
            peer: MN,
            ethertype: ETHERTYPE_DEFAULT,
            echo: true,
            cores: None,
            memory_node: None,
            interrupt: Some(self.interrupt.clone()),
        };
        Ok((target, info))
    }

    /// Keeps the calling thread on the compute node's core.
    pub fn pin(&self) -> Result<(), PaperError> {
        self.cores.map_or(Ok(()), |(ours, _)| Ok(machine::pin(ours)?))
    }

    /// First HPA of the region; CMem begins at 0 there.
    pub fn hpa(&self) -> u64 {
        HPA
    }
}
