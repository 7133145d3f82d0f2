//! The rules R1 to R10, one by one, between two ends without a network (R8 and R11 have their own files).
//! Frames are carried by hand, so that each test determines which are lost, late or duplicated.

mod session_common;

use cxloe_wire::frame::{Axi, Command::*, FaultStatus, LINE_SIZE, Message};
use cxloe_wire::session::{OpError, Rejected, SLOTS, WINDOW};
use session_common::*;

/// Number and AXI id of an acknowledged write.
type Acked = (u16, Axi);

/// Returns the content of a SACK: number of its request, last number in order, acknowledged write.
fn sack(frame: &[u8]) -> Option<(u16, u16, Option<Acked>)> {
    match Message::parse(frame).ok()? {
        (h, Message::SackNak { last_in_order }) => Some((h.seq, last_in_order, None)),
        (h, Message::SackNakAck { last_in_order, acked_seq, acked_axi }) => {
            Some((h.seq, last_in_order, Some((acked_seq, acked_axi))))
        }
        _ => None,
    }
}

#[test]
fn r1_numbers_run_per_stream_and_the_window_is_256_reads_and_256_writes() {
    let mut p = Pair::open();
    for i in 0..WINDOW as u64 {
        p.read(0, i * 64, i);
        p.write(0, (1 << 20) + i * 64, 1, i);
    }
    assert_eq!(p.requester.read(0, 0, 0, p.now, &mut p.up), Err(Rejected::Busy));
    assert_eq!(p.requester.write(0, 0, &[0; LINE_SIZE], 0, p.now, &mut p.up), Err(Rejected::Busy));
    p.read(1, 0, 0);
    let frames = p.take_up();
    let expected: Vec<u16> = (1..=512).chain([1]).collect();
    assert_eq!(numbers(&frames), expected, "each stream counts from 1");
    // An answered read makes space in the window for one read, not for a write.
    p.deliver_up(&frames[..1]);
    p.carry_down();
    assert_eq!(p.requester.write(0, 0, &[0; LINE_SIZE], 0, p.now, &mut p.up), Err(Rejected::Busy));
    p.read(0, 0, 0);
    assert_eq!(numbers(&p.take_up()), [513]);
}

#[test]
fn r2_executes_in_order_and_once_whatever_the_order_of_arrival() {
    let mut p = Pair::open();
    p.write(0, 0, 1, 1);
    p.write(0, 0, 2, 2);
    p.read(0, 0, 3);
    p.write(0, 64, 3, 4);
    let frames = p.take_up();
    for frame in frames.iter().rev().chain(&frames).chain(frames.iter().rev()) {
        p.deliver_up([frame]);
    }
    let writes: Vec<_> = p.memory.log.iter().filter(|e| matches!(e, Executed::Write(..))).collect();
    let expected = [Executed::Write(0, 1), Executed::Write(0, 2), Executed::Write(64, 3)];
    assert_eq!(writes, expected.iter().collect::<Vec<_>>());
    // Answers arrive in any order, each several times.
    let answers = p.take_down();
    p.deliver_down(answers.iter().rev());
    p.deliver_down(&answers);
    let expected = [Done::Written(1), Done::Written(2), Done::Read(3, vec![2]), Done::Written(4)];
    assert_eq!(p.done.0, expected);
    p.assert_at_rest();
}

#[test]
fn r3_every_write_is_acknowledged_by_itself() {
    let mut p = Pair::open();
    (0..3).for_each(|i| p.write(0, i * 64, 1, i));
    p.carry_up();
    assert_eq!(list(&p.take_down()), [(WriteResp, 1), (WriteResp, 2), (WriteResp, 3)]);
}

