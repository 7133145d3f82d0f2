//! A compute node with four queues, and a memory node with four workers: all data is correct over each kind of link,
//! also with losses, after the failure of one queue, and for a successor of the compute node.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::EngineError;
use cxloe_lab::{Lab, LabPrivilege};
use cxloe_link::fault::FaultInjector;
use cxloe_link::{Backend, Link, LinkConfig, join_queues};
use cxloe_mn::admin::client::ask;
use cxloe_port::port::{Port, PortError};
use cxloe_system::cable::{CN_AT, LinkKind, cable_for};
use cxloe_system::memif::{self, by_dpdk};
use cxloe_system::node::{MemoryNode, config_to, link_on, port_of, queues_on};
use cxloe_system::{LIMIT, Outcome, Test, ensure, text};
use cxloe_wire::frame::Mac;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
const HPA: u64 = 1 << 32;
const REGION: u64 = 4 << 20;
const QUEUES: u32 = 4;

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = vec![
        Test::new("packet::every_worker_serves_its_pages", || serves(Backend::Packet.into())),
        Test::new("udp::every_worker_serves_its_pages", || serves(Backend::Udp.into())),
        Test::new("encap_packet::every_worker_serves_its_pages", || serves(LinkKind::encap(Backend::Packet))),
        Test::new("packet::losses_are_repaired_on_each_queue", losses_are_repaired),
        Test::new("packet::a_queue_that_ends_ends_the_node", a_queue_that_ends_ends_the_node),
        Test::new("packet::a_successor_with_fewer_queues_comes_after_all", a_successor_comes_after_all),
    ];
    if standing == LabPrivilege::Root {
        tests.push(Test::new("xdp::every_worker_serves_its_pages", || serves(Backend::Xdp.into())));
        tests.push(by_dpdk("every_worker_serves_its_pages", || serves(LinkKind::DPDK)));
    }
    tests
}

fn lab(over: impl Into<LinkKind>) -> Outcome<Lab> {
    let cable = cable_for(over).queues(QUEUES);
    Ok(cable.mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?)
}

fn node(lab: &Lab, backend: Backend, folder: &Path) -> Outcome<MemoryNode> {
    node_on(lab, "mn0", backend.into(), folder)
}

fn node_on(lab: &Lab, interface: &str, over: LinkKind, folder: &Path) -> Outcome<MemoryNode> {
    let (socket, peer) = (folder.join("mn.sock"), format!("{CN}={CN_AT}"));
    let more = ["--workers", "4", "--socket", text(&socket), "--udp-peer", &peer];
    MemoryNode::start_with(lab, interface, over, &[(CN, REGION)], folder, &more)
}

fn on(link: Box<dyn Link>) -> Outcome<Port> {
    let mut port = port_of(link, QUEUES as usize, MN, HPA, REGION, CacheConfig::default())?;
    port.connect(LIMIT)?;
    Ok(port)
}

/// Writes the whole region by bursts and some of its lines individually, and checks all data with bursts, of one range and
/// of several out of order, and single reads.
fn check(port: &mut Port, seed: u8) -> Outcome {
    let mut all: Vec<u8> =
        (0..REGION as usize).map(|at| (at / 64) as u8 ^ (at / 4096) as u8 ^ seed).collect();
    port.write_bytes(HPA, &all)?;
    for line in (0..REGION / 64).step_by(97) {
        port.write(HPA + line * 64, &[line as u8; 64])?;
        all[line as usize * 64..][..64].fill(line as u8);
    }
    port.flush()?;
    let mut back = vec![0; all.len()];
    port.read_bytes(HPA, &mut back)?;
    if let Some(line) = (0..all.len() / 64).find(|line| all[line * 64..][..64] != back[line * 64..][..64]) {
        return Err(format!("line {line} holds other bytes").into());
    }
    // Ranges that begin and end within pages, the last one first.
    const RANGE: usize = 3 * 4096 + 64;
    let starts: Vec<usize> = (0..all.len() / RANGE).rev().map(|range| range * RANGE).collect();
    let hpas: Vec<u64> = starts.iter().map(|start| HPA + *start as u64).collect();
    let mut back = vec![0; starts.len() * RANGE];
    port.read_ranges(&hpas, &mut back)?;
    for (start, found) in starts.iter().zip(back.chunks(RANGE)) {
        ensure(*found == all[*start..start + RANGE], format!("the range at {start} holds other bytes"))?;
    }
    for line in (0..REGION / 64).step_by(31) {
        ensure(port.read(HPA + line * 64)? == all[line as usize * 64..][..64], format!("line {line}"))?;
    }
    Ok(())
}

