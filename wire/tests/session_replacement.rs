//! One session after another, between two ends without a network: after silence, restarts, other instances
//! and other limits.

mod session_common;

use cxloe_wire::frame::{Command::*, HelloStatus, LINE_SIZE};
use cxloe_wire::session::{OpError, Requester, RequesterConfig, ResponderEvent, SessionEvent};
use session_common::*;

/// Makes the requester's session suspect, so that it sends a Hello. All its frames are withheld from the memory node
/// and returned.
fn suspect(p: &mut Pair) -> Vec<Vec<u8>> {
    let mut held = Vec::new();
    p.run_with(
        1_200 * MS,
        |f| {
            held.push(f.clone());
            false
        },
        |_| true,
    );
    assert_eq!(p.events(), [SessionEvent::Suspect]);
    held
}

#[test]
fn the_old_session_goes_on_until_start() {
    let mut p = Pair::open();
    p.write(0, 0, 1, 1);
    let held = suspect(&mut p);
    let hello = held.iter().rev().find(|f| code(f) == Hello).expect("a Hello").clone();
    p.deliver_up([&hello]);
    assert_eq!(codes(&p.take_down()), [HelloAck]);
    // The Hello must not have ended the session.
    p.write(0, 64, 2, 2);
    let frames: Vec<_> = held.into_iter().filter(|f| code(f) == WriteReq).chain(p.take_up()).collect();
    p.deliver_up(&frames);
    p.carry_down();
    assert_eq!(p.done.0, [Done::Written(1), Done::Written(2)]);
    // The memory node has answered after all, so the session must be kept.
    assert_eq!(p.requester.status().state, "open");
    p.run(100 * MS);
    assert_eq!(p.responder.totals().sessions, 1);
}

#[test]
fn queued_writes_of_an_old_session_are_never_executed_after_start() {
    let mut p = Pair::open();
    p.write(0, 0, 1, 1);
    let held = suspect(&mut p);
    let queued: Vec<_> = held.into_iter().filter(|f| code(f) == WriteReq).collect();
    assert!(queued.len() > 1);
    p.run(1_000 * MS);
    assert_eq!(p.done.0, [Done::Written(1)], "repeated in the new session");
    assert_eq!(p.events(), [SessionEvent::Opened { incarnation: 1000, resumed: true }]);
    p.write(0, 0, 2, 2);
    p.run(MS);
    p.deliver_up(&queued);
    assert_eq!(p.memory.lines[&0], [2; LINE_SIZE]);
    assert_eq!(p.responder.totals().dropped_trailer, queued.len() as u64);
}

#[test]
fn a_second_agent_is_refused_while_the_first_one_lives() {
    let mut p = Pair::open();
    p.mn_events();
    let mut second = Requester::new(RequesterConfig { instance: 78, seed: 44.into(), ..requester_config() });
    let mut up = Sent::default();
    second.connect(p.now);
    let end = p.now + 3_000 * MS;
    while p.now < end {
        second.poll(p.now, &mut up, &mut Log::default());
        p.deliver_up(&std::mem::take(&mut up.frames));
        let frames = p.take_down();
        // Both agents have the same address, so each receives all frames.
        for frame in &frames {
            second.handle(&mut frame.clone(), p.now, &mut up, &mut Log::default());
        }
        p.deliver_down(&frames);
        p.poll();
        p.carry_up();
        p.carry_down();
        p.pass(10 * MS);
    }
    assert_eq!(second.poll_event(), Some(refused(HelloStatus::InstanceConflict)));
    assert_eq!(second.poll_event(), None, "told once");
    let events = p.mn_events();
    assert!(!events.is_empty() && events.iter().all(|e| *e == ResponderEvent::Conflict(CN)), "{events:?}");
    assert!(p.requester.is_open());
    p.write(0, 0, 1, 1);
    p.run(MS);
    assert_eq!(p.done.0, [Done::Written(1)]);
}

#[test]
fn a_new_agent_takes_over_from_one_that_is_gone() {
    let mut p = Pair::open();
    p.mn_events();
    p.pass(100 * MS);
    p.requester = Requester::new(RequesterConfig { instance: 78, seed: 44.into(), ..requester_config() });
    p.requester.connect(p.now);
    p.run(300 * MS);
    assert!(!p.requester.is_open(), "the old one is given time to show itself");
    p.run(1_000 * MS);
    assert!(p.requester.is_open());
    assert_eq!(p.mn_events(), [ResponderEvent::Started { cn: CN, replaced: true }]);
    assert_eq!(p.responder.sessions(), 1);
}

#[test]
fn after_a_restart_with_its_memory_everything_unanswered_goes_again_in_order() {
    let mut p = Pair::open();
    p.measure();
    for i in 0..20 {
        p.write(0, 0, i as u8, i);
    }
    p.read(0, 0, 20);
    // Some requests were executed before, and some answers have already arrived, out of order.
    let frames = p.take_up();
    p.deliver_up(&frames[..10]);
    let answers = p.take_down();
    p.deliver_down(&answers[..3]);
    p.deliver_down(&answers[5..7]);
    p.memory.log.clear();
    restart(&mut p, 1000, |_| {});
    p.run(3_000 * MS);
    let log: Vec<_> = (3..20).map(|i| Executed::Write(0, i)).chain([Executed::Read(0)]).collect();
    assert_eq!(p.memory.log, log);
    let done: Vec<_> = (0..20).map(Done::Written).chain([Done::Read(20, vec![19])]).collect();
    assert_eq!(p.done.0, done);
    assert_eq!(
        p.events(),
        [SessionEvent::Suspect, SessionEvent::Opened { incarnation: 1000, resumed: true }]
    );
    p.assert_at_rest();
}

