//! The rules R1 to R11, each by itself, on two ends without a network. Frames are carried by hand, so that
//! each test says exactly which of them are lost, late or doubled.

mod session_common;

use cxloe_wire::frame::{Axi, Command::*, FaultStatus, LINE_SIZE, Message};
use cxloe_wire::session::{OpError, Rejected, SLOTS, SessionEvent, WINDOW};
use session_common::*;

/// Number and AXI id of a write acknowledged.
type Acked = (u16, Axi);

/// What a SACK says: its request's number, the last in order, the write acknowledged.
fn sack(frame: &[u8]) -> Option<(u16, u16, Option<Acked>)> {
    match Message::parse(frame).ok()? {
        (h, Message::SackNak { last_in_order }) => Some((h.seq, last_in_order, None)),
        (h, Message::SackNakAck { last_in_order, acked_seq, acked_axi }) => {
            Some((h.seq, last_in_order, Some((acked_seq, acked_axi))))
        }
        _ => None,
    }
}

/// Lets time pass until the CN sends something.
fn next_sent(p: &mut Pair) -> Vec<Vec<u8>> {
    for _ in 0..100 {
        p.poll();
        let sent = p.take_up();
        if !sent.is_empty() {
            return sent;
        }
        p.now = p.requester.deadline().max(p.now);
    }
    panic!("nothing is sent any more");
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
    // One read answered makes room for one read, not for a write.
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
    // Answers in any order, each several times.
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
fn r4_a_gap_is_told_of_when_the_next_request_arrives() {
    let mut p = Pair::open();
    (1..=4).for_each(|i| p.write(0, i * 64, 1, i));
    let frames = p.take_up();
    // In separate batches the acknowledgement has left before.
    p.deliver_up(&frames[..1]);
    assert_eq!(list(&p.take_down()), [(WriteResp, 1)]);
    p.deliver_up(&frames[2..3]);
    let told = p.take_down();
    assert_eq!((told.len(), sack(&told[0])), (1, Some((3, 1, None))));
    // A second early one is told of too, a repeated one again.
    p.deliver_up(&frames[3..4]);
    p.deliver_up(&frames[2..3]);
    assert_eq!(list(&p.take_down()), [(SackNak, 4), (SackNak, 3)]);
    // The gap closes: everything is answered, nothing more is told.
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
    // Another stream's frame does not take it along.
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
    // Both repetitions are lost as well. The next round trip brings them back without a time-out.
    p.pass(99 * US);
    p.poll();
    assert_eq!(p.take_up().len(), 0);
    p.pass(3 * US);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [10, 12]);
    assert_eq!(p.requester.counters().timeouts, 0);
}

/// A memory node that is gone does not get a window of frames per round trip.
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
    // Something sent a round trip after the repetition and answered is: the repetition was lost too.
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

/// The last frames of a batch: nothing sent later tells that they are lost.
#[test]
fn r8_a_probe_brings_back_the_tail_without_a_time_out() {
    for (lost_there, lost_back) in [(8..10, 0..0), (0..0, 7..10), (3..10, 2..3), (9..10, 0..9)] {
        let mut p = Pair::open();
        p.measure();
        (0..10).for_each(|i| p.write(0, i * 64, 1, i));
        let began = p.now;
        let sent = p.take_up();
        let arrive = sent.iter().zip(0..).filter(|(_, i)| !lost_there.contains(i));
        p.deliver_up(arrive.map(|(frame, _)| frame));
        p.pass(100 * US);
        let answers = p.take_down();
        let arrive = answers.iter().zip(0..).filter(|(_, i)| !lost_back.contains(i));
        p.deliver_down(arrive.map(|(frame, _)| frame));
        p.run(900 * US);
        assert_eq!(p.done.0.len(), 10, "lost {lost_there:?} there and {lost_back:?} back");
        let c = p.requester.counters();
        assert_eq!((c.timeouts, c.probes), (0, 1), "lost {lost_there:?} there and {lost_back:?} back");
        assert!(p.now - began <= 1_100 * US);
        p.assert_at_rest();
    }
}

#[test]
fn r8_a_probe_is_one_frame_and_comes_once_per_progress() {
    let mut p = Pair::open();
    p.measure();
    (0..10).for_each(|i| p.read(0, i * 64, i));
    let sent = p.take_up();
    p.pass(199 * US);
    p.poll();
    assert_eq!(p.take_up().len(), 0, "not before two round trips");
    p.pass(50 * US);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [18], "the newest, of which nothing is known");
    p.pass(700 * US);
    p.poll();
    assert_eq!(p.take_up().len(), 0, "the next thing is the time-out");
    p.deliver_up(&sent[..1]);
    p.carry_down();
    assert_eq!(numbers(&next_sent(&mut p)), [18], "progress allows another");
    // While requests are sent, their answers tell more than a probe would.
    p.deliver_up(&sent[1..2]);
    p.carry_down();
    for token in 0..4 {
        p.pass(100 * US);
        p.read(0, 0, 100 + token);
        p.take_up();
        p.poll();
        assert_eq!(p.take_up().len(), 0);
    }
    assert_eq!((p.requester.counters().probes, p.requester.counters().timeouts), (2, 0));
}

