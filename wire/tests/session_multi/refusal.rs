//! Requests in a frame of many that are refused, malformed or unexpected: each must fail alone.

use cxloe_wire::frame::{Command::*, FaultStatus, Message};
use cxloe_wire::session::OpError;

use super::lot::{READS, payload};
use crate::session_common::*;

/// Only the request for a line that does not exist may be refused; the other requests of the frame must be executed.
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
    // The first and the last line of a frame can fail too.
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

/// Requests of a frame must be executed in the order of their numbers, so that the last write of a line
/// remains.
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

/// R9: a frame with an impossible count must be refused as one request; of the requests in a valid frame, only those
/// with an unaligned address.
#[test]
fn r9_invalid_frames_use_up_the_numbers_they_cover() {
    let mut p = Pair::open();
    // Each frame uses up one number, whatever its count.
    p.deliver_up([&p.forge(MultiReadReq as u8, 1, 0, 0, &[0])]);
    p.deliver_up([&p.forge(MultiReadReq as u8, 2, 0, 0, &[1])]);
    p.deliver_up([&p.forge(MultiWriteReq as u8, 3, 0, 0, &[0])]);
    p.deliver_up([&p.forge(MultiWriteReq as u8, 4, 0, 0, &payload(&[], &[[1; 64]]))]);
    let many = vec![64; 64];
    p.deliver_up([&p.forge(MultiReadReq as u8, 5, 0, 0, &payload(&many, &[]))]);
    // This frame asks for more lines than an answer carries, so it must be refused as a whole.
    p.deliver_up([&p.forge(MultiReadReq as u8, 6, 0, 0, &payload(&many[..READS], &[]))]);
    let answers = p.take_down();
    assert_eq!(list(&answers), (1..7).map(|n| (Fault, n)).collect::<Vec<_>>());
    let malformed =
        |f: &Vec<u8>| matches!(Message::parse(f), Ok((_, Message::Fault { status: FaultStatus::Malformed })));
    assert!(answers.iter().all(malformed));
    // This frame asks for exactly as many lines as an answer carries.
    p.deliver_up([&p.forge(MultiReadReq as u8, 7, 0, 0, &payload(&many[..READS - 1], &[]))]);
    assert_eq!(list(&p.take_down()), [(MultiReadResp, 7)]);
    // A request for an address that is not a line's address must fail alone, even if the address is in the
    // header.
    let seq = 7 + READS as u64;
    p.memory.log.clear();
    p.deliver_up([&p.forge(MultiWriteReq as u8, seq, 0, 1, &payload(&[64, 129, 192], &[[7; 64]; 4]))]);
    let answers = p.take_down();
    assert_eq!(codes(&answers), [Fault, WriteResp, Fault, WriteResp]);
    assert_eq!(p.writes(), [(64, 7), (192, 7)]);
    // A frame that is cut off must be dropped, because it has no trailer at the expected offset.
    let whole = p.forge(MultiWriteReq as u8, seq + 4, 0, 0, &payload(&[64], &[[1; 64]; 2]));
    for len in 0..25 + 1 + 6 + 128 + 4 {
        p.deliver_up([&whole[..len].to_vec()]);
    }
    assert_eq!((p.take_down().len(), p.writes().len()), (0, 2));
    p.deliver_up([&whole]);
    assert_eq!(list(&p.take_down()), [(MultiWriteResp, (seq + 4) as u16)]);
}

/// Answers of a hostile MN to a request that was made but not sent must count as outside the window.
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
    // The answer to the reads arrives again while two writes are unanswered; it must not complete them.
    p.write_many(2, 10);
    p.deliver_down([&answer]);
    assert_eq!(p.done.0.len(), 3);
}
