//! Fuzzing of an FM API connection (CXL Fabric Manager): MCTP packets are parsed to messages, and messages are
//! answered.

use cxloe_fm::answer::{ClientAgreements, MESSAGE_MAX, answer};
use cxloe_fm::header::Dialect;
use cxloe_fm::mctp::{Envelope, MctpMessage, Packetizer, Reassembler, TYPE_CCI, TYPE_FM_API};
use cxloe_fm::memory_fabric::MemoryFabric;

/// Checks arbitrary bytes on a connection: invalid messages are rejected; valid ones are answered within the
/// size limit, and the answer can be parsed. The first byte of `data` selects the length of the pieces in
/// which the remaining bytes arrive, and whether these are packets, or messages (each preceded by a length
/// byte) to be split into packets.
pub fn fm_api(data: &[u8]) {
    let Some((pieces, rest)) = data.split_first() else { return };
    let packed = if pieces & 1 == 1 { packed(rest) } else { rest.to_vec() };
    let mut rest = packed.as_slice();
    let mut fabric = MemoryFabric::new();
    let mut session = ClientAgreements::new(Dialect::default());
    let mut reassembler = Reassembler::new(MESSAGE_MAX);
    let mut packetizer = Packetizer::default();
    while !rest.is_empty() {
        let (mut piece, later) = rest.split_at(rest.len().min(usize::from(*pieces) + 1));
        rest = later;
        while let Some(received) = reassembler.receive(&mut piece) {
            let Ok(message) = received else { continue };
            assert!(message.body.len() <= MESSAGE_MAX);
            if !matches!(message.kind, TYPE_FM_API | TYPE_CCI) {
                continue;
            }
            let Some(response) = answer(&mut fabric, &mut session, &message.body) else { continue };
            assert!(response.len() <= MESSAGE_MAX, "{} bytes", response.len());
            let back = MctpMessage { envelope: message.envelope.back(), kind: message.kind, body: response };
            let packets = packetizer.packets(&back);
            let mut reader = Reassembler::new(MESSAGE_MAX);
            let again = reader.receive(&mut packets.as_slice()).expect("all of it").expect("in order");
            // Only the beginning is compared, since the last packet of a message is padded.
            assert!(again.body.starts_with(&back.body));
        }
    }
}

fn packed(mut messages: &[u8]) -> Vec<u8> {
    let mut packetizer = Packetizer::default();
    let mut packets = Vec::new();
    while let Some((length, rest)) = messages.split_first() {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        messages = rest;
        let message = MctpMessage { envelope: Envelope::request(0), kind: TYPE_FM_API, body: body.to_vec() };
        packets.extend(packetizer.packets(&message));
    }
    packets
}
