//! Rate control over real frames. Three signals slow the pacer (the rate limiter of a compute node's port) if they
//! concern the port's priority class: 802.1Qbb frames on the cable, Congestion frames of a real memory node whose queue
//! grows, and counters of a NIC's driver.

use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_lab::{Lab, LabPrivilege};
use cxloe_link::ethtool::Ethtool;
use cxloe_link::limit::Rate;
use cxloe_link::pfc::PfcSocket;
use cxloe_link::{Backend, LinkConfig, LinkError};
use cxloe_port::port::Port;
use cxloe_port::rate_control::RateControl;
use cxloe_system::cable::LinkKind;
use cxloe_system::memif::{self, by_dpdk};
use cxloe_system::node::{MemoryNode, link_on, port};
use cxloe_system::{Failed, Test};
use cxloe_system::{Outcome, cable::cable, ensure, eventually};
use cxloe_wire::frame::{Mac, PfcVector};
use tempfile::TempDir;

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = vec![
        Test::new("pfc_frames_cross_the_cable", pfc_frames_cross_the_cable),
        Test::new("packet::pfc_frames_slow_their_class", || pfc_frames_slow_their_class(Backend::Packet)),
        Test::new("packet::a_long_queue_is_told", || a_long_queue_is_reported(Backend::Packet)),
        Test::new("counters_are_named", counters_are_named),
        Test::new("a_flood_of_pauses_throttles_nobody", a_flood_of_pauses_throttles_no_other_node),
    ];
    if standing == LabPrivilege::Root {
        tests.push(Test::new("xdp::pfc_frames_slow_their_class", || {
            pfc_frames_slow_their_class(Backend::Xdp)
        }));
        tests.push(Test::new("xdp::a_long_queue_is_told", || a_long_queue_is_reported(Backend::Xdp)));
        tests.push(Test::new("xdp::a_nic_counter_slows", a_nic_counter_slows));
        tests.push(by_dpdk("a_long_queue_is_told", a_long_queue_is_told_over_memory));
        tests.push(by_dpdk("a_counter_of_the_device_slows", a_counter_of_the_device_slows));
    }
    tests
}

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
const BYTES: u64 = 4 << 20;

fn lab() -> Result<Lab, Failed> {
    Ok(cable().mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?)
}

fn socket(lab: &Lab, interface: &str) -> Result<PfcSocket, Failed> {
    Ok(lab.home_of(interface)?.enter(|| PfcSocket::open(interface))??)
}

/// A Priority Flow Control frame that pauses these classes for this number of quanta.
fn vector(classes: &[u8], quanta: u16) -> PfcVector {
    let mut vector = PfcVector::default();
    for class in classes {
        vector.enabled |= 1 << class;
        vector.quanta[usize::from(*class)] = quanta;
    }
    vector
}

/// A line port with rate control, whose frames have the PFC class `class`.
fn paced(lab: &Lab, backend: Backend, class: u8, rates: &RateControl) -> Result<Port, Failed> {
    paced_on(lab, &LinkConfig { backend, busy_poll: false, ..LinkConfig::new("cn0") }, class, rates)
}

fn paced_on(lab: &Lab, config: &LinkConfig, class: u8, rates: &RateControl) -> Result<Port, Failed> {
    let mut port = port(link_on(lab, config)?, MN, 0, BYTES, CacheConfig::OFF)?;
    let (now, info) = (port.clock().now(), port.link().info().clone());
    let signals = lab.home_of("cn0")?.enter(|| rates.apply(port.engine(), &info, class, now))??;
    port.set_signals(signals);
    Ok(port)
}

fn pfc_frames_cross_the_cable() -> Outcome {
    let lab = lab()?;
    let (mut cn, mut mn) = (socket(&lab, "cn0")?, socket(&lab, "mn0")?);
    let sent = vector(&[0, 3], 77);
    // The loop sends more frames than the ring has slots, so slots are reused.
    for _ in 0..100 {
        mn.send(&sent)?;
        let mut got = None;
        eventually("the frame arrives", || {
            got = cn.receive();
            got.is_some()
        })?;
        ensure(got == Some((MN, sent)), format!("{got:?}"))?;
    }
    ensure(cn.receive().is_none() && mn.receive().is_none(), "a frame too many, or one's own")?;
    ensure(mn.sent() == 100, "frames are counted")
}