#[test]
fn r4_a_gap_is_reported_when_the_next_request_arrives() {
    let mut p = Pair::open();
    (1..=4).for_each(|i| p.write(0, i * 64, 1, i));
    let frames = p.take_up();
    // The requests arrive in separate batches, so the acknowledgement of the first is sent in its own frame, before the
    // SACK.
    p.deliver_up(&frames[..1]);
    assert_eq!(list(&p.take_down()), [(WriteResp, 1)]);
    p.deliver_up(&frames[2..3]);
    let told = p.take_down();
    assert_eq!((told.len(), sack(&told[0])), (1, Some((3, 1, None))));
    // A second early request must be acknowledged selectively too, and a repeated one again.
    p.deliver_up(&frames[3..4]);
    p.deliver_up(&frames[2..3]);
    assert_eq!(list(&p.take_down()), [(SackNak, 4), (SackNak, 3)]);
    // The gap is filled: all requests are answered, and no further SACK may be sent.
    p.deliver_up(&frames[1..2]);
    assert_eq!(list(&p.take_down()), [(WriteResp, 2), (WriteResp, 3), (WriteResp, 4)]);
}

#[test]
fn r4_in_one_batch_the_acknowledgement_rides_with_the_sack() {
    let mut p = Pair::open();
    (1..=4).for_each(|i| p.write(0, i * 64, 1, i));
    let frames = p.take_up();
    p.deliver_up([&frames[0], &frames[1], &frames[3]]);
    let told = p.take_down();
    assert_eq!(list(&told), [(WriteResp, 1), (SackNakAck, 4)]);
    assert_eq!(sack(&told[1]), Some((4, 2, Some((2, Axi { stream: 0, tag: 2 })))));
    p.deliver_down(&told);
    assert_eq!(p.done.0, [Done::Written(1), Done::Written(2)]);
    // A SACK of another stream must not include this acknowledgement.
    p.write(0, 0, 1, 5);
    p.read(1, 0, 6);
    p.read(1, 0, 7);
    let mut more = p.take_up();
    more.remove(1);
    more.insert(0, frames[2].clone());
    p.deliver_up(&more);
    assert_eq!(list(&p.take_down()), [(WriteResp, 3), (WriteResp, 4), (WriteResp, 5), (SackNak, 2)]);
}

#[test]
fn r5_what_is_unmarked_goes_at_once_then_once_per_round_trip() {
    let mut p = Pair::open();
    p.measure();
    (0..6).for_each(|i| p.read(0, i * 64, i));
    let frames = p.take_up();
    // Numbers 10 and 12 are lost.
    for arrived in [0, 2, 4, 5] {
        p.deliver_up([&frames[arrived]]);
    }
    p.pass(100 * US);
    let told = p.take_down();
    p.deliver_down(&told[..2]);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [10], "up to the first mark");
    p.deliver_down(&told[2..]);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [12], "between the marks; 10 has its round trip");
    p.deliver_down(&told);
    p.poll();
    assert_eq!(p.take_up().len(), 0, "told again at the same time changes nothing");
    // Both repetitions are lost too. After one more round trip they must be sent again, without a time-out.
    p.pass(99 * US);
    p.poll();
    assert_eq!(p.take_up().len(), 0);
    p.pass(3 * US);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [10, 12]);
    assert_eq!(p.requester.counters().timeouts, 0);
}

/// The CN must not send a whole window to a dead memory node in each round trip.
#[test]
fn r5_repetitions_into_silence_become_rare() {
    let mut p = Pair::open();
    p.measure();
    (0..200).for_each(|i| p.read(0, i * 64, i));
    let frames = p.take_up();
    p.deliver_up(&frames[199..]);
    p.carry_down();
    let before = p.requester.counters().retransmitted;
    p.run_with(900 * MS, |_| false, |_| false);
    let repeated = p.requester.counters().retransmitted - before;
    assert!((199 * 5..199 * 15).contains(&repeated), "{repeated} in 9,000 round trips");
}

#[test]
fn r5_the_very_first_request_of_a_session_lost() {
    let mut p = Pair::open();
    (0..3).for_each(|i| p.read(0, i * 64, i));
    let frames = p.take_up();
    p.deliver_up(&frames[1..]);
    p.carry_down();
    p.poll();
    assert_eq!(numbers(&p.take_up()), [1]);
}

