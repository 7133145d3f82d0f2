//! Many requests in one frame: packed where both ends have agreed on it, each request with a number, an order and an
//! answer of its own whatever becomes of the frame. Frames are carried by hand.

mod session_common;

use cxloe_wire::frame::{Command::*, FEATURE_MULTI, FEATURES, FaultStatus, LINE_SIZE, Message};
use cxloe_wire::session::{OpError, Rejected, WINDOW};
use session_common::*;

/// Lines of a frame at an MTU of 1500.
const READS: usize = 23;
const WRITES: usize = 21;

impl Pair {
    /// Reads `count` lines far from each other, tokens from `token` on, as one lot.
    fn read_many(&mut self, count: u64, token: u64) {
        self.requester.hold();
        (0..count).for_each(|i| self.read(0, i * 4096, token + i));
        self.requester.release(self.now, &mut self.up);
    }

    /// Writes `count` lines far from each other, the number of each into it.
    fn write_many(&mut self, count: u64, token: u64) {
        self.requester.hold();
        (0..count).for_each(|i| self.write(0, i * 4096, i as u8 + 1, token + i));
        self.requester.release(self.now, &mut self.up);
    }

    fn writes(&self) -> Vec<(u64, u8)> {
        let write = |e: &Executed| match e {
            Executed::Write(addr, value) => Some((*addr, *value)),
            Executed::Read(_) => None,
        };
        self.memory.log.iter().filter_map(write).collect()
    }
}

/// Count, addresses of all lines but the first, lines.
fn payload(others: &[u64], data: &[[u8; LINE_SIZE]]) -> Vec<u8> {
    let addresses = others.iter().flat_map(|addr| addr.to_be_bytes()[2..].to_vec());
    [others.len() as u8 + 1].into_iter().chain(addresses).chain(data.as_flattened().iter().copied()).collect()
}

fn read_tokens(done: &[Done]) -> Vec<u64> {
    let token = |d: &Done| if let Done::Read(token, _) = d { Some(*token) } else { None };
    done.iter().filter_map(token).collect()
}

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

/// Byte by byte: whoever does not hold, or holds one request, sends what the paper has.
#[test]
fn one_alone_is_the_papers_frame() {
    let plain = |features| {
        let mut p = Pair::new();
        p.requester.set_features(features);
        p.connect();
        p.read(0, 64, 1);
        p.write(0, 128, 7, 2);
        p.take_up()
    };
    let mut p = Pair::open();
    p.requester.hold();
    p.read(0, 64, 1);
    p.write(0, 128, 7, 2);
    assert_eq!(p.up.frames.len(), 1, "a request of another kind does not join");
    p.requester.release(p.now, &mut p.up);
    let frames = p.take_up();
    assert_eq!(list(&frames), [(ReadReq, 1), (WriteReq, 2)]);
    assert_eq!(plain(FEATURES), frames);
    // Where it was not agreed on, the session id is the same and so is every byte.
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
        // One that comes all the same is one request that makes no sense.
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

/// An answer to many where none was agreed on, and a HelloAck that grants what nobody asked for.
#[test]
fn a_memory_node_that_goes_beyond_the_agreement_is_not_heard() {
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
    // Streams do not mix.
    p.requester.hold();
    (0..4).for_each(|i| p.read(i % 2, 0, 0));
    p.requester.release(p.now, &mut p.up);
    let frames = p.take_up();
    assert_eq!(
        frames.iter().map(|f| (code(f), f[17])).collect::<Vec<_>>(),
        [(MultiReadReq, 0), (MultiReadReq, 1)]
    );
}

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

/// R2, R4, R7: frames of many in any order, and again and again.
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

/// R4, R5: each request of a frame that comes early is acknowledged selectively; what was lost goes again, alone.
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

/// R6, R7: an answer for many that is lost; the next one tells, and each is answered again by itself.
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

/// Some of a frame's requests are answered early, by plain frames, before the frame's answer comes: each is completed once,
/// in order, and every buffer is free again.
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
    // And one that overlaps what is answered already.
    p.deliver_down(&whole);
    assert_eq!((p.done.0.len(), p.requester.counters().duplicates), (4, 6));
}

/// Only some of an early answer's lines find a buffer; the others are asked for again.
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

