//! Links on the loopback interface, which has no MAC and needs no rights.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::address::derived_mac;
use super::mtu::{FRAME_MAX, frame_limit};
use super::*;
use crate::outer::{Peer, PeerError, Peers, UdpAddress, UdpAddressError};
use crate::{Backend, Link, LinkConfig, LinkError, UdpConfig, open};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};

/// Returns an address at `ip` with a free port.
fn free(ip: &str) -> SocketAddr {
    UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap()
}

fn at(address: SocketAddr, peers: &Peers) -> LinkConfig {
    LinkConfig {
        backend: Backend::Udp,
        udp: UdpConfig { address: address.to_string().parse().unwrap(), peers: peers.clone() },
        ..LinkConfig::new("lo")
    }
}

/// Makes two links, each the peer of the other.
fn two(ip: &str) -> [UdpLink; 2] {
    let places = [free(ip), free(ip)];
    let peers = Peers::named(&places.map(|address| Peer { mac: derived_mac(address), address }));
    places.map(|place| UdpLink::open(&at(place, &peers)).unwrap())
}

fn frame(from: Mac, to: Mac, len: usize, mark: u8) -> Vec<u8> {
    let mut frame = vec![mark; len];
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame[12..14].copy_from_slice(&ETHERTYPE_DEFAULT.to_be_bytes());
    frame
}

fn send(link: &mut dyn Link, frame: &[u8]) {
    link.transmit().slot(frame.len()).unwrap().copy_from_slice(frame);
    link.transmit().commit();
}

/// Receives until `count` frames have come, for two seconds at most.
fn receive(link: &mut dyn Link, count: usize) -> Vec<Vec<u8>> {
    let (mut frames, until) = (Vec::new(), Instant::now() + Duration::from_secs(2));
    while frames.len() < count && Instant::now() < until {
        link.receive(64, &mut |frame, _| frames.push(frame.to_vec())).unwrap();
        if frames.len() < count {
            link.wait(Duration::from_millis(10)).unwrap();
        }
    }
    frames
}

/// Whether frames arrived as they were sent, apart from a little padding with zeros.
fn same(got: &[Vec<u8>], sent: &[Vec<u8>]) -> bool {
    let one = |(got, sent): (&Vec<u8>, &Vec<u8>)| {
        let padding = got.len() - sent.len().min(got.len());
        got.starts_with(sent)
            && got[sent.len()..].iter().all(|byte| *byte == 0)
            && padding <= (got.len() / 8).max(64)
    };
    got.len() == sent.len() && got.iter().zip(sent).all(one)
}

#[test]
fn texts_are_read_and_written() {
    let address = |text: &str| text.parse::<UdpAddress>().map(|address| address.to_string());
    assert_eq!(address("10.0.0.1").unwrap(), "10.0.0.1:63669");
    assert_eq!(address("10.0.0.1:7").unwrap(), "10.0.0.1:7");
    assert_eq!(address("fd00::1").unwrap(), "[fd00::1]:63669");
    assert_eq!(address("[fd00::1]:70").unwrap(), "[fd00::1]:70");
    assert_eq!(address(":7000").unwrap(), ":7000");
    for wrong in ["", ":", ":0", "0.0.0.0", "[::]:5", "224.0.0.1", "10.0.0.1:0", "host:5", ":70000"] {
        assert_eq!(wrong.parse::<UdpAddress>(), Err(UdpAddressError(wrong.into())));
    }
    let peer = "02:00:00:00:00:01=10.0.0.1:9";
    assert_eq!(peer.parse::<Peer>().unwrap().to_string(), peer);
    for wrong in [
        "",
        "02:00:00:00:00:01",
        "02:00:00:00:00:01=10.0.0.1",
        "01:00:00:00:00:01=10.0.0.1:9",
        "x=10.0.0.1:9",
    ] {
        assert_eq!(wrong.parse::<Peer>(), Err(PeerError(wrong.into())));
    }
}

#[test]
fn the_frame_limit_follows_from_the_mtu() {
    let (v4, v6): (SocketAddr, SocketAddr) = ("10.0.0.1:1".parse().unwrap(), "[fd00::1]:1".parse().unwrap());
    assert_eq!((frame_limit(1500, v4), frame_limit(1500, v6)), (1472, 1452));
    assert_eq!(frame_limit(9000, v4), 8972);
    assert_eq!(frame_limit(65_536, v4), FRAME_MAX);
    assert_eq!(frame_limit(20, v4), 0);
}