#[test]
fn r6_a_skipping_answer_repeats_the_skipped_once_per_gap() {
    let mut p = Pair::open();
    p.measure();
    (0..6).for_each(|i| p.read(0, i * 64, i));
    p.carry_up();
    p.pass(100 * US);
    let answers = p.take_down();
    // The answers to 9, 10 and 12 are lost.
    for answer in [2, 4, 5] {
        p.deliver_down([&answers[answer]]);
        p.poll();
    }
    assert_eq!(numbers(&p.take_up()), [9, 10, 12], "each once, when its gap shows");
    assert_eq!(p.done.0, [], "early answers wait");
    p.pass(150 * US);
    p.deliver_down(&answers[2..3]);
    p.poll();
    assert_eq!(p.take_up().len(), 0, "the same gap seen again is no new evidence");
    // An answer to a request sent a round trip after the repetition shows that the repetition was lost too.
    p.read(0, 64, 6);
    p.carry_up();
    p.carry_down();
    p.poll();
    assert_eq!(numbers(&p.take_up()), [9, 10, 12]);
    assert_eq!(p.requester.counters().timeouts, 0);
    p.deliver_down(&answers);
    let tokens: Vec<_> = p.done.0.iter().map(|d| matches!(d, Done::Read(..))).collect();
    assert_eq!(tokens, [true; 7]);
    p.assert_at_rest();
}

#[test]
fn r7_what_was_answered_is_answered_again_and_not_executed() {
    let mut p = Pair::open();
    p.write(0, 0, 7, 1);
    p.read(0, 0, 2);
    p.read(0, TestMemory::END, 3);
    let frames = p.take_up();
    p.deliver_up(&frames);
    let first = p.take_down();
    assert_eq!(list(&first), [(WriteResp, 1), (ReadResp, 2), (Fault, 3)]);
    let executed = p.responder.totals().executed;
    p.memory.log.clear();
    for frame in frames.iter().rev() {
        p.deliver_up([frame]);
    }
    let mut again = p.take_down();
    again.reverse();
    assert_eq!(list(&again), list(&first));
    assert!(!p.memory.log.iter().any(|e| matches!(e, Executed::Write(..))));
    assert_eq!(p.responder.totals().executed, executed);
    assert_eq!(p.responder.totals().duplicates, 3);
}

#[test]
fn r9_an_invalid_request_uses_its_number_and_gets_fault_5() {
    let mut p = Pair::open();
    let mask = |m: u64| m.to_be_bytes().to_vec();
    let cases: [(u8, u64, Vec<u8>); 8] = [
        (0x01, 8, vec![]),
        (0x02, 1, vec![1; 64]),
        (0x03, 0, vec![0]),
        (0x03, 0, vec![65]),
        (0x03, 25 * 64, vec![40]),
        (0x04, 0, mask(0)),
        (0x04, 63 * 64, [mask(2), vec![1; 64]].concat()),
        (0x55, 0, vec![]),
    ];
    for (i, (command, addr, payload)) in cases.iter().enumerate() {
        let frame = p.forge(*command, 1 + i as u64, 0, *addr, payload);
        p.deliver_up([&frame]);
        let answers = p.take_down();
        let parsed = Message::parse(&answers[0]).unwrap();
        assert_eq!(parsed.1, Message::Fault { status: FaultStatus::Malformed }, "case {i}");
        assert_eq!((answers.len(), parsed.0.seq), (1, 1 + i as u16));
        // A repeated request must get the same answer.
        p.deliver_up([&frame]);
        assert_eq!(p.take_down(), answers);
    }
    assert_eq!(p.memory.log, []);
    p.deliver_up([&p.forge(0x02, 9, 0, 0, &[5; 64])]);
    assert_eq!(p.memory.log, [Executed::Write(0, 5)], "the stream goes on");
}

