//! Sessions of a CN's shards: the memory they access, their admission, and their end.

mod session_common;

use cxloe_wire::frame::{
    Command, FEATURE_MULTI, FEATURE_SHARDS, FEATURES, HelloStatus, Integrity, Mac, Message,
};
use cxloe_wire::frame::{Direction, Header, Seal, Space, frame_len};
use cxloe_wire::session::{RequesterConfig, ResponderEvent};
use session_common::*;

/// Makes a pair whose requester is this shard of [`CN`].
fn shard(shard: u8) -> Pair {
    let mut config = requester_config();
    config.identity.own = CN.shard(shard);
    let mut p = Pair::with(config, responder_config());
    p.requester.set_shard(CN, shard);
    p
}

/// Returns a Hello from address `from`, for this shard of `owner`.
fn hello(from: Mac, owner: Mac, shard: u8, nonce: u64) -> Vec<u8> {
    let message = Message::Hello(cxloe_wire::frame::Hello {
        version: 1,
        features: FEATURES,
        nonce,
        instance: 77,
        streams: 2,
        max_frame: MAX_FRAME as u16,
        integrity: Integrity::Plain,
        shard,
        owner,
    });
    let header = Header {
        dst: MN,
        src: from,
        ethertype: cxloe_wire::frame::ETHERTYPE_DEFAULT,
        command: Command::Hello as u8,
        seq: 0,
        axi: cxloe_wire::frame::Axi { stream: 0, tag: 0 },
        addr: 0,
    };
    let body = message.body_len();
    let mut frame = vec![0; frame_len(body, Seal::PLAIN_LEN)];
    message.emit(&header, &mut frame);
    Seal::OUTSIDE.seal(Direction::ToMn, Space::Control, &mut frame, body, 0);
    frame
}

fn statuses(p: &mut Pair) -> Vec<HelloStatus> {
    let frames = p.take_down();
    let status = |frame: &Vec<u8>| match Message::parse(frame) {
        Ok((_, Message::HelloAck(ack))) => Some(ack.status),
        _ => None,
    };
    frames.iter().filter_map(status).collect()
}

#[test]
fn a_shard_reaches_the_memory_of_its_cn() {
    for number in [1, 3, 15] {
        let mut p = shard(number);
        p.memory.strangers = true;
        p.connect();
        p.read(0, 64, 1);
        p.run(MS);
        assert_eq!(p.done.0.len(), 1);
        assert_eq!(p.memory.cns.iter().copied().collect::<Vec<_>>(), [CN.to_u64()]);
        assert_eq!((p.responder.owner(CN.shard(number)), p.responder.owner(MN)), (CN, MN));
    }
}

#[test]
fn a_hello_is_refused_unless_its_address_is_that_of_the_shard_it_names() {
    let stranger = Mac([2, 0, 0, 0, 7, 7]);
    let mut p = Pair::new();
    for (from, owner, number, allowed) in [
        (CN.shard(2), CN, 2, true),
        (CN.shard(2), CN, 3, false),
        (stranger, CN, 2, false),
        (CN, CN, 1, false),
        (CN.shard(1), stranger, 1, false),
        (CN.shard(1), Mac::default(), 1, false),
        (CN.shard(1), Mac::BROADCAST, 1, false),
        (CN.shard(15), CN, 16, false),
        (CN.shard(15), CN, 255, false),
        // Shard 0 is the sender itself, whatever the owner in the Hello.
        (stranger, CN, 0, true),
    ] {
        p.deliver_up(&[hello(from, owner, number, u64::from(number) << 8 | 5)]);
        let expected = if allowed { HelloStatus::Ok } else { HelloStatus::Shard };
        assert_eq!(statuses(&mut p), [expected], "{from} as shard {number} of {owner}");
    }
    assert_eq!(p.responder.owner(stranger), stranger);
}

#[test]
fn an_end_that_knows_no_shards_is_named() {
    // The memory node does not support shards, so it treats the shard as a separate CN.
    let mut p = shard(1);
    p.responder.set_features(FEATURE_MULTI);
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert_eq!(p.events(), [refused(HelloStatus::Shard)]);
    // A CN whose only requested feature is shards must get a session without frames of many requests.
    let mut p = shard(1);
    p.requester.set_features(FEATURE_SHARDS);
    p.connect();
    assert!(!p.requester.status().multi);
}

#[test]
fn shards_come_after_their_cn_and_go_with_it() {
    let mut p = shard(1);
    p.memory.instance = Some(5);
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert!(!p.requester.is_open() && p.events().is_empty(), "nothing is said until the CN is this instance");
    p.memory.instance = Some(77);
    p.run(2_000 * MS);
    assert!(p.requester.is_open());
    p.responder.end_replaced(&mut p.memory);
    assert!(p.responder.has_session(CN.shard(1)), "it is current");
    p.mn_events();
    p.memory.instance = Some(78);
    p.responder.end_replaced(&mut p.memory);
    assert!(!p.responder.has_session(CN.shard(1)));
    assert_eq!(p.mn_events(), [ResponderEvent::Ended(CN.shard(1))]);
    p.write(0, 64, 9, 1);
    p.carry_up();
    assert!(p.memory.log.is_empty(), "what was on its way is executed no more");
}

/// A shard whose Hellos have become rare must connect at once when its CN has a session.
#[test]
fn a_shard_connects_at_once_when_its_cn_arrives() {
    let mut p = shard(1);
    p.memory.instance = Some(5);
    p.requester.set_max_frame(MAX_FRAME - 100, p.now);
    p.requester.connect(p.now);
    p.run(500 * MS);
    p.memory.instance = Some(77);
    p.run(MS);
    assert!(!p.requester.is_open());
    p.requester.call_soon(p.now);
    p.run(MS);
    assert!(p.requester.is_open());
    // `call_soon` must send nothing while a session is open, or when the Hello for the replacement of a sound session
    // has already been sent.
    p.requester.call_soon(p.now);
    p.poll();
    assert!(p.take_up().is_empty());
    p.requester.set_max_frame(MAX_FRAME, p.now);
    p.poll();
    assert_eq!(codes(&p.take_up()), [Command::Hello]);
    p.requester.call_soon(p.now);
    p.poll();
    assert!(p.take_up().is_empty());
}

#[test]
fn a_cn_waits_until_nothing_of_the_one_before_is_executed() {
    let mut p = Pair::with(RequesterConfig { instance: 80, ..requester_config() }, responder_config());
    p.memory.busy = true;
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert!(!p.requester.is_open() && p.memory.instance == Some(80));
    p.memory.busy = false;
    p.run(100 * MS);
    assert!(p.requester.is_open(), "the same offer was started");
    assert_eq!(p.requester.counters().sessions, 1);
}