/// A neighbour continuously sends pauses of maximum length. A node that does not trust PFC frames is
/// unaffected; a node that trusts them keeps at least an eighth of its rate.
fn a_flood_of_pauses_throttles_no_other_node() -> Outcome {
    let (lab, folder) = (lab()?, tempfile::tempdir()?);
    let node = MemoryNode::start(&lab, "mn0", Backend::Packet, &[(CN, BYTES)], folder.path())?;
    for trust_pfc in [false, true] {
        // Long intervals without rate recovery, so that the effect of pauses can be observed.
        let long = Some(Duration::from_secs(10));
        let rates =
            RateControl { times: [long, None, long, long, long, long], trust_pfc, ..RateControl::default() };
        let mut port = paced(&lab, Backend::Packet, 3, &rates)?;
        port.connect(cxloe_system::LIMIT)?;
        let full = rate(&mut port)?;
        let mut neighbour = socket(&lab, "mn0")?;
        let pause = vector(&[3], u16::MAX);
        for n in 0..400_u64 {
            for _ in 0..8 {
                neighbour.send(&pause)?;
            }
            let at = n % 1000 * 64;
            port.write(at, &[n as u8; 64])?;
            ensure(port.read(at)? == [n as u8; 64], "another line than was written")?;
        }
        let (kept, heeded) = (rate(&mut port)?, port.engine().counters().pauses_link);
        match trust_pfc {
            false => ensure((kept, heeded) == (full, 0), format!("{full} became {kept} by {heeded} pauses"))?,
            true => {
                ensure(heeded > 0, "no pause was heeded")?;
                ensure(kept * 8 >= full && kept < full, format!("{full} became {kept} by {heeded} pauses"))?;
            }
        }
        port.close()?;
    }
    ensure(node.end()?.success(), "the memory node failed")
}

/// A PFC frame for the port's class halves the rate; a frame for another class, or one that ends a pause, has no
/// effect.
fn pfc_frames_slow_their_class(backend: Backend) -> Outcome {
    let (lab, folder) = (lab()?, tempfile::tempdir()?);
    let node = MemoryNode::start(&lab, "mn0", backend, &[(CN, BYTES)], folder.path())?;
    // Slow recovery, so that the effect of a pause can be observed.
    let long = Some(Duration::from_secs(10));
    let rates = RateControl {
        times: [long, None, long, long, long, long],
        trust_pfc: true,
        ..RateControl::default()
    };
    let mut port = paced(&lab, backend, 3, &rates)?;
    port.connect(cxloe_system::LIMIT)?;
    let mut mn = socket(&lab, "mn0")?;
    let full = rate(&mut port)?;
    for ignored in [vector(&[0, 1, 2, 4, 5, 6, 7], 1000), vector(&[3], 0)] {
        mn.send(&ignored)?;
    }
    mn.send(&vector(&[3], 1000))?;
    eventually("the pause is noticed", || port.idle().is_ok() && port.engine().counters().pauses_link > 0)?;
    let halved = rate(&mut port)?;
    ensure(halved * 2 == full, format!("{full} became {halved}"))?;
    ensure(port.engine().counters().pauses_link == 1, "one pause only")?;
    // The port continues to work at the lower rate.
    port.write(64, &[7; 64])?;
    ensure(port.read(64)? == [7; 64], "another line than was written")?;
    port.close()?;
    ensure(node.end()?.success(), "the memory node failed")
}

fn rate(port: &mut Port) -> Result<u64, Failed> {
    let now = port.clock().now();
    Ok(port.engine().paces(now).first().copied().flatten().ok_or("no rate control")?.rate)
}

/// With more requests at once than the threshold, the memory node signals congestion to the CN, and by PFC
/// frames on the cable. All data read is correct.
fn a_long_queue_is_reported(backend: Backend) -> Outcome {
    let (lab, folder) = (lab()?, tempfile::tempdir()?);
    let more = ["--congestion-threshold", "4"];
    let node = MemoryNode::start_with(&lab, "mn0", backend, &[(CN, BYTES)], folder.path(), &more)?;
    let mut port = paced(&lab, backend, 0, &RateControl::default())?;
    port.connect(cxloe_system::LIMIT)?;
    port.set_depth(400);
    let mut listener = socket(&lab, "cn0")?;
    // Bursts are written: single lines would share a few frames, and the queue would stay short.
    let written: Vec<u8> = (0..4096 * 64_u32).map(|i| ((i / 64) ^ i) as u8).collect();
    let mut heard = Vec::new();
    let mut read = vec![0; written.len()];
    let told = eventually("a long queue is told", || {
        let done = port.write_bytes(0, &written).and_then(|()| port.read_bytes(0, &mut read));
        while let Some(frame) = listener.receive() {
            heard.push(frame);
        }
        let by_node = port.engine().sessions()[0].counters.congestion;
        done.is_err() || (by_node > 0 && heard.iter().any(|(_, v)| v.pause(0) > Some(0)))
    });
    told?;
    ensure(written == read, "another line than was written")?;
    ensure(heard.iter().all(|(from, v)| *from == MN && v.enabled == 1), format!("{heard:?}"))?;
    let counters = port.engine().counters();
    ensure(counters.pauses_mn + counters.pauses_link > 0, format!("{counters:?}"))?;
    // Each of these short reads leaves the queue short, and the memory node signals the end of congestion. The
    // receiver's ring holds few frames, so earlier signals may be lost.
    eventually("the cable may go on", || {
        let done = port.read_bytes(0, &mut read[..512 * 64]);
        heard.extend(std::iter::from_fn(|| listener.receive()));
        done.is_err() || heard.iter().any(|(_, v)| v.pause(0) == Some(0))
    })?;
    port.close()?;
    ensure(node.end()?.success(), "the memory node failed")
}

