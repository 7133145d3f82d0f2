//! Hostile frames: a memory node and a compute node at work, and a neighbour that sends them invalid frames of every
//! kind.
//!
//! A real `mn-server` with a static map serves a compute node whose every read is checked against its writes. At the
//! same time raw sockets on the same cable send cut-off, oversized, random, damaged and replayed frames, floods of
//! handshakes from addresses without a station, forged ends of sessions and pauses, first to the memory node, then to
//! the compute node; inside UDP also invalid outer headers. Required: no wrong byte, no failed operation, bounded
//! memory, and an orderly end.
//!
//! A node on a device of DPDK is attacked over a cable to which its memory is spliced; the other node uses packet rings.

mod attacks;
mod keys;
mod outer;
mod work;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::EngineError;
use cxloe_lab::{Lab, LabPrivilege, Process};
use cxloe_link::{Backend, LinkConfig};
use cxloe_port::port::{Port, PortError};
use cxloe_system::cable::{CN_AT, LinkKind, MN_AT, cable, cable_for, ip};
use cxloe_system::memif::{by_dpdk, device, splice};
use cxloe_system::node::{MemoryNode, config_to, link_on, port};
use cxloe_system::raw::{Outer, RawSocket};
use cxloe_system::{Failed, Test};
use cxloe_system::{LIMIT, Outcome, ensure, eventually};
use cxloe_wire::frame::{
    Axi, Command, Direction, ETHERTYPE_DEFAULT, FaultStatus, Header, Hello, HelloAck, HelloStatus, Integrity,
    MIN_FRAME, Mac, Message, PROTOCOL_VERSION, PfcVector, Seal, Space, field,
};
use cxloe_wire::session::OpError;

use attacks::*;
use work::Work;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// MAC address of a second station on the CN's cable, with memory of its own.
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 3]);
/// MAC address of a station without memory.
const NOBODY: Mac = Mac([2, 0, 0, 0, 0, 4]);
const HPA: u64 = 1 << 32;
const REGION: u64 = 8 << 20;
/// Permitted growth of a process during a flood, in KiB: for the sessions that it may hold, and the allocator's
/// overhead.
const GROWTH_KIB: u64 = 16 << 10;
/// Number of frames of each kind of attack.
const FLOOD: u64 = 12_000;

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = vec![
        Test::new("pnet::memory_node_withstands", || memory_node_withstands(Backend::Pnet.into())),
        Test::new("packet::echoes_stop_nobody", || echoes_stop_nobody(Backend::Packet)),
        Test::new("invented_stations_take_no_session_from_others", invented_stations_take_no_session),
        Test::new("memory_of_others_is_out_of_reach", memory_of_others_is_out_of_reach),
        Test::new("wrong_addresses_are_named", wrong_addresses_are_named),
        Test::new("strangers_without_the_key_get_nowhere", keys::strangers_without_the_key_get_nowhere),
    ];
    let mut all =
        vec![LinkKind::from(Backend::Packet), Backend::Udp.into(), LinkKind::encap(Backend::Packet)];
    if standing == LabPrivilege::Root {
        tests.push(Test::new("xdp::echoes_stop_nobody", || echoes_stop_nobody(Backend::Xdp)));
        all.extend([Backend::Xdp.into(), LinkKind::encap(Backend::Xdp)]);
        tests.push(by_dpdk("memory_node_withstands", || memory_node_withstands(LinkKind::DPDK)));
        tests.push(by_dpdk("compute_node_withstands", || compute_node_withstands(LinkKind::DPDK)));
    }
    for over in all {
        let called = |name: &str| format!("{over}::{name}");
        tests.push(Test::new(called("memory_node_withstands"), move || memory_node_withstands(over)));
        tests.push(Test::new(called("compute_node_withstands"), move || compute_node_withstands(over)));
        if over.is_inside_udp() {
            let name = called("outer_headers_deceive_nobody");
            tests.push(Test::new(name, move || outer::headers_deceive_nobody(over)));
        }
    }
    tests
}

fn lab_for(over: LinkKind) -> Result<Lab, Failed> {
    Ok(cable_for(over).mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?)
}

