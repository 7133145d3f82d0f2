//! Tests that frames of many requests are sent only if both ends have agreed on them, and how many bytes are
//! sent.

use cxloe_wire::frame::{Command::*, FEATURE_MULTI, FEATURES, LINE_SIZE, Message};

use super::lot::{READS, WRITES, payload, read_tokens};
use crate::session_common::*;

#[test]
fn one_frame_carries_what_was_asked_at_once_and_one_brings_the_answers() {
    let mut p = Pair::open();
    p.write_many(5, 0);
    let frames = p.take_up();
    assert_eq!(list(&frames), [(MultiWriteReq, 1)]);
    p.deliver_up(&frames);
    assert_eq!(p.writes(), (0..5).map(|i| (i * 4096, i as u8 + 1)).collect::<Vec<_>>());
    let answers = p.take_down();
    assert_eq!(list(&answers), [(MultiWriteResp, 1)]);
    p.deliver_down(&answers);
    p.read_many(5, 100);
    let frames = p.take_up();
    assert_eq!(list(&frames), [(MultiReadReq, 6)], "the five before have a number each");
    assert_eq!(frames[0].len(), 60, "25 + 1 + 4 x 6 + 4, padded");
    p.deliver_up(&frames);
    let answers = p.take_down();
    assert_eq!(list(&answers), [(MultiReadResp, 6)]);
    assert_eq!(answers[0].len(), 25 + 1 + 5 * LINE_SIZE + 4);
    p.deliver_down(&answers);
    let expected = (0..5).map(Done::Written).chain((0..5).map(|i| Done::Read(100 + i, vec![i as u8 + 1])));
    assert_eq!(p.done.0, expected.collect::<Vec<_>>());
    let c = p.requester.counters();
    assert_eq!((c.requests, c.multi_frames, c.multi_requests), (10, 2, 10));
    let c = p.responder.totals();
    assert_eq!((c.executed, c.multi_frames, c.multi_requests), (10, 2, 10));
    p.assert_at_rest();
}

/// A request that is not held back for others, or that is the only one of its kind, must be sent in the paper's frame,
/// byte by byte.
#[test]
fn one_request_alone_uses_the_plain_frame() {
    let plain = |features| {
        let mut p = Pair::new();
        p.requester.set_features(features);
        p.connect();
        p.write(0, 128, 7, 2);
        p.read(0, 64, 1);
        p.take_up()
    };
    let mut p = Pair::open();
    p.requester.hold();
    p.read(0, 64, 1);
    p.write(0, 128, 7, 2);
    assert_eq!(p.up.frames.len(), 0, "both wait, each for others of its kind");
    p.requester.release(p.now, &mut p.up);
    let frames = p.take_up();
    assert_eq!(list(&frames), [(WriteReq, 1), (ReadReq, 2)]);
    assert_eq!(plain(FEATURES), frames);
    // The session id is the same if no features were agreed on, so every byte must be the same too.
    assert_eq!(plain(0), frames);
}

#[test]
fn nothing_is_packed_unless_both_ends_have_agreed() {
    for (cn, mn) in [(0, FEATURES), (FEATURES, 0), (0, 0)] {
        let mut p = Pair::new();
        p.requester.set_features(cn);
        p.responder.set_features(mn);
        p.connect();
        assert!(!p.requester.status().multi);
        p.read_many(3, 0);
        let frames = p.take_up();
        assert_eq!(list(&frames), [(ReadReq, 1), (ReadReq, 2), (ReadReq, 3)]);
        p.deliver_up(&frames);
        p.carry_down();
        assert_eq!(p.done.0.len(), 3);
        // If frames of many requests were not agreed on, such a frame is one malformed request.
        p.deliver_up([&p.forge(MultiReadReq as u8, 4, 0, 0, &payload(&[64], &[]))]);
        p.deliver_up([&p.forge(MultiWriteReq as u8, 5, 0, 0, &payload(&[64], &[[1; 64]; 2]))]);
        let answers = p.take_down();
        assert_eq!(list(&answers), [(Fault, 4), (Fault, 5)]);
        assert_eq!(p.writes(), []);
        assert!(!p.memory.log.contains(&Executed::Read(64)));
    }
    assert!({
        let p = Pair::open();
        p.requester.status().multi
    });
}

/// An answer to many requests must be dropped if such frames were not agreed on, and so must a HelloAck that grants a
/// feature not requested.
#[test]
fn frames_beyond_the_agreed_features_are_dropped() {
    let mut agreed = Pair::open();
    agreed.read_many(3, 0);
    agreed.carry_up();
    let answer = agreed.take_down().remove(0);
    let mut p = Pair::new();
    p.requester.set_features(0);
    p.connect();
    p.read_many(3, 0);
    let dropped = p.requester.counters().dropped_foreign;
    p.deliver_down([&answer]);
    assert_eq!((p.done.0.len(), p.requester.counters().dropped_foreign), (0, dropped + 1));

    use cxloe_wire::frame::{Direction, Seal, Space};
    let mut p = Pair::new();
    p.requester.set_features(0);
    p.requester.connect(p.now);
    p.poll();
    p.carry_up();
    let mut frame = p.take_down().remove(0);
    frame[68] |= FEATURE_MULTI as u8;
    Seal::OUTSIDE.seal(Direction::ToCn, Space::Control, &mut frame, 89, 0);
    assert!(
        matches!(Message::parse(&frame), Ok((_, Message::HelloAck(ack))) if ack.features == FEATURE_MULTI)
    );
    p.deliver_down([&frame]);
    assert_eq!(p.requester.counters().dropped_unmatched, 1);
    p.run(100 * MS);
    assert!(p.requester.is_open(), "the next one is taken");
}

