//! Burst reads of more lines than one answer carries: one frame asks for all lines, and each answer has its
//! own number.

use cxloe_wire::frame::{
    Command::*, FEATURE_LONG_BURSTS, FEATURES, FaultStatus, LINE_SIZE, Message, PAGE_LINES,
};
use cxloe_wire::session::{OpError, SLOTS};

use crate::session_common::*;

/// Number of lines that an answer carries at an MTU of 1500.
const EACH: u8 = 23;
const PAGE: u64 = 4096;

impl Pair {
    /// Reads a page in bursts whose answers fit one frame each, with tokens from `token` on.
    fn read_page(&mut self, addr: u64, token: u64) {
        self.requester.hold();
        self.burst_reads(addr, &[EACH, EACH, 18], token);
        self.requester.release(self.now, &mut self.up);
    }

    /// Reads bursts, each of which begins where the previous one ends.
    fn burst_reads(&mut self, mut addr: u64, lines: &[u8], token: u64) {
        for (lines, token) in lines.iter().zip(token..) {
            self.requester.burst_read(0, addr, *lines, token, self.now, &mut self.up).unwrap();
            addr += u64::from(*lines) * LINE_SIZE as u64;
        }
    }
}

fn lines_of(frame: &[u8]) -> (u16, u64, u8) {
    match Message::parse(frame) {
        Ok((header, Message::BurstReadReq { lines })) => (header.seq, header.addr, lines),
        other => panic!("a burst read, not {other:?}"),
    }
}

fn tokens(done: &[Done]) -> Vec<u64> {
    done.iter().map(|d| if let Done::Read(token, _) = d { *token } else { panic!("{d:?}") }).collect()
}

#[test]
fn a_page_is_one_request_and_three_answers() {
    let mut p = Pair::open();
    p.requester.hold();
    p.burst_reads(PAGE, &[EACH, EACH], 0);
    assert!(p.up.frames.is_empty(), "they wait for the rest of the page");
    p.burst_reads(PAGE + 46 * 64, &[18], 2);
    let frames = p.take_up();
    assert_eq!(frames.len(), 1, "and leave with it");
    assert_eq!(lines_of(&frames[0]), (1, PAGE, PAGE_LINES as u8));
    assert_eq!(frames[0].len(), 60);
    p.deliver_up(&frames);
    let answers = p.take_down();
    assert_eq!(list(&answers), [(BurstReadResp, 1), (BurstReadResp, 2), (BurstReadResp, 3)]);
    let header = |frame: &Vec<u8>| Message::parse(frame).unwrap().0;
    let places = answers.iter().map(|f| (header(f).addr, header(f).axi.tag)).collect::<Vec<_>>();
    assert_eq!(places, [(PAGE, 1), (PAGE + 23 * 64, 2), (PAGE + 46 * 64, 3)]);
    p.deliver_down(&answers);
    assert_eq!(tokens(&p.done.0), [0, 1, 2]);
    let c = p.requester.counters();
    assert_eq!((c.requests, c.multi_frames, c.multi_requests, c.answered), (3, 1, 3, 3));
    assert_eq!(p.responder.totals().executed, 3);
    p.requester.release(p.now, &mut p.up);
    p.assert_at_rest();
}

/// Burst reads may share a frame only if they are consecutive and in one page, and if only the last is shorter than an
/// answer.
#[test]
fn only_what_is_consecutive_in_one_page_is_joined() {
    let mut p = Pair::open();
    let asked = |p: &mut Pair| {
        p.requester.release(p.now, &mut p.up);
        let frames = p.take_up();
        p.deliver_up(&frames);
        p.carry_down();
        frames.iter().map(|f| (lines_of(f).1, lines_of(f).2)).collect::<Vec<_>>()
    };
    p.requester.hold();
    p.burst_reads(0, &[EACH], 0);
    p.burst_reads(PAGE, &[EACH, EACH], 1);
    assert_eq!(asked(&mut p), [(0, 23), (PAGE, 46)]);
    // A burst shorter than an answer ends the frame, even if the next burst is consecutive.
    p.requester.hold();
    p.burst_reads(0, &[EACH, 5, EACH], 0);
    assert_eq!(asked(&mut p), [(0, 28), (28 * 64, 23)]);
    // A burst at the end of a page and one at the beginning of the next page must not share a frame.
    p.requester.hold();
    p.burst_reads(PAGE - 23 * 64, &[EACH, EACH], 0);
    assert_eq!(asked(&mut p), [(PAGE - 23 * 64, 23), (PAGE, 23)]);
    // A burst must not share a frame with the single lines requested before or after it.
    p.requester.hold();
    p.read(0, 8 * PAGE, 0);
    p.burst_reads(0, &[EACH], 0);
    p.write(0, 9 * PAGE, 7, 0);
    p.burst_reads(23 * 64, &[EACH], 0);
    p.requester.release(p.now, &mut p.up);
    assert_eq!(codes(&p.take_up()), [ReadReq, BurstReadReq, WriteReq, BurstReadReq]);
}