#[test]
fn a_derived_mac_is_local_unicast_and_another_for_each_port() {
    let macs: std::collections::BTreeSet<Mac> = (60_000..60_100)
        .flat_map(|port| ["127.0.0.1", "127.0.0.2", "::1"].map(|ip| (ip, port)))
        .map(|(ip, port)| derived_mac(SocketAddr::new(ip.parse().unwrap(), port)))
        .collect();
    assert_eq!(macs.len(), 300);
    assert!(macs.iter().all(|mac| mac.0[0] & 3 == 2));
    let mapped = "[::ffff:127.0.0.1]:60000".parse().unwrap();
    assert!(macs.contains(&derived_mac(mapped)), "a mapped address is the same one");
}

#[test]
fn frames_pass_whole_and_in_order_over_both_families() {
    for ip in ["127.0.0.1", "::1"] {
        let [mut a, mut b] = two(ip);
        let (from, to) = (a.info().mac, b.info().mac);
        let most = a.info().max_frame;
        // The frames: more frames of one length than a message can take, some shorter ones in between, and the longest
        // and the shortest frame.
        let lens = (0..200).map(|i| match i {
            0..=99 => 93,
            100..=149 => [60, 93][i % 2],
            150..=169 => most,
            170..=180 => 1438,
            181..=185 => [60, 200][i % 2],
            _ => 60,
        });
        let sent: Vec<Vec<u8>> = lens.enumerate().map(|(i, len)| frame(from, to, len, i as u8)).collect();
        sent.iter().for_each(|frame| send(&mut a, frame));
        a.flush().unwrap();
        let got = receive(&mut b, sent.len());
        assert!(same(&got, &sent), "over {ip}");
        let (out, into) = (a.counters(), b.counters());
        assert_eq!((out.tx_frames, into.rx_frames), (200, 200));
        assert_eq!((out.tx_errors, out.tx_bytes <= into.rx_bytes), (0, true));
        // A message must continue after a short frame between frames with a line, and after the third burst of a page.
        assert!(got[100..150].iter().filter(|frame| frame.len() == 93).count() > 40);
        // A frame sent during `receive` must arrive too.
        send(&mut a, &sent[0]);
        a.flush().unwrap();
        b.wait(Duration::from_secs(1)).unwrap();
        b.receive(1, &mut |frame, tx| {
            let slot = tx.slot(60).unwrap();
            slot.copy_from_slice(&frame[..60]);
            slot[..6].copy_from_slice(&from.0);
            slot[6..12].copy_from_slice(&to.0);
            tx.commit();
        })
        .unwrap();
        b.flush().unwrap();
        assert_eq!(receive(&mut a, 1).len(), 1);
    }
}

#[test]
fn a_kernel_that_does_not_segment_carries_the_same_frames() {
    let [mut a, mut b] = two("127.0.0.1");
    let sent: Vec<Vec<u8>> =
        (0..300).map(|i| frame(a.info().mac, b.info().mac, 93 - i % 2, i as u8)).collect();
    sent.iter().for_each(|frame| send(&mut a, frame));
    a.tx.stop_segmenting();
    sent[..10].iter().for_each(|frame| send(&mut a, frame));
    a.flush().unwrap();
    let all: Vec<_> = sent.iter().chain(&sent[..10]).cloned().collect();
    assert!(same(&receive(&mut b, 310), &all));
}

#[test]
fn who_does_not_speak_for_a_mac_is_not_heard() {
    let [mut a, mut b] = two("127.0.0.1");
    let (from, to) = (a.info().mac, b.info().mac);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let b_at: SocketAddr = b.address().to_string().parse().unwrap();
    let hello = frame(from, to, 93, 1);
    let sends = |frame: &[u8]| stranger.send_to(frame, b_at).unwrap();
    // None of these may be received: a peer's MAC from another address; an unknown MAC; a truncated frame;
    // another destination; another EtherType.
    sends(&hello);
    sends(&frame(Mac([2, 0, 0, 0, 0, 9]), to, 93, 1));
    sends(&hello[..13]);
    sends(&[]);
    sends(&frame(from, Mac([2, 0, 0, 0, 0, 8]), 93, 1));
    let mut other = hello.clone();
    other[13] ^= 1;
    sends(&other);
    // A peer sends one frame with another node's MAC and one with its own; only the one with its own MAC may be
    // received.
    send(&mut a, &frame(to, to, 93, 2));
    send(&mut a, &hello);
    a.flush().unwrap();
    assert_eq!(receive(&mut b, 1), [hello]);
    let counters = b.counters();
    assert_eq!((counters.rx_frames, counters.rx_forged, counters.rx_foreign), (1, 3, 3));
}

