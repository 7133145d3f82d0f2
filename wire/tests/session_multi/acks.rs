//! Joint acknowledgements of several writes, if both ends have agreed on them: which writes one acknowledgement covers,
//! and what happens if it is lost.

use cxloe_wire::frame::Command::*;
use cxloe_wire::frame::{FEATURE_JOINT_ACKS, FEATURES, Message};

use crate::session_common::*;

/// Maximum number of writes that one acknowledgement covers.
const MOST: u64 = 8;

/// Makes both ends with a session that has joint acknowledgements.
fn joint() -> Pair {
    let mut p = Pair::with(requester_config(), responder_config());
    p.connect();
    p
}

fn writes(p: &mut Pair, tokens: impl Iterator<Item = u64>) {
    tokens.for_each(|token| p.write(0, token * 64, token as u8 + 1, token));
}

/// Returns first number and count of each acknowledgement.
fn acks(frames: &[Vec<u8>]) -> Vec<(u16, u8)> {
    let ack = |frame: &Vec<u8>| match Message::parse(frame) {
        Ok((header, Message::WriteResp)) => Some((header.seq, 1)),
        Ok((header, Message::MultiWriteResp { lines })) => Some((header.seq, lines)),
        _ => None,
    };
    frames.iter().filter_map(ack).collect()
}

#[test]
fn r3_writes_of_one_batch_are_acknowledged_together() {
    let mut p = joint();
    writes(&mut p, 0..MOST + 3);
    p.requester.burst_write(0, 4096, 0b101, &[7; 128], MOST + 3, p.now, &mut p.up).unwrap();
    p.carry_up();
    let answers = p.take_down();
    assert_eq!(acks(&answers), [(1, MOST as u8), (MOST as u16 + 1, 4)]);
    assert_eq!(answers.len(), 2);
    p.deliver_down(&answers);
    assert_eq!(p.done.0, (0..=MOST + 3).map(Done::Written).collect::<Vec<_>>());
    // A single write is acknowledged by the paper's frame, and must not wait for writes of another batch.
    for token in 20..23 {
        writes(&mut p, token..token + 1);
        p.carry_up();
        assert_eq!(codes(&p.down.frames), [WriteResp]);
        p.carry_down();
    }
    assert_eq!(p.requester.counters().duplicates + p.responder.totals().duplicates, 0);
    p.assert_at_rest();
}

#[test]
fn r2_only_consecutive_numbers_of_a_stream_are_joined() {
    let mut p = joint();
    writes(&mut p, 0..2);
    p.read(0, 0, 10);
    writes(&mut p, 2..4);
    p.write(0, TestMemory::END, 1, 11);
    writes(&mut p, 4..6);
    p.write(1, 4096, 1, 12);
    writes(&mut p, 6..8);
    p.carry_up();
    let answers = p.take_down();
    let expected = [
        (MultiWriteResp, 1),
        (ReadResp, 3),
        (MultiWriteResp, 4),
        (Fault, 6),
        (MultiWriteResp, 7),
        (WriteResp, 1),
        (MultiWriteResp, 9),
    ];
    assert_eq!(list(&answers), expected);
    assert!(acks(&answers).iter().all(|(_, count)| *count <= 2));
    p.deliver_down(&answers);
    assert_eq!(p.done.0.len(), 11);
    assert_eq!(p.done.0.iter().filter(|done| matches!(done, Done::Written(_))).count(), 9);
    p.assert_at_rest();
}