/// If the caller does not hold requests, or the ends have not agreed on long bursts, each burst must have its own
/// frame.
#[test]
fn nothing_is_joined_unless_both_ends_have_agreed() {
    let without = FEATURES & !FEATURE_LONG_BURSTS;
    for (cn, mn, held) in [(without, FEATURES, true), (FEATURES, without, true), (FEATURES, FEATURES, false)]
    {
        let mut p = Pair::new();
        p.requester.set_features(cn);
        p.responder.set_features(mn);
        p.connect();
        if held {
            p.requester.hold();
        }
        p.burst_reads(0, &[EACH, EACH, 18], 0);
        let frames = p.take_up();
        assert_eq!(frames.iter().map(|f| lines_of(f).2).collect::<Vec<_>>(), [23, 23, 18]);
        p.deliver_up(&frames);
        p.carry_down();
        assert_eq!(p.done.0.len(), 3);
        if held {
            // A long burst is one malformed request if long bursts were not agreed on.
            p.deliver_up([&p.forge(BurstReadReq as u8, 4, 0, 0, &[64])]);
            p.deliver_up([&p.forge(BurstReadReq as u8, 5, 0, 0, &[EACH])]);
            assert_eq!(list(&p.take_down()), [(Fault, 4), (BurstReadResp, 5)]);
        }
    }
}

/// R9: an impossible burst must use up exactly one number.
#[test]
fn r9_senseless_bursts_use_up_one_number() {
    let mut p = Pair::open();
    let bad: [(u64, u8); 6] = [(0, 0), (0, 65), (0, 255), (64, 64), (PAGE - 64, 2), (32, 64)];
    for (number, (addr, lines)) in (1..).zip(bad) {
        p.deliver_up([&p.forge(BurstReadReq as u8, number, 0, addr, &[lines])]);
    }
    let answers = p.take_down();
    assert_eq!(list(&answers), (1..7).map(|n| (Fault, n)).collect::<Vec<_>>());
    let malformed =
        |f: &Vec<u8>| matches!(Message::parse(f), Ok((_, Message::Fault { status: FaultStatus::Malformed })));
    assert!(answers.iter().all(malformed));
    p.deliver_up([&p.forge(BurstReadReq as u8, 7, 0, 64, &[63])]);
    assert_eq!(list(&p.take_down()), [7, 8, 9].map(|n| (BurstReadResp, n)));
    // The trailer is sealed with the first number, so under another number the frame is not genuine.
    let mut other = p.forge(BurstReadReq as u8, 10, 0, 0, &[64]);
    other[16] += 1;
    p.deliver_up([&other]);
    assert!(p.take_down().is_empty());
}

/// Parts of a long burst that lie beyond the memory must be refused one by one, and later requests executed.
#[test]
fn parts_fail_by_themselves() {
    let mut p = Pair::open();
    p.read_page(TestMemory::END, 0);
    p.read_page(0, 3);
    p.carry_up();
    let answers = p.take_down();
    assert_eq!(list(&answers)[..3], [1, 2, 3].map(|n| (Fault, n)));
    assert_eq!(list(&answers)[3..], [4, 5, 6].map(|n| (BurstReadResp, n)));
    p.deliver_down(&answers);
    let nxm = OpError::Fault(FaultStatus::Nxm);
    assert_eq!(p.done.0[..3], [0, 1, 2].map(|token| Done::Failed(token, nxm, vec![])));
    assert_eq!(tokens(&p.done.0[3..]), [3, 4, 5]);
    p.assert_at_rest();
}

/// R2, R4, R5: the frame of a long burst is lost, and the next frame arrives early. Each part of the lost burst must be
/// sent again in its own frame.
#[test]
fn r5_a_lost_page_goes_again_in_plain_frames() {
    let mut p = Pair::open();
    p.measure();
    p.read_page(0, 0);
    p.read_page(PAGE, 10);
    let frames = p.take_up();
    assert_eq!(frames.iter().map(|f| lines_of(f).0).collect::<Vec<_>>(), [9, 12]);
    p.pass(100 * US);
    p.deliver_up(&frames[1..]);
    let answers = p.take_down();
    assert_eq!(list(&answers), [(SackNak, 12), (SackNak, 13), (SackNak, 14)]);
    p.deliver_down(&answers);
    p.poll();
    let again = p.take_up();
    assert_eq!(again.iter().map(|f| lines_of(f).2).collect::<Vec<_>>(), [23, 23, 18]);
    p.deliver_up(&again);
    p.run(10 * MS);
    assert_eq!(tokens(&p.done.0), [0, 1, 2, 10, 11, 12]);
    assert_eq!(p.responder.totals().executed, 8 + 6);
    p.assert_at_rest();
}