/// Sessions of each of the memory node's workers, with the number of requests executed in each session.
fn sessions(folder: &Path) -> Outcome<Vec<Vec<(String, u64)>>> {
    let status = ask(&folder.join("mn.sock")).map_err(|error| error.to_string())?;
    let of = |worker: &cxloe_mn::admin::WorkerStatus| {
        worker.report.sessions.iter().map(|s| (s.cn.clone(), s.counters.executed)).collect()
    };
    Ok(status.workers.iter().map(of).collect())
}

fn serves(over: LinkKind) -> Outcome {
    let lab = lab(over)?;
    let folder = tempfile::tempdir()?;
    let [cn, mn] = memif::interfaces(over, folder.path(), CN, MN);
    let node = node_on(&lab, &mn, over, folder.path())?;
    let config = LinkConfig { interface: cn, ..config_to(over, MN) };
    let mut port = on(queues_on(&lab, &config, QUEUES)?)?;
    for seed in 1..4 {
        check(&mut port, seed)?;
    }
    let workers = sessions(folder.path())?;
    let all: BTreeSet<String> = workers.iter().flatten().map(|(cn, _)| cn.clone()).collect();
    let expected: BTreeSet<String> = (0..QUEUES as u8).map(|shard| CN.shard(shard).to_string()).collect();
    ensure(all == expected, format!("{workers:?}"))?;
    // Each session has executed more requests than its share of the region's pages.
    let busy = |executed: &u64| *executed > REGION / 4096 / u64::from(QUEUES);
    ensure(workers.iter().flatten().all(|(_, executed)| busy(executed)), format!("{workers:?}"))?;
    // Over UDP the kernel assigns the sockets' ports arbitrarily, so one worker may get several sessions.
    let spread = over.backend == Backend::Udp || workers.iter().all(|worker| worker.len() == 1);
    ensure(spread, format!("not a worker for each: {workers:?}"))?;
    let counters = port.link().counters();
    ensure(counters.rx_forged + counters.rx_foreign == 0, format!("{counters:?}"))?;
    if over.is_dpdk() {
        return memif::end(node, port);
    }
    port.close()?;
    ensure(node.end()?.success(), "mn-server failed")
}

fn losses_are_repaired() -> Outcome {
    let lab = lab(Backend::Packet)?;
    let folder = tempfile::tempdir()?;
    let node = node(&lab, Backend::Packet, folder.path())?;
    let config = config_to(Backend::Packet, MN);
    let links = (0..QUEUES).map(|queue| -> Outcome<Box<dyn Link>> {
        let config = LinkConfig { queue, queues: QUEUES, sharded: true, ..config.clone() };
        let plan = format!("drop=1%,dup=0.5%,corrupt=0.5%,reorder=1%,seed={queue}").parse()?;
        Ok(Box::new(FaultInjector::new(link_on(&lab, &config)?, &plan)))
    });
    let mut port = on(join_queues(links.collect::<Outcome<_>>()?)?)?;
    check(&mut port, 5)?;
    check(&mut port, 6)?;
    let repaired: Vec<u64> =
        port.engine().sessions().iter().map(|session| session.counters.retransmitted).collect();
    ensure(repaired.len() == 4 && repaired.iter().all(|count| *count > 0), format!("{repaired:?}"))?;
    port.close()?;
    ensure(node.end()?.success(), "mn-server failed")
}