#[test]
fn r4_a_gap_is_reported_behind_the_acknowledgement() {
    let mut p = joint();
    writes(&mut p, 0..6);
    let frames = p.take_up();
    p.deliver_up([&frames[0], &frames[1], &frames[3]]);
    assert_eq!(list(&p.down.frames), [(MultiWriteResp, 1), (SackNak, 4)]);
    p.carry_down();
    assert_eq!(p.done.0, [0, 1].map(Done::Written));
    // The gap is filled: the waiting writes are acknowledged together with the write that filled it.
    p.deliver_up([&frames[2], &frames[4]]);
    assert_eq!(acks(&p.down.frames), [(3, 3)]);
    p.carry_down();
    // An acknowledgement of one write is sent with the SACK, as without the feature.
    writes(&mut p, 6..8);
    let more = p.take_up();
    p.deliver_up([&frames[5], &more[1]]);
    assert_eq!(list(&p.down.frames), [(SackNakAck, 8)]);
    p.deliver_up([&more[0]]);
    p.carry_down();
    assert_eq!(p.done.0, (0..8).map(Done::Written).collect::<Vec<_>>());
    p.assert_at_rest();
}

/// R6, R7: a joint acknowledgement is lost, and the next one reveals the loss. Each write must be acknowledged again,
/// but none executed twice.
#[test]
fn r7_a_lost_one_is_given_again_without_executing_again() {
    let mut p = joint();
    p.measure();
    writes(&mut p, 0..3);
    p.carry_up();
    assert_eq!(acks(&p.take_down()), [(9, 3)]);
    p.pass(100 * US);
    writes(&mut p, 3..6);
    p.carry_up();
    p.carry_down();
    assert_eq!((p.done.0.len(), p.requester.counters().early), (0, 3));
    p.poll();
    let again = p.take_up();
    assert_eq!(list(&again), [(WriteReq, 9), (WriteReq, 10), (WriteReq, 11)]);
    p.deliver_up(&again);
    assert_eq!(acks(&p.down.frames), [(9, 1), (10, 1), (11, 1)]);
    p.carry_down();
    assert_eq!(p.done.0, (0..6).map(Done::Written).collect::<Vec<_>>());
    assert_eq!(p.memory.log.len(), 6);
    p.assert_at_rest();
}

/// One free slot must be enough to execute all writes that one acknowledgement covers.
#[test]
fn r10_what_is_acknowledged_together_needs_one_slot() {
    let mut p = joint();
    writes(&mut p, 0..4);
    let frames = p.take_up();
    p.deliver_up(&frames[1..]);
    p.take_down();
    p.down.room = Some(1);
    p.deliver_up(&frames[..1]);
    assert_eq!(acks(&p.down.frames), [(1, 4)]);
    // Without a free slot nothing may be executed.
    p.carry_down();
    p.down.room = Some(0);
    writes(&mut p, 4..6);
    let frames = p.take_up();
    p.deliver_up(&frames);
    assert_eq!((p.memory.log.len(), p.done.0.len()), (4, 4));
    p.down.room = None;
    p.deliver_up(&frames);
    p.carry_down();
    assert_eq!(p.done.0, (0..6).map(Done::Written).collect::<Vec<_>>());
    p.assert_at_rest();
}

#[test]
fn without_the_feature_each_is_acknowledged_by_itself() {
    let without = FEATURES & !FEATURE_JOINT_ACKS;
    for (cn, mn) in [(without, FEATURES), (FEATURES, without), (0, FEATURES)] {
        let mut p = Pair::with(requester_config(), responder_config());
        p.requester.set_features(cn);
        p.responder.set_features(mn);
        p.connect();
        writes(&mut p, 0..3);
        p.carry_up();
        assert_eq!(acks(&p.down.frames), [(1, 1), (2, 1), (3, 1)]);
        p.carry_down();
        assert_eq!(p.done.0.len(), 3);
    }
    // A CN must drop joint acknowledgements if it has agreed on neither of the two features that use them.
    let mut with = joint();
    let mut p = Pair::with(requester_config(), responder_config());
    p.requester.set_features(0);
    p.connect();
    for p in [&mut with, &mut p] {
        writes(p, 0..2);
        p.carry_up();
    }
    p.take_down();
    p.deliver_down(&with.take_down());
    assert_eq!((p.done.0.len(), p.requester.counters().dropped_foreign), (0, 1));
}