#[test]
fn frames_to_nobody_are_counted_and_pass_once_the_address_is_told() {
    let places = [free("127.0.0.1"), free("127.0.0.1")];
    let macs = places.map(derived_mac);
    let (of_a, of_b) = (Peers::default(), Peers::named(&[Peer { mac: macs[0], address: places[0] }]));
    let mut a = UdpLink::open(&at(places[0], &of_a)).unwrap();
    let mut b = UdpLink::open(&at(places[1], &of_b)).unwrap();
    let one = frame(macs[0], macs[1], 93, 1);
    send(&mut a, &one);
    a.flush().unwrap();
    assert_eq!((a.counters().tx_unknown, a.counters().tx_frames), (1, 0));
    of_a.set_from_manager([Peer { mac: macs[1], address: places[1] }]);
    // The link must copy the changed table at its next call.
    assert_eq!(receive(&mut a, 0).len(), 0);
    a.receive(1, &mut |_, _| {}).unwrap();
    send(&mut a, &one);
    a.flush().unwrap();
    assert_eq!(receive(&mut b, 1), std::slice::from_ref(&one));
    // A later entry from the manager must not replace a peer from the options. A list without the peer must remove a
    // peer that the manager has set.
    of_b.set_from_manager([Peer { mac: macs[0], address: places[1] }]);
    assert_eq!(of_b.find(macs[0]), Some(places[0]));
    of_a.set_from_manager([]);
    a.receive(1, &mut |_, _| {}).unwrap();
    send(&mut a, &one);
    a.flush().unwrap();
    assert_eq!(a.counters().tx_unknown, 2);
}

#[test]
fn a_full_buffer_lends_no_slot_until_it_is_sent() {
    let [mut a, b] = two("127.0.0.1");
    let one = frame(a.info().mac, b.info().mac, 60, 1);
    let mut sent = 0;
    while let Some(slot) = a.transmit().slot(60) {
        slot.copy_from_slice(&one);
        a.transmit().commit();
        sent += 1;
    }
    assert_eq!((sent, a.counters().tx_full), (512, 1));
    a.flush().unwrap();
    assert!(a.transmit().slot(60).is_some());
    let longer = a.info().max_frame + 1;
    assert!(a.transmit().slot(longer).is_none());
    assert!(a.transmit().slot(13).is_none(), "nothing that has no addresses");
}

#[test]
fn no_more_than_the_budget_is_handed_over() {
    let [mut a, mut b] = two("127.0.0.1");
    let one = frame(a.info().mac, b.info().mac, 93, 1);
    (0..50).for_each(|_| send(&mut a, &one));
    a.flush().unwrap();
    b.wait(Duration::from_secs(1)).unwrap();
    let mut take = |most| b.receive(most, &mut |_, _| {}).unwrap();
    assert_eq!([take(7), take(1)], [7, 1]);
    assert!(b.holds(42) && !b.holds(43));
}

#[test]
fn errors_name_what_is_wrong() {
    let peers = Peers::default();
    let [a, _b] = two("127.0.0.1");
    let taken = a.address().to_string().parse().unwrap();
    let error = open(&at(taken, &peers)).err().unwrap();
    assert!(matches!(&error, LinkError::AddressInUse { address, .. } if *address == taken), "{error}");
    let error = open(&at("192.0.2.1:7".parse().unwrap(), &peers)).err().unwrap();
    assert!(matches!(error, LinkError::Io { .. }), "{error}");
    let none = LinkConfig { interface: "none0".into(), ..at(taken, &peers) };
    assert!(matches!(open(&none).err(), Some(LinkError::NoSuchInterface(_))));
}

#[test]
fn two_workers_share_an_address_and_each_peer_stays_with_one() {
    let place = free("127.0.0.1");
    let peers: Vec<SocketAddr> = (0..16).map(|_| free("127.0.0.1")).collect();
    let all: Vec<Peer> =
        peers.iter().chain([&place]).map(|a| Peer { mac: derived_mac(*a), address: *a }).collect();
    let table = Peers::named(&all);
    let worker = |queue| UdpLink::open(&LinkConfig { queue, queues: 2, ..at(place, &table) }).unwrap();
    let mut workers = [worker(0), worker(1)];
    let own = derived_mac(place);
    for (index, peer) in peers.iter().enumerate() {
        let mut link = UdpLink::open(&at(*peer, &table)).unwrap();
        for _ in 0..5 {
            let one = frame(link.info().mac, own, 93, index as u8);
            send(&mut link, &one);
            link.flush().unwrap();
        }
    }
    let got = workers.each_mut().map(|worker| {
        let mut marks = Vec::new();
        while worker.receive(64, &mut |frame, _| marks.push(frame[20])).unwrap() > 0 {}
        marks
    });
    assert_eq!(got[0].len() + got[1].len(), 80);
    assert!(got[0].iter().all(|mark| !got[1].contains(mark)));
}