/// A link that drops all frames while it is silenced.
struct Silenced {
    link: Box<dyn Link>,
    silent: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Link for Silenced {
    fn info(&self) -> &cxloe_link::LinkInfo {
        self.link.info()
    }

    fn receive(
        &mut self,
        budget: usize,
        on_frame: &mut cxloe_link::OnFrame<'_>,
    ) -> Result<usize, cxloe_link::LinkError> {
        let silent = self.silent.load(std::sync::atomic::Ordering::Relaxed);
        self.link.receive(budget, &mut |frame, tx| {
            if !silent {
                on_frame(frame, tx)
            }
        })
    }

    fn transmit(&mut self) -> &mut dyn cxloe_wire::Transmit {
        self.link.transmit()
    }

    fn flush(&mut self) -> Result<(), cxloe_link::LinkError> {
        self.link.flush()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), cxloe_link::LinkError> {
        self.link.wait(timeout)
    }

    fn readiness(&self) -> Option<std::os::fd::RawFd> {
        self.link.readiness()
    }

    fn counters(&mut self) -> cxloe_link::LinkCounters {
        self.link.counters()
    }
}

fn a_queue_that_ends_ends_the_node() -> Outcome {
    let lab = lab(Backend::Packet)?;
    let folder = tempfile::tempdir()?;
    let node = node(&lab, Backend::Packet, folder.path())?;
    let config = config_to(Backend::Packet, MN);
    let silent = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
    let links = (0..QUEUES).map(|queue| -> Outcome<Box<dyn Link>> {
        let config = LinkConfig { queue, queues: QUEUES, sharded: true, ..config.clone() };
        let link = link_on(&lab, &config)?;
        Ok(if queue == 2 { Box::new(Silenced { link, silent: silent.clone() }) } else { link })
    });
    let mut port = on(join_queues(links.collect::<Outcome<_>>()?)?)?;
    check(&mut port, 7)?;
    silent.store(true, std::sync::atomic::Ordering::Relaxed);
    // A read of a page of the silenced queue fails within the session's limit; afterwards operations of all other
    // queues are refused.
    let page = |page: u64| HPA + (256 + page) * 4096 + 1024;
    let failed = port.read(page(2));
    ensure(matches!(failed, Err(PortError::Engine(EngineError::Failed { .. }))), format!("{failed:?}"))?;
    for other in [0, 1, 3] {
        let refused = port.read(page(other));
        ensure(
            matches!(refused, Err(PortError::Engine(EngineError::NotConnected(MN)))),
            format!("page {other}: {refused:?}"),
        )?;
    }
    silent.store(false, std::sync::atomic::Ordering::Relaxed);
    // Only `connect` opens the sessions again; a refused operation does not open them.
    port.connect(LIMIT)?;
    check(&mut port, 8)?;
    port.close()?;
    ensure(node.end()?.success(), "mn-server failed")
}

fn a_successor_comes_after_all() -> Outcome {
    let lab = lab(Backend::Packet)?;
    let folder = tempfile::tempdir()?;
    let node = node(&lab, Backend::Packet, folder.path())?;
    let mut first = on(queues_on(&lab, &config_to(Backend::Packet, MN), QUEUES)?)?;
    check(&mut first, 9)?;
    // The port ends without sending a Bye.
    drop(first);
    let config = config_to(Backend::Packet, MN);
    let link = link_on(&lab, &config)?;
    let mut second = cxloe_system::node::successor(link, MN, HPA, REGION, CacheConfig::OFF)?;
    second.connect(LIMIT)?;
    let workers = sessions(folder.path())?;
    let left: Vec<_> = workers.iter().flatten().map(|(cn, _)| cn.as_str()).collect();
    ensure(left == [CN.to_string()], format!("sessions of the one before are left: {workers:?}"))?;
    check(&mut second, 10)?;
    second.close()?;
    ensure(node.end()?.success(), "mn-server failed")
}
