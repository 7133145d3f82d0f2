//! MCTP packets of the FM API: messages split into packets and reassembled, under every kind of transmission error.

mod fm_fabric;

use cxloe_fm::header::{Dialect, Header};
use cxloe_fm::mctp::*;
use fm_fabric::hex;
use proptest::prelude::*;

fn message(tag_owner: bool, body: &[u8]) -> MctpMessage {
    MctpMessage {
        envelope: Envelope { destination: 0, source: 0, tag_owner, tag: 5 },
        kind: TYPE_FM_API,
        body: body.to_vec(),
    }
}

#[test]
fn a_request_is_one_packet() {
    let mut packetizer = Packetizer::default();
    let identify = Header::request(0x21, 0x5100, 0).to_bytes(Dialect::Tools);
    let mut expected = hex("01 00 00 CD  07  00 21 00 00 51 00 00 00 00 00 00 00");
    expected.resize(68, 0);
    assert_eq!(packetizer.packets(&message(true, &identify)), expected);
    // The sequence continues from message to message, modulo 4.
    for flags in [0xDD, 0xED, 0xFD, 0xCD] {
        assert_eq!(packetizer.packets(&message(true, &identify))[3], flags);
    }
}

#[test]
fn the_first_packet_holds_63_bytes_and_the_others_64() {
    for (bytes, packets) in
        [(0, 1), (62, 1), (63, 1), (64, 2), (127, 2), (128, 3), (129, 3), (191, 3), (192, 4)]
    {
        let body: Vec<u8> = (0..bytes).map(|i| i as u8 | 1).collect();
        let sent = Packetizer::default().packets(&message(false, &body));
        assert_eq!(sent.len(), packets * 68, "{bytes}");
        let flags: Vec<u8> = sent.chunks(68).map(|packet| packet[3]).collect();
        let place =
            |i: usize| u8::from(i == 0) << 7 | u8::from(i + 1 == packets) << 6 | (i as u8 & 3) << 4 | 5;
        assert_eq!(flags, (0..packets).map(place).collect::<Vec<_>>());
        let content: Vec<u8> = sent.chunks(68).flat_map(|packet| packet[4..].to_vec()).collect();
        assert_eq!((content[0], &content[1..=bytes]), (7, body.as_slice()));
        assert!(content[bytes + 1..].iter().all(|byte| *byte == 0));
    }
}

fn received(reassembler: &mut Reassembler, mut bytes: &[u8]) -> Vec<Result<MctpMessage, PacketError>> {
    std::iter::from_fn(|| reassembler.receive(&mut bytes)).collect()
}

fn packet(flags: u8, content: u8) -> [u8; 68] {
    let mut packet = [content; 68];
    packet[..4].copy_from_slice(&[1, 9, 8, flags]);
    packet
}

#[test]
fn packets_become_messages() {
    let mut reassembler = Reassembler::new(1024);
    let all = [packet(0x8B, 7), packet(0x1B, 2), packet(0x6B, 3), packet(0xFA, 8)].concat();
    let messages = received(&mut reassembler, &all);
    let [Ok(first), Ok(second)] = messages.as_slice() else { panic!("{messages:?}") };
    assert_eq!(first.body, [[7; 63].as_slice(), &[2; 64], &[3; 64]].concat());
    let envelope = Envelope { destination: 9, source: 8, tag_owner: true, tag: 3 };
    assert_eq!((first.kind, first.envelope), (7, envelope));
    assert_eq!(envelope.back(), Envelope { destination: 8, source: 9, tag_owner: false, tag: 3 });
    assert_eq!((second.kind, second.body.len(), second.envelope.tag), (8, 63, 2));
    assert!(!reassembler.is_incomplete());
}

