//! This project's own system as a peer: a line port in the measuring thread, a memory node at the far end of the cable,
//! and a manager.

use std::process::Command;
use std::time::{Duration, Instant};

use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::{EngineError, Read, RequestId, Sink};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, LinkConfig, Middlewares};
use cxloe_port::connect::{Access, ConnectOptions, Connected};
use cxloe_port::port::{Port, PortError};
use cxloe_port::rate_control::RateControl;
use cxloe_wire::frame::PAGE_LINES;

use super::error::PeerError;
use super::measured::Measured;
use super::peer::{Facts, Peer};
use super::pipeline::Pipeline;
use super::plan::Plan;
use super::site::Site;
use super::stage::{FAR, FAR_INTERFACE, NEAR, NEAR_INTERFACE, Running, Stage};
use super::store::{Store, drive};
use super::unit::{AccessUnit, LINE};
use cxloe_lab::{LabPrivilege, program};

const MANAGER: &str = "http://10.77.0.1:7440";
/// Bytes that the memory node's pool has in addition to the bytes of the region.
const SPARE: usize = 96 << 20;
/// Bytes of an extent, the unit in which pools are divided: sizes of pools and regions are multiples of it.
const EXTENT: usize = 2 << 20;

/// This system (CXLoE) over one kind of link.
pub struct Cxloe {
    /// Kind of the link at both ends.
    pub backend: Backend,
}

impl Peer for Cxloe {
    fn name(&self) -> &'static str {
        match self.backend {
            Backend::Xdp => "cxloe-xdp",
            Backend::Udp => "cxloe-udp",
            _ => "cxloe-packet",
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            what: match self.backend {
                Backend::Xdp => "this system, frames over AF_XDP",
                Backend::Udp => "this system, frames in UDP datagrams over sockets (UDP_SEGMENT, UDP_GRO)",
                _ => "this system, frames over AF_PACKET rings",
            },
            waits: "both ends spin if each has a core of its own",
            copies: "memory node into a frame, kernel between the rings of the two sockets, port out of a frame",
            verified: "each frame's AES-128-GCM tag (with --insecure its CRC-32C) on arrival; every byte read",
            figures: "uncached lines through the line port; a page is one burst read, and of 1 MiB --depth frames are in \
                      flight; write64 until acknowledged",
        }
    }

    fn hindrance(&self, site: &Site) -> Option<String> {
        let denied = self.backend == Backend::Xdp && site.standing == LabPrivilege::UserNamespace;
        denied.then(|| "XDP programs can be loaded by root only: run the same with sudo".into())
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let (_gmm, _memory_node) = self.start(stage, plan)?;
        let wait = wait_style(stage);
        let connected = Connected::open(&ConnectOptions {
            name: "compare".into(),
            link: LinkConfig {
                backend: self.backend,
                busy_poll: wait == WaitStyle::Busy,
                ..LinkConfig::new(NEAR_INTERFACE)
            },
            extras: Middlewares::default(),
            wait,
            manager: MANAGER.into(),
            region: None,
            size: plan.bytes.next_multiple_of(EXTENT) as u64,
            ways: Ways::One,
            granularity: Granularity::PAGE,
            timeout: Duration::from_secs(60),
            rate_control: Some(RateControl::default()),
            access: Access {
                node_key: Some(stage.folder.join("cn.key")),
                insecure: stage.site.insecure,
                ..Access::default()
            },
        })?;
        let Connected { mut port, hpa, lease, .. } = connected;
        port.set_depth(plan.depth);
        let mut store = Region { port, hpa, depth: plan.depth, hits: Vec::new() };
        let found = drive(&mut store, &stage.content, plan, &stage.interrupt)?;
        store.port.close()?;
        lease.end()?;
        Ok(found)
    }
}

/// Wait style of both ends: they spin if each end has its own core.
fn wait_style(stage: &Stage) -> WaitStyle {
    if stage.cores.is_some() { WaitStyle::Busy } else { WaitStyle::default() }
}

impl Cxloe {
    fn start(&self, stage: &Stage, plan: &Plan) -> Result<(Running, Running), PeerError> {
        let mut gmm = Command::new(program("gmm")?);
        gmm.args(["serve", "--insecure", "--listen", "10.77.0.1:7440", "--data-dir"])
            .arg(stage.folder.join("gmm"));
        let gmm = stage.serve(NEAR, "gmm", 7440, gmm)?;

        let mut memory_node = Command::new(program("mn-server")?);
        memory_node.args(["-i", FAR_INTERFACE, "--name", "mn0", "--manager", MANAGER]);
        memory_node.args(["--link", &self.backend.to_string(), "--wait", &wait_style(stage).to_string()]);
        let pool = (plan.bytes + SPARE).next_multiple_of(EXTENT);
        memory_node.args(["--pool-size", &pool.to_string()]);
        memory_node.arg("--data-dir").arg(stage.folder.join("mn"));
        memory_node.arg("--socket").arg(stage.folder.join("mn.sock"));
        match stage.site.insecure {
            true => memory_node.arg("--insecure"),
            false => memory_node.arg("--node-key").arg(stage.folder.join("mn.key")),
        };
        if let Some(core) = stage.core(false) {
            memory_node.args(["--cpus", &core.to_string()]);
        }
        let mut memory_node = stage.start(FAR, "mn-server", memory_node)?;
        stage.until(&mut memory_node, |server| server.said().contains("registered with the manager"))?;
        Ok((gmm, memory_node))
    }
}

