//! Opening, refusing and ending sessions, on two ends without a network.

mod session_common;

use cxloe_wire::frame::{Command::*, FaultStatus, HelloStatus, Message};
use cxloe_wire::session::{
    OpError, Rejected, RequesterConfig, ResponderConfig, ResponderEvent, SessionEvent,
};
use session_common::*;

const KEY: &[u8] = b"a key of sixteen bytes at least";

#[test]
fn four_frames_open_a_session() {
    let mut p = Pair::new();
    assert_eq!(p.requester.read(0, 0, 0, p.now, &mut p.up), Err(Rejected::NotConnected));
    p.requester.connect(p.now);
    p.poll();
    let hello = p.take_up();
    assert_eq!(codes(&hello), [Hello]);
    p.deliver_up(&hello);
    assert_eq!((p.responder.sessions(), codes(&p.down.frames)), (0, vec![HelloAck]));
    p.carry_down();
    p.poll();
    assert_eq!(codes(&p.up.frames), [Start]);
    assert!(!p.requester.is_open(), "nothing may be sent before StartAck");
    p.carry_up();
    assert_eq!((p.responder.sessions(), codes(&p.down.frames)), (1, vec![StartAck]));
    p.carry_down();
    assert!(p.requester.is_open());
    assert_eq!(p.events(), [SessionEvent::Opened { incarnation: 1000, resumed: false }]);
    assert_eq!(p.mn_events(), [ResponderEvent::Started { cn: CN, replaced: false }]);
    assert_eq!((p.requester.streams(), p.requester.burst_read_lines_max()), (2, 23));
}

#[test]
fn every_frame_of_the_handshake_may_be_lost_once_or_doubled() {
    for lost in [Hello, HelloAck, Start, StartAck] {
        let mut p = Pair::new();
        p.requester.connect(p.now);
        let mut first = true;
        let mut pass = |f: &Vec<u8>| code(f) != lost || !std::mem::take(&mut first);
        let mut loses = |f: &Vec<u8>| pass(f);
        match lost {
            Hello | Start => p.run_with(60 * MS, &mut loses, |_| true),
            _ => p.run_with(60 * MS, |_| true, &mut loses),
        }
        assert!(p.requester.is_open(), "{lost:?} lost");
        p.write(0, 0, 1, 1);
        p.run(MS);
        assert_eq!(p.done.0, [Done::Written(1)]);
        assert_eq!(p.responder.totals().sessions, 1, "{lost:?} lost: still one session");
    }
    let mut p = Pair::new();
    p.requester.connect(p.now);
    for _ in 0..2 {
        p.poll();
        let frames = p.take_up();
        p.deliver_up(frames.iter().chain(&frames));
        let frames = p.take_down();
        p.deliver_down(frames.iter().chain(&frames));
    }
    assert!(p.requester.is_open());
    assert_eq!((p.responder.totals().sessions, p.requester.counters().sessions), (1, 1));
}

#[test]
fn delayed_and_replayed_handshakes_change_nothing() {
    let mut p = Pair::new();
    p.requester.connect(p.now);
    let mut seen = Vec::new();
    for _ in 0..2 {
        p.poll();
        seen.extend(p.up.frames.clone());
        p.carry_up();
        seen.extend(p.down.frames.clone());
        p.carry_down();
    }
    assert!(p.requester.is_open());
    p.pass(200 * MS);
    for _ in 0..3 {
        p.deliver_up(seen.iter().filter(|f| f[14] & 0x80 == 0));
        p.deliver_down(seen.iter().filter(|f| f[14] & 0x80 != 0));
        p.carry_down();
        p.take_up();
    }
    assert_eq!((p.responder.totals().sessions, p.requester.counters().sessions), (1, 1));
    p.write(0, 0, 1, 1);
    p.run(MS);
    assert_eq!(p.done.0, [Done::Written(1)]);
    // A replayed Hello between HelloAck and Start must not remove the offer.
    let old_hello = &seen[0];
    let mut q = Pair::with(
        RequesterConfig { seed: 123.into(), ..requester_config() },
        ResponderConfig { seed: 456.into(), ..responder_config() },
    );
    q.requester.connect(q.now);
    q.poll();
    q.carry_up();
    q.deliver_up([old_hello]);
    q.carry_down();
    q.deliver_down(seen.iter().filter(|f| f[14] & 0x80 != 0));
    exchange(&mut q, 1);
    assert!(q.requester.is_open());
}