/// What one line cannot have, its number alone is told; the others go on.
#[test]
fn a_line_that_is_not_there_fails_alone() {
    let mut p = Pair::open();
    let nxm = OpError::Fault(FaultStatus::Nxm);
    let at = [0, 64, TestMemory::END, 128, 192, 256];
    p.requester.hold();
    at.iter().zip(0..).for_each(|(addr, token)| p.write(0, *addr, token as u8 + 1, token));
    p.requester.release(p.now, &mut p.up);
    p.carry_up();
    let answers = p.take_down();
    assert_eq!(answers.len(), 5, "{:?}", list(&answers));
    assert_eq!(list(&answers)[..3], [(MultiWriteResp, 1), (Fault, 3), (WriteResp, 4)]);
    p.deliver_down(&answers);
    let expected =
        [0, 1, 2, 3, 4, 5].map(|t| if t == 2 { Done::Failed(t, nxm, vec![3]) } else { Done::Written(t) });
    assert_eq!(p.done.0, expected);
    p.done.0.clear();
    p.requester.hold();
    at.iter().zip(0..).for_each(|(addr, token)| p.read(0, *addr, token));
    p.requester.release(p.now, &mut p.up);
    p.carry_up();
    let answers = p.take_down();
    let expected = [ReadResp, ReadResp, Fault, ReadResp, ReadResp, ReadResp];
    assert_eq!(codes(&answers), expected);
    p.deliver_down(&answers);
    let read = |t: u64| if t == 2 { Done::Failed(t, nxm, vec![]) } else { Done::Read(t, vec![t as u8 + 1]) };
    assert_eq!(p.done.0, [0, 1, 2, 3, 4, 5].map(read));
    assert_eq!(p.writes().len(), 5);
    // The first and the last, too.
    for bad in [0, 3] {
        p.requester.hold();
        (0..4).for_each(|i| p.write(0, if i == bad { TestMemory::END } else { i * 64 }, 9, i));
        p.requester.release(p.now, &mut p.up);
        p.done.0.clear();
        p.carry_up();
        p.carry_down();
        let failed = |d: &Done| matches!(d, Done::Failed(token, ..) if *token == bad);
        assert_eq!((p.done.0.len(), p.done.0.iter().filter(|d| failed(d)).count()), (4, 1));
    }
    p.assert_at_rest();
}

/// A write that is refused and whose refusal finds no room counts as lost, and so do those behind it.
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

/// The order within a frame is that of the numbers: the last write of a line stays.
#[test]
fn a_line_may_be_named_twice() {
    let mut p = Pair::open();
    p.requester.hold();
    [1, 2, 3].into_iter().for_each(|value| p.write(0, 64, value, value.into()));
    [4, 5].into_iter().for_each(|token| p.read(0, 64, token));
    p.requester.release(p.now, &mut p.up);
    let frames = p.take_up();
    assert_eq!(list(&frames), [(MultiWriteReq, 1), (MultiReadReq, 4)]);
    p.deliver_up(&frames);
    p.carry_down();
    assert_eq!(p.writes(), [(64, 1), (64, 2), (64, 3)]);
    assert_eq!(p.done.0[3..], [4, 5].map(|token| Done::Read(token, vec![3])));
}

/// R9: counts that are not possible, and addresses that are not those of lines.
#[test]
fn r9_senseless_frames_of_many_use_up_what_they_must() {
    let mut p = Pair::open();
    // One number each, whatever the count says.
    p.deliver_up([&p.forge(MultiReadReq as u8, 1, 0, 0, &[0])]);
    p.deliver_up([&p.forge(MultiReadReq as u8, 2, 0, 0, &[1])]);
    p.deliver_up([&p.forge(MultiWriteReq as u8, 3, 0, 0, &[0])]);
    p.deliver_up([&p.forge(MultiWriteReq as u8, 4, 0, 0, &payload(&[], &[[1; 64]]))]);
    let many = vec![64; 64];
    p.deliver_up([&p.forge(MultiReadReq as u8, 5, 0, 0, &payload(&many, &[]))]);
    // More than an answer carries.
    p.deliver_up([&p.forge(MultiReadReq as u8, 6, 0, 0, &payload(&many[..READS], &[]))]);
    let answers = p.take_down();
    assert_eq!(list(&answers), (1..7).map(|n| (Fault, n)).collect::<Vec<_>>());
    let malformed =
        |f: &Vec<u8>| matches!(Message::parse(f), Ok((_, Message::Fault { status: FaultStatus::Malformed })));
    assert!(answers.iter().all(malformed));
    // As many as one carries.
    p.deliver_up([&p.forge(MultiReadReq as u8, 7, 0, 0, &payload(&many[..READS - 1], &[]))]);
    assert_eq!(list(&p.take_down()), [(MultiReadResp, 7)]);
    // An address that is no line's fails alone, the header's as any other.
    let seq = 7 + READS as u64;
    p.memory.log.clear();
    p.deliver_up([&p.forge(MultiWriteReq as u8, seq, 0, 1, &payload(&[64, 129, 192], &[[7; 64]; 4]))]);
    let answers = p.take_down();
    assert_eq!(codes(&answers), [Fault, WriteResp, Fault, WriteResp]);
    assert_eq!(p.writes(), [(64, 7), (192, 7)]);
    // A frame that ends before its lines do has no trailer where it should be.
    let whole = p.forge(MultiWriteReq as u8, seq + 4, 0, 0, &payload(&[64], &[[1; 64]; 2]));
    for len in 0..25 + 1 + 6 + 128 + 4 {
        p.deliver_up([&whole[..len].to_vec()]);
    }
    assert_eq!((p.take_down().len(), p.writes().len()), (0, 2));
    p.deliver_up([&whole]);
    assert_eq!(list(&p.take_down()), [(MultiWriteResp, (seq + 4) as u16)]);
}