/// The newest has arrived and its answer waits for the oldest, whose repetition was lost as well.
#[test]
fn r8_a_probe_is_of_the_oldest_when_the_newest_is_known() {
    let mut p = Pair::open();
    p.measure();
    (0..3).for_each(|i| p.read(0, i * 64, i));
    p.carry_up();
    let answers = p.take_down();
    p.pass(100 * US);
    p.deliver_down(&answers[1..]);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [9], "R6");
    p.pass(150 * US);
    p.poll();
    assert_eq!(p.take_up().len(), 0, "its answer may be on its way");
    p.pass(100 * US);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [9]);
    assert_eq!((p.requester.counters().probes, p.requester.counters().timeouts), (1, 0));
}

/// A thread that did not run for a while finds everything overdue at once: it asks before it repeats.
#[test]
fn r8_a_late_poll_probes_before_it_times_out() {
    let mut p = Pair::open();
    p.measure();
    (0..10).for_each(|i| p.read(0, i * 64, i));
    let sent = p.take_up();
    p.pass(5 * MS);
    p.poll();
    assert_eq!(numbers(&p.take_up()), [18]);
    p.poll();
    p.pass(100 * US);
    p.poll();
    assert_eq!(p.take_up().len(), 0, "the probe has a round trip at least");
    p.deliver_up(&sent);
    p.carry_down();
    assert_eq!((p.done.0.len(), p.requester.counters().timeouts), (10, 0));
}

#[test]
fn r8_oldest_and_newest_doubled_bounded_and_reset() {
    let mut p = Pair::open();
    p.measure();
    (0..10).for_each(|i| p.write(0, i * 64, 1, i));
    let lost = p.take_up();
    let began = p.now;
    assert_eq!(numbers(&next_sent(&mut p)), [18], "the probe");
    let mut waits = Vec::new();
    let mut last = began;
    while waits.len() < 12 {
        p.now = p.requester.deadline();
        p.poll();
        let sent: Vec<_> = p.take_up().into_iter().filter(|f| code(f) == WriteReq).collect();
        if !sent.is_empty() {
            assert_eq!(numbers(&sent), [9, 18]);
            waits.push((p.now - last).as_micros() as u64);
            last = p.now;
        }
    }
    assert!((1_000..1_100).contains(&waits[0]), "{waits:?}");
    for pair in waits.windows(2) {
        let doubled = (2 * pair[0]).min(500_000);
        assert!(pair[1].abs_diff(doubled) <= 10, "{waits:?}");
    }
    assert_eq!(waits[11], 500_000, "bounded");
    // Progress: the time-out is short again, and the others go as answers arrive.
    p.deliver_up(&lost[..1]);
    p.carry_down();
    p.poll();
    let sent: Vec<_> = p.take_up().into_iter().filter(|f| code(f) == WriteReq).collect();
    assert_eq!(numbers(&sent), [10, 11]);
    assert!(p.requester.status().timeout_ns < 2_000_000);
    p.deliver_up(&sent);
    p.carry_down();
    p.poll();
    assert_eq!(numbers(&p.take_up()), [12, 13, 14, 15]);
}

#[test]
fn r8_no_sample_from_a_request_sent_twice_nor_from_one_that_waited_for_others() {
    let mut p = Pair::open();
    p.measure();
    (0..3).for_each(|i| p.read(0, i * 64, i));
    let frames = p.take_up();
    p.deliver_up(&frames[1..]);
    p.carry_down();
    let before = p.requester.status();
    p.pass(800 * US);
    p.poll();
    p.carry_up();
    p.carry_down();
    assert_eq!(p.done.0.len(), 3);
    assert_eq!(p.requester.status().rtt_ns, before.rtt_ns);
}

#[test]
fn r8_time_outs_of_several_streams_do_not_add_up() {
    let mut p = Pair::open();
    p.measure();
    p.read(0, 0, 1);
    p.read(1, 64, 2);
    p.take_up();
    for _ in 0..2 {
        p.pass(MS);
        p.poll();
    }
    assert_eq!(p.requester.counters().timeouts, 2);
    assert!(p.requester.status().timeout_ns <= 2_200_000, "doubled once, not twice");
}