struct Region {
    port: Port,
    hpa: u64,
    depth: usize,
    /// Slots and content of reads that ended when they began.
    hits: Vec<(u32, Line)>,
}

impl Region {
    fn at(&self, unit: AccessUnit, index: usize) -> u64 {
        self.hpa + (index * unit.bytes()) as u64
    }
}

impl Store for Region {
    fn read(&mut self, unit: AccessUnit, index: usize, out: &mut [u8]) -> Result<(), PeerError> {
        let at = self.at(unit, index);
        match unit {
            AccessUnit::Line => out.copy_from_slice(&self.port.read(at)?),
            AccessUnit::Page | AccessUnit::Stretch => self.port.read_bytes(at, out)?,
        }
        Ok(())
    }

    fn write(&mut self, index: usize, line: &[u8]) -> Result<(), PeerError> {
        let line = line.first_chunk().expect("a line has 64 bytes");
        Ok(self.port.write(self.hpa + (index * LINE) as u64, line)?)
    }

    fn read_many(
        &mut self,
        unit: AccessUnit,
        indices: &[usize],
        out: &mut [u8],
    ) -> Result<Option<()>, PeerError> {
        let hpas: Vec<u64> = indices.iter().map(|index| self.at(unit, *index)).collect();
        if unit == AccessUnit::Line {
            self.port.read_batch(&hpas, out.as_chunks_mut::<LINE>().0)?;
            return Ok(Some(()));
        }
        // The port counts bursts, of which a page takes several if a frame cannot carry it.
        let lines_max = self.port.engine().burst_read_lines_max(self.hpa).max(1);
        let bursts = unit.bytes() / (PAGE_LINES * LINE) * PAGE_LINES.div_ceil(lines_max);
        self.port.set_depth((unit.in_flight(self.depth) * bursts).min(self.depth));
        let read = self.port.read_ranges(&hpas, out);
        self.port.set_depth(self.depth);
        Ok(read.map(Some)?)
    }

    fn write_lines(&mut self, indices: &[usize], lines: &[u8]) -> Result<(), PeerError> {
        let lines = indices.iter().zip(lines.as_chunks::<LINE>().0);
        let lines: Vec<_> = lines.map(|(index, line)| (self.hpa + (index * LINE) as u64, *line)).collect();
        Ok(self.port.write_batch(&lines)?)
    }

    fn bulk_read(&mut self, out: &mut [u8]) -> Result<(), PeerError> {
        Ok(self.port.read_bytes(self.hpa, out)?)
    }

    fn bulk_write(&mut self, all: &[u8]) -> Result<(), PeerError> {
        Ok(self.port.write_bytes(self.hpa, all)?)
    }

    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        Some(self)
    }
}

impl Pipeline for Region {
    fn begin(&mut self, slot: u32, line: usize) -> Result<bool, PeerError> {
        let at = self.at(AccessUnit::Line, line);
        match self.port.start_read(at, slot) {
            Ok(Read::Sent) => Ok(true),
            Ok(Read::Hit(line)) => {
                self.hits.push((slot, line));
                Ok(true)
            }
            Err(EngineError::Busy) => Ok(false),
            Err(e) => Err(PortError::from(e).into()),
        }
    }

    fn take(&mut self, until: Instant, arrived: &mut dyn FnMut(u32, &[u8])) -> Result<(), PeerError> {
        self.port.send().map_err(PortError::from)?;
        let mut lines = ArrivedLines { arrived, count: self.hits.len(), failed: None };
        self.hits.drain(..).for_each(|(slot, line)| (lines.arrived)(slot, &line));
        loop {
            // With a core of its own this thread spins. Else it may sleep beyond `until`, which counts as latency.
            self.port.turn(&mut lines).map_err(PortError::from)?;
            if let Some(error) = lines.failed {
                return Err(PortError::from(error).into());
            }
            if lines.count > 0 || Instant::now() >= until {
                return Ok(());
            }
        }
    }
}

/// Sink of reads in flight.
struct ArrivedLines<'a> {
    arrived: &'a mut dyn FnMut(u32, &[u8]),
    count: usize,
    failed: Option<EngineError>,
}

impl Sink for ArrivedLines<'_> {
    fn read(&mut self, id: RequestId, data: &[u8]) {
        if let Some(slot) = id.number() {
            self.count += 1;
            (self.arrived)(slot, data);
        }
    }

    fn written(&mut self, _id: RequestId) {}

    fn failed(&mut self, id: RequestId, error: EngineError) {
        if id.number().is_some() {
            self.failed.get_or_insert(error);
        }
    }
}