/// Parts of a frame were executed before: those are answered again, the others executed.
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
    // Replayed as it was, and under other addresses: nothing is executed.
    p.deliver_up([&frame]);
    p.deliver_up([&p.forge(MultiWriteReq as u8, 1, 0, 512, &payload(&[576, 640, 704], &lines))]);
    assert_eq!(p.writes().len(), 4);
    // One of which a part is beyond the window.
    let at = 4 + cxloe_wire::session::SLOTS as u64 - 1;
    p.deliver_up([&p.forge(MultiReadReq as u8, at, 0, 0, &payload(&[64, 128], &[]))]);
    let sacks = p.take_down();
    assert_eq!(list(&sacks[sacks.len() - 2..]), [(SackNak, at as u16), (SackNak, at as u16 + 1)]);
    assert_eq!(p.responder.totals().dropped_window, 4 + 1);
}

/// The 16 bits of the numbers turn over within a frame (R11).
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

/// A transmit ring without room: requests wait, no more of them than a frame carries, and leave when there is some.
#[test]
fn a_full_ring_at_the_cn_keeps_them_waiting() {
    let mut p = Pair::open();
    p.up.room = Some(0);
    p.requester.hold();
    for i in 0..READS as u64 {
        p.read(0, i * 64, i);
    }
    assert_eq!(p.requester.read(0, 0, 99, p.now, &mut p.up), Err(Rejected::Busy));
    assert_eq!(p.requester.write(0, 0, &[0; LINE_SIZE], 99, p.now, &mut p.up), Err(Rejected::Busy));
    p.requester.release(p.now, &mut p.up);
    assert!(p.requester.deadline() <= p.now, "looked at soon");
    p.poll();
    assert_eq!((p.up.frames.len(), p.requester.unanswered()), (0, READS));
    p.up.room = None;
    p.run(MS);
    assert_eq!(p.done.0.len(), READS);
    assert_eq!((p.requester.counters().multi_frames, p.requester.counters().retransmitted), (1, 0));
    p.assert_at_rest();
}

/// Whoever forgets to say that no more follows is not left waiting for ever.
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

/// No room for the answer at the MN: nothing is executed, and the frame counts as lost.
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

/// A hostile MN answers what was made but not sent: that is outside the window.
#[test]
fn answers_to_what_has_not_been_sent_are_dropped() {
    let mut other = Pair::open();
    other.read_many(3, 0);
    other.carry_up();
    let answer = other.take_down().remove(0);
    let mut p = Pair::open();
    p.requester.hold();
    (0..3).for_each(|i| p.read(0, i * 4096, i));
    p.deliver_down([&answer]);
    assert_eq!((p.done.0.len(), p.requester.counters().dropped_window), (0, 3));
    p.requester.release(p.now, &mut p.up);
    p.deliver_down([&answer]);
    assert_eq!(p.done.0.len(), 3, "the sessions are alike, so that it is genuine");
    // More of them than were asked for, and an answer of the other kind.
    p.write_many(2, 10);
    p.deliver_down([&answer]);
    assert_eq!(p.done.0.len(), 3);
}

/// What waits when the session is replaced by one without such frames goes over to it.
#[test]
fn waiting_requests_go_over_to_a_session_that_knows_no_such_frames() {
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
            // The padding of a short frame is nobody's.
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

/// R13: what a frame of many costs is what it, or its answer, is on the wire.
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
