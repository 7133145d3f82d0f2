//! Frames inside UDP: outer addresses of peers, maximum frame lengths, and the end of a peer. Losses, hostile frames
//! and mapped memory inside UDP are tested together with those of other links.

use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_lab::{Lab, LabPrivilege};
use cxloe_link::fault::FaultInjector;
use cxloe_link::outer::{Peer, Peers};
use cxloe_link::{Backend, Link, LinkConfig, LinkCounters, LinkError, UdpConfig};
use cxloe_mn::admin::client::ask;
use cxloe_port::port::{Port, PortError};
use cxloe_system::cable::{CN_AT, LinkKind, MN_AT, cable, ip, with_addresses};
use cxloe_system::node::{MemoryNode, config_to, link_on, port};
use cxloe_system::raw::{Outer, RawSocket};
use cxloe_system::{Failed, LIMIT, Outcome, Test, ensure, eventually, text};
use cxloe_wire::frame::Mac;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
const HPA: u64 = 1 << 32;
const REGION: u64 = 4 << 20;

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = vec![
        Test::new("lines_and_bursts", || lines_and_bursts(1500)),
        Test::new("lines_and_bursts_at_9000", || lines_and_bursts(9000)),
        Test::new("lines_and_bursts_over_ipv6", lines_and_bursts_over_ipv6),
        Test::new("forged_addresses_are_counted_and_not_heard", || {
            forged_addresses_are_not_heard(Backend::Udp)
        }),
        Test::new("encap_packet::forged_addresses", || forged_addresses_are_not_heard(Backend::Packet)),
        Test::new("encap_packet::lines_and_bursts", || encapsulated(Backend::Packet, Backend::Packet)),
        Test::new("encap_packet::speaks_with_sockets", || encapsulated(Backend::Packet, Backend::Udp)),
        Test::new("encap_packet::serves_sockets", || encapsulated(Backend::Udp, Backend::Packet)),
        Test::new("a_narrow_path_is_kept_to_and_named", a_narrow_path_is_kept_to_and_named),
        Test::new("a_dead_peer_fails_operations_and_its_successor_serves", a_dead_peer_fails_operations),
    ];
    if standing == LabPrivilege::Root {
        tests.push(Test::new("encap_xdp::lines_and_bursts", || encapsulated(Backend::Xdp, Backend::Xdp)));
    }
    tests
}

fn lab(mtu: u32) -> Result<Lab, Failed> {
    let cable = with_addresses(cable()).mtu(mtu);
    Ok(cable.mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?)
}

fn node(lab: &Lab, folder: &Path) -> Outcome<MemoryNode> {
    node_by(lab, folder, Backend::Udp)
}

/// Starts a memory node whose link `backend` sends frames inside UDP.
fn node_by(lab: &Lab, folder: &Path, backend: Backend) -> Outcome<MemoryNode> {
    let socket = folder.join("mn.sock");
    let more = ["--socket", text(&socket)];
    MemoryNode::start_with(lab, "mn0", LinkKind::encap(backend), &[(CN, REGION)], folder, &more)
}

/// Configuration of the compute node's link to the memory node, with frames inside UDP.
fn config_by(backend: Backend) -> LinkConfig {
    config_to(LinkKind::encap(backend), MN)
}

/// Tests frames inside UDP with these links at the two ends: lines, bursts, losses, and a peer that starts late.
fn encapsulated(cn: Backend, mn: Backend) -> Outcome {
    let lab = lab(1500)?;
    for (namespace, interface) in [("cn", "cn0"), ("mn", "mn0")] {
        // A virtual cable does not split large segments of sockets, and a raw link accepts single packets only.
        ip(&lab, namespace, &["link", "set", interface, "gso_max_segs", "1"])?;
    }
    let folder = tempfile::tempdir()?;
    let node = node_by(&lab, folder.path(), mn)?;
    let mut port = connected(&lab, &config_by(cn))?;
    ensure(port.link().info().max_frame == 1500 - 28, format!("{:?}", port.link().info()))?;
    check(&mut port, 21)?;
    let counters = port.link().counters();
    ensure(counters.rx_forged + counters.rx_foreign == 0, format!("{counters:?}"))?;
    port.close()?;
    let plan = "drop=1%,dup=0.5%,corrupt=0.5%,reorder=1%,seed=3".parse()?;
    let link = FaultInjector::new(link_on(&lab, &config_by(cn))?, &plan);
    let mut port = port_over(Box::new(link))?;
    check(&mut port, 22)?;
    ensure(port.engine().sessions()[0].counters.retransmitted > 0, "nothing was lost")?;
    port.close()?;
    ensure(node.end()?.success(), "mn-server failed")?;
    // A peer that is added later can be reached at once.
    let peers = Peers::default();
    let config =
        LinkConfig { udp: UdpConfig { peers: peers.clone(), ..UdpConfig::default() }, ..config_by(cn) };
    let mut late = cxloe_system::node::port(link_on(&lab, &config)?, MN, HPA, REGION, CacheConfig::OFF)?;
    let node = node_by(&lab, folder.path(), mn)?;
    ensure(late.connect(Duration::from_millis(100)).is_err(), "it was reached without an address")?;
    peers.set_from_manager([Peer { mac: MN, address: MN_AT.parse()? }]);
    late.connect(LIMIT)?;
    check(&mut late, 23)?;
    late.close()?;
    ensure(node.end()?.success(), "mn-server failed")
}