/// Truncates frames so that they fit into a datagram with outer headers.
fn fit_datagrams(attacks: &mut [Attack<'_>]) {
    for (_, make) in attacks {
        let mut whole = std::mem::replace(make, Box::new(|_| Vec::new()));
        *make = Box::new(move |n| {
            let mut frame = whole(n);
            frame.truncate(1472);
            frame
        });
    }
}

fn lab() -> Result<Lab, Failed> {
    Ok(cable().mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?)
}

/// Opens a raw socket at `interface` whose frames have the encapsulation of this kind of link. Inside UDP,
/// their outer source address is that of the node at this end of the cable.
fn neighbour(lab: &Lab, over: LinkKind, interface: &str) -> Result<RawSocket, Failed> {
    let raw = RawSocket::open_in(lab, interface)?;
    let (cn, mn) = (CN_AT.parse()?, MN_AT.parse()?);
    Ok(match (over.is_inside_udp(), interface) {
        (true, "cn0") => raw.inside_udp(Outer { next: MN, from: cn, to: mn }),
        (true, _) => raw.inside_udp(Outer { next: CN, from: mn, to: cn }),
        _ => raw,
    })
}

/// Kind of link of a node that serves or uses one with a link of the kind `over`.
fn other_end(over: LinkKind) -> LinkKind {
    if over.is_dpdk() { Backend::Packet.into() } else { over }
}

/// Joins the memory of a node on a device of DPDK to the cable.
fn spliced(lab: &Lab, over: LinkKind, interface: &str, socket: &Path, far: Mac) -> Outcome<Option<Process>> {
    over.is_dpdk().then(|| splice(lab, interface, socket, far)).transpose()
}

fn memory_node_withstands(over: LinkKind) -> Outcome {
    let lab = lab_for(over)?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("memif.sock");
    let interface = if over.is_dpdk() { device(&socket, "server", MN) } else { "mn0".to_owned() };
    let node = MemoryNode::start(&lab, &interface, over, &[(CN, REGION)], folder.path())?;
    let _splice = spliced(&lab, over, "mn0", &socket, CN)?;
    let config = config_to(other_end(over), MN);
    // A raw socket at the memory node captures genuine frames of the compute node. Frames to an AF_XDP socket
    // bypass it, so that kind of link is attacked with invented frames only.
    let neighbour = neighbour(&lab, over, "cn0")?;
    let tap = lab.enter("mn", || RawSocket::open("mn0"))??;
    let link = link_on(&lab, &config)?;
    let mut port = port(link, MN, HPA, REGION, CacheConfig::OFF)?;
    port.connect(LIMIT)?;
    let work = Work::start(port);
    work.goes_on("nothing yet")?;
    let good = match over.backend {
        Backend::Xdp => (0..400).map(|n| hello(CN, n, n)).collect(),
        _ => capture(&tap, &work)?,
    };
    drop(tap);
    let before = node.resident_kib()?;
    let mut all = attacks(MN, CN, &good);
    all.extend(attacks_on_memory_node());
    if over.is_inside_udp() {
        fit_datagrams(&mut all);
    }
    attack(&neighbour, all, &work)?;
    let after = node.resident_kib()?;
    ensure(after <= before + GROWTH_KIB, format!("mn-server grew from {before} to {after} KiB"))?;
    // After a change of the MTU, frames longer than the slots of the rings arrive until the nodes have made new rings.
    if over.backend != Backend::Xdp && !over.is_inside_udp() {
        for (namespace, interface) in [("cn", "cn0"), ("mn", "mn0")] {
            ip(&lab, namespace, &["link", "set", "dev", interface, "mtu", "9000"])?;
        }
        let mut long = good[0].clone();
        long.resize(9014, 0xA5);
        attack(&neighbour, vec![("frames longer than a slot", Box::new(move |_| long.clone()))], &work)?;
    }
    work.end()?;
    let output_text = node.output_text();
    ensure(!output_text.contains("panicked") && !output_text.contains("ERROR"), output_text)?;
    // After the flood, resources for new stations must be left.
    let again = link_on(&lab, &config)?;
    let mut again = cxloe_system::node::port(again, MN, HPA, REGION, CacheConfig::OFF)?;
    again.connect(LIMIT)?;
    again.read(HPA)?;
    again.close()?;
    let status = node.end()?;
    ensure(status.code() == Some(0), format!("mn-server ended with {status}"))
}

/// An Echo that requests the maximum number of replies, each of 1400 bytes.
fn greedy_echo(from: Mac) -> Vec<u8> {
    let header = Header {
        dst: MN,
        src: from,
        ethertype: ETHERTYPE_DEFAULT,
        command: 0,
        seq: 0,
        axi: Axi { stream: 0, tag: 0 },
        addr: 0,
    };
    let mut frame = vec![0; MIN_FRAME];
    Message::Echo { reply_len: 1400, reply_count: u16::MAX }.emit(&header, &mut frame);
    frame
}

/// Number of replies to Echo frames of the station `to` that arrive at `tap`.
fn echo_replies(tap: &RawSocket, to: Mac) -> Result<usize, Failed> {
    let mut replies = 0;
    while let Some(seen) = tap.receive(Duration::from_millis(100))? {
        let header = Header::parse(&seen.bytes);
        let reply = header.is_some_and(|h| (h.command, h.dst) == (Command::EchoReply as u8, to));
        replies += usize::from(reply);
        // The loop is bounded, because the compute node's frames arrive here as well.
        if replies > 64 {
            break;
        }
    }
    Ok(replies)
}

/// A memory node answers Echo frames for measurements. A neighbour floods the node with Echo frames from three
/// addresses, each about 300 times a second; the compute node's work continues.
fn echoes_stop_nobody(backend: Backend) -> Outcome {
    let lab = lab()?;
    let folder = tempfile::tempdir()?;
    let named = OTHER.to_string();
    let more = ["--echo", "--echo-for", &named];
    let node = MemoryNode::start_with(&lab, "mn0", backend, &[(CN, REGION)], folder.path(), &more)?;
    let neighbour = lab.enter("cn", || RawSocket::open("cn0"))??;
    let asks = |from: Mac, count: u32| -> Result<usize, Failed> {
        let tap = lab.enter("cn", || RawSocket::open("cn0"))??;
        for _ in 0..count {
            neighbour.send(&greedy_echo(from))?;
        }
        echo_replies(&tap, from)
    };
    ensure(asks(NOBODY, 100)? == 0, "a station without a session was answered")?;
    ensure(asks(CN, 1)? == 0, "a station without a session was answered, though it has memory")?;
    let answers = asks(OTHER, 1)?;
    ensure((1..=64).contains(&answers), format!("{answers} frames for one, to the station named"))?;

    let config = LinkConfig { backend, busy_poll: false, ..LinkConfig::new("cn0") };
    let mut port = port(link_on(&lab, &config)?, MN, HPA, REGION, CacheConfig::OFF)?;
    port.connect(LIMIT)?;
    let work = Work::start(port);
    work.goes_on("nothing yet")?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for from in [NOBODY, OTHER, CN] {
                    neighbour.send(&greedy_echo(from))?;
                }
                std::thread::sleep(Duration::from_millis(3));
            }
            Ok::<_, std::io::Error>(())
        });
        let outcome = (0..5).try_for_each(|_| {
            // For this time the flood continues; then the compute node has to complete more rounds.
            std::thread::sleep(Duration::from_millis(1500));
            work.goes_on("a flood of echoes")
        });
        stop.store(true, Ordering::Relaxed);
        flood.join().map_err(|_| "the neighbour panicked")??;
        outcome
    })?;
    work.end()?;
    ensure(node.end()?.code() == Some(0), "mn-server did not end in order")
}