/// R6, R7: some answers to a long burst are lost. Only the parts without an answer may be requested and answered again.
#[test]
fn r6_a_lost_answer_is_asked_for_by_itself() {
    let mut p = Pair::open();
    p.measure();
    p.read_page(0, 0);
    p.carry_up();
    let answers = p.take_down();
    p.pass(100 * US);
    p.deliver_down(&answers[2..]);
    assert!(p.done.0.is_empty());
    p.poll();
    let again = p.take_up();
    assert_eq!(again.iter().map(|f| (lines_of(f).0, lines_of(f).2)).collect::<Vec<_>>(), [(9, 23), (10, 23)]);
    p.deliver_up(&again);
    p.carry_down();
    assert_eq!(tokens(&p.done.0), [0, 1, 2]);
    p.assert_at_rest();
}

/// R7, R11: a replayed frame, in any order and beyond the window, must not be executed again.
#[test]
fn r7_a_page_that_is_repeated_is_executed_once() {
    let mut p = Pair::open();
    (0..4).for_each(|page| p.read_page(page * PAGE, page * 3));
    let frames = p.take_up();
    for frame in frames.iter().rev().chain(&frames).chain(frames.iter().rev()) {
        p.deliver_up([frame]);
    }
    let answers = p.take_down();
    p.deliver_down(answers.iter().rev());
    p.deliver_down(&answers);
    assert_eq!(tokens(&p.done.0), (0..12).collect::<Vec<_>>());
    assert_eq!(p.responder.totals().executed, 12);
    p.assert_at_rest();
    // Only the last part lies beyond the window, so only that part must be dropped.
    let at = 13 + SLOTS as u64 - 2;
    let dropped = p.responder.totals().dropped_window;
    p.deliver_up([&p.forge(BurstReadReq as u8, at, 0, 0, &[64])]);
    let sacks = p.take_down();
    assert_eq!(list(&sacks), [(SackNak, at as u16), (SackNak, at as u16 + 1)]);
    assert_eq!(p.responder.totals().dropped_window, dropped + 1);
}

/// Answers for which no transmit slot is free must be sent later, each once.
#[test]
fn parts_without_room_for_their_answers_are_not_lost() {
    let mut p = Pair::open();
    p.measure();
    p.read_page(0, 0);
    p.down.room = Some(1);
    p.carry_up();
    p.down.room = None;
    p.carry_down();
    assert_eq!(p.done.0.len(), 1);
    p.pass(100 * US);
    p.run(50 * MS);
    assert_eq!(tokens(&p.done.0), [0, 1, 2]);
    p.assert_at_rest();
}

/// If the transmit ring is full when the page is complete, the page's frame must be sent later unchanged, and
/// the next page in its own frame.
#[test]
fn a_page_that_finds_no_room_to_leave_waits_whole() {
    let mut p = Pair::open();
    p.requester.hold();
    p.up.room = Some(0);
    p.burst_reads(0, &[EACH, EACH, 18], 0);
    assert!(p.requester.burst_read(0, PAGE, EACH, 3, p.now, &mut p.up).is_err(), "it would have to go first");
    p.up.room = None;
    p.burst_reads(PAGE, &[EACH, EACH, 18], 3);
    p.requester.release(p.now, &mut p.up);
    let frames = p.take_up();
    assert_eq!(frames.iter().map(|f| lines_of(f).2).collect::<Vec<_>>(), [64, 64]);
    p.deliver_up(&frames);
    p.carry_down();
    assert_eq!(tokens(&p.done.0), [0, 1, 2, 3, 4, 5]);
}

/// R13: a request of 60 bytes whose answers carry 4 KiB costs as much of the permitted rate as its answers.
#[test]
fn r13_a_page_costs_its_answers() {
    let cost = |held: bool| {
        let mut p = Pair::open();
        let before = p.requester.wire_bytes();
        if held {
            p.requester.hold();
        }
        p.burst_reads(0, &[EACH, EACH, 18], 0);
        p.requester.wire_bytes() - before
    };
    assert_eq!(cost(true), cost(false));
}
