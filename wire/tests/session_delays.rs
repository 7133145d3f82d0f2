//! R11 and related rules: frames that arrive very late, a whole period of the 16-bit numbers later or in the
//! next session, must have no effect.

mod session_common;

use cxloe_wire::frame::Command::*;
use cxloe_wire::session::SessionEvent;
use session_common::*;

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
        // The writes are made in batches, because the window holds at most 256.
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
    // The next request has the low 16 bits of the old one's number.
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

/// Makes requests and answers until `next` is the next number of stream 0.
fn count_up_to(p: &mut Pair, next: u64) {
    let mut number = p.requester.counters().requests + 1;
    while number < next {
        let batch = 200.min(next - number);
        (0..batch).for_each(|i| p.write(0, 8192 + (number + i) % 64 * 64, 9, number + i));
        p.carry_up();
        p.carry_down();
        number += batch;
    }
    assert_eq!((p.requester.unanswered(), p.requester.counters().requests), (0, next - 1));
}

/// One period of the 16-bit numbers later, the numbers of old frames are those of requests under way, expected, or yet
/// to come. The old frames must fail the check of either kind of trailer.
#[test]
fn r11_a_turn_later_old_frames_pass_neither_trailer() {
    for key in [None, Some(b"a key of sixteen bytes at least"[..].into())] {
        let (mut cn, mut mn) = (requester_config(), responder_config());
        (cn.key, mn.key) = (key.clone(), key);
        let mut p = Pair::with(cn, mn);
        p.connect();
        // Requests 1 to 8: a read of a line that is overwritten later, then writes. Number 4 arrives late, so
        // later writes are acknowledged selectively first.
        p.read(0, 64, 1);
        (2..=8).for_each(|i| p.write(0, i * 64, 1, i));
        let requests = p.take_up();
        p.deliver_up(&requests[..3]);
        p.deliver_up(&requests[4..]);
        let told = p.take_down();
        assert!(list(&told).contains(&(SackNak, 5)), "{:?}", list(&told));
        p.deliver_up(&requests[3..4]);
        let answers: Vec<_> = told.into_iter().chain(p.take_down()).collect();
        p.deliver_down(&answers);
        assert_eq!(p.done.0.len(), 8);

        // The next number is 65,538, which is 2 in 16 bits. So among the old frames, number 1 was just answered, number
        // 2 is expected next, and numbers 3 to 8 are yet to come.
        count_up_to(&mut p, 65_538);
        p.done.0.clear();
        let (written, before) = (p.memory.log.len(), p.responder.totals());
        p.deliver_up(requests.iter().chain(requests.iter().rev()));
        let after = p.responder.totals();
        assert_eq!(
            (p.memory.log.len(), p.take_down().len()),
            (written, 0),
            "nothing is done, nothing answered"
        );
        assert_eq!(after.dropped_trailer - before.dropped_trailer, 16);
        assert_eq!((after.executed, after.early), (before.executed, before.early));

        // Requests 65,538 to 65,545 are under way, so the old answers and SACKs match them by 16-bit number and kind.
        (0..8).for_each(|i| p.read(0, 64, 100 + i));
        let sent = p.take_up();
        let before = *p.requester.counters();
        p.deliver_down(answers.iter().chain(answers.iter().rev()));
        p.poll();
        let after = *p.requester.counters();
        assert_eq!((p.done.0.len(), p.take_up().len(), p.requester.unanswered()), (0, 0, 8));
        assert_eq!(after.dropped_trailer - before.dropped_trailer, 2 * answers.len() as u64);
        assert_eq!((after.sacks, after.early), (before.sacks, before.early));
        p.deliver_up(&sent);
        p.carry_down();
        assert_eq!(p.done.0.len(), 8);
        p.assert_at_rest();
    }
}

/// After a new session has started, frames of the old one arrive again, with numbers and commands that are
/// under way in the new one. They must have no effect.
#[test]
fn frames_of_an_earlier_session_change_nothing() {
    let mut p = Pair::open();
    (1..=3).for_each(|i| p.write(0, i * 64, 1, i));
    p.read(0, 64, 4);
    let requests = p.take_up();
    for frame in [0, 2, 1, 3] {
        p.deliver_up([&requests[frame]]);
    }
    let old = p.take_down();
    assert_eq!(list(&old), [(WriteResp, 1), (SackNak, 3), (WriteResp, 2), (WriteResp, 3), (ReadResp, 4)]);
    p.deliver_down(&old);
    assert_eq!(p.done.0.len(), 4);
    p.run_with(2_500 * MS, |_| false, |_| false);
    p.run(1_000 * MS);
    assert_eq!(
        p.events(),
        [SessionEvent::Suspect, SessionEvent::Opened { incarnation: 1000, resumed: false }]
    );

    p.done.0.clear();
    (1..=3).for_each(|i| p.write(0, i * 64, 2, 10 + i));
    p.read(0, 64, 14);
    let sent = p.take_up();
    assert_eq!(list(&sent), list(&requests), "a session counts from 1");
    let (before, mn_before) = (*p.requester.counters(), p.responder.totals());
    p.deliver_down(&old);
    p.poll();
    p.deliver_up(&requests);
    assert_eq!((p.done.0.len(), p.requester.unanswered()), (0, 4));
    assert_eq!((p.take_up().len(), p.take_down().len()), (0, 0));
    assert_eq!(p.requester.counters().dropped_trailer - before.dropped_trailer, 5);
    assert_eq!(p.responder.totals().dropped_trailer - mn_before.dropped_trailer, 4);
    assert_eq!(p.memory.lines[&64], [1; 64]);
    p.deliver_up(&sent);
    p.carry_down();
    assert_eq!(p.done.0, [Done::Written(11), Done::Written(12), Done::Written(13), Done::Read(14, vec![2])]);
    p.assert_at_rest();
}