#[test]
fn r9_damaged_frames_count_and_change_nothing() {
    let mut p = Pair::open();
    p.write(0, 0, 1, 1);
    let frame = p.take_up().remove(0);
    for bit in 0..frame.len() * 8 {
        // Addresses and EtherType are covered by other tests, and the trailer does not cover the padding, so their bits
        // are skipped.
        if bit / 8 < 6 || (12..14).contains(&(bit / 8)) || bit / 8 >= 93 {
            continue;
        }
        let mut damaged = frame.clone();
        damaged[bit / 8] ^= 0x80 >> (bit % 8);
        p.deliver_up([&damaged]);
        assert_eq!((p.take_down().len(), p.memory.log.len()), (0, 0), "bit {bit}");
    }
    for len in 0..93 {
        p.deliver_up([&frame[..len].to_vec()]);
    }
    assert_eq!((p.take_down().len(), p.memory.log.len()), (0, 0));
    p.deliver_up([&frame]);
    let answer = p.take_down().remove(0);
    for len in 0..29 {
        p.deliver_down([&answer[..len].to_vec()]);
    }
    for bit in 14 * 8..29 * 8 {
        let mut damaged = answer.clone();
        damaged[bit / 8] ^= 0x80 >> (bit % 8);
        p.deliver_down([&damaged]);
    }
    assert_eq!((p.done.0.len(), p.requester.unanswered()), (0, 1));
    p.deliver_down([&answer]);
    assert_eq!(p.done.0, [Done::Written(1)]);
}

#[test]
fn r10_early_writes_beyond_the_buffers_are_dropped_without_a_sack() {
    let mut mn = responder_config();
    mn.early_buffers = 4;
    let mut p = Pair::with(requester_config(), mn);
    p.connect();
    (0..8).for_each(|i| p.write(0, i * 64, i as u8, i));
    let frames = p.take_up();
    p.deliver_up(&frames[1..]);
    assert_eq!(numbers(&p.take_down()), [2, 3, 4, 5], "no SACK claims what was not kept");
    let status = p.responder.statuses(p.now).remove(0);
    assert_eq!((status.waiting, status.buffered, status.counters.dropped_full), (4, 4, 3));
    // A read needs no buffer.
    p.read(0, 0, 8);
    p.carry_up();
    assert_eq!(numbers(&p.take_down()), [9]);
    p.run(100 * MS);
    p.deliver_up(&frames);
    p.run(100 * MS);
    assert_eq!(p.done.0.len(), 9);
    p.assert_at_rest();
}

#[test]
fn r10_all_sessions_share_a_limit_of_early_writes() {
    let mut mn = responder_config();
    mn.early_buffers_total = 3;
    let mut p = Pair::with(requester_config(), mn);
    p.connect();
    (0..8).for_each(|i| p.write(0, i * 64, i as u8, i));
    let frames = p.take_up();
    p.deliver_up(&frames[1..]);
    assert_eq!(numbers(&p.take_down()), [2, 3, 4]);
    // Buffers must be freed when their session ends, and when their request is executed.
    p.deliver_up(&frames[..1]);
    p.run(100 * MS);
    (0..8).for_each(|i| p.write(0, i * 64, i as u8, 10 + i));
    let frames = p.take_up();
    p.deliver_up(&frames[1..]);
    assert_eq!(numbers(&p.take_down()), [10, 11, 12]);
    p.run(100 * MS);
    assert_eq!(p.done.0.len(), 16);
    p.assert_at_rest();
}

#[test]
fn r10_early_answers_beyond_the_buffers_are_asked_for_again() {
    let mut p = Pair::open();
    for i in 0..WINDOW as u64 {
        p.read(0, i * 64, i);
        p.read(1, i * 64, 1_000 + i);
    }
    p.carry_up();
    let answers = p.take_down();
    p.deliver_down(&answers[2..]);
    assert_eq!(p.requester.status().buffered, 256);
    assert!(p.requester.counters().dropped_full > 200);
    p.run(200 * MS);
    assert_eq!(p.done.0.len(), 2 * WINDOW);
    p.assert_at_rest();
}