fn port_over(link: Box<dyn Link>) -> Outcome<Port> {
    let mut over = port(link, MN, HPA, REGION, CacheConfig::OFF)?;
    over.connect(LIMIT)?;
    Ok(over)
}

fn connected(lab: &Lab, config: &LinkConfig) -> Result<Port, Failed> {
    let mut port = port(link_on(lab, config)?, MN, HPA, REGION, CacheConfig::OFF)?;
    port.connect(LIMIT)?;
    Ok(port)
}

/// Writes the whole region by bursts and lines, and checks all data.
fn check(port: &mut Port, seed: u8) -> Outcome {
    let all: Vec<u8> = (0..REGION as usize).map(|at| (at / 64) as u8 ^ (at / 4096) as u8 ^ seed).collect();
    port.write_bytes(HPA, &all)?;
    for line in (0..REGION / 64).step_by(97) {
        port.write(HPA + line * 64, &[line as u8; 64])?;
    }
    let mut back = vec![0; all.len()];
    port.read_bytes(HPA, &mut back)?;
    for (line, (found, written)) in back.chunks(64).zip(all.chunks(64)).enumerate() {
        let right = if line % 97 == 0 { found == [line as u8; 64] } else { found == written };
        ensure(right, format!("line {line} holds other bytes"))?;
    }
    for line in (0..REGION / 64).step_by(1009) {
        ensure(port.read(HPA + line * 64)? == back[line as usize * 64..][..64], format!("line {line}"))?;
    }
    Ok(())
}

fn lines_and_bursts(mtu: u32) -> Outcome {
    let lab = lab(mtu)?;
    let folder = tempfile::tempdir()?;
    let node = node(&lab, folder.path())?;
    let mut port = connected(&lab, &config_to(Backend::Udp, MN))?;
    ensure(port.link().info().max_frame == mtu as usize - 28, format!("{:?}", port.link().info()))?;
    check(&mut port, 7)?;
    let counters = port.link().counters();
    ensure(counters.rx_forged + counters.rx_foreign + counters.tx_unknown == 0, format!("{counters:?}"))?;
    port.close()?;
    ensure(node.end()?.success(), "mn-server failed")
}

fn lines_and_bursts_over_ipv6() -> Outcome {
    let lab = cable().mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?;
    for (namespace, interface, address) in [("cn", "cn0", "fd77::1/64"), ("mn", "mn0", "fd77::2/64")] {
        let switch = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        lab.enter(namespace, || std::fs::write(switch, "0"))??;
        // No other node has this address; duplicate address detection would delay its use for a second.
        ip(&lab, namespace, &["address", "add", address, "dev", interface, "nodad"])?;
    }
    let folder = tempfile::tempdir()?;
    let peer = format!("{CN}=[fd77::1]:63669");
    let more = ["--udp-address", "fd77::2", "--udp-peer", &peer];
    let node = MemoryNode::start_with(&lab, "mn0", Backend::Udp, &[(CN, REGION)], folder.path(), &more)?;
    let peers = Peers::named(&[Peer { mac: MN, address: "[fd77::2]:63669".parse()? }]);
    let udp = UdpConfig { address: "fd77::1".parse()?, peers };
    let mut port = connected(&lab, &LinkConfig { udp, ..config_to(Backend::Udp, MN) })?;
    ensure(port.link().info().max_frame == 1500 - 48, format!("{:?}", port.link().info()))?;
    check(&mut port, 11)?;
    let counters = port.link().counters();
    ensure(counters.rx_forged + counters.rx_foreign + counters.tx_unknown == 0, format!("{counters:?}"))?;
    port.close()?;
    ensure(node.end()?.success(), "mn-server failed")
}

/// Counters of the memory node's link, read from its statistics.
fn link_of(folder: &Path) -> Result<LinkCounters, Failed> {
    let status = ask(&folder.join("mn.sock")).map_err(|error| error.to_string())?;
    Ok(status.workers.first().ok_or("no worker")?.report.link)
}

