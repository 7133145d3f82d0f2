//! Frames of many requests that are lost, late or duplicated: each request must keep its number, its order
//! and its answer.

use cxloe_wire::frame::Command::*;

use super::lot::{READS, payload, read_tokens};
use crate::session_common::*;

/// R2, R4, R7: frames of many requests arrive in any order and repeatedly. Each request must be executed
/// once, in order.
#[test]
fn r2_each_request_is_executed_once_and_in_order() {
    let mut p = Pair::open();
    (0..4).for_each(|lot| p.write_many(5, lot * 5));
    let frames = p.take_up();
    assert_eq!(numbers(&frames), [1, 6, 11, 16]);
    for frame in frames.iter().rev().chain(&frames).chain(frames.iter().rev()) {
        p.deliver_up([frame]);
    }
    let once: Vec<_> = (0..5).map(|i| (i * 4096, i as u8 + 1)).collect();
    assert_eq!(p.writes(), once.repeat(4));
    let answers = p.take_down();
    p.deliver_down(answers.iter().rev());
    p.deliver_down(&answers);
    assert_eq!(p.done.0, (0..20).map(Done::Written).collect::<Vec<_>>());
    p.assert_at_rest();
}

/// R4, R5: each request of an early frame must be acknowledged selectively, and each request of the lost
/// frame sent again alone.
#[test]
fn r5_a_lost_frame_goes_again_in_plain_ones() {
    let mut p = Pair::open();
    p.measure();
    p.write_many(3, 0);
    p.write_many(3, 10);
    let frames = p.take_up();
    p.pass(100 * US);
    p.deliver_up(&frames[1..]);
    let answers = p.take_down();
    assert_eq!(list(&answers), [(SackNak, 12), (SackNak, 13), (SackNak, 14)]);
    assert_eq!(p.responder.statuses(p.now)[0].buffered, 3);
    p.deliver_down(&answers);
    p.poll();
    assert_eq!(list(&p.take_up()), [(WriteReq, 9), (WriteReq, 10), (WriteReq, 11)]);
    p.pass(300 * US);
    p.run(10 * MS);
    assert_eq!(p.done.0, [0, 1, 2, 10, 11, 12].map(Done::Written));
    assert_eq!(p.writes().len(), 6);
    p.assert_at_rest();
}

/// R6, R7: an answer to many requests is lost, and the next answer reveals the loss. Each request must be answered
/// again by itself.
#[test]
fn r6_a_lost_answer_is_given_again_without_executing_again() {
    let mut p = Pair::open();
    p.measure();
    p.write_many(3, 0);
    p.read_many(3, 10);
    p.carry_up();
    let answers = p.take_down();
    assert_eq!(list(&answers), [(MultiWriteResp, 9), (MultiReadResp, 12)]);
    p.pass(100 * US);
    p.deliver_down(&answers[1..]);
    assert_eq!((p.done.0.len(), p.requester.status().buffered), (0, 6), "three to write, three read early");
    p.poll();
    let again = p.take_up();
    assert_eq!(list(&again), [(WriteReq, 9), (WriteReq, 10), (WriteReq, 11)]);
    p.deliver_up(&again);
    let answers = p.take_down();
    assert_eq!(codes(&answers), [WriteResp; 3]);
    p.deliver_down(&answers);
    assert_eq!(p.done.0.len(), 6);
    assert_eq!(p.writes().len(), 3, "R7");
    p.assert_at_rest();
}

/// Some of a frame's requests are answered early by plain frames, before the frame's answer comes. Each must
/// be completed once, in order, and all buffers freed.
#[test]
fn r2_an_answer_for_many_after_some_of_them_came_early() {
    let mut p = Pair::open();
    p.measure();
    p.read_many(4, 0);
    let frames = p.take_up();
    p.deliver_up(&frames);
    let whole = p.take_down();
    for number in [11, 10] {
        p.deliver_up([&p.forge(ReadReq as u8, number, 0, (number - 9) * 4096, &[])]);
    }
    let early = p.take_down();
    assert_eq!(list(&early), [(ReadResp, 11), (ReadResp, 10)]);
    p.deliver_down(&early);
    assert_eq!((p.done.0.len(), p.requester.status().buffered), (0, 2));
    p.deliver_down(&whole);
    assert_eq!(read_tokens(&p.done.0), [0, 1, 2, 3]);
    assert_eq!(p.requester.counters().duplicates, 2);
    p.assert_at_rest();
    // The answer arrives again, after all its requests were completed; it must have no effect.
    p.deliver_down(&whole);
    assert_eq!((p.done.0.len(), p.requester.counters().duplicates), (4, 6));
}

/// If some requests of a frame were executed before, only the others may be executed, and all must be answered.
#[test]
fn r7_a_frame_that_overlaps_what_was_executed() {
    let mut p = Pair::open();
    p.deliver_up([&p.forge(WriteReq as u8, 1, 0, 0, &[1; 64])]);
    p.deliver_up([&p.forge(WriteReq as u8, 2, 0, 64, &[2; 64])]);
    p.take_down();
    let lines = [[1; 64], [2; 64], [3; 64], [4; 64]];
    let frame = p.forge(MultiWriteReq as u8, 1, 0, 0, &payload(&[64, 128, 192], &lines));
    p.deliver_up([&frame]);
    assert_eq!(p.writes(), [(0, 1), (64, 2), (128, 3), (192, 4)]);
    assert_eq!(list(&p.take_down()), [1, 2, 3, 4].map(|n| (WriteResp, n)));
    // The frame is replayed unchanged, and then with other addresses: nothing may be executed.
    p.deliver_up([&frame]);
    p.deliver_up([&p.forge(MultiWriteReq as u8, 1, 0, 512, &payload(&[576, 640, 704], &lines))]);
    assert_eq!(p.writes().len(), 4);
    // Only the last request of this frame lies beyond the window, so only that request must be dropped.
    let at = 4 + cxloe_wire::session::SLOTS as u64 - 1;
    p.deliver_up([&p.forge(MultiReadReq as u8, at, 0, 0, &payload(&[64, 128], &[]))]);
    let sacks = p.take_down();
    assert_eq!(list(&sacks[sacks.len() - 2..]), [(SackNak, at as u16), (SackNak, at as u16 + 1)]);
    assert_eq!(p.responder.totals().dropped_window, 4 + 1);
}

/// R11: requests must complete in order although the 16-bit numbers wrap within a frame.
#[test]
fn r11_numbers_wrap_within_a_frame() {
    let mut p = Pair::open();
    let mut token = 0;
    while token < 65_536 + 200 {
        p.read_many(READS as u64, token);
        token += READS as u64;
        p.carry_up();
        p.carry_down();
    }
    assert_eq!(read_tokens(&p.done.0), (0..token).collect::<Vec<_>>());
    assert_ne!(65_535 % READS, 0, "no frame begins with the turn");
    assert_eq!(p.requester.counters().duplicates + p.requester.counters().dropped_window, 0);
    p.assert_at_rest();
}
