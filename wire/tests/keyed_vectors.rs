//! The example handshake of `PROTOCOL.md`, byte for byte: an implementation that produces these bytes
//! interoperates with this one.

mod session_common;

use std::fmt::Write;
use std::sync::Arc;

use cxloe_wire::frame::{FEATURE_MULTI, FEATURE_SHARDS, MIN_FRAME, Message, PublicKey};
use cxloe_wire::session::{Entropy, KeyPair, NodeKey, RequesterConfig, ResponderConfig};
use session_common::*;

/// Makes a generator whose bytes count up from `first`, in the order of the draws.
fn counting(first: u8) -> impl Fn(&mut [u8]) {
    move |out| out.iter_mut().zip(first..).for_each(|(byte, value)| *byte = value)
}

fn cn_draws(out: &mut [u8]) {
    counting(0x40)(out);
}

fn mn_draws(out: &mut [u8]) {
    counting(0x80)(out);
}

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(32).fold(String::new(), |mut text, line| {
        line.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
        text.push('\n');
        text
    })
}

/// Runs the handshake. Returns its frames Hello, HelloAck, Start and StartAck.
fn handshake() -> (Pair, Vec<Vec<u8>>) {
    let cn = Arc::new(NodeKey::from_bytes([0x11; 32]));
    let mn = Arc::new(NodeKey::from_bytes([0x22; 32]));
    let keys = KeyPair { own: Arc::clone(&cn), peer: mn.public(), epoch_ns: 1_700_000_000_000_000_000 };
    let requester =
        RequesterConfig { keys: Some(keys), seed: Entropy::System(cn_draws), ..requester_config() };
    let responder = ResponderConfig {
        node_key: Some(mn),
        seed: Entropy::System(mn_draws),
        ..ResponderConfig::new(MN, MAX_FRAME, 1000, 1)
    };
    let mut p = Pair::with(requester, responder);
    p.memory.key = Some(cn.public());
    // The example does not use features that were added later.
    p.requester.set_features(FEATURE_MULTI | FEATURE_SHARDS);
    p.requester.connect(p.now);
    p.compute();
    p.poll();
    let hello = p.take_up().pop().unwrap();
    p.deliver_up([&hello]);
    p.compute();
    let ack = p.take_down().pop().unwrap();
    p.deliver_down([&ack]);
    p.compute();
    p.poll();
    let start = p.take_up().pop().unwrap();
    p.deliver_up([&start]);
    let start_ack = p.take_down().pop().unwrap();
    (p, vec![hello, ack, start, start_ack])
}

fn document() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/PROTOCOL.md")).unwrap()
}

#[test]
fn the_documents_handshake_is_this_one() {
    let (_, frames) = handshake();
    let document = document();
    for (name, frame) in ["Hello", "HelloAck", "Start", "StartAck"].into_iter().zip(&frames) {
        // A Start and its answer are as long as the session's longest frame; the document leaves out that
        // padding.
        let padded = frame.len() == MAX_FRAME;
        let (bytes, padding) = frame.split_at(if padded { MIN_FRAME } else { frame.len() });
        assert!(padding.iter().all(|byte| *byte == 0) && padded == name.starts_with("Start"), "{name}");
        let bytes = hex(bytes);
        assert!(document.contains(&bytes), "PROTOCOL.md has other bytes for {name} than\n{bytes}");
    }
    for key in [[0x11; 32], [0x22; 32]] {
        let public: PublicKey = NodeKey::from_bytes(key).public();
        let bytes = hex(&public.0);
        assert!(document.contains(&bytes), "PROTOCOL.md has another public key than\n{bytes}");
    }
}

#[test]
fn the_fields_are_where_the_document_says() {
    let (_, frames) = handshake();
    let Ok((_, Message::Hello(hello))) = Message::parse(&frames[0]) else { panic!("a Hello") };
    assert_eq!((hello.version, frames[0].len()), (2, 209));
    let Ok((_, Message::HelloAck(ack))) = Message::parse(&frames[1]) else { panic!("a HelloAck") };
    assert_eq!((ack.hello_nonce, ack.version_max, frames[1].len()), (hello.nonce, 2, 157));
    // The third frame is the Start, whose command code is 0x13.
    assert_eq!(hex(&frames[2][14..15]), "13\n");
}