/// A rising counter of the NIC's driver slows the pacer; this test uses a counter that rises with every
/// frame.
fn a_nic_counter_slows() -> Outcome {
    let (lab, folder) = (lab()?, tempfile::tempdir()?);
    let node = MemoryNode::start(&lab, "mn0", Backend::Xdp, &[(CN, BYTES)], folder.path())?;
    let counter = Some("rx_queue_{}_xdp_packets".into());
    let rates = RateControl { trust_pfc: true, nic_counter: counter, ..RateControl::default() };
    let mut port = paced(&lab, Backend::Xdp, 0, &rates)?;
    port.connect(cxloe_system::LIMIT)?;
    eventually("the counter's rise is noticed", || {
        port.read(0).is_ok() && port.engine().counters().pauses_nic > 0
    })?;
    port.close()?;
    ensure(node.end()?.success(), "the memory node failed")
}

/// A memory node with the options `more`, and a connected port with rate control, joined by shared memory. The lab comes
/// with the folder of the node's files.
fn joined(more: &[&str], rates: &RateControl) -> Result<(MemoryNode, Port, (Lab, TempDir)), Failed> {
    let (lab, folder) = (lab()?, tempfile::tempdir()?);
    let [cn, mn] = memif::interfaces(LinkKind::DPDK, folder.path(), CN, MN);
    let node = MemoryNode::start_with(&lab, &mn, LinkKind::DPDK, &[(CN, BYTES)], folder.path(), more)?;
    let mut port = paced_on(&lab, &LinkConfig::new(cn), 0, rates)?;
    port.connect(cxloe_system::LIMIT)?;
    Ok((node, port, (lab, folder)))
}

/// As over a cable, but without PFC frames, which a device of DPDK keeps from its link.
fn a_long_queue_is_told_over_memory() -> Outcome {
    // Frames come as fast as this program makes them, so that a queue grows while the memory node sleeps.
    let rates = RateControl { link: Some(Rate::gbit_per_s(100)), ..RateControl::default() };
    let (node, mut port, _lab) = joined(&["--congestion-threshold", "4"], &rates)?;
    port.set_depth(400);
    let written: Vec<u8> = (0..4096 * 64_u32).map(|i| ((i / 64) ^ i) as u8).collect();
    let mut read = vec![0; written.len()];
    eventually("a long queue is told", || {
        let done = port.write_bytes(0, &written).and_then(|()| port.read_bytes(0, &mut read));
        done.is_err() || port.engine().sessions()[0].counters.congestion > 0
    })?;
    ensure(written == read, "another line than was written")?;
    let counters = port.engine().counters();
    ensure(counters.pauses_mn > 0, format!("{counters:?}"))?;
    memif::end(node, port)
}

/// A rising counter of a device of DPDK slows the pacer; this test uses one that rises with every frame.
fn a_counter_of_the_device_slows() -> Outcome {
    let counter = Some("rx_good_packets".into());
    let rates = RateControl { trust_pfc: true, nic_counter: counter, ..RateControl::default() };
    let (node, mut port, _lab) = joined(&[], &rates)?;
    eventually("the counter's rise is noticed", || {
        port.read(0).is_ok() && port.engine().counters().pauses_nic > 0
    })?;
    memif::end(node, port)
}

/// Errors name a counter that the NIC does not have, and a driver whose PFC counters are unknown.
fn counters_are_named() -> Outcome {
    let lab = lab()?;
    let ask = |name: Option<&'static str>| -> Result<Result<String, LinkError>, Failed> {
        Ok(lab.home_of("cn0")?.enter(|| {
            let counter = Ethtool::open("cn0")?.pfc_counter(3, name)?;
            Ok(counter.name().to_owned())
        })?)
    };
    let text = |output_text: Result<String, LinkError>| output_text.unwrap_or_else(|error| error.to_string());
    let unknown = text(ask(None)?);
    ensure(unknown.contains("driver `veth`") && unknown.contains("ethtool -S"), unknown)?;
    let absent = text(ask(Some("rx_prio{}_pause"))?);
    ensure(absent.contains("no statistic `rx_prio3_pause`"), absent)?;
    let there = text(ask(Some("peer_ifindex"))?);
    ensure(there == "peer_ifindex", there)?;
    let speed = lab.home_of("cn0")?.enter(|| Ethtool::open("cn0").map(|e| e.speed()))??;
    ensure(speed.is_some_and(|s| s.get() == 10_000_000_000), format!("a veth says 10 Gbit/s, not {speed:?}"))
}