#[test]
fn after_a_restart_without_its_memory_the_loss_is_reported() {
    let mut p = Pair::open();
    p.write(0, 0, 1, 1);
    p.run(MS);
    p.done.0.clear();
    restart(&mut p, 1001, |_| {});
    p.memory.lines.clear();
    p.read(0, 0, 2);
    p.write(0, 64, 7, 3);
    p.memory.log.clear();
    p.run(3_000 * MS);
    let lost = OpError::DataLost;
    assert_eq!(p.done.0, [Done::Failed(2, lost, vec![]), Done::Failed(3, lost, vec![7])]);
    assert_eq!(p.memory.log, [], "none is repeated");
    let opened = SessionEvent::Opened { incarnation: 1001, resumed: false };
    assert_eq!(
        p.events(),
        [SessionEvent::Suspect, SessionEvent::DataLost { before: 1000, now: 1001 }, opened]
    );
    // The loss must also be reported if the session was already dead before the restart.
    p.run_with(7_000 * MS, |_| false, |_| true);
    restart(&mut p, 1002, |_| {});
    p.run(2_000 * MS);
    assert!(p.events().contains(&SessionEvent::DataLost { before: 1001, now: 1002 }));
}

#[test]
fn smaller_frames_after_a_restart_fail_only_what_does_not_fit() {
    let mut p = Pair::open();
    p.read(0, 0, 1);
    p.requester.burst_write(0, 0, 0xFFF, &[3; 12 * LINE_SIZE], 2, p.now, &mut p.up).unwrap();
    p.requester.burst_read(0, 0, 20, 3, p.now, &mut p.up).unwrap();
    p.requester.burst_read(0, 0, 2, 4, p.now, &mut p.up).unwrap();
    p.write(0, 64, 9, 5);
    p.take_up();
    restart(&mut p, 1000, |c| c.max_frame = 290);
    p.run(3_000 * MS);
    let large = OpError::FrameTooLarge;
    assert_eq!(
        p.done.0,
        [
            Done::Failed(2, large, vec![3; 12]),
            Done::Failed(3, large, vec![]),
            Done::Read(1, vec![0]),
            Done::Read(4, vec![0, 0]),
            Done::Written(5)
        ]
    );
    assert_eq!((p.requester.burst_read_lines_max(), p.requester.burst_write_lines_max()), (4, 3));
    p.assert_at_rest();
    // The memory node restarts with its former limit, so the new session must have longer frames than the last one.
    p.requester.read(0, 0, 6, p.now, &mut p.up).unwrap();
    p.take_up();
    restart(&mut p, 1000, |_| {});
    p.run(3_000 * MS);
    assert_eq!((p.requester.burst_read_lines_max(), p.done.0.last()), (23, Some(&Done::Read(6, vec![0]))));
}

#[test]
fn another_number_of_streams_after_a_restart() {
    let mut p = Pair::open();
    p.read(1, 0, 1);
    p.take_up();
    for (streams, answer) in
        [(1, Done::Failed(1, OpError::FrameTooLarge, vec![])), (16, Done::Read(2, vec![0]))]
    {
        restart(&mut p, 1000, |c| c.streams_max = streams);
        p.run(7_500 * MS);
        assert!(p.requester.is_open());
        assert_eq!(p.requester.streams(), usize::from(streams.min(2)));
        p.read(1, 0, 2);
        p.run(MS);
        assert!(p.done.0.contains(&answer), "{:?}", p.done.0);
    }
    p.assert_at_rest();
}

/// If the MTU shrinks at either end, unanswered requests must move to a session with shorter frames.
#[test]
fn a_link_of_another_length_is_followed() {
    for at_mn in [false, true] {
        let mut p = Pair::open();
        let lines = p.requester.burst_read_lines_max();
        p.write(0, 0, 1, 1);
        if at_mn {
            p.responder.set_max_frame(400);
            assert_eq!(p.responder.dismiss_outgrown(&mut p.down), 1);
        } else {
            p.requester.set_max_frame(400, p.now);
        }
        p.run(200 * MS);
        assert!(p.requester.is_open());
        assert!(p.requester.burst_read_lines_max() < lines, "at_mn {at_mn}");
        assert_eq!(p.done.0, [Done::Written(1)]);
        assert_eq!(p.responder.dismiss_outgrown(&mut p.down), 0);
        assert_eq!((p.responder.sessions(), p.responder.totals().sessions), (1, 2));
        if !at_mn {
            // The MTU grows again. Frames must stay within the length that the buffers were allocated for.
            p.requester.set_max_frame(9_000, p.now);
            p.run(200 * MS);
            assert_eq!(p.requester.burst_read_lines_max(), lines);
        }
    }
}

/// An unanswered Start must be given up, and the old session used until there is a new one.
#[test]
fn a_start_without_answer_is_given_up() {
    let mut p = Pair::open();
    p.write(0, 0, 1, 1);
    suspect(&mut p);
    let mut sent = Vec::new();
    let mut up = |f: &Vec<u8>| {
        sent.push(code(f));
        code(f) != Start
    };
    p.run_with(200 * MS, &mut up, |_| true);
    let first = sent.iter().position(|c| *c == Start).expect("a Start");
    assert!(sent.len() - first >= 3 && sent[first..].iter().all(|c| *c == Start), "nothing else: {sent:?}");
    assert!(!p.requester.is_open());
    p.run_with(1_500 * MS, |f| code(f) != Start, |_| true);
    assert_eq!(p.done.0, [Done::Written(1)], "in the old session, in between");
    assert_eq!(p.responder.totals().sessions, 1);
    p.write(0, 64, 2, 2);
    p.run(1_000 * MS);
    assert_eq!(p.done.0.len(), 2);
}