#[test]
fn full_frames_leave_at_once_and_the_rest_when_no_more_follows() {
    let mut p = Pair::open();
    p.read_many(2 * READS as u64 + 1, 0);
    let (a, b) = (1 + READS as u16, 1 + 2 * READS as u16);
    assert_eq!(list(&p.take_up()), [(MultiReadReq, 1), (MultiReadReq, a), (ReadReq, b)]);
    let next = b + 1;
    p.write_many(WRITES as u64 + 2, 0);
    let frames = p.take_up();
    assert_eq!(list(&frames), [(MultiWriteReq, next), (MultiWriteReq, next + WRITES as u16)]);
    assert!(frames.iter().all(|frame| frame.len() <= MAX_FRAME), "{}", frames[0].len());
    assert!(frames[0].len() + 70 > MAX_FRAME, "as many as fit");
    // Requests of different streams must not share a frame.
    p.requester.hold();
    (0..4).for_each(|i| p.read(i % 2, 0, 0));
    p.requester.release(p.now, &mut p.up);
    let frames = p.take_up();
    assert_eq!(
        frames.iter().map(|f| (code(f), f[17])).collect::<Vec<_>>(),
        [(MultiReadReq, 0), (MultiReadReq, 1)]
    );
}

/// A held request must be sent by the next poll if no release follows.
#[test]
fn what_was_held_and_forgotten_leaves_with_a_poll() {
    let mut p = Pair::open();
    p.requester.hold();
    p.read(0, 0, 1);
    p.read(0, 64, 2);
    assert_eq!(p.up.frames.len(), 0);
    p.run(100 * MS);
    assert_eq!(read_tokens(&p.done.0), [1, 2]);
}

/// Waiting requests must move to the next session, even if the next session has no frames of many requests.
#[test]
fn waiting_requests_move_to_a_session_without_those_frames() {
    let mut p = Pair::open();
    p.write_many(3, 0);
    p.take_up();
    p.requester.hold();
    (0..3).for_each(|i| p.write(0, (10 + i) * 64, 5, 10 + i));
    restart(&mut p, 1000, |_| {});
    p.responder.set_features(0);
    p.run(3000 * MS);
    assert_eq!(p.done.0, [0, 1, 2, 10, 11, 12].map(Done::Written));
    assert!(!p.requester.status().multi);
    p.requester.release(p.now, &mut p.up);
    p.read_many(2, 20);
    assert_eq!(codes(&p.take_up()), [ReadReq, ReadReq]);
}

#[test]
fn sealed_frames_of_many_are_opened_or_dropped() {
    let key: cxloe_wire::session::PreSharedKey = b"a key of sixteen bytes at least"[..].into();
    let (mut cn, mut mn) = (requester_config(), responder_config());
    (cn.key, mn.key) = (Some(key.clone()), Some(key));
    let mut p = Pair::with(cn, mn);
    p.connect();
    p.write_many(3, 0);
    p.read_many(3, 10);
    let frames = p.take_up();
    assert_eq!(list(&frames), [(MultiWriteReq, 1), (MultiReadReq, 4)]);
    for frame in &frames {
        for bit in (14 * 8..frame.len() * 8).step_by(3) {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            // The padding of a short frame is not authenticated.
            if bit / 8 < 25 + 1 + 2 * 6 + 16 {
                p.deliver_up([&damaged]);
            }
        }
    }
    assert_eq!((p.down.frames.len(), p.memory.log.len()), (0, 0));
    p.deliver_up(&frames);
    p.carry_down();
    let reads = (0..3).map(|i| Done::Read(10 + i, vec![i as u8 + 1]));
    assert_eq!(p.done.0, (0..3).map(Done::Written).chain(reads).collect::<Vec<_>>());
}

/// R13: the cost of a frame of many requests is the bytes on the wire of the frame or of its answer,
/// whichever is larger.
#[test]
fn r13_bytes_are_those_of_the_frames() {
    let mut p = Pair::open();
    let mut cost = |make: &dyn Fn(&mut Pair)| {
        let before = p.requester.wire_bytes();
        make(&mut p);
        p.requester.wire_bytes() - before
    };
    let overhead = 25 + 4 + 24;
    assert_eq!(cost(&|p| p.read(0, 0, 0)), overhead + 64);
    assert_eq!(cost(&|p| p.read_many(1, 0)), overhead + 64);
    assert_eq!(cost(&|p| p.read_many(5, 0)), overhead + 1 + 5 * 64);
    assert_eq!(cost(&|p| p.write_many(5, 0)), overhead + 1 + 4 * 6 + 5 * 64);
    assert_eq!(cost(&|p| p.requester.burst_read(1, 0, 3, 0, p.now, &mut p.up).unwrap()), overhead + 1 + 192);
    let two = [0; 128];
    assert_eq!(
        cost(&|p| p.requester.burst_write(1, 0, 5, &two, 0, p.now, &mut p.up).unwrap()),
        overhead + 8 + 128
    );
}
