//! Windows, buffers and transmit rings that are full.

use cxloe_wire::frame::{Command::*, FaultStatus, LINE_SIZE};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{OpError, Rejected, WINDOW};

use super::lot::{READS, WRITES, read_tokens};
use crate::session_common::*;

/// R1: the window counts requests, not frames.
#[test]
fn r1_the_window_is_of_requests() {
    let mut p = Pair::open();
    p.requester.hold();
    for i in 0..WINDOW as u64 {
        p.read(0, i * 64, i);
    }
    assert_eq!(p.requester.read(0, 0, 0, p.now, &mut p.up), Err(Rejected::Busy));
    p.requester.release(p.now, &mut p.up);
    p.run(10 * MS);
    assert_eq!(read_tokens(&p.done.0), (0..WINDOW as u64).collect::<Vec<_>>());
    p.assert_at_rest();
}

/// Buffers are free for only some lines of an early answer. The requests for the other lines must be sent again.
#[test]
fn r10_early_answers_beyond_the_buffers_are_asked_for_again() {
    let mut p = Pair::open();
    p.requester.hold();
    for i in 0..WINDOW as u64 {
        p.read(0, i * 64, i);
        p.read(1, i * 64, 1_000 + i);
    }
    p.requester.release(p.now, &mut p.up);
    p.carry_up();
    let answers = p.take_down();
    assert_eq!(answers.len(), 2 * WINDOW.div_ceil(READS));
    let late = |f: &&Vec<u8>| seq(f) != 1;
    p.deliver_down(answers.iter().filter(late));
    assert_eq!(p.requester.status().buffered, 256);
    assert!(p.requester.counters().dropped_full > 200);
    p.run(200 * MS);
    assert_eq!(p.done.0.len(), 2 * WINDOW);
    p.assert_at_rest();
}

#[test]
fn r10_early_writes_keep_to_both_limits() {
    for (own, total, kept) in [(4, 100, 4), (100, 3, 3)] {
        let mut mn = responder_config();
        (mn.early_buffers, mn.early_buffers_total) = (own, total);
        let mut p = Pair::with(requester_config(), mn);
        p.connect();
        p.write(0, 0, 1, 99);
        p.write_many(8, 0);
        let frames = p.take_up();
        p.deliver_up(&frames[1..]);
        let expected: Vec<_> = (2..2 + kept as u16).map(|n| (SackNak, n)).collect();
        assert_eq!(list(&p.take_down()), expected, "no SACK claims what was not kept");
        let status = p.responder.statuses(p.now).remove(0);
        assert_eq!((status.waiting, status.buffered), (kept, kept));
        p.deliver_up(&frames[..1]);
        p.run(200 * MS);
        assert_eq!((p.done.0.len(), p.writes().len()), (9, 9));
        p.assert_at_rest();
    }
}

/// A write is refused, but no transmit slot is free for the refusal. This write and the writes after it must count as
/// lost.
#[test]
fn a_refusal_without_room_is_as_lost() {
    let mut p = Pair::open();
    p.requester.hold();
    [0, TestMemory::END, 64, 128].into_iter().zip(0..).for_each(|(addr, token)| p.write(0, addr, 7, token));
    p.requester.release(p.now, &mut p.up);
    p.down.room = Some(1);
    p.carry_up();
    assert_eq!((list(&p.take_down()), p.writes()), (vec![(WriteResp, 1)], vec![(0, 7)]));
    p.down.room = None;
    p.run(200 * MS);
    let failed = Done::Failed(1, OpError::Fault(FaultStatus::Nxm), vec![7]);
    assert_eq!(p.done.0, [Done::Written(0), failed, Done::Written(2), Done::Written(3)]);
    assert_eq!(p.writes(), [(0, 7), (64, 7), (128, 7)]);
    p.assert_at_rest();
}

/// While the CN's transmit ring is full, no more requests of a kind may wait than a frame carries. They must be sent
/// when slots are free.
#[test]
fn a_full_ring_at_the_cn_keeps_them_waiting() {
    let mut p = Pair::open();
    p.up.room = Some(0);
    p.requester.hold();
    for i in 0..READS as u64 {
        p.read(0, i * 64, i);
    }
    assert_eq!(p.requester.read(0, 0, 99, p.now, &mut p.up), Err(Rejected::Busy));
    for i in 0..WRITES as u64 {
        p.write(0, (READS as u64 + i) * 64, 1, 100 + i);
    }
    assert_eq!(p.requester.write(0, 1 << 20, &[0; LINE_SIZE], 99, p.now, &mut p.up), Err(Rejected::Busy));
    let line = p.requester.burst_read(0, 1 << 20, 1, 99, p.now, &mut p.up);
    assert_eq!(line, Err(Rejected::Busy));
    p.requester.release(p.now, &mut p.up);
    assert!(p.requester.deadline().is_due(p.now), "looked at soon");
    p.poll();
    assert_eq!((p.up.frames.len(), p.requester.unanswered()), (0, READS + WRITES));
    // Only one slot is free for the two frames, so the second frame must keep waiting.
    p.up.room = Some(1);
    p.pass(US);
    p.poll();
    assert_eq!(list(&p.up.frames), [(MultiWriteReq, 1)]);
    p.up.room = None;
    p.run(MS);
    assert_eq!(p.done.0.len(), READS + WRITES);
    assert_eq!((p.requester.counters().multi_frames, p.requester.counters().retransmitted), (2, 0));
    p.assert_at_rest();
}

/// If the MN has no transmit slot for the answer to a frame, it must not execute anything, and the frame counts as
/// lost.
#[test]
fn a_full_ring_at_the_mn_executes_nothing() {
    let mut p = Pair::open();
    p.write_many(3, 0);
    p.read_many(3, 10);
    let frames = p.take_up();
    p.down.room = Some(0);
    p.deliver_up(&frames);
    assert_eq!((p.writes().len(), p.down.frames.len()), (0, 0));
    p.down.room = None;
    p.run(200 * MS);
    assert_eq!((p.done.0.len(), p.writes().len()), (6, 3));
    p.assert_at_rest();
}