fn forged_addresses_are_not_heard(backend: Backend) -> Outcome {
    let lab = lab(1500)?;
    let folder = tempfile::tempdir()?;
    let node = node_by(&lab, folder.path(), backend)?;
    let mut port = connected(&lab, &config_by(backend))?;
    check(&mut port, 1)?;
    let from = |from: &str| -> Result<RawSocket, Failed> {
        let (from, to): (SocketAddrV4, SocketAddrV4) = (from.parse()?, MN_AT.parse()?);
        Ok(RawSocket::open_in(&lab, "cn0")?.inside_udp(Outer { next: MN, from, to }))
    };
    // A frame of minimum length with valid MAC addresses and without a valid command or trailer. Copies are sent from
    // wrong outer addresses, and with wrong inner addresses.
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&MN.0);
    frame[6..12].copy_from_slice(&CN.0);
    frame[12..14].copy_from_slice(&[0x88, 0xB5]);
    let mut of_nobody = frame;
    of_nobody[11] = 0x55;
    let mut to_another = frame;
    to_another[5] = 0x55;
    let (elsewhere, another_port, right) = (from("10.77.0.3:63669")?, from("10.77.0.1:9")?, from(CN_AT)?);
    for _ in 0..100 {
        elsewhere.send(&frame)?;
        another_port.send(&frame)?;
        right.send(&of_nobody)?;
        right.send(&to_another)?;
        right.send(&frame[..13])?;
    }
    let seen = || link_of(folder.path()).is_ok_and(|link| link.rx_forged >= 300 && link.rx_foreign >= 200);
    eventually("what is forged is counted", seen)?;
    let link = link_of(folder.path())?;
    ensure((link.rx_forged, link.rx_foreign) == (300, 200), format!("{link:?}"))?;
    check(&mut port, 2)?;
    // A port whose link has no outer address for the memory node sends nothing to it, and reports a time-out.
    let stranger = LinkConfig { udp: UdpConfig::default(), ..config_by(backend) };
    port.close()?;
    let mut lost = cxloe_system::node::port(link_on(&lab, &stranger)?, MN, HPA, REGION, CacheConfig::OFF)?;
    match lost.connect(Duration::from_millis(300)) {
        Err(PortError::ConnectTimeout { .. }) => {}
        other => return Err(format!("{other:?}").into()),
    }
    ensure(lost.link().counters().tx_unknown > 0, "nothing was counted")?;
    ensure(node.end()?.success(), "mn-server failed")
}

fn a_narrow_path_is_kept_to_and_named() -> Outcome {
    let lab = lab(1500)?;
    ip(&lab, "cn", &["route", "replace", "10.77.0.2/32", "dev", "cn0", "mtu", "1400"])?;
    let config = config_to(Backend::Udp, MN);
    let link = link_on(&lab, &config)?;
    ensure(link.info().max_frame == 1400 - 28, format!("{:?}", link.info()))?;
    drop(link);
    // The path to a peer that is added later has an MTU too small for the link's frames.
    let peers = Peers::default();
    let config = LinkConfig { udp: UdpConfig { peers: peers.clone(), ..UdpConfig::default() }, ..config };
    let mut link = link_on(&lab, &config)?;
    ensure(link.info().max_frame == 1500 - 28, format!("{:?}", link.info()))?;
    peers.set_from_manager([Peer { mac: MN, address: MN_AT.parse()? }]);
    link.receive(1, &mut |_, _| {})?;
    let sends = |link: &mut dyn Link, len: usize| {
        let slot = link.transmit().slot(len).ok_or("no room")?;
        slot[..6].copy_from_slice(&MN.0);
        slot[6..12].copy_from_slice(&CN.0);
        link.transmit().commit();
        Ok::<_, Failed>(lab.enter("cn", || link.flush())?)
    };
    sends(&mut *link, 1372)??;
    match sends(&mut *link, 1472)? {
        Err(error @ LinkError::PathMtu { mtu: 1500, path: 1400, packet: 1500, .. }) => {
            let words = error.to_string();
            ensure(words.contains("ip link set cn0 mtu 1400"), words)
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn a_dead_peer_fails_operations() -> Outcome {
    let lab = lab(1500)?;
    let folder = tempfile::tempdir()?;
    let first = node(&lab, folder.path())?;
    let mut port = connected(&lab, &config_to(Backend::Udp, MN))?;
    check(&mut port, 3)?;
    first.kill()?;
    // The peer's port is closed: the kernel reports that by ICMP, and the link continues to work.
    let error = eventually("operations fail", || port.read(HPA).err())?;
    ensure(matches!(error, PortError::Engine(_)), format!("{error:?}"))?;
    // A new port is opened, because the old port has used the lost pool and therefore does not accept the restarted
    // memory node's new pool.
    drop(port);
    let second = node(&lab, folder.path())?;
    let mut port = connected(&lab, &config_to(Backend::Udp, MN))?;
    check(&mut port, 4)?;
    port.close()?;
    ensure(second.end()?.success(), "mn-server failed")
}