#[test]
fn r8_a_silent_session_is_dead_and_everything_fails_by_name() {
    let mut p = Pair::open();
    p.write(0, 0, 9, 1);
    p.read(1, 0, 2);
    let start = p.now;
    p.run_with(4_900 * MS, |_| false, |_| false);
    assert_eq!(p.done.0, []);
    assert_eq!(p.events(), [SessionEvent::Suspect]);
    p.run_with(200 * MS, |_| false, |_| false);
    assert_eq!(
        p.done.0,
        [Done::Failed(1, OpError::SessionDead, vec![9]), Done::Failed(2, OpError::SessionDead, vec![])]
    );
    assert_eq!(p.events(), [SessionEvent::Dead]);
    assert!(!p.requester.is_open());
    assert_eq!(p.requester.read(0, 0, 3, p.now, &mut p.up), Err(Rejected::NotConnected));
    assert!(p.now - start < 6_000 * MS);
    p.run(2_000 * MS);
    assert!(p.requester.is_open(), "and it comes back by itself");
    p.assert_at_rest();
}

#[test]
fn r8_an_idle_session_notices_silence_by_pings() {
    let mut p = Pair::open();
    p.run(10_000 * MS);
    assert!(p.requester.is_open() && p.events().is_empty(), "answered pings keep it alive");
    p.run_with(7_000 * MS, |_| false, |_| false);
    assert_eq!(p.events(), [SessionEvent::Suspect, SessionEvent::Dead]);
}

/// Large frames that never pass must not wait for ever beside small ones that do.
#[test]
fn r8_a_request_that_never_gets_through_fails_though_others_pass() {
    let mut p = Pair::open();
    p.requester.burst_write(0, 0, 0xFF, &[1; 8 * LINE_SIZE], 1, p.now, &mut p.up).unwrap();
    for i in 0..60 {
        if p.requester.is_open() {
            p.read(0, 1 << 20, 100 + i);
            p.read(1, 64, 200 + i);
        }
        p.run_with(100 * MS, |f| f.len() < 500, |_| true);
    }
    assert!(p.done.0.contains(&Done::Failed(1, OpError::SessionDead, vec![1; 8])), "{:?}", p.events());
    assert!(p.done.0.contains(&Done::Read(200, vec![0])));
}

#[test]
fn r9_what_makes_no_sense_uses_its_number_and_gets_fault_5() {
    let mut p = Pair::open();
    let mask = |m: u64| m.to_be_bytes().to_vec();
    let cases: [(u8, u64, Vec<u8>); 8] = [
        (0x01, 8, vec![]),
        (0x02, 1, vec![1; 64]),
        (0x03, 0, vec![0]),
        (0x03, 0, vec![65]),
        (0x03, 0, vec![40]),
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
        // Repeated, it is answered the same.
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
        // Addresses, EtherType and padding are looked at by others, or by nobody.
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
    // A read takes no buffer.
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
    // A stream the session does not have.
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

/// A request whose answer found no room stays unexecuted, and is not taken for another one a turn of the
/// reorder buffer later.
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
    // Whatever comes next on the stream brings the others about.
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

/// A peer that sends two different requests under one number gets the one that can be answered; the other
/// is forgotten and not executed in its place when that comes round.
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
fn r11_old_frames_of_an_earlier_turn_do_not_pass() {
    let mut p = Pair::open();
    p.write(0, 0, 111, 0);
    let old_request = p.take_up().remove(0);
    p.deliver_up([&old_request]);
    let old_answer = p.take_down().remove(0);
    p.deliver_down([&old_answer]);
    let turns = 3_u64;
    let mut next = 1_u64;
    while next < turns * 65_536 {
        // In batches, so that the window turns over too.
        let batch = 200.min(turns * 65_536 - next);
        for i in 0..batch {
            p.write(0, (next + i) % 64 * 64, (next + i) as u8, next + i);
        }
        p.carry_up();
        p.carry_down();
        next += batch;
    }
    assert_eq!(p.done.0.len() as u64, turns * 65_536);
    assert!(p.done.0.iter().zip(0..).all(|(done, i)| *done == Done::Written(i)));
    // The next request bears the old one's 16 bits.
    let line = p.memory.lines[&0];
    p.deliver_up([&old_request]);
    assert_eq!((p.memory.lines[&0], p.responder.totals().dropped_trailer), (line, 1));
    p.write(0, 0, 222, 1);
    let fresh = p.take_up().remove(0);
    assert_eq!(seq(&fresh), seq(&old_request));
    p.deliver_down([&old_answer]);
    assert_eq!((p.requester.unanswered(), p.requester.counters().dropped_trailer), (1, 1));
    p.deliver_up([&fresh]);
    p.carry_down();
    assert_eq!(p.memory.lines[&0][0], 222);
    assert_eq!(p.requester.unanswered(), 0);
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
    // More lines than the session's frames carry, asked for all the same.
    p.deliver_up([&p.forge(0x03, 4, 0, 0, &[24])]);
    assert_eq!(code(&p.take_down()[0]), Fault);
    p.assert_at_rest();
}