#[test]
fn broken_packets_are_named_and_the_next_message_is_whole() {
    let good = packet(0xC0, 7);
    let cases: [(&[[u8; 68]], PacketError); 4] = [
        // If a packet in the middle is missing, the rest of the message is skipped.
        (&[packet(0x80, 7), packet(0x20, 1), packet(0x70, 1)], PacketError::Sequence { expected: 1, got: 2 }),
        (&[packet(0x40, 1)], PacketError::NoStart),
        (&[packet(0x10, 1), packet(0x20, 1), packet(0x70, 1)], PacketError::NoStart),
        (&[[0xFF; 68]], PacketError::Version(0xFF)),
    ];
    for (packets, error) in cases {
        let mut reassembler = Reassembler::new(1024);
        let results = received(&mut reassembler, &[packets.concat().as_slice(), &good].concat());
        let [Err(first), Ok(_)] = results.as_slice() else { panic!("{results:?}") };
        assert_eq!(*first, error);
    }
    // A new message replaces an unfinished one. Between messages, any sequence number is valid.
    let results =
        received(&mut Reassembler::new(99), &[packet(0x80, 1), packet(0xF0, 2), packet(0xF0, 3)].concat());
    assert!(
        matches!(results.as_slice(), [Ok(a), Ok(b)] if a.body == [2; 63] && b.body == [3; 63]),
        "{results:?}"
    );
    // The high half of the version byte is reserved.
    let mut odd = good;
    odd[0] = 0xF1;
    assert!(received(&mut Reassembler::new(99), &odd)[0].is_ok());
}

#[test]
fn what_is_too_long_is_dropped_but_its_beginning() {
    let mut reassembler = Reassembler::new(150);
    let mut packets =
        vec![packet(0x80, 7), packet(0x10, 1), packet(0x20, 2), packet(0x30, 3), packet(0x40, 4)];
    // The limit is for the message without padding: 150 bytes and their padding are within it.
    packets[2][3] = 0x60;
    assert!(received(&mut reassembler, &packets[..3].concat())[0].is_ok());
    packets[2][3] = 0x20;
    packets.push(packet(0xC0, 7));
    let results = received(&mut reassembler, &packets.concat());
    let [Err(PacketError::TooLong { limit: 150, start }), Ok(_)] = results.as_slice() else {
        panic!("{results:?}")
    };
    assert_eq!((start.kind, &start.body[..63]), (7, [7; 63].as_slice()));
}

proptest! {
    /// A message sent in arbitrary portions must arrive unchanged, apart from padding.
    #[test]
    fn messages_survive_the_wire(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..700), 1..8),
        portions in prop::collection::vec(1usize..200, 1..40),
    ) {
        let mut packetizer = Packetizer::default();
        let stream: Vec<u8> = bodies.iter().flat_map(|body| packetizer.packets(&message(true, body))).collect();
        let (mut reassembler, mut rest, mut arrived) = (Reassembler::new(700), stream.as_slice(), Vec::new());
        for size in portions.iter().cycle() {
            let (portion, later) = rest.split_at((*size).min(rest.len()));
            arrived.extend(received(&mut reassembler, portion));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(arrived.len(), bodies.len());
        for (got, body) in arrived.into_iter().zip(&bodies) {
            let got = got.unwrap();
            prop_assert_eq!(&got.body[..body.len()], body.as_slice());
            prop_assert!(got.body.len() - body.len() < 64 && got.body[body.len()..].iter().all(|byte| *byte == 0));
        }
    }

    /// Arbitrary bytes must result in errors or in messages within the limit, and a correct message after
    /// them must arrive.
    #[test]
    fn any_bytes_leave_the_reassembler_well(
        packets in prop::collection::vec((any::<u8>(), 0u8..3, any::<u8>()), 0..60),
        garbage in prop::collection::vec(any::<u8>(), 0..300),
        limit in 64usize..400,
    ) {
        let mut reassembler = Reassembler::new(limit);
        let mut bytes: Vec<u8> = packets.iter().flat_map(|(flags, version, content)| {
            let mut packet = packet(*flags, *content);
            packet[0] = *version;
            packet
        }).collect();
        bytes.extend(&garbage);
        for result in received(&mut reassembler, &bytes) {
            match result {
                Ok(message) => prop_assert!(message.body.len() < limit + 64),
                Err(PacketError::TooLong { start, .. }) => prop_assert!(start.body.len() <= 64),
                Err(_) => {}
            }
        }
        // These bytes complete the packet that the arbitrary bytes have begun.
        let missing = (68 - bytes.len() % 68) % 68;
        let _ = received(&mut reassembler, &vec![0; missing]);
        let results = received(&mut reassembler, &packet(0xC0, 7));
        prop_assert_eq!(results.len(), 1);
        prop_assert!(results[0].is_ok());
    }
}