#[test]
fn r10_numbers_outside_the_window_are_dropped() {
    let mut p = Pair::open();
    for seq in [1 + SLOTS as u64, 5_000, 32_000] {
        p.deliver_up([&p.forge(0x01, seq, 0, 0, &[])]);
    }
    assert_eq!(p.responder.totals().dropped_window, 3);
    p.deliver_up([&p.forge(0x01, 0, 0, 0, &[])]);
    assert_eq!(p.responder.totals().dropped_window, 4, "no request bears 0");
    p.deliver_up([&p.forge(0x01, SLOTS as u64, 0, 0, &[])]);
    assert_eq!(list(&p.take_down()), [(SackNak, SLOTS as u16)], "the last one inside");
    // The session does not have this stream.
    p.deliver_up([&p.forge(0x01, 1, 2, 0, &[])]);
    assert_eq!(p.responder.totals().dropped_foreign, 1);
    for _ in 0..SLOTS + 10 {
        p.read(1, 0, 0);
        p.carry_up();
        p.carry_down();
    }
    p.deliver_up([&p.forge(0x01, 1, 1, 0, &[])]);
    assert_eq!(p.take_down().len(), 0, "too old to be answered again");
}

/// A request whose answer found no transmit slot must stay unexecuted, and must not be mistaken for the
/// request that uses the same place of the reorder buffer one period later.
#[test]
fn r10_no_room_for_answers_while_a_gap_closes() {
    let mut p = Pair::open();
    (1..=4).for_each(|i| p.write(0, i * 64, i as u8, i));
    let frames = p.take_up();
    p.deliver_up(&frames[1..]);
    p.take_down();
    p.down.room = Some(2);
    p.deliver_up(&frames[..1]);
    assert_eq!(list(&p.take_down()), [(WriteResp, 1), (WriteResp, 2)]);
    let written = p.memory.log.len();
    assert!((2..=3).contains(&written), "{:?}", p.memory.log);
    p.down.room = None;
    // The next request on the stream makes the responder execute the others.
    p.deliver_up(&frames[..1]);
    assert_eq!(p.memory.log.len(), 4);
    p.deliver_up(&frames);
    p.carry_down();
    assert_eq!(p.done.0, [1, 2, 3, 4].map(Done::Written));
    for i in 0..3 * SLOTS as u64 {
        p.read(0, 0, i);
        p.carry_up();
        p.carry_down();
    }
    let writes = p.memory.log.iter().filter(|e| matches!(e, Executed::Write(..))).count();
    assert_eq!(writes, 4, "none is executed again when its place comes round");
    p.assert_at_rest();
}

/// Requests that wait only for a transmit slot must be answered once there is one, without a further frame.
#[test]
fn r10_what_waits_for_room_waits_for_no_other_frame() {
    let mut p = Pair::open();
    (1..=4).for_each(|i| p.write(0, i * 64, i as u8, i));
    (5..=6).for_each(|i| p.read(1, i * 64, i));
    let frames = p.take_up();
    p.deliver_up(frames[1..4].iter().chain(&frames[5..]));
    p.take_down();
    assert!(!p.responder.is_stalled(), "these wait for another request");
    p.down.room = Some(2);
    p.deliver_up([&frames[0], &frames[4]]);
    assert_eq!(list(&p.take_down()), [(WriteResp, 1), (WriteResp, 2)]);
    assert!(p.responder.is_stalled());
    p.responder.poll(p.now, &mut p.memory, &mut p.down);
    assert!(p.responder.is_stalled() && p.take_down().is_empty());
    p.down.room = Some(1);
    p.responder.poll(p.now, &mut p.memory, &mut p.down);
    assert_eq!(list(&p.take_down()), [(WriteResp, 3)]);
    p.down.room = None;
    p.responder.poll(p.now, &mut p.memory, &mut p.down);
    assert_eq!(list(&p.take_down()), [(WriteResp, 4)]);
    assert!(!p.responder.is_stalled());
    let writes = p.memory.log.iter().filter(|e| matches!(e, Executed::Write(..))).count();
    assert_eq!(writes, 4);
}