#[test]
fn other_versions_are_refused_and_both_are_named() {
    let mut p = Pair::new();
    p.requester.connect(p.now);
    p.poll();
    let frame = p.take_up().remove(0);
    // A Hello of a CN that asks for version 7.
    let Ok((header, Message::Hello(mut hello))) = Message::parse(&frame) else { panic!("a Hello") };
    hello.version = 7;
    let mut frame = vec![0; 69];
    let message = Message::Hello(hello);
    message.emit(&header, &mut frame);
    let (seal, body) = (cxloe_wire::frame::Seal::OUTSIDE, message.body_len());
    let control = cxloe_wire::frame::Space::Control;
    seal.seal(cxloe_wire::frame::Direction::ToMn, control, &mut frame, body, 0);
    p.deliver_up([&frame]);
    let ack = p.offer.expect("an answer");
    assert_eq!((ack.status, ack.version_min, ack.version_max), (HelloStatus::VersionMismatch, 1, 1));
    assert_eq!(p.mn_events(), [ResponderEvent::VersionMismatch { cn: CN, version: 7 }]);
    p.carry_down();
    let status = HelloStatus::VersionMismatch;
    assert_eq!(p.events(), [SessionEvent::Refused { status, version_min: 1, version_max: 1 }]);
    assert!(!p.requester.is_open());
}

#[test]
fn close_ends_in_order_also_when_both_do() {
    let mut p = Pair::open();
    p.write(0, 0, 5, 1);
    p.requester.close(p.now, &mut p.done);
    assert_eq!(p.done.0, [Done::Failed(1, OpError::Closed, vec![5])]);
    assert_eq!(p.requester.read(0, 0, 0, p.now, &mut p.up), Err(Rejected::NotConnected));
    p.run(100 * MS);
    assert_eq!((p.events(), p.responder.sessions()), (vec![SessionEvent::Closed], 0));
    assert_eq!(p.requester.status().state, "closed");
    p.requester.connect(p.now);
    p.run(100 * MS);
    assert!(p.requester.is_open(), "and can be opened again");
    // The Byes are lost, so the CN must close the session without an answer.
    p.events();
    p.requester.close(p.now, &mut p.done);
    p.run_with(200 * MS, |_| false, |_| true);
    assert_eq!(p.events(), [SessionEvent::Closed]);
    // Both ends send a Bye at the same time.
    let mut p = Pair::open();
    p.requester.close(p.now, &mut p.done);
    p.responder.drain(&mut p.down);
    p.run(100 * MS);
    assert_eq!((p.events(), p.responder.sessions()), (vec![SessionEvent::Closed], 0));
    p.run(2_000 * MS);
    assert_eq!((p.events(), p.up.frames.len()), (vec![], 0), "closed is closed");
}

#[test]
fn draining_says_bye_and_takes_nobody_new() {
    let mut p = Pair::open();
    p.responder.drain(&mut p.down);
    p.run(300 * MS);
    assert_eq!(p.events(), [SessionEvent::PeerLeft, refused(HelloStatus::Draining)]);
    assert_eq!((p.responder.sessions(), p.mn_events().last()), (0, Some(&ResponderEvent::Ended(CN))));
    // Requests made now must wait until the node is back.
    p.write(0, 0, 3, 1);
    p.run(1_000 * MS);
    restart(&mut p, 1000, |_| {});
    p.run(2_000 * MS);
    assert_eq!(p.done.0, [Done::Written(1)]);
    assert_eq!(p.events(), [SessionEvent::Opened { incarnation: 1000, resumed: true }]);
}