/// Hello and Start frames from more addresses without a station than the memory node has sessions: a station with
/// memory still gets a session.
fn invented_stations_take_no_session() -> Outcome {
    let lab = lab()?;
    let folder = tempfile::tempdir()?;
    let node = MemoryNode::start(&lab, "mn0", Backend::Packet, &[(CN, REGION)], folder.path())?;
    let neighbour = lab.enter("cn", || RawSocket::open("cn0"))??;
    let mut started = 0;
    for n in 0..400_u64 {
        let invented = Mac([2, 0xF2, 0, 0, (n >> 8) as u8, n as u8]);
        neighbour.send(&hello(invented, n, n))?;
        let mut ack = None;
        eventually("the Hello is answered", || {
            let Ok(Some(mut seen)) = neighbour.receive(Duration::from_millis(100)) else { return false };
            if let Ok((header, Message::HelloAck(found))) = Message::parse(&seen.bytes)
                && header.dst == invented
            {
                ack = Some(found);
            }
            seen.bytes.clear();
            ack.is_some()
        })?;
        let ack = ack.ok_or("no answer")?;
        if ack.status == HelloStatus::Ok {
            started += 1;
            neighbour.send(&in_guessed_session(
                invented,
                MN,
                Direction::ToMn,
                &Message::Start,
                1,
                ack.session,
            ))?;
        }
    }
    ensure((1..=64).contains(&started), format!("{started} invented stations have a session"))?;
    let link = link_on(&lab, &LinkConfig { backend: Backend::Packet, ..LinkConfig::new("cn0") })?;
    let mut port = port(link, MN, HPA, REGION, CacheConfig::OFF)?;
    port.connect(LIMIT)?;
    port.write(HPA, &[7; 64])?;
    ensure(port.read(HPA)? == [7; 64], "other bytes than were written")?;
    port.close()?;
    ensure(node.end()?.code() == Some(0), "mn-server did not end in order")
}