/// Two different requests have one number. The request whose answer finds a slot must be answered; the other must be
/// dropped, and not executed when its place in the reorder buffer is used again.
#[test]
fn r10_two_requests_under_one_number() {
    let mut p = Pair::open();
    p.down.len_max = Some(200);
    p.deliver_up([&p.forge(0x03, 2, 0, 4096, &[20])]);
    p.deliver_up([&p.forge(0x01, 1, 0, 0, &[])]);
    p.deliver_up([&p.forge(0x01, 2, 0, 64, &[])]);
    assert_eq!(list(&p.take_down()), [(SackNak, 2), (ReadResp, 1), (ReadResp, 2)]);
    p.down.len_max = None;
    for number in 3..=2 * SLOTS as u64 {
        p.deliver_up([&p.forge(0x01, number, 0, 128, &[])]);
    }
    assert!(!p.memory.log.contains(&Executed::Read(4096)));
    assert_eq!(p.responder.statuses(p.now)[0].waiting, 0);
}

#[test]
fn r10_a_full_transmit_ring_at_the_cn_refuses_and_later_repeats() {
    let mut p = Pair::open();
    p.up.room = Some(1);
    p.write(0, 0, 1, 1);
    assert_eq!(p.requester.write(0, 64, &[2; LINE_SIZE], 2, p.now, &mut p.up), Err(Rejected::Busy));
    assert_eq!((p.requester.unanswered(), p.requester.status().buffered), (1, 1));
    p.take_up();
    p.run(100 * MS);
    assert_eq!(p.done.0, []);
    p.up.room = None;
    p.run(500 * MS);
    assert_eq!(p.done.0, [Done::Written(1)]);
    p.assert_at_rest();
}

#[test]
fn bursts_travel_whole_and_faults_give_the_data_back() {
    let mut p = Pair::open();
    assert_eq!((p.requester.burst_read_lines_max(), p.requester.burst_write_lines_max()), (23, 23));
    let data: Vec<u8> = (1..=3_u8).flat_map(|v| [v; LINE_SIZE]).collect();
    p.requester.burst_write(0, 0, 0b1011, &data, 1, p.now, &mut p.up).unwrap();
    p.requester.burst_read(0, 0, 4, 2, p.now, &mut p.up).unwrap();
    p.requester.burst_write(0, TestMemory::END, 0b11, &data[..128], 3, p.now, &mut p.up).unwrap();
    p.carry_up();
    p.carry_down();
    let fault = OpError::Fault(FaultStatus::Nxm);
    let expected = [Done::Written(1), Done::Read(2, vec![1, 2, 0, 3]), Done::Failed(3, fault, vec![1, 2])];
    assert_eq!(p.done.0, expected);
    let (now, up) = (p.now, &mut p.up);
    assert_eq!(p.requester.burst_read(0, 0, 24, 0, now, up), Err(Rejected::BadBurst));
    assert_eq!(p.requester.burst_read(0, 0, 0, 0, now, up), Err(Rejected::BadBurst));
    assert_eq!(p.requester.burst_write(0, 0, 0, &[], 0, now, up), Err(Rejected::BadBurst));
    assert_eq!(p.requester.burst_write(0, 0, 1, &data, 0, now, up), Err(Rejected::BadBurst));
    // More lines than an answer carries take two answers and two numbers.
    p.deliver_up([&p.forge(0x03, 4, 0, 0, &[24])]);
    assert_eq!(list(&p.take_down()), [(BurstReadResp, 4), (BurstReadResp, 5)]);
    p.assert_at_rest();
}