#[test]
fn sealed_sessions_and_keys_that_do_not_match() {
    let keyed = |cn: Option<&[u8]>, mn: Option<&[u8]>| {
        let mut p = Pair::with(
            RequesterConfig { key: cn.map(Into::into), ..requester_config() },
            ResponderConfig { key: mn.map(Into::into), ..responder_config() },
        );
        p.requester.connect(p.now);
        p.run(3_000 * MS);
        p
    };
    let mut p = keyed(Some(KEY), Some(KEY));
    assert!(p.requester.is_open());
    assert_eq!((p.requester.burst_read_lines_max(), p.requester.burst_write_lines_max()), (23, 22));
    p.write(0, 0, 0x5A, 1);
    assert!(!p.up.frames.iter().any(|f| f.windows(8).any(|w| w == [0x5A; 8])), "nothing readable");
    p.read(0, 0, 2);
    p.read(0, TestMemory::END, 3);
    p.run(MS);
    let fault = OpError::Fault(FaultStatus::Nxm);
    assert_eq!(p.done.0, [Done::Written(1), Done::Read(2, vec![0x5A]), Done::Failed(3, fault, vec![])]);

    let other: &[u8] = b"another key of sixteen bytes";
    let too_short: &[u8] = b"short";
    let cases = [
        (Some(KEY), None),
        (None, Some(KEY)),
        (Some(KEY), Some(other)),
        (Some(too_short), Some(KEY)),
        (Some(KEY), Some(too_short)),
    ];
    for (cn, mn) in cases {
        let mut p = keyed(cn, mn);
        assert!(!p.requester.is_open());
        assert_eq!(p.events(), [refused(HelloStatus::Integrity)], "{cn:?} {mn:?}");
        assert_eq!(p.responder.sessions(), 0);
        if cn.is_none() != mn.is_none() {
            assert_eq!(p.offer.unwrap().status, HelloStatus::Integrity, "the memory node says so itself");
        }
    }
}

#[test]
fn control_frames_repeated_or_of_another_session_are_ignored() {
    let mut p = Pair::open();
    p.pass(1_500 * MS);
    p.poll();
    let ping = p.take_up();
    assert_eq!(codes(&ping), [Ping]);
    p.deliver_up(&ping);
    let pong = p.take_down();
    assert_eq!(codes(&pong), [Pong]);
    p.deliver_up(&ping);
    assert_eq!(p.take_down().len(), 0, "a number is good once");
    p.deliver_down(&pong);
    p.deliver_down(&pong);
    assert_eq!(p.requester.counters().duplicates, 1);
    // A Bye of another session must not end this one.
    let mut q = Pair::with(requester_config(), ResponderConfig { seed: 1_234.into(), ..responder_config() });
    q.connect();
    exchange(&mut q, 1);
    for _ in 0..3 {
        q.pass(1_500 * MS);
        exchange(&mut q, 1);
    }
    q.requester.close(q.now, &mut q.done);
    q.poll();
    let bye = q.take_up();
    assert_eq!(codes(&bye), [Bye]);
    p.deliver_up(&bye);
    assert_eq!((p.responder.sessions(), p.take_down().len()), (1, 0));
    q.deliver_up(&bye);
    assert_eq!((q.responder.sessions(), codes(&q.take_down())), (0, vec![ByeAck]));
}

#[test]
fn an_offer_can_be_started_for_a_while_only() {
    // A Start must have no effect if the offer is too old, or if the node is about to stop.
    for drains in [false, true] {
        let mut p = Pair::new();
        p.requester.connect(p.now);
        exchange(&mut p, 1);
        p.poll();
        let start = p.take_up();
        assert_eq!(codes(&start), [Start]);
        if drains {
            p.responder.drain(&mut p.down);
        } else {
            p.pass(6_000 * MS);
            p.responder.poll(p.now, &mut p.memory, &mut p.down);
        }
        p.deliver_up(&start);
        assert_eq!((p.responder.sessions(), p.take_down().len()), (0, 0));
    }
}