fn compute_node_withstands(over: LinkKind) -> Outcome {
    let lab = lab_for(over)?;
    let folder = tempfile::tempdir()?;
    let theirs = if over.is_inside_udp() { over } else { Backend::Packet.into() };
    let node = MemoryNode::start(&lab, "mn0", theirs, &[(CN, REGION)], folder.path())?;
    let neighbour = neighbour(&lab, over, "mn0")?;
    let tap = lab.enter("cn", || RawSocket::open("cn0"))??;
    let socket = folder.path().join("memif.sock");
    let interface = if over.is_dpdk() { device(&socket, "server", CN) } else { "cn0".to_owned() };
    let link = link_on(&lab, &LinkConfig { interface, ..config_to(over, MN) })?;
    let _splice = spliced(&lab, over, "cn0", &socket, MN)?;
    let mut port = port(link, MN, HPA, REGION, CacheConfig::default())?;
    port.connect(LIMIT)?;
    let work = Work::start(port);
    work.goes_on("nothing yet")?;
    let good: Vec<Vec<u8>> = match over.backend {
        Backend::Xdp => (0..400_u16)
            .map(|n| {
                let message = Message::ReadResp { data: &[n as u8; 64] };
                in_guessed_session(MN, CN, Direction::ToCn, &message, n, n.into())
            })
            .collect(),
        _ => capture(&tap, &work)?,
    };
    drop(tap);
    let mut all = attacks(CN, MN, &good);
    all.extend(attacks_on_compute_node());
    if over.is_inside_udp() {
        fit_datagrams(&mut all);
    }
    attack(&neighbour, all, &work)?;
    work.end()?;
    let status = node.end()?;
    ensure(status.code() == Some(0), format!("mn-server ended with {status}"))
}

/// The error of an operation; fails if the operation has succeeded.
fn error<T>(result: Result<T, PortError>) -> Result<EngineError, Failed> {
    match result {
        Err(PortError::Engine(e)) => Ok(e),
        Err(e) => Err(e.to_string().into()),
        Ok(_) => Err("it succeeded".into()),
    }
}

fn refused(result: Result<impl Sized, PortError>, status: FaultStatus) -> Outcome {
    let error = error(result)?;
    let right = matches!(&error, EngineError::Failed { mac: MN, error: OpError::Fault(s) } if *s == status);
    ensure(right, format!("{error:?} instead of {status:?}"))
}

fn memory_of_others_is_out_of_reach() -> Outcome {
    let lab = cable()
        .macvlan("cn0", "cn", "cn1")
        .macvlan("cn0", "cn", "cn2")
        .mac("cn0", &CN.to_string())
        .mac("mn0", &MN.to_string())
        .mac("cn1", &OTHER.to_string())
        .mac("cn2", &NOBODY.to_string())
        .build()?;
    let folder = tempfile::tempdir()?;
    // The other station's memory is twice as large as this station's; it is mapped at the following pool addresses.
    let map = [(CN, REGION), (OTHER, 2 * REGION)];
    let node = MemoryNode::start(&lab, "mn0", Backend::Packet, &map, folder.path())?;
    let reach = |interface: &str| -> Result<Port, Failed> {
        let link = link_on(&lab, &LinkConfig { backend: Backend::Packet, ..LinkConfig::new(interface) })?;
        let mut port = port(link, MN, HPA, 4 * REGION, CacheConfig::OFF)?;
        port.connect(LIMIT)?;
        Ok(port)
    };
    let (mut own, mut other) = (reach("cn0")?, reach("cn1")?);
    let secret = [0x5E; 64];
    let beyond = HPA + REGION;
    for hpa in [HPA, beyond, beyond + REGION - 64] {
        other.write(hpa, &secret)?;
    }
    own.write(HPA, &[1; 64])?;
    for hpa in [beyond, beyond + REGION - 64, beyond + REGION, HPA + 4 * REGION - 64] {
        refused(own.read(hpa), FaultStatus::Nxm)?;
        refused(own.write(hpa, &[2; 64]), FaultStatus::Nxm)?;
        refused(own.read_bytes(hpa, &mut [0; 64]), FaultStatus::Nxm)?;
        refused(own.write_bytes(hpa, &[2; 64]), FaultStatus::Nxm)?;
        other.idle()?;
    }
    // The same address refers to other memory for another CN.
    ensure(own.read(HPA)? == [1; 64], "own memory holds other bytes")?;
    for hpa in [HPA, beyond, beyond + REGION - 64] {
        ensure(other.read(hpa)? == secret, "the other's memory has changed")?;
    }
    refused(other.read(HPA + 2 * REGION), FaultStatus::Nxm)?;
    // A station without memory gets an error.
    let mut nobody = reach("cn2")?;
    refused(nobody.read(HPA), FaultStatus::Denied)?;
    refused(nobody.write(beyond, &[3; 64]), FaultStatus::Denied)?;
    ensure(own.read(HPA)? == [1; 64], "own memory holds other bytes")?;
    for port in [own, other, nobody] {
        port.close()?;
    }
    ensure(node.end()?.code() == Some(0), "mn-server did not end in order")
}

fn wrong_addresses_are_named() -> Outcome {
    let lab = lab()?;
    let folder = tempfile::tempdir()?;
    let node = MemoryNode::start(&lab, "mn0", Backend::Packet, &[(CN, REGION)], folder.path())?;
    let reach = |cache| -> Result<Port, Failed> {
        let link = link_on(&lab, &LinkConfig { backend: Backend::Packet, ..LinkConfig::new("cn0") })?;
        let mut port = port(link, MN, HPA, REGION, cache)?;
        port.connect(LIMIT)?;
        Ok(port)
    };
    for cache in [CacheConfig::OFF, CacheConfig::default()] {
        let mut port = reach(cache)?;
        port.write(HPA, &[7; 64])?;
        let sent = port.link().counters().tx_frames;
        for hpa in [HPA + 1, HPA + 63, HPA - 1, u64::MAX] {
            let unaligned = EngineError::Unaligned(hpa);
            ensure(error(port.read(hpa))? == unaligned, format!("read {hpa:#x}"))?;
            ensure(error(port.write(hpa, &[0; 64]))? == unaligned, format!("write {hpa:#x}"))?;
            ensure(error(port.read_bytes(hpa, &mut [0; 64]))? == unaligned, format!("read_bytes {hpa:#x}"))?;
        }
        for hpa in [0, HPA - 64, HPA + REGION, u64::MAX - 63] {
            let unmapped = EngineError::Unmapped(hpa);
            ensure(error(port.read(hpa))? == unmapped, format!("read {hpa:#x}"))?;
            ensure(error(port.write(hpa, &[0; 64]))? == unmapped, format!("write {hpa:#x}"))?;
            ensure(error(port.write_bytes(hpa, &[0; 64]))? == unmapped, format!("write_bytes {hpa:#x}"))?;
            ensure(unmapped.to_string().contains("cn-agent list"), unmapped.to_string())?;
        }
        // A read beyond the end reads the part inside the region, and its error names the rest.
        let over = error(port.read_bytes(HPA + REGION - 64, &mut [0; 192]))?;
        ensure(over == EngineError::Unmapped(HPA + REGION), format!("{over:?}"))?;
        match port.read_bytes(HPA, &mut [0; 65]) {
            Err(e @ PortError::PartialLine(65)) => {
                ensure(e.to_string().contains("whole lines"), e.to_string())?
            }
            other => return Err(format!("{other:?}").into()),
        }
        let pings = port.link().counters().tx_frames - sent;
        ensure(pings <= 8, format!("{pings} frames were sent for addresses that are wrong"))?;
        ensure(port.read(HPA)? == [7; 64], "the line has changed")?;
        port.close()?;
    }
    ensure(node.end()?.code() == Some(0), "mn-server did not end in order")
}
